"""A supervisor that is told to stop before it trains anything leaves nothing behind (decision 51)."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.factories import tiny_spec
from tests.field.conftest import StartLight, first_block
from tests.packages import write_package

#: Far beyond the time that a test takes: whoever waits for it fails.
LONG = {"lease_ttl_seconds": 2400.0, "heartbeat_seconds": 600.0}
pytestmark = pytest.mark.server


class LossyProxy:
    """Passes connections on to a server; while ``deaf``, it sends no answer back and hangs up."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.deaf = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()
            threading.Thread(target=self._pass_back, args=(server, client), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := source.recv(65536):
                target.sendall(chunk)
        except OSError:
            pass

    def _pass_back(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := source.recv(65536):
                if self.deaf.is_set():
                    break
                target.sendall(chunk)
        except OSError:
            pass
        for end in (source, target):  # closing alone would not reach the other thread's recv
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def proxy(make_server: Callable[..., LiveServer], database_url: str) -> Iterator[tuple[LossyProxy, str]]:
    """A lossy proxy and the address of the server behind it."""
    server = make_server(database_url, **LONG)
    made = LossyProxy(server.url)
    yield made, server.url
    made.close()


def listed(client: Client) -> list[dict[str, Any]]:
    """Return the workers that have not retired."""
    items: list[dict[str, Any]] = client.call("GET", "workers")["items"]
    return items


def test_worker_whose_registration_was_never_answered_says_goodbye(
    proxy: tuple[LossyProxy, str], light_worker: StartLight
) -> None:
    lossy, address = proxy
    lossy.deaf.set()
    worker = light_worker(lossy.url)
    with Client(address) as client:
        found = wait_until(lambda: listed(client), what="the registration")
        assert [row["status"] for row in found] == ["starting"]
        lossy.deaf.clear()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(timeout=60) == 0
        assert listed(client) == []


def test_worker_stopped_while_it_claims_says_goodbye_at_once(
    make_server: Callable[..., LiveServer], database_url: str, light_worker: StartLight
) -> None:
    server = make_server(database_url, **LONG)
    worker = light_worker(server.url)
    with Client(server.url) as client:
        wait_until(lambda: [row["status"] for row in listed(client)] == ["idle"], what="an idle worker")
        time.sleep(0.05)
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: listed(client) == [], timeout=LONG["heartbeat_seconds"] / 10, what="the goodbye")
        assert worker.process.wait(timeout=60) == 0
        experiment_id = client.submit(tiny_spec())["id"]  # nothing is given to it any more
        time.sleep(0.05)
        assert first_block(client, experiment_id)["attempt"] == 0


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_worker_stopped_before_it_knows_what_it_can_train_does_not_register(
    make_server: Callable[..., LiveServer],
    database_url: str,
    start_worker: Callable[..., WorkerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_package(
        tmp_path / "site", "lasting", "import time\ntime.sleep(600)\n", "[lockstep.rewards]\nx = lasting_code:x\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    server = make_server(database_url, **LONG)
    worker = start_worker(server.url)
    wait_until(lambda: b"worker on cpu" in worker.log.read_bytes(), timeout=60, what="the first line")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=50) == 0  # sooner than it knows
    with Client(server.url) as client:
        assert client.call("GET", "workers", params={"retired": True})["items"] == []
