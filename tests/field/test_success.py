"""A success is earned by what the server holds, and of two processes of one worker one goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import tiny_spec
from tests.field.conftest import StartLight, first_block
from worker.agent import DEVICE_IN_USE

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
        assert block["cause_text"] == f"{LIES[mode]} (already requeued 1 times for this cause)"


def test_second_process_of_a_worker_takes_over_and_the_first_ends(
    server: LiveServer, light_worker: StartLight, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        device = "cpu:fieldhost:0"
        first = light_worker(server.url, "wait_in_round", device=device)
        experiment_id = client.submit(tiny_spec())["id"]
        first.note("stage")
        light_worker(server.url, device=device, LOCKSTEP_LOCK_DIR=str(tmp_path / "other-locks"))
        assert first.process.wait(timeout=240) == DEVICE_IN_USE, first.log.read_text()
        assert "a newer process of worker" in first.log.read_text()
        wait_until(lambda: client.show(experiment_id)["status"] == "succeeded", what="success on the second")
        assert first_block(client, experiment_id)["attempt"] == 2
        assert len(client.call("GET", "workers")["items"]) == 1
