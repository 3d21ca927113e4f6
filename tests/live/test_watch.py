"""What `lockstep watch` tells of arms that diverge: as it happens, and at the end."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from app.cli.people import app as command
from app.cli.watching import Board
from lockstep.client import Client
from tests.conftest import LiveServer
from tests.live.test_protocol import running

pytestmark = pytest.mark.server


def test_diverged_arm_is_told_when_it_diverges_and_at_the_end(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx, budget={"rounds": 2})
    lines: list[str] = []
    with Client(server.url) as client:
        board = Board(client.show(experiment_id), time.monotonic)
        for frame in client.watch(experiment_id):
            lines += board.lines(frame)
            if frame["type"] == "snapshot":
                worker.hand_in(0, diverged=["B"])
                rest = [run for run in worker.held.runs if run.arm == "A"]
                worker.assignment = worker.held.model_copy(update={"runs": rest})
                worker.hand_in(1)
                worker.checkpoint(2)
                worker.release()
    assert "arm B diverged in replicate 0: NaN in the policy" in lines
    told = CliRunner().invoke(command, ["watch", experiment_id], env={"LOCKSTEP_URL": server.url})
    assert told.exit_code == 0, told.output  # an outcome of the arm: the experiment has succeeded
    assert "diverged: arm B in replicate 0: NaN in the policy" in told.stdout.splitlines()
