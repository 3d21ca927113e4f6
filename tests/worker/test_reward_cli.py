"""`lockstep reward`: modes are listed, and each way to break the contract is one sentence with its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packages import write_package
from worker import capabilities
from worker.commands import reward_cli
from worker.commands.reward_cli import main

ROOT = Path(__file__).parents[2]
CODE = """
import time
import torch

def mode(returns, **says):
    def factory(constants, *, gamma, task):
        return lambda step: returns(step)
    for name, value in {"version": "1", "env_kinds": ("gymnasium",), **says}.items():
        if value is not None:
            setattr(factory, name, value)
    return factory

def parts(value):
    return value, {"x": value}

def fails(step):
    return parts(step.reward if not step.truncated.any() else step.info["goal"])

def changing(step):
    return step.reward, {"x": step.reward, **({"end": step.reward * 0} if step.terminated.any() else {})}

def slow(step):
    time.sleep(0.01)
    return parts(step.reward)

good = mode(lambda s: parts(s.reward - s.observation[:, 0]), tasks=("CartPole-v1",))
whole = mode(lambda s: parts((s.reward > 0).to(torch.int64)))
listed = mode(lambda s: parts(s.reward.tolist()))
number = mode(lambda s: parts(1))
elsewhere = mode(lambda s: parts(s.reward.to("meta")))
column = mode(lambda s: parts(s.reward.unsqueeze(1)))
unmeasured = mode(lambda s: parts(s.reward * float("nan")))
huge = mode(lambda s: parts(s.reward.double() * 1e300))
alone = mode(lambda s: s.reward)
unnamed = mode(lambda s: (s.reward, [s.reward]))
reads = mode(lambda s: parts(s.info["distance"]))
apart = mode(lambda s: (s.reward, {"x": s.reward / 2}))
mixing = mode(lambda s: parts(s.reward - s.reward.mean()))
writing = mode(lambda s: parts(s.reward.add_(1.0)))
learnt = mode(lambda s: parts(s.reward * torch.ones(1, requires_grad=True)))
late = mode(fails, tasks=("Pendulum-v1",))
varies = mode(changing, tasks=("CartPole-v1",))
tardy = mode(slow, tasks=("CartPole-v1",))
unversioned = mode(lambda s: parts(s.reward), version=None)
kindless = mode(lambda s: parts(s.reward), env_kinds=None)
misspelt = mode(lambda s: parts(s.reward), env_kinds=("gymnasum",))
text = mode(lambda s: parts(s.reward), env_kinds="gymnasium")
nowhere = mode(lambda s: parts(s.reward), tasks=("CartPol-v1",))
constant = 3
priced = mode(
    lambda s: parts(s.reward), schema={"properties": {"prize": {"type": "number", "minimum": 0, "default": 1.0}}}
)
"""
FAILS = '    return parts(step.reward if not step.truncated.any() else step.info["goal"])'
NAMES = [
    *("good", "whole", "listed", "number", "elsewhere", "column", "unmeasured", "huge", "alone", "unnamed", "reads"),
    *("apart", "mixing", "writing", "learnt", "late", "varies", "tardy", "unversioned", "kindless", "misspelt", "text"),
    *("nowhere", "constant", "priced"),
]
POINTS = "[lockstep.rewards]\n" + "".join(f"{name} = kinds_code:{name}\n" for name in NAMES)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package of modes, importable here and in processes that are started."""
    write_package(tmp_path / "site", "kinds", CODE, POINTS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))
    monkeypatch.delitem(sys.modules, "kinds_code", raising=False)
    return tmp_path / "site"


@pytest.fixture
def quickly(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import modes here at once, not in a process of its own first."""
    monkeypatch.setattr(capabilities, "loaded", lambda point: point.load())


FAULTS = {
    "listed": "the reward is of type list, not a tensor [200]; compute it from the tensors it is given, or use "
    "torch.as_tensor",
    "number": "the reward is of type int, not a tensor [200]; compute it from the tensors it is given, or use "
    "torch.full((200,), 1)",
    "elsewhere": "the reward lies on meta, not on the CPU, where all that the function is given lies; end with .cpu()",
    "column": "the reward has the shape (200, 1), not (200,); return one number for each environment",
    "unmeasured": "the reward is nan in environment 0; it must be finite: guard divisions and logarithms, and replace "
    "what is not measured (NaN) with torch.nan_to_num",
    "huge": "in environment 0, which float32 cannot hold",
    "alone": "returned a Tensor; return two: the reward [E], and its components {name: [E]}",
    "unnamed": "its components are a list, not a dictionary {name: tensor [E]}; return one whose values sum to "
    "the reward",
    "reads": "raised KeyError: 'distance'; correct it; it was "
    "checked on 6 random observations, one choice and no info: if it reads those of a task, name the task in `tasks`",
    "apart": "has components that miss the reward by ",
    "mixing": "mixes environments; correct the mode or remove it",
    "writing": "changes its input; correct the mode or remove it",
    "unversioned": "its factory has no version; write factory.version = '1' below it",
    "kindless": "so it was checked as one of morphogenesis: for Gymnasium tasks write env_kinds = ('gymnasium',)",
    "misspelt": "env_kinds names 'gymnasum', which is no family; did you mean 'gymnasium'?",
    "text": "env_kinds is 'gymnasium'; write a tuple of names, for example env_kinds = ('gymnasium',)",
    "nowhere": "env.id='CartPol-v1': no package that is installed here has it; did you mean 'CartPole-v1'?",
    "constant": "the entry point names a int; let it name a function (constants, *, gamma, task)",
    "god": "no reward mode 'god' is installed here; did you mean 'good'?",
}


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("name", FAULTS)
def test_a_mode_that_cannot_be_paid_is_refused_in_a_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name]) == 1
    refusal, verdict = capsys.readouterr().out.splitlines()
    assert refusal.startswith("refused: ")
    assert FAULTS[name] in refusal
    assert "EnvironmentFault" not in refusal
    assert verdict == f"{name} cannot be paid as it is"


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("name", ["whole", "learnt"])
def test_whole_numbers_and_what_a_network_computes_are_paid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name, "--env", "Pendulum-v1", "--seconds", "60"]) == 0
    told = "plays: 1000 steps of 8 environments of Pendulum-v1 under random actions, 40 whole episodes\n"
    out = capsys.readouterr().out
    assert told in out
    assert "warning" not in out


@pytest.mark.usefixtures("quickly")
def test_a_reward_that_takes_longer_than_its_environments_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_cli, "_SLOW_TIMES", 1.0)  # a busy machine takes milliseconds for environments
    assert main(["check", "tardy", "--seconds", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "warning: time: the reward takes " in out
    assert "times as long as its environments; compute on whole tensors [E], not on one environment after" in out


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("good", "--env", "digits_tiny"), "--env digits_tiny is a task of morphogenesis; 'good' serves gymnasium"),
        (("whole", "--env", "CartPol-v1"), "env.id='CartPol-v1': no package that is installed here has it; did you"),
        (("good", "--env", "Pendulum-v1"), "reward mode 'good' scores 'CartPole-v1', not 'Pendulum-v1'"),
        (("priced", "--constants", '{"prise": 2}'), "/reward/prise: unknown key 'prise' (did you mean 'prize'?)"),
        (("priced", "--constants", '{"prize": -2}'), "/reward/prize: prize = -2 is not at least 0"),
        (("shaped", "--constants", '{"rent_wait": 2}'), "unknown key 'rent_wait' (did you mean 'rent_weight'?)"),
        (("shaped", "--constants", '{"rent_weight": -2}'), "reward.rent_weight must be at least 0, not -2"),
        (("good", "--kwargs", '{"wings": 2}'), "unexpected keyword argument 'wings'"),
    ],
)
def test_a_task_or_constant_that_cannot_be_is_refused(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 1
    assert told in capsys.readouterr().out


def test_constants_that_are_no_object_are_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "shaped", "--constants", "[1]"]) == 2
    assert "error: --constants: '[1]' is no JSON object; write for example" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.usefixtures("site")
def test_the_program_checks_a_mode_of_a_package() -> None:
    command = [sys.executable, "-m", "app.cli", "reward", "check", "column"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (refused.returncode, refused.stderr) == (1, "")
    assert FAULTS["column"] in refused.stdout


@pytest.mark.usefixtures("quickly")
def test_what_was_found_is_told_to_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "good", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["package"], document["task"]) == (True, "kinds 1.0", "CartPole-v1")
    assert set(document["paid"]) == {"reward", "x"}
    assert document["paid"]["reward"]["greatest"] < 2
    assert main(["list", "--json"]) == 0
    listed = {mode["name"]: mode for mode in json.loads(capsys.readouterr().out)}
    assert listed["native"] == {"name": "native", "package": "built in", "env_kinds": ["gymnasium"]}
    assert listed["good"]["tasks"] == ["CartPole-v1"]
    assert FAULTS["column"] in listed["column"]["defect"]
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("good ")] == [
        ["good", "gymnasium,", "for", "CartPole-v1", "kinds", "1.0"]
    ]


@pytest.mark.usefixtures("quickly")
def test_a_mode_is_paid_over_whole_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "late", "--seconds", "60"]) == 1
    told = capsys.readouterr().out
    assert "reward mode 'late' in episode 0 raised KeyError: 'goal'; correct it; raised in " in told
    assert f"kinds_code.py, line {1 + CODE.splitlines().index(FAILS)}\n" in told
    assert main(["check", "varies"]) == 0
    assert "  end  " in capsys.readouterr().out


def test_an_episode_that_takes_longer_than_its_time_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "native", "--env", "MountainCarContinuous-v0", "--seconds", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "came to an end, so what is paid late was not seen; let it play for longer than --seconds 0.1" in out


def test_built_in_modes_are_played_in_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "sparse", "--env", "digits_tiny", "--json", "--seconds", "60"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["package"], document["environments"]) == ("built in", 2)
    assert (document["steps"], document["episodes"]) == (30, 2)
    assert set(document["paid"]) == {"reward", "terminal", "death"}


CLASHES = [
    ("rewards", "shaped", "reward 'shaped' of one 1.0 (one_code:x) has the name of a built-in mode of morphogenesis"),
    ("rewards", "native", "reward 'native' of one 1.0 (one_code:x) has the name of a built-in mode of gymnasium"),
    ("environments", "gymnasium", "environment 'gymnasium' of one 1.0 (one_code:x) has the name of a family of"),
    ("environments", "CartPole-v1", "environment 'CartPole-v1' of one 1.0 (one_code:x) has the name of a task of gymn"),
]


@pytest.mark.parametrize(("group", "name", "told"), CLASHES)
def test_a_plug_in_with_the_name_of_something_built_in_is_refused(
    group: str,
    name: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_package(tmp_path, "one", "", f"[lockstep.{group}]\n{name} = one_code:x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    remedy = "; give its entry point another name, or remove the package"
    refused = capabilities.capabilities(None)["refused"]
    assert refused.startswith(told)
    assert refused.endswith(remedy)
    if group == "rewards":
        assert main(["check", name]) == 1
        assert f"refused: {refused}\n" in capsys.readouterr().out


def test_two_plug_ins_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        write_package(tmp_path, name, "", f"[lockstep.rewards]\nmine = {name}_code:x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert capabilities.capabilities(None) == {
        "refused": "reward 'mine' is registered by one 1.0 (one_code:x) and by two 1.0 (two_code:x); remove one, or "
        "rename its entry point"
    }


def test_a_plug_in_of_which_no_server_would_take_all_is_announced_as_defective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def x(length=1):\n    raise NotImplementedError\n\n\nx.schema = {'properties': {'p' * 60_000: {}}}\n"
    write_package(tmp_path, "one", code, "[lockstep.environments]\nwide = one_code:x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    found = capabilities.capabilities(None)["environments"]["wide"]
    assert found == {"defect": "it has 60024 characters of JSON; use at most 50000"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shaped", f"{CLASHES[0][2]}; give its entry point another name, or remove"),
        ("r" * 201, "/rewards: rewards: the name 'rrrr"),
    ],
    ids=["a clash", "a name of 201 characters"],
)
def test_a_worker_does_not_start_beside_it_and_says_so_in_a_sentence(tmp_path: Path, name: str, told: str) -> None:
    write_package(tmp_path / "site", "one", "", f"[lockstep.rewards]\n{name} = one_code:x\n")
    places = {"LOCKSTEP_SPOOL_DIR": str(tmp_path / "spool"), "LOCKSTEP_LOCK_DIR": str(tmp_path / "locks")}
    environment = {**os.environ, **places, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])}
    command = [sys.executable, "-m", "worker", "--api", "http://127.0.0.1:9", "--device", "cpu"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 3
    assert f"\nrefused: {told}" in ended.stderr
    assert "Traceback" not in ended.stderr
