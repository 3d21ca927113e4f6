"""Field lessons L52 and L54: a job that cannot run costs its own experiment, never the device; slow is no hang.

A real server and worker.
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.admin import app as admin
from app.cli.text import plan_text
from lockstep import plugins
from lockstep.client import ApiError, Client
from lockstep.report.rendering.tables import fact_items
from lockstep.spec.presets import merge
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.factories import SimulatedWorker
from tests.field.conftest import STEADY, first_block
from tests.packages import write_package
from worker import capabilities

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
ROOT = Path(__file__).parents[2]
GYM: dict[str, Any] = {
    "preset": "gym_classic",
    "budget": {"rounds": 1},
    "env": {"kind": "gymnasium", "id": "CartPole-v1", "n_envs": 2, "rollout_steps": 8},
    "net": {"hidden": 8},
    "ppo": {"minibatches": 1},
    "eval": {"episodes": 1},
    "lockstep": {"grace_seconds": 1},
    "arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e-3}}],
    "analysis": {"primary": "eval/native_return_mean", "sesoi": 2.0, "inference": "none", "failure": {"floor": 0.0}},
}
CODE = """
import time

import gymnasium

def picky(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)

def moody(**kwargs):
    env = gymnasium.make("CartPole-v1").unwrapped
    env.step = lambda action: {}["velocity"]
    return env

class Hanging(gymnasium.Wrapper):
    # CartPole that hangs where it is told to: while it is built, or in a step of an evaluation episode
    def __init__(self, where):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.where, self.steps = where, 0
        if where == "built":
            hang()

    def reset(self, **kwargs):
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action):
        self.steps += 1
        if self.where == "evaluation" and self.steps == 12:  # a round ends after eight
            hang()
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, False, self.steps >= 20, info

class Slow(gymnasium.Wrapper):
    # CartPole with steps of 50 ms, which pay 1 for ever
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)

    def step(self, action):
        time.sleep(0.05)
        observation, _, _, _, info = self.env.step(action)
        return observation, 1.0, False, False, info

def hang():
    while True:
        time.sleep(60)
"""


def install(site: Path) -> None:
    """Packages: one with environments that raise or hang, and some that cannot be imported or print."""
    site.mkdir()
    (site / "moody_env.py").write_text(CODE)
    (site / "broken_package.py").write_text("raise SystemExit('no licence')\n")
    (site / "dying_package.py").write_text("import os\nprint('a banner', flush=True)\nos._exit(7)\n")
    (site / "loud_package.py").write_text(
        "print('a banner', flush=True)\nimport gymnasium\nloud = lambda: gymnasium.make('CartPole-v1')\n"
    )
    packages = {
        "moody": "[lockstep.environments]\nmoody = moody_env:moody\npicky = moody_env:picky\n"
        "hanging = moody_env:Hanging\nslow = moody_env:Slow\n",
        "broken": "[lockstep.rewards]\nbroken = broken_package:none\n",
        "dying": "[lockstep.environments]\ndying = dying_package:none\nloud = loud_package:loud\n",
    }
    for name, points in packages.items():
        facts = site / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(points)


def spec(name: str, replicates: int = 2, **changes: Any) -> dict[str, Any]:
    return merge(GYM, {"experiment": {"name": name, "replicates": replicates}, **changes})


#: What a package is that ends its process when it is imported.
DIES = "importing dying_package:none ended its process with code 7 (without a word)"


def doctor(server: LiveServer) -> list[str]:
    """Return what `lockstep doctor` says beside the packages."""
    environment = {**os.environ, "LOCKSTEP_DATABASE_URL": server.settings.database_url}
    command = [sys.executable, "-m", "app.cli.admin", "doctor"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True)
    return result.stdout.splitlines()


def report_of(client: Client, experiment_id: str) -> Any:
    """Return the report, or None while there is none."""
    try:
        return client.report(experiment_id)
    except ApiError:
        return None


@pytest.fixture
def start_with_packages(
    start_worker: Callable[..., WorkerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], WorkerProcess]:
    """A worker that has the packages."""
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))
    return start_worker


def test_l52_two_bad_experiments_fail_with_their_cause_and_a_good_one_succeeds(
    sqlite_server: LiveServer, start_with_packages: Callable[[str], WorkerProcess]
) -> None:
    worker = start_with_packages(sqlite_server.url)
    with Client(sqlite_server.url) as client:
        wait_until(lambda: client.call("GET", "workers")["items"], what=f"a worker ({worker.log})")
        # side by side, both replicates would find out for themselves
        in_turn = {"pack": 1}
        misspelt = client.submit(spec("misspelt", env={"id": "picky", "kwargs": {"lenght": 3}}, lockstep=in_turn))["id"]
        raising = client.submit(spec("raising", env={"id": "moody"}, lockstep=in_turn))["id"]
        good = client.submit(spec("good"))["id"]
        ids = (misspelt, raising, good)
        ends = ("succeeded", "failed", "partial", "cancelled")
        wait_until(lambda: all(client.show(i)["status"] in ends for i in ids), timeout=600, what="three ends")
        assert [client.show(i)["status"] for i in ids] == ["failed", "failed", "succeeded"], worker.log.read_text()
        causes = []
        for experiment_id in (misspelt, raising):
            first, second = client.call("GET", f"experiments/{experiment_id}/blocks")["items"]
            causes.append((first["cause"], second["cause"], first["attempt"], second["attempt"]))
            later = first if experiment_id == raising else second
            assert later["cause_text"].startswith(f"same cause as replicate {int(later is first)}: ")
        assert causes[0] == ("config", "config", 1, 0)
        # two replicates of different seeds have shown it: neither is tried again
        assert causes[1] == ("environment", "environment", 1, 1)
        told = client.call("GET", f"experiments/{misspelt}/blocks")["items"][0]["cause_text"]
        assert "lenght" in told
        assert "TypeError" in told
        told = client.call("GET", f"experiments/{raising}/blocks")["items"][0]["cause_text"]
        assert "KeyError: 'velocity'" in told
        assert "moody" in told
        [shown] = client.call("GET", "workers")["items"]
        assert shown["status"] in ("idle", "cleaning")
        wait_until(lambda: report_of(client, misspelt) and report_of(client, raising), what="two reports")
        _says_why(client, misspelt, "config", "TypeError: ")
        told = _says_why(client, raising, "environment", "KeyError: 'velocity'")
        line = f"failed: replicates 0, 1, cause environment: {told['text']}"
        for command, code in (("watch", 1), ("show", 0)):
            ended = lockstep(sqlite_server.url, command, raising)
            assert ended.returncode == code
            assert line in ended.stdout
            assert f"lockstep logs {told['run_id']}" in ended.stdout
        assert "KeyError: 'velocity'" in lockstep(sqlite_server.url, "logs", told["run_id"]).stdout
        assert shown["defects"] == [
            {"kind": "reward", "name": "broken", "reason": "SystemExit: no licence"},
            {"kind": "environment", "name": "dying", "reason": DIES},
        ]
        said = doctor(sqlite_server)
        assert f"worker {shown['name']}: environments hanging, loud, moody, picky, slow" in said
        assert "plug-ins here: environments hanging, loud, moody, picky, slow" in said
        assert [line for line in said if "cannot be used" in line] == [
            f"{where}: {kind} {name!r} cannot be used: {reason}; correct or remove its package, then restart the worker"
            for where in ("plug-ins here", f"worker {shown['name']}")
            for kind, name, reason in (("reward", "broken", "SystemExit: no licence"), ("environment", "dying", DIES))
        ]
        with pytest.raises(ApiError, match=f"environment 'dying' cannot be loaded on {shown['name']}: importing"):
            client.submit(spec("dying", env={"id": "dying"}))


def _says_why(client: Client, experiment_id: str, cause: str, last_line: str) -> dict[str, Any]:
    """Experiment and report tell the cause, the user's own error, and where the rest is; return the account."""
    told: dict[str, Any]
    [told] = client.show(experiment_id)["causes"]
    assert (told["cause"], told["status"], told["replicates"]) == (cause, "failed", [0, 1])
    assert last_line in told["text"]
    report = report_of(client, experiment_id)
    assert report["lost_blocks"] == [
        {"cause": cause, "text": told["text"], "replicates": [0, 1], "run_id": told["run_id"], "arms": []}
    ]
    assert f"2 of 2 blocks failed with cause {cause}: {told['text']}" in report["verdict"]["sentence"]
    for form in ("md", "html"):
        document = html.unescape(client.report(experiment_id, form))
        assert "Blocks without a result" in document
        assert last_line in document
        assert "infrastructure" not in document
    return told


def lockstep(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli", *arguments]
    environment = {**os.environ, "LOCKSTEP_URL": url}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


#: Where code of the user's hangs, and how the cause names the place. What a process says of the other places where it
#: may hang is read in tests/worker/envs/test_inside.py.
HANGS = {
    "evaluation": "environment 'hanging' (number 0) in step 12 of its episode has not returned for ",
    "built": "building env.id='hanging' with env.kwargs={'where': 'built'} has not returned for ",
}


def test_a_hang_in_code_of_the_user_is_blamed_on_it_before_and_after_the_process_is_ready(
    make_server: Callable[..., LiveServer],
    sqlite_template: Path,
    tmp_path: Path,
    start_with_packages: Callable[[str], WorkerProcess],
) -> None:
    shutil.copy(sqlite_template, tmp_path / "lockstep.db")
    # far more than building an environment takes on a loaded machine
    limits = {"stall_after_seconds": 5.0, "stall_kill_seconds": 10.0, "backoff_seconds": 600.0}
    url = make_server(f"sqlite:///{tmp_path / 'lockstep.db'}", **limits).url
    worker = start_with_packages(url)

    def is_stopped(experiment_id: str) -> bool:
        return bool(first_block(client, experiment_id)["cause"])

    def shows_stack(experiment_id: str) -> bool:
        runs = client.call("GET", f"experiments/{experiment_id}/runs")["items"]
        lines = client.call("GET", f"runs/{runs[0]['id']}/logs")["items"]
        return "in hang" in "".join(line["text"] for line in lines)

    with Client(url) as client:
        wait_until(lambda: client.call("GET", "workers")["items"], what=f"a worker ({worker.log})")
        env = {"id": "hanging"}
        ids = {
            place: client.submit(spec(place, replicates=1, env={**env, "kwargs": {"where": place}}))["id"]
            for place in HANGS
        }
        good = client.submit(spec("good", replicates=1))["id"]
        for place, experiment_id in ids.items():
            wait_until(partial(is_stopped, experiment_id), what=f"an end of {place}")
            block = first_block(client, experiment_id)
            assert block["cause"] == "environment", block["cause_text"]
            assert block["cause_text"].startswith(HANGS[place])
            assert ", the limit is 10 s; where it stands is in the log" in block["cause_text"]
        for experiment_id in ids.values():
            wait_until(partial(shows_stack, experiment_id), what="the stack of the hang")
        wait_until(lambda: client.show(good)["status"] == "succeeded", what="success of another")
        assert {w["status"] for w in client.call("GET", "workers")["items"]} <= {"idle", "cleaning"}


def test_l52_plug_in_that_hangs_when_it_is_imported_is_told_as_its_defect(
    sqlite_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "site" / "stuck-1.0.dist-info"
    facts.mkdir(parents=True)
    (tmp_path / "site" / "stuck_package.py").write_text("import time\ntime.sleep(600)\n")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[lockstep.environments]\nstuck = stuck_package:none\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))
    monkeypatch.setattr(plugins, "_IMPORT_SECONDS", 1.0)
    reason = "importing stuck_package:none took over 1 s"
    found = capabilities.environments()
    assert (found["stuck"], found["gymnasium"]) == ({"defect": reason}, {})
    worker = SimulatedWorker(sqlite_server.ctx, environments=found).register()
    with Client(sqlite_server.url) as client:
        [shown] = client.call("GET", "workers")["items"]
        assert (shown["id"], shown["status"]) == (worker.worker_id, "idle")
        assert shown["defects"] == [{"kind": "environment", "name": "stuck", "reason": reason}]
        with pytest.raises(ApiError, match=reason):
            client.submit(spec("stuck", env={"id": "stuck"}))
    write_package(tmp_path / "site", "greedy", "", "[lockstep.rewards]\nshaped = greedy_code:shaped\n")
    told = CliRunner().invoke(admin, ["doctor"], env={"LOCKSTEP_DATABASE_URL": sqlite_server.settings.database_url})
    lines = [line for line in told.stdout.splitlines() if "'stuck'" in line]
    clash = "plug-ins here: reward 'shaped' of greedy 1.0 (greedy_code:shaped) has the name of a built-in mode of "
    assert [line for line in told.stdout.splitlines() if line.startswith(clash)]
    assert [line.partition(":")[0] for line in lines] == ["plug-ins here", "worker w0"]
    assert all(f"environment 'stuck' cannot be used: {reason}; correct or remove" in line for line in lines)


def test_doctor_names_a_worker_that_registered_other_code(
    sqlite_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path / "site", "steady", "", "[lockstep.rewards]\nsteady = steady_code:steady\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    here = capabilities.versions()["plug-in steady"]
    for name, code in (("old", "steady 1.0 (abc)"), ("new", here)):
        rewards = {"steady": {"env_kinds": ["gymnasium"], "schema": {}}}
        SimulatedWorker(sqlite_server.ctx, name, rewards=rewards, versions={"plug-in steady": code}).register()
    told = CliRunner().invoke(admin, ["doctor"], env={"LOCKSTEP_DATABASE_URL": sqlite_server.settings.database_url})
    assert [line for line in told.stdout.splitlines() if "registered" in line] == [
        f"worker old: it registered 'steady' of steady 1.0 (abc), here is {here}; restart the worker after an install, "
        "for it goes by what it registered"
    ]


def test_l54_an_evaluation_of_three_times_the_stall_limit_is_no_hang(
    make_server: Callable[..., LiveServer],
    sqlite_template: Path,
    tmp_path: Path,
    start_with_packages: Callable[[str], WorkerProcess],
) -> None:
    shutil.copy(sqlite_template, tmp_path / "lockstep.db")
    limits = {**STEADY, "stall_after_seconds": 2.0, "stall_kill_seconds": 4.0}
    url = make_server(f"sqlite:///{tmp_path / 'lockstep.db'}", **limits).url
    start_with_packages(url)
    with Client(url) as client:
        # one episode of 120 steps for each of two arms: 12 s, in which every step is scored under both arms' rewards
        document = spec("slow", replicates=1, env={"id": "slow"}, eval={"max_steps": 120})
        planned = plan_text(client.plan(document)).splitlines()
        assert (
            "evaluation: 1 episode of each policy, acting greedily (eval.mode), cut after 120 steps (eval.max_steps)"
            in planned
        )
        slow = client.submit(document)["id"]
        wait_until(lambda: client.show(slow)["status"] in ("succeeded", "failed"), what="an end")
        block = first_block(client, slow)
        assert (block["status"], block["attempt"], block["cause"]) == ("succeeded", 1, None), block["cause_text"]
        evaluation = client.series(slow, ["eval/native_return_mean"], x="round")
        assert [curve.mean.tolist() for curve in evaluation] == [[120.0], [120.0]]
        # field lesson L53: both episodes count, with the return they had when they were cut, and the report says so
        facts = dict(fact_items(wait_until(lambda: report_of(client, slow), what="a report")))
        assert facts["Evaluation"] == "1 episode of each frozen policy, acting greedily"
        assert facts["Evaluation episodes cut"] == "A: 1 of 1, B: 1 of 1; after 120 steps (eval.max_steps)"
