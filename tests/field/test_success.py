"""A success is earned by what the server holds, and of two processes of one worker one keeps the device."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import tiny_spec
from tests.field.conftest import LightWorker, StartLight, first_block
from worker.supervision.agent import DEVICE_IN_USE

pytestmark = pytest.mark.server

#: How a trainer ends that has not trained to the end, and the last line of what is said of it.
LIES = {
    "done_early": "the trainer said that it is done, but the last round held is 0; the last one planned is 2",
    "no_final": "the trainer said that it is done, but the checkpoint after the last round, 2, is not stored",
    "exit_early": "the training process ended without a word: exit code 0",
}


@pytest.mark.parametrize("mode", LIES)
def test_trainer_that_ends_too_early_is_a_bug_tried_once_more(
    server: LiveServer, light_worker: StartLight, mode: str
) -> None:
    with Client(server.url) as client:
        worker = light_worker(server.url, mode)
        experiment_id = client.submit(tiny_spec(budget={"rounds": 3}))["id"]
        wait_until(lambda: client.show(experiment_id)["status"] in ("succeeded", "failed"), what="the end")
        block = first_block(client, experiment_id)
        assert (block["status"], block["cause"], block["attempt"]) == ("failed", "bug", 2), worker.log.read_text()
        assert block["cause_text"] == f"{LIES[mode]} (already requeued once for this cause)"


def test_trainer_that_takes_its_time_to_leave_has_lost_no_lease(server: LiveServer, light_worker: StartLight) -> None:
    with Client(server.url) as client:
        worker = light_worker(server.url, "lingers")
        experiment_id = client.submit(tiny_spec(experiment={"replicates": 1}, budget={"rounds": 1}))["id"]
        assert worker.note("went") == "by itself"
        wait_until(lambda: "ended" in worker.log.read_text(), what="the end of the assignment")
        assert client.show(experiment_id)["status"] == "succeeded"
        assert "lease_lost" not in worker.log.read_text()


def test_of_two_processes_of_a_worker_that_are_started_again_and_again_one_keeps_the_device(
    make_server: Callable[..., LiveServer], database_url: str, light_worker: StartLight, tmp_path: Path
) -> None:
    # three missed beats cost the device: on a busy machine a process may be silent for some seconds
    server = make_server(database_url, lease_ttl_seconds=12.0, heartbeat_seconds=1.2)

    def start(host: str, mode: str = "plain") -> LightWorker:
        # two hosts of one name: neither sees the lock of the other
        locks = str(tmp_path / f"locks-{host}")
        return light_worker(server.url, mode, device="cpu:fieldhost:0", LOCKSTEP_LOCK_DIR=locks)

    def is_turned_away(worker: LightWorker) -> bool:
        ended = worker.process.wait(timeout=60) == DEVICE_IN_USE
        return ended and "run one worker on a device" in worker.log.read_text()

    with Client(server.url) as client:
        first = start("one", "wait_in_round")
        experiment_id = client.submit(tiny_spec())["id"]
        first.note("stage")
        assert is_turned_away(start("two"))
        assert is_turned_away(start("two"))
        assert (first.process.poll(), first_block(client, experiment_id)["attempt"]) == (None, 1)
        pid = first.process.pid
        trainer = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        first.end()  # without a word: now it is silent
        os.kill(trainer, signal.SIGKILL)
        heir = start("two")
        wait_until(lambda: client.show(experiment_id)["status"] == "succeeded", what="success on the second")
        assert is_turned_away(start("one"))
        assert (heir.process.poll(), first_block(client, experiment_id)["attempt"]) == (None, 2)
        assert len(client.call("GET", "workers")["items"]) == 1
