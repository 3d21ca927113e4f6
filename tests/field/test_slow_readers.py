"""Field lesson L51: who reads slowly holds nothing that others need."""

from __future__ import annotations

import logging
import queue
import socket
import time
from logging.handlers import QueueHandler

import httpx
import pytest

from app.routes import exports
from tests.conftest import LiveServer, wait_until
from tests.field.conftest import SOAK
from tests.slow_readers import FORMS, held_files, long_experiment, stalled

READERS = 100 if SOAK else 10
ROWS = 40_000 if SOAK else 1_500


def keep_no_more_than_a_page(server: LiveServer) -> None:
    for listener in server.server.servers[0].sockets:  # else the kernel holds megabytes of each answer
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)


@pytest.mark.server
def test_l51_stalled_readers_of_exports_hold_no_session_and_leave_nothing(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_STALL_SECONDS", 600.0)
    keep_no_more_than_a_page(server)
    experiment_id = long_experiment(server.ctx, ROWS)
    store = server.ctx.store
    incoming = server.ctx.files.incoming
    with (
        httpx.Client(base_url=server.url, timeout=30) as http,
        stalled(server.url, experiment_id, FORMS, READERS),
    ):
        wait_until(lambda: not any(store.in_use().values()), timeout=60, what="no session held")
        # else they have all that they asked for, or were left
        assert len(server.server.server_state.tasks) == READERS * len(FORMS)
        assert len(FORMS) <= len(held_files(incoming)) <= READERS * len(FORMS)
        spent = []
        for _ in range(100):
            began = time.perf_counter()
            assert http.get("/api/v1/experiments").status_code == 200
            spent.append(time.perf_counter() - began)
        assert not SOAK or sorted(spent)[98] < 0.25
        assert http.get("/readyz").status_code == 200
    wait_until(lambda: not held_files(incoming), timeout=60, what="no file left")
    wait_until(lambda: not any(store.in_use().values()), timeout=60, what="no session left")


@pytest.mark.server
def test_a_reader_that_takes_nothing_is_left_and_no_error_of_ours(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_STALL_SECONDS", 0.2)
    keep_no_more_than_a_page(server)
    for listener in server.server.servers[0].sockets:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
    experiment_id = long_experiment(server.ctx, ROWS)
    told: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = QueueHandler(told)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    with stalled(server.url, experiment_id, ("csv",), 1):
        wait_until(lambda: not held_files(server.ctx.files.incoming), timeout=60, what="no file left")
        held = server.server.server_state.connections
        wait_until(lambda: not held, timeout=60, what="its connection ended, though it takes nothing,")
    logger.removeHandler(handler)
    assert told.empty()
