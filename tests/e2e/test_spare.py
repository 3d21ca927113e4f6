"""The spare of the built-in trainer: equal numbers, and no process that outlives its supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.e2e.following import follow
from tests.e2e.numbers import numbers_of
from tests.e2e.test_kills import child_of
from tests.factories import tiny_spec
from worker.standby import WAITING_NAME, is_idle_spare
from worker.supervisor import descendants

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
SPEC = tiny_spec(experiment={"replicates": 2}, budget={"rounds": 3}, env={"horizon": 12})


def spares_of(worker: WorkerProcess) -> list[int]:
    return [pid for pid in descendants(worker.process.pid) if is_idle_spare(pid)]


def rehearsals(frames: list[dict[str, Any]]) -> list[bool]:
    """Whether each block rehearsed, in the order of their starts: the first of an experiment on a worker does."""
    events = [frame["event"] for frame in frames if frame["type"] == "event"]
    return [event["payload"]["rehearsed"] for event in events if event["type"] == "warmup_completed"]


def has_imported(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == WAITING_NAME


def test_block_trained_by_a_spare_equals_one_trained_by_a_fresh_process(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    url, ctx = sqlite_server.url, sqlite_server.ctx
    with Client(url) as client:
        fresh = client.submit(SPEC)["id"]
        worker = start_worker(url, "--no-spare")
        assert rehearsals(follow(url, fresh)) == [True, False]
        assert spares_of(worker) == []
        worker.end()
        with_spare = client.submit(SPEC)["id"]
        worker = start_worker(url)
        (spare,) = wait_until(lambda: spares_of(worker), what="a spare")
        first = child_of(worker)
        assert first not in (None, spare)
        wait_until(lambda: not Path(f"/proc/{first}").exists(), what="the end of the first block's process")
        assert wait_until(lambda: child_of(worker), what="the second block's process") == spare
        follow(url, with_spare)
        assert numbers_of(client, ctx, with_spare) == numbers_of(client, ctx, fresh)


def test_sigterm_ends_an_idle_spare_and_costs_no_attempt(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    with Client(sqlite_server.url) as client:
        worker = start_worker(sqlite_server.url)
        experiment = client.submit(tiny_spec(experiment={"replicates": 2}, budget={"rounds": 25}))["id"]
        (spare,) = wait_until(lambda: spares_of(worker), what="a spare")
        wait_until(lambda: has_imported(spare), what="its imports")
        os.kill(spare, signal.SIGTERM)
        wait_until(lambda: spare not in descendants(worker.process.pid), what="the end of the spare")
        follow(sqlite_server.url, experiment)
        blocks = client.call("GET", f"experiments/{experiment}/blocks")["items"]
        assert [(block["status"], block["attempt"]) for block in blocks] == [("succeeded", 1)] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["sigterm", "sigkill"])
def test_no_spare_outlives_its_supervisor(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess], number: signal.Signals
) -> None:
    with Client(sqlite_server.url) as client:
        worker = start_worker(sqlite_server.url)
        client.submit(tiny_spec(budget={"rounds": 50}))
        (spare,) = wait_until(lambda: spares_of(worker), what="a spare")
        wait_until(lambda: has_imported(spare), what="its imports")
        worker.process.send_signal(number)
        worker.process.wait(timeout=60)
        wait_until(lambda: not Path(f"/proc/{spare}").exists(), timeout=10, what="the end of the spare")
