"""A replicate that hangs or brings its process down is blamed alone; those packed with it cost no budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.e2e.following import follow
from tests.e2e.numbers import numbers_of
from tests.field.conftest import STEADY, timeline
from tests.field.test_blame import GYM, ROOT, spec

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]

#: CartPole in which the first step that finds a file takes it away and hangs, or ends the process.
CODE = """
import os, pathlib, time
import gymnasium

class Trapped(gymnasium.Wrapper):
    def __init__(self, trap):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.trap = pathlib.Path(trap)
        self.steps = 0

    def step(self, action):
        self.steps += 1
        # after three rounds slowly until the trap is set: else all of them may be over before it is
        time.sleep(0.002 if self.steps < 24 or self.trap.with_name("set").exists() else 0.05)
        if self.trap.exists():
            does = self.trap.read_text()
            self.trap.unlink()
            os._exit(3) if does == "die" else time.sleep(600)
        return self.env.step(action)
"""


def install(site: Path) -> None:
    facts = site / "trapped-1.0.dist-info"
    facts.mkdir(parents=True)
    (site / "trapped_env.py").write_text(CODE)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: trapped\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[lockstep.environments]\ntrapped = trapped_env:Trapped\n")


def causes(client: Client, experiment_id: str) -> list[tuple[int, str]]:
    """Return replicate and account of every return to the queue."""
    events = [event for event in timeline(client, experiment_id) if event["type"] == "block_status"]
    return [(event["replicate"], event["text"]) for event in events if "back in the queue" in event["text"]]


@pytest.mark.parametrize(("trap", "cause"), [("hang", "environment"), ("die", "bug")])
def test_only_the_replicate_that_took_its_process_down_is_blamed(
    make_server: Callable[..., LiveServer],
    start_worker: Callable[..., WorkerProcess],
    monkeypatch: pytest.MonkeyPatch,
    sqlite_template: Path,
    tmp_path: Path,
    trap: str,
    cause: str,
) -> None:
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))
    (tmp_path / "lockstep.db").write_bytes(sqlite_template.read_bytes())
    limits = {"stall_after_seconds": 4.0, "stall_kill_seconds": 8.0}
    server = make_server(f"sqlite:///{tmp_path / 'lockstep.db'}", **STEADY, **limits)
    start_worker(server.url)
    changes: dict[str, Any] = {"budget": {"rounds": 12}, "env": {**GYM["env"], "id": "trapped"}}
    changes["env"]["kwargs"] = {"trap": str(tmp_path / "trap")}
    with Client(server.url) as client:
        wait_until(client.workers, what="the worker")
        experiment_id = client.submit(spec("trapped", 3, **changes, lockstep={"pack": 3}))["id"]
        wait_until(lambda: min(run["rounds_done"] for run in client.runs(experiment_id)) >= 2, what="rounds")
        (tmp_path / "new").write_text(trap)
        (tmp_path / "new").rename(tmp_path / "trap")
        (tmp_path / "set").touch()
        status = follow(server.url, experiment_id)[-1]["status"]
        told = causes(client, experiment_id)
        assert status == "succeeded", told
        blamed = [replicate for replicate, text in told if f"after {cause}" in text]
        spared = [replicate for replicate, text in told if "after preempted: its process" in text]
        assert len(blamed) == 1
        assert sorted(blamed + spared) == [0, 1, 2]
        assert len(told) == 3
        undisturbed = client.submit(spec("trapped", 3, **changes, lockstep={"pack": 3}))["id"]
        follow(server.url, undisturbed)
        found, whole = (numbers_of(client, server.ctx, name) for name in (experiment_id, undisturbed))
        assert found == whole
