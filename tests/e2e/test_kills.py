"""kill -9 in mid-block: the experiment completes and every number equals an undisturbed run's."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.e2e.following import follow
from tests.e2e.numbers import numbers_of
from tests.factories import tiny_spec
from worker.supervision.starter import SERVER_NAME, TRAINING_NAME
from worker.supervision.supervisor import descendants

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
ROUNDS = 9


def named(worker: WorkerProcess, name: str) -> int | None:
    """Return the pid of what a supervisor has started under a name."""
    for pid in descendants(worker.process.pid):
        with contextlib.suppress(FileNotFoundError):  # one that ends just now
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return pid
    return None


def runs(pid: int) -> bool:
    """Return whether a process runs; one that has ended may wait for ever to be asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def child_of(worker: WorkerProcess) -> int | None:
    """Return the pid of the training process of a supervisor."""
    return named(worker, TRAINING_NAME)


def rounds_done(client: Client, experiment_id: str) -> int:
    return min(int(run["rounds_done"]) for run in client.runs(experiment_id))


def test_kill_of_child_and_supervisor_loses_doubles_and_mixes_no_round(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    url = sqlite_server.url
    spec = tiny_spec(budget={"rounds": ROUNDS}, eval={"every_rounds": 3}, env={"horizon": 12})
    with Client(url) as client:
        worker = start_worker(url)
        quiet = client.submit(spec)["id"]
        follow(url, quiet)
        disturbed = client.submit(spec)["id"]
        # the second round comes after the checkpoint of the first
        wait_until(lambda: rounds_done(client, disturbed) >= 2, what="two rounds")
        pid = child_of(worker)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: client.runs(disturbed)[0]["resumed"] == 1, what="the resume after the child's death")
        resumed_at = rounds_done(client, disturbed)
        assert resumed_at >= 1
        wait_until(lambda: rounds_done(client, disturbed) > resumed_at, what="a round after the resume")
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        start_worker(url)
        frames = follow(url, disturbed)
        runs = client.runs(disturbed)
        assert frames[-1]["status"] == "succeeded"
        assert [run["resumed"] for run in runs] == [2, 2]
        assert numbers_of(client, sqlite_server.ctx, disturbed) == numbers_of(client, sqlite_server.ctx, quiet)
        digests = numbers_of(client, sqlite_server.ctx, disturbed)["A", 0][0]
        assert sorted(digests) == list(range(ROUNDS))


def test_neither_training_nor_fork_server_outlives_a_killed_supervisor(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    with Client(sqlite_server.url) as client:
        worker = start_worker(sqlite_server.url)
        client.submit(tiny_spec(budget={"rounds": 50}))
        pids = [wait_until(lambda: child_of(worker), what="the child"), named(worker, SERVER_NAME)]
        assert None not in pids
        worker.process.kill()
        worker.process.wait()
        wait_until(lambda: not any(runs(int(pid or 0)) for pid in pids), what="the end of both")
