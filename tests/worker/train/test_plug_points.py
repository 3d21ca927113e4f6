"""A family and an algorithm that no package knows are submitted, planned, trained and resumed by an entry each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.spec.algorithms import ALGORITHMS as SPEC_ALGORITHMS
from lockstep.spec.environments.families import FAMILIES as SPEC_FAMILIES
from lockstep.spec.metrics import primary_of, shown_of
from lockstep.spec.plan import make_plan
from lockstep.spec.presets import PRESETS, merge
from lockstep.spec.resolve import parse
from lockstep.spec.rules import check
from tests.packages import write_package
from tests.worker.train import corridor, reinforce
from tests.worker.train.cases import GYM, GYM_ARMS, block, digests, train, trainer
from worker.envs import families
from worker.rl.algorithms import ALGORITHMS
from worker.train.plan import ConfigRefused

CORRIDOR: dict[str, Any] = {
    "env": {"kind": "corridor", "n_envs": 16},
    "net": {"body": "mlp", "hidden": 16},
    "ppo": {"lr": 1e-2, "gamma": 0.9},
    "budget": {"rounds": 30},
    "eval": {"every_rounds": 30},
}
ARMS = [{"label": "A"}, {"label": "B", "policy": "reinforce"}, {"label": "C", "policy": "random"}]
ANALYSIS = {"sesoi": 1.0, "failure": {"floor": 0.0}}


@pytest.fixture(autouse=True)
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPEC_FAMILIES, "corridor", corridor.SPEC)
    monkeypatch.setitem(families.FAMILIES, "corridor", corridor.__name__)
    monkeypatch.setitem(SPEC_ALGORITHMS, "reinforce", reinforce.SPEC)
    monkeypatch.setitem(ALGORITHMS, "reinforce", reinforce.ALGORITHM)


def test_a_new_family_is_checked_planned_and_shown() -> None:
    raw = merge(CORRIDOR, {"experiment": {"name": "toy", "replicates": 6}, "arms": ARMS, "analysis": ANALYSIS})
    resolved = parse(raw)
    assert check(resolved)[0] == []
    assert make_plan(resolved).env_steps_per_run == 30 * 16 * corridor.STEPS
    assert primary_of(resolved.document) == "eval/native_return_mean"
    assert shown_of("eval/native_return_mean").label == "native return"
    arms = [ARMS[0], {"label": "x", "policy": "noop"}]
    wrong = parse(merge(raw, {"ppo": {"prob_floor": {"mvoe": 0.1}}, "arms": arms}))
    assert [problem.code for problem in check(wrong)[0]] == ["not_applicable", "unknown_head"]


@pytest.mark.parametrize("field", ["prob_floor", "entropy_head_weights"])
def test_a_head_that_an_environment_has_not_is_a_fault_of_the_configuration(field: str) -> None:
    with pytest.raises(ConfigRefused, match=rf"ppo.{field}: no head .acton. here; use one of action"):
        trainer(block(GYM, GYM_ARMS, ppo={field: {"acton": 0.1}}))


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ("[lockstep.rewards]\nnative = late_code:x\n", "reward.mode: reward 'native' of late 1.0 (late_code:x) has"),
        (
            "[lockstep.environments]\nCartPole-v1 = late_code:x\n",
            "env.id: environment 'CartPole-v1' of late 1.0 (late_",
        ),
    ],
)
def test_a_package_that_takes_a_name_under_a_running_worker_is_refused(
    points: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = block(GYM, GYM_ARMS)
    trainer(plan).close()
    write_package(tmp_path, "late", "", points)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigRefused) as refused:
        trainer(plan)
    assert str(refused.value).startswith(told)
    assert refused.value.remedy == "give its entry point another name, or remove the package"


@pytest.mark.parametrize(
    ("code", "line", "remedy"),
    [
        ("\ndef make(:\n", 2, "mend this code"),
        ("import no_such_package\n", 1, "mend this code"),
        ("def make():\n    raise KeyError('speed')\n", 2, "correct the named field, or mend this code"),
    ],
)
def test_code_of_a_plug_in_that_cannot_be_built_is_named_by_file_and_line(
    code: str, line: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    name = f"faulty{line}{len(code)}"
    write_package(folder, name, code, f"[lockstep.environments]\n{name} = {name}_code:make\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ConfigRefused) as refused:
        trainer(block(GYM, GYM_ARMS, env={"id": name}))
    (file,) = folder.glob("*.py")
    assert refused.value.message.endswith(f"; raised in {file}, line {line}")
    assert refused.value.remedy == f"{remedy} and install it again: this is an installed copy"


def test_a_new_family_and_a_new_algorithm_learn_in_the_loop_beside_ppo() -> None:
    records = train(block(CORRIDOR, ARMS))
    last = {run.run_id: run.metrics for run in records[-1].runs}
    scores = {name: metrics["eval/native_return_mean"] for name, metrics in last.items()}
    assert scores["run-C"] < 3.0
    assert scores["run-A"] > 6.0
    assert scores["run-B"] > 6.0
    assert "reinforce/policy_loss" in last["run-B"]
    assert not any(name.startswith("ppo/") for name in last["run-B"])
    events = [event["type"] for run in records[0].runs for event in run.events]
    assert "reinforce_update_completed" in events


def test_a_new_algorithm_resumes_bit_for_bit(tmp_path: Path) -> None:
    plan = block(CORRIDOR, ARMS, budget={"rounds": 4})
    whole = train(plan)
    first = trainer(plan)
    rounds = first.rounds(0)
    next(rounds)
    next(rounds)
    first.save_checkpoint(tmp_path, 2)
    second = trainer(plan)
    assert second.load_checkpoint(tmp_path) == 2
    rest = list(second.rounds(2))
    for run in ("run-A", "run-B", "run-C"):
        assert digests(rest, run) == digests(whole, run)[2:]


def test_nothing_is_left_of_a_family_that_is_not_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SPEC_FAMILIES, "corridor")
    with pytest.raises(ValueError, match=r"unknown env\.kind 'corridor'"):
        block(CORRIDOR, ARMS)
    assert "corridor" not in str(PRESETS)
