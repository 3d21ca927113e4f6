"""Field lesson L52: a job that cannot run costs its own experiment, never the device. A real server and worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Client
from lockstep.spec.presets import merge
from tests.conftest import LiveServer, WorkerProcess, wait_until

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
ROOT = Path(__file__).parents[2]
GYM: dict[str, Any] = {
    "preset": "gym_classic",
    "budget": {"rounds": 1},
    "env": {"kind": "gymnasium", "id": "CartPole-v1", "n_envs": 2, "rollout_steps": 8},
    "net": {"hidden": 8},
    "ppo": {"minibatches": 1},
    "eval": {"episodes": 1},
    "arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e-3}}],
    "analysis": {"primary": "eval/native_return_mean", "sesoi": 2.0, "inference": "none", "failure": {"floor": 0.0}},
}
CODE = """
import gymnasium

def moody(**kwargs):
    env = gymnasium.make("CartPole-v1").unwrapped
    env.step = lambda action: {}["velocity"]
    return env
"""


def install(site: Path) -> None:
    """Two packages: one whose environment raises in step, and one that cannot be imported."""
    site.mkdir()
    (site / "moody_env.py").write_text(CODE)
    (site / "broken_package.py").write_text("raise SystemExit('no licence')\n")
    packages = {
        "moody": "[lockstep.environments]\nmoody = moody_env:moody\n",
        "broken": "[lockstep.rewards]\nbroken = broken_package:none\n",
    }
    for name, points in packages.items():
        facts = site / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(points)


def spec(name: str, **changes: Any) -> dict[str, Any]:
    return merge(GYM, {"experiment": {"name": name, "replicates": 2}, **changes})


def test_l52_two_bad_experiments_fail_with_their_cause_and_a_good_one_succeeds(
    sqlite_server: LiveServer,
    start_worker: Callable[..., WorkerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))
    worker = start_worker(sqlite_server.url)
    with Client(sqlite_server.url) as client:
        wait_until(lambda: client.call("GET", "workers")["items"], what=f"a worker ({worker.log})")
        misspelt = client.submit(spec("misspelt", env={"kwargs": {"lenght": 3}}))["id"]
        raising = client.submit(spec("raising", env={"id": "moody"}))["id"]
        good = client.submit(spec("good"))["id"]
        ids = (misspelt, raising, good)
        ends = ("succeeded", "failed", "partial", "cancelled")
        wait_until(lambda: all(client.show(i)["status"] in ends for i in ids), timeout=120, what="three ends")
        assert [client.show(i)["status"] for i in ids] == ["failed", "failed", "succeeded"], worker.log.read_text()
        causes = []
        for experiment_id in (misspelt, raising):
            first, second = client.call("GET", f"experiments/{experiment_id}/blocks")["items"]
            causes.append((first["cause"], second["cause"], first["attempt"], second["attempt"]))
            assert second["cause_text"].startswith("same cause as replicate 0: ")
        assert causes[0] == ("config", "config", 1, 0)
        assert causes[1][:3] == ("environment", "environment", 2)
        told = client.call("GET", f"experiments/{misspelt}/blocks")["items"][0]["cause_text"]
        assert "lenght" in told
        assert "TypeError" in told
        told = client.call("GET", f"experiments/{raising}/blocks")["items"][0]["cause_text"]
        assert "KeyError: 'velocity'" in told
        assert "moody" in told
        [shown] = client.call("GET", "workers")["items"]
        assert shown["status"] in ("idle", "cleaning")
