"""Environments that step out of phase change nothing but time: every number is that of stepping together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worker.envs.morph.factories import CPU, SEED, AccuracyGain, host_state, tiny
from tests.worker.train.cases import GYM, MORPH, MORPH_ARMS, block, trainer
from worker.envs.base import Cohort, LockstepEnvs
from worker.envs.cohorts import Cohorts
from worker.envs.family import RunEnv
from worker.envs.morph.episode.build import in_cohorts
from worker.envs.morph.episode.controls import make_control
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import Setup
from worker.envs.morph.task import config as configs
from worker.rl.rollout import PolicyError
from worker.train.environments import make_environments
from worker.train.evaluate import Evaluator
from worker.train.runs import Run, TrainedRun

NUM_ENVS = 3
RUNS = ("A", "B")


def specs() -> list[RunEnv]:
    return [RunEnv(f"run-{name}", name, "random", None, 0.995) for name in RUNS]


def setup() -> Setup:
    return Setup(tiny(pace="quick"), SEED, CPU, NUM_ENVS, "train")


def together() -> MorphEnvs:
    return MorphEnvs(setup(), specs(), [AccuracyGain() for _ in RUNS], {})


def apart() -> Cohorts:
    return in_cohorts(setup(), specs(), [AccuracyGain() for _ in RUNS], 2)


def random_actions(envs: LockstepEnvs, steps: int) -> list[Tensor]:
    """Play a round of random controls out of phase, as the trainer does; return the rewards [T, E] of each run."""
    controls = [
        [make_control("random", morph(cohort), run) for run in range(len(cohort.runs))] for cohort in envs.cohorts
    ]
    for cohort, own in zip(envs.cohorts, controls, strict=True):
        cohort.envs.issue([control.act(0) for control in own])
    paid = []
    for step in range(steps):
        for cohort, own in zip(envs.cohorts, controls, strict=True):
            assert all(seen is not None for seen in cohort.envs.collect())
            if step + 1 < steps:
                cohort.envs.issue([control.act(step + 1) for control in own])
            rewards = cohort.envs.pay()
            paid += [(step, run, reward) for run, reward in zip(cohort.runs, rewards, strict=True)]

    def of(run: int, step: int) -> Tensor:
        return torch.cat([reward for t, k, reward in paid if (t, k) == (step, run) and reward is not None])

    return [torch.stack([of(run, step) for step in range(steps)]) for run in range(len(RUNS))]


def morph(cohort: Cohort) -> MorphEnvs:
    assert isinstance(cohort.envs, MorphEnvs)
    return cohort.envs


def hosts(envs: LockstepEnvs, run: int) -> list[Tensor]:
    parts = [(morph(cohort), cohort.runs.index(run)) for cohort in envs.cohorts if run in cohort.runs]
    return [host_state(part, own, env) for part, own in parts for env in range(part.num_envs)]


def rows(envs: LockstepEnvs, run: int) -> list[dict[str, Any]]:
    return [unclocked(e.values) | {"at": e.env} for e in envs.pop_episodes(run)]


def unclocked(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("wall_seconds", "device_seconds", "started_at")}


def test_two_cohorts_equal_one_bit_for_bit() -> None:
    one, two = together(), apart()
    assert [cohort.envs.num_envs for cohort in two.cohorts] == [1, 1, 2, 2]
    assert [cohort.runs for cohort in two.cohorts] == [(0,), (1,), (0,), (1,)]
    for round_index in range(2):
        for whole, parts in zip(one.begin_round(round_index), two.begin_round(round_index), strict=True):
            assert torch.equal(whole[0].features, parts[0].features)
            assert all(torch.equal(whole[1][name], parts[1][name]) for name in whole[1])
        paid = [random_actions(envs, envs.steps_per_round) for envs in (one, two)]
        assert all(torch.equal(*both) and both[0].any() for both in zip(*paid, strict=True))
        for run in range(len(RUNS)):
            assert all(torch.equal(a, b) for a, b in zip(hosts(one, run), hosts(two, run), strict=True))
            assert one.reward_sums(run).keys() == two.reward_sums(run).keys()
            assert torch.equal(one.reward_sums(run)["gain"], two.reward_sums(run)["gain"])
            assert rows(one, run) == rows(two, run)
            events = [envs.pop_events(run) for envs in (one, two)]
            assert events[0] == events[1]
            assert [e["step"] for e in events[1]] == sorted(e["step"] for e in events[1])
            assert max(e["env_id"] for e in events[1]) > 0


def test_stepping_cohorts_as_one_equals_stepping_them_in_turn() -> None:
    one, two = together(), apart()
    for envs in (one, two):
        envs.begin_round(0)
    control = make_control("random", one, 0)
    for step in range(3):
        action = control.act(step)
        (left, gone), (right, also) = one.step([action, None]), two.step([action, None])
        assert gone is also is None
        assert left is not None
        assert right is not None
        assert torch.equal(left.reward, right.reward)
        assert torch.equal(left.observation.features, right.observation.features)
        assert torch.equal(left.valid, right.valid)
        assert torch.equal(left.terminated, right.terminated)


def test_a_step_is_collected_once_when_issued_and_the_one_before_is_settled() -> None:
    envs = together()
    envs.begin_round(0)
    with pytest.raises(RuntimeError, match="issue first"):
        envs.collect()
    idle = make_control("noop", envs, 0).act(0)
    envs.issue([idle, idle])
    envs.collect()
    envs.issue([idle, idle])
    with pytest.raises(RuntimeError, match="not paid"):
        envs.collect()
    assert all(reward is not None for reward in envs.pay())
    assert all(seen is not None for seen in envs.collect())


def test_state_at_a_border_does_not_depend_on_cohorts() -> None:
    one, two = together(), apart()
    assert one.state_dict(1) == two.state_dict(1)
    two.load_state_dict(1, one.state_dict(1))
    with pytest.raises(ValueError, match="resume with"):
        two.load_state_dict(1, one.state_dict(0))


def test_environments_that_go_on_over_rounds_are_one_cohort() -> None:
    envs = trainer(block(GYM, [{"label": "A"}, {"label": "B"}])).envs
    assert envs.cohorts == (Cohort(envs, (0, 1)),)
    with pytest.raises(ValueError, match="one cohort"):
        Cohorts(envs.cohorts)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trainer divide on the CPU as it does on a device."""
    monkeypatch.setattr(configs, "resolve_path", lambda _config, _device: "captured")


def test_a_block_in_cohorts_acts_and_learns_as_one(request: pytest.FixtureRequest) -> None:
    whole = trainer(block(MORPH, MORPH_ARMS))
    request.getfixturevalue("divided")
    parts = trainer(block(MORPH, MORPH_ARMS))
    assert (len(whole.envs.cohorts), len(parts.envs.cohorts)) == (1, 2)
    next(whole.rounds(0))
    record = next(parts.rounds(0))
    for one, two in zip(whole.runs, parts.runs, strict=True):
        assert torch.equal(one.rollout.actions, two.rollout.actions)
        assert torch.equal(one.rollout.rewards, two.rollout.rewards)
        assert torch.equal(one.rollout.raw, two.rollout.raw)
        assert torch.allclose(one.rollout.log_probs, two.rollout.log_probs, atol=1e-6)
        assert torch.allclose(one.rollout.states[-1][0], two.rollout.states[-1][0], atol=1e-6)
        assert torch.allclose(policy(one), policy(two), atol=1e-5)
    assert all(run.metrics["ppo/anchor_gap_max"] < 1e-5 for run in record.runs)


@pytest.mark.usefixtures("divided")
def test_evaluation_out_of_phase_equals_that_of_one_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = [{"label": "A"}, {"label": "B", "policy": "heuristic"}, {"label": "C", "policy": "random"}]
    quick = {"horizon": 12, "pace": "quick"}
    plan = block(MORPH, arms, env=quick, eval={"episodes": 3, "mode": "both", "xeval_modes": ["sparse"]})
    held = trainer(plan)
    held.runs[0].diverged = "before a resume"
    whole = make_environments(plan, CPU, phase="train", num_envs=2)
    expected = Evaluator(plan, CPU, None, whole).evaluate(held.runs, 1)
    calls: list[tuple[str, tuple[int, ...]]] = []
    for name in ("issue", "collect"):
        noted(monkeypatch, name, calls)
    found = held.evaluator.evaluate(held.runs, 1)
    assert found.keys() == expected.keys()
    for run_id, evaluation in found.items():
        assert evaluation.metrics == expected[run_id].metrics
        assert [unclocked(row) for row in evaluation.rows] == [unclocked(row) for row in expected[run_id].rows]
    assert any(row["n_germinated"] for evaluation in found.values() for row in evaluation.rows)
    # the run that had failed is not stepped; the others and the twin are in turn, each a step ahead of the next
    first = [who for name, who in calls[:3] if name == "issue"]
    assert len(set(first)) == 3
    assert calls[3:9] == [(name, who) for who in first for name in ("collect", "issue")]
    evaluator = held.evaluator._envs
    assert evaluator is not None
    assert [cohort.runs for cohort in evaluator.cohorts] == [(0,), (1,), (2,)]


def noted(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[tuple[str, tuple[int, ...]]]) -> None:
    """Note the calls of a method of environments, with the networks of their hosts."""
    plain = getattr(MorphEnvs, name)

    def noting(self: MorphEnvs, *args: Any) -> Any:
        calls.append((name, tuple(id(network) for run in self.runs for network in run.world.networks)))
        return plain(self, *args)

    monkeypatch.setattr(MorphEnvs, name, noting)


@pytest.mark.usefixtures("divided")
def test_an_arm_that_is_evaluated_alone_is_one_cohort() -> None:
    held = trainer(block(MORPH, MORPH_ARMS, only=(0,), eval={"twin": False}))
    assert len(held.envs.cohorts) == 2
    held.evaluator.evaluate(held.runs, 0)
    assert held.evaluator._envs is not None
    assert [cohort.runs for cohort in held.evaluator._envs.cohorts] == [(0,)]


def policy(run: Run) -> Tensor:
    assert isinstance(run, TrainedRun)
    return run.learner.flat.data


@pytest.mark.usefixtures("divided")
def test_an_arm_in_company_and_alone_are_equal_bit_for_bit() -> None:
    company, alone = trainer(block(MORPH, MORPH_ARMS)), trainer(block(MORPH, MORPH_ARMS, only=(0,)))
    assert [len(held.envs.cohorts) for held in (company, alone)] == [2, 2]
    for _ in zip(range(2), company.rounds(0), alone.rounds(0), strict=False):
        one = next(run for run in company.runs if run.plan.arm == "A")
        assert torch.equal(policy(one), policy(alone.runs[0]))
        assert torch.equal(one.rollout.log_probs, alone.runs[0].rollout.log_probs)
        for mine, own in zip(one.rollout.states, alone.runs[0].rollout.states, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, own, strict=True))


@pytest.mark.usefixtures("divided")
def test_a_policy_that_fails_ends_its_run_alone() -> None:
    held = trainer(block(MORPH, MORPH_ARMS))
    failing = held.runs[1]

    def broken(*_: Any) -> Tensor:
        raise PolicyError("step 1: non-finite action distribution")

    failing._parts.rollouts[0].chosen = broken  # type: ignore[assignment, method-assign]
    record = next(held.rounds(0))
    found = {run.run_id: run for run in record.runs}
    assert found[failing.plan.run_id].diverged is not None
    assert found[held.runs[0].plan.run_id].diverged is None


@pytest.mark.usefixtures("divided")
def test_a_run_that_had_failed_before_is_left_alone() -> None:
    held = trainer(block(MORPH, MORPH_ARMS))
    held.runs[1].diverged = "before a resume"
    record = next(held.rounds(0))
    assert [run.run_id for run in record.runs] == [held.runs[0].plan.run_id]
