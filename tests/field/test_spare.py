"""The spare training process: it trains the next block, and neither its end nor another's leaves a trace. No torch."""

from __future__ import annotations

import os
import signal

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import tiny_spec
from tests.field.conftest import LightWorker, StartLight, block_status, is_running, timeline

pytestmark = pytest.mark.server
SPARE = {"LIGHT_SPARE": "1"}


def submit_two(client: Client, **changes: object) -> str:
    return str(client.submit(tiny_spec(experiment={"replicates": 2}, budget={"rounds": 3}, **changes))["id"])


def wait_for_success(client: Client, experiment_id: str) -> None:
    """Wait for the end; no block may have needed a second attempt."""
    wait_until(lambda: client.call("GET", f"experiments/{experiment_id}")["status"] == "succeeded", what="the end")
    assert [event for event in timeline(client, experiment_id) if event["status"] == "stopping"] == []


def spare_during_first_block(client: Client, experiment_id: str, worker: LightWorker) -> int:
    pid = int(worker.note("spare"))
    assert block_status(client, experiment_id) in ("reserved", "running")
    return pid


def test_second_block_is_trained_by_the_process_that_waited_during_the_first(
    sqlite_server: LiveServer, light_worker: StartLight
) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = submit_two(client)
        worker = light_worker(sqlite_server.url, seconds=0.5, **SPARE)
        spare = spare_during_first_block(client, experiment_id, worker)
        wait_for_success(client, experiment_id)
        assert int(worker.note("trains-1")) == spare != int(worker.note("trains-0"))
        run = next(run for run in client.runs(experiment_id) if run["replicate"] == 1)
        logs = client.call("GET", f"runs/{run['id']}/logs", params={"limit": 100})["items"]
        assert f"spare {spare} waits" in [line["text"] for line in logs]


def test_another_trainer_has_no_spare(sqlite_server: LiveServer, light_worker: StartLight) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = submit_two(client)
        worker = light_worker(sqlite_server.url)
        wait_for_success(client, experiment_id)
        assert not (worker.notes / "spare").exists()


def test_kill_of_an_idle_spare_costs_no_attempt(sqlite_server: LiveServer, light_worker: StartLight) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = submit_two(client)
        worker = light_worker(sqlite_server.url, seconds=0.5, **SPARE)
        spare = spare_during_first_block(client, experiment_id, worker)
        os.kill(spare, signal.SIGKILL)
        wait_for_success(client, experiment_id)
        assert int(worker.note("trains-1")) != spare


def test_spare_that_ends_on_its_assignment_is_replaced_within_the_attempt(
    sqlite_server: LiveServer, light_worker: StartLight
) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = submit_two(client)
        worker = light_worker(sqlite_server.url, "spare_ends", **SPARE)
        wait_for_success(client, experiment_id)
        assert int(worker.note("ended")) != int(worker.note("trains-1"))


def test_cancel_kills_detached_descendants_but_not_the_spare_which_ends_with_the_worker(
    sqlite_server: LiveServer, light_worker: StartLight
) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 5}, lockstep={"grace_seconds": 1.0}))["id"]
        worker = light_worker(sqlite_server.url, "family", **SPARE)
        family, spare = worker.pids(), int(worker.note("spare"))
        client.call("POST", f"experiments/{experiment_id}/cancel")
        wait_until(lambda: not any(is_running(pid) for pid in family), timeout=11.0, what="the end of the family")
        wait_until(lambda: client.call("GET", "workers")["items"][0]["status"] == "idle", what="the device")
        assert is_running(spare)
        worker.process.terminate()
        assert worker.process.wait(timeout=30) == 0
        assert not is_running(spare)
