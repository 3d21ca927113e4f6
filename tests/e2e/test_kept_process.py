"""A training process goes on to the next block of its experiment: equal numbers, a log for each, and an end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.e2e.following import follow
from tests.e2e.numbers import numbers_of
from tests.e2e.test_kills import child_of, runs
from tests.factories import tiny_spec

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]


def pids_of(worker: WorkerProcess) -> list[int]:
    """Return the process of every block that a worker has begun, in order."""
    lines = [line for line in worker.log.read_text().splitlines() if '"started"' in line]
    return [json.loads(line)["pid"] for line in lines]


def test_a_process_trains_one_block_after_another_as_one_process_each_would(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    spec = tiny_spec(experiment={"replicates": 2})
    with Client(sqlite_server.url) as client:
        worker = start_worker(sqlite_server.url)
        kept = client.submit(spec)["id"]
        assert follow(sqlite_server.url, kept)[-1]["status"] == "succeeded"
        assert len(pids_of(worker)) == 2
        assert len(set(pids_of(worker))) == 1

        other = client.submit(tiny_spec(experiment={"replicates": 2}))["id"]  # alike, but another experiment
        wait_until(lambda: len(pids_of(worker)) > 2, what="its first block")
        first = pids_of(worker)[0]
        assert not runs(first), "a process trains blocks of one experiment alone"
        for blocks in (3, 4):  # each process is killed as soon as it has a block
            wait_until(lambda: len(pids_of(worker)) >= blocks, what="the next process")  # noqa: B023 - called at once
            os.kill(pids_of(worker)[-1], signal.SIGKILL)
        assert follow(sqlite_server.url, other)[-1]["status"] == "succeeded"
        assert numbers_of(client, sqlite_server.ctx, other) == numbers_of(client, sqlite_server.ctx, kept)
        for run in client.runs(kept):
            lines = client.call("GET", f"runs/{run['id']}/logs")["items"]
            assert not [line for line in lines if "\x1e" in line["text"]]
        waiting = child_of(worker)
        assert waiting is not None
        worker.process.terminate()
        wait_until(lambda: not runs(waiting), timeout=60, what="the end of the process that was free")
