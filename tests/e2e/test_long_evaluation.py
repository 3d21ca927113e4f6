"""An evaluation that takes minutes: how far it is can be read, and a cancel does not wait for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.people import app as command
from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.field.conftest import block_status
from tests.worker.train.cases import GYM_ARMS, GYM_BOX

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]

_ENDLESS = {
    **GYM_BOX,
    "experiment": {"name": "long", "replicates": 1},
    "env": {**GYM_BOX["env"], "kwargs": {"max_episode_steps": 100_000}},
    "eval": {"episodes": 8, "every_rounds": 1},
    "arms": GYM_ARMS,
    "analysis": {"inference": "none", "primary": {"metric": "eval/native_return_mean"}, "failure": {"floor": -2000.0}},
}


def test_long_evaluation_shows_how_far_it_is_and_ends_at_once_when_cancelled(
    make_server: Callable[..., LiveServer],
    sqlite_template: Path,
    tmp_path: Path,
    start_worker: Callable[..., WorkerProcess],
) -> None:
    shutil.copy(sqlite_template, tmp_path / "lockstep.db")
    server = make_server(f"sqlite:///{tmp_path / 'lockstep.db'}", grace_seconds=60.0)
    with Client(server.url) as client:
        experiment_id = client.submit(_ENDLESS)["id"]
        start_worker(server.url)
        wait_until(lambda: client.show(experiment_id)["evaluating"], what="the evaluation")
        far = client.show(experiment_id)["evaluating"]
        assert (far["over"], far["episodes"], far["max_steps"]) == (0, 16, 100_000)
        assert 0 < far["steps"] < 100_000
        shown = CliRunner().invoke(command, ["show", experiment_id], env={"LOCKSTEP_URL": server.url}).stdout
        assert "evaluating replicate 0: 0 of 16 episodes are over after" in shown
        client.steer(experiment_id, "cancel", "enough")
        # a heartbeat until it is heard, a step until it is seen, and the end of the process: far less than its grace
        wait_until(lambda: block_status(client, experiment_id) == "cancelled", timeout=45, what="cancelled")
        assert client.show(experiment_id)["evaluating"] is None
