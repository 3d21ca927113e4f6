"""Frozen evaluation: same episodes every time, nothing moves, cross-scores, twin, modes (training.md 4)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lockstep.protocol import AssignedRun, Assignment, RewardRef
from tests.worker.train.cases import CPU, GYM, GYM_ARMS, MORPH, MORPH_ARMS, Arms, block, policy_bits, train, trainer
from worker.child import plan_of
from worker.envs.base import LockstepEnvs
from worker.train import evaluate
from worker.train.block import BlockPlan, BlockTrainer, GivenUp
from worker.train.environments import cross_rewards
from worker.train.evaluate import mean
from worker.train.plan import Evaluated
from worker.train.runs import TrainedRun


def test_evaluating_twice_gives_the_same_and_moves_nothing() -> None:
    held = trainer(block(GYM, GYM_ARMS, obs_norm={"enabled": True}))
    list(held.rounds(0))
    run = held.runs[0]
    assert isinstance(run, TrainedRun)
    before = {k: v.clone() for k, v in run.learner.state_dict().items()}
    bits = policy_bits(held)
    first, second = (held.evaluator.evaluate(held.runs, 2) for _ in range(2))
    assert first["run-A"].metrics == second["run-A"].metrics
    assert policy_bits(held) == bits
    assert all(torch.equal(before[k], v) for k, v in run.learner.state_dict().items())


# defect 32 of the reference: exploration floors reached its evaluation
@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_evaluation_ignores_the_floors_of_training(mode: str) -> None:
    held = trainer(block(MORPH, MORPH_ARMS, ppo={"prob_floor": {"op": 0.2, "blueprint": 0.1}}, eval={"mode": mode}))
    plain = trainer(block(MORPH, MORPH_ARMS, eval={"mode": mode}))
    floored, bare = (one.evaluator.evaluate(one.runs, 0)["run-A"] for one in (held, plain))
    assert floored.metrics == bare.metrics


def test_evaluation_happens_when_due_and_after_the_last_round() -> None:
    records = train(block(GYM, GYM_ARMS, budget={"rounds": 5}, eval={"every_rounds": 2}))
    evaluated = [r.round for r in records if "eval/native_return_mean" in r.runs[0].metrics]
    assert evaluated == [1, 3, 4]
    assert [len(r.runs[0].eval_episodes) for r in records] == [0, 2, 0, 2, 2]


def test_a_long_evaluation_says_in_the_log_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = trainer(block(GYM, GYM_ARMS, eval={"max_steps": 3}))
    held.evaluator.evaluate(held.runs, 0)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(evaluate, "_TELL_SECONDS", 0.0)
    held.evaluator.evaluate(held.runs, 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "evaluation: 0 of 4 episodes are over after 1 of at most 3 steps"
    assert lines[-1] == "evaluation: 4 of 4 episodes are over after 3 of at most 3 steps"


def test_a_long_evaluation_tells_its_progress_over_all_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Evaluated | None] = []
    plan = block(GYM, GYM_ARMS, eval={"max_steps": 3, "mode": "both"})
    held = BlockTrainer(plan, CPU, progress=lambda *at: told.append(at[2]))
    held.evaluator.evaluate(held.runs, 0)
    assert set(told) == {None}, "it was short"
    monkeypatch.setattr(evaluate, "_LONG_SECONDS", 0.0)
    held.evaluator.evaluate(held.runs, 0)
    shown = [one for one in told if one is not None]
    assert shown[0] == Evaluated(over=0, episodes=8, steps=1, max_steps=3)
    assert shown[3] == Evaluated(over=4, episodes=8, steps=1, max_steps=3)
    assert shown[-1] == Evaluated(over=8, episodes=8, steps=3, max_steps=3)


def test_episodes_that_are_over_stay_over_and_nothing_is_stepped_when_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Evaluated] = []
    plan = block(GYM, GYM_ARMS, eval={"mode": "sample"})
    held = BlockTrainer(plan, CPU, progress=lambda *at: told.append(at[2]) if at[2] else None)
    monkeypatch.setattr(evaluate, "_LONG_SECONDS", 0.0)
    rows = [row for one in held.evaluator.evaluate(held.runs, 0).values() for row in one.rows]
    longest = max(row["env_steps"] for row in rows)
    assert len({row["env_steps"] for row in rows}) > 1
    assert [one.over for one in told] == [sum(row["env_steps"] <= t for row in rows) for t in range(1, longest + 1)]


def test_an_evaluation_that_nobody_wants_ends_at_its_next_step() -> None:
    steps: list[int] = []
    unwanted = False

    def progress(*_: object) -> None:
        nonlocal unwanted
        steps.append(1)
        unwanted = len(steps) == 5

    plan = block(GYM, GYM_ARMS, eval={"max_steps": 50})
    held = BlockTrainer(plan, CPU, progress=progress, unwanted=lambda: unwanted)
    steps.clear()
    unwanted = False
    with pytest.raises(GivenUp):
        held.evaluator.evaluate(held.runs, 0)
    assert len(steps) == 5
    held.close()


def test_both_modes_report_greedy_as_primary_and_sampling_beside_it() -> None:
    records = train(block(GYM, GYM_ARMS, eval={"mode": "both"}))
    last = records[-1].runs[0]
    assert math.isfinite(last.metrics["eval/stochastic_native_return_mean"])
    assert [row["mode"] for row in last.eval_episodes] == ["greedy", "greedy", "sample", "sample"]
    greedy = mean([row["native_return"] for row in last.eval_episodes[:2]])
    assert last.metrics["eval/native_return_mean"] == greedy


def test_cross_evaluation_scores_every_arm_under_every_mode() -> None:
    plan = block(MORPH, MORPH_ARMS, eval={"xeval_modes": ["sparse"]})
    last = train(plan)[-1]
    for run, own in zip(last.runs, ("shaped", "simplified"), strict=True):
        scores = {k: v for k, v in run.metrics.items() if k.startswith("xeval/")}
        assert set(scores) == {"xeval/return_shaped", "xeval/return_simplified", "xeval/return_sparse"}
        assert scores[f"xeval/return_{own}"] == pytest.approx(run.metrics["eval/return_mean"], abs=1e-6)
        for name in ("shaped", "simplified", "sparse"):
            rows = [row["xeval"][name] for row in run.eval_episodes]
            assert run.metrics[f"xeval/return_{name}"] == pytest.approx(sum(rows) / len(rows))
        assert all(row["split"] == "test" for row in run.eval_episodes)


def test_equal_reward_functions_are_scored_once_and_variants_are_told_apart() -> None:
    arms: Arms = [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e-4}}]
    assert set(cross_rewards(block(MORPH, arms))) == {"shaped"}
    arms = [{"label": "A"}, {"label": "B", "overrides": {"reward.rent_weight": 1.0}}]
    assert set(cross_rewards(block(MORPH, arms))) == {"shaped_arm0", "shaped_arm1"}
    arms = [*arms, {"label": "C"}, {"label": "D", "overrides": {"reward.rent_weight": 1.0}}]
    assert set(cross_rewards(block(MORPH, arms))) == {"shaped_arm0", "shaped_arm1"}


def _share(plan: BlockPlan, *arms: int) -> BlockPlan:
    """What the training process makes of an assignment of some of the arms."""
    chosen = [run for run in plan.runs if run.arm_index in arms]
    return plan_of(
        Assignment(
            **dict.fromkeys(("assignment_id", "lease", "experiment_id", "experiment_name", "block_id"), "x"),
            attempt=1,
            replicate=0,
            root_seed=5,
            rounds=plan.rounds,
            resume_round=0,
            placement="shared_device" if len(chosen) > 1 else "one_per_device",
            device_index=0,
            num_arms=plan.num_arms,
            barrier="round",
            spec_hash=plan.spec_hash,
            runs=[AssignedRun(**vars(run) | {"diff": []}, checkpoint=None, diverged=False) for run in chosen],
            reward_modes=[RewardRef(mode=m, config=dict(c), gamma=g) for m, c, g in plan.reward_modes],
            checkpoint_every_rounds=1,
            checkpoint_keep=1,
            grace_seconds=1.0,
            barrier_timeout_seconds=60.0,
        )
    )


def _xeval(plan: BlockPlan) -> dict[str, dict[str, float]]:
    last = train(plan)[-1]
    return {run.run_id: {k: v for k, v in run.metrics.items() if k.startswith("xeval/")} for run in last.runs}


def test_cross_evaluation_of_arms_with_other_discounts_is_the_same_on_one_device_and_on_two() -> None:
    grower = {"policy": "heuristic"}  # something grows, so the potential moves
    arms: Arms = [{"label": "A", **grower}, {"label": "B", **grower, "overrides": {"ppo.gamma": 0.5}}]
    plan = block(MORPH, arms, eval={"xeval_modes": ["basic"]})
    together = _xeval(_share(plan, 0, 1))
    assert together == _xeval(_share(plan, 0)) | _xeval(_share(plan, 1))
    ends = [name.rpartition("_")[2] for name in sorted(together["run-A"])]
    assert ends == ["basic", "arm0", "arm1"]


def test_gain_over_twin_of_a_policy_that_only_waits_is_zero() -> None:
    last = train(block(MORPH, [{"label": "A"}, {"label": "B", "policy": "noop"}]))[-1]
    assert last.runs[1].metrics["eval/gain_over_twin"] == 0.0
    assert last.runs[1].metrics["eval/param_ratio"] == 1.0


def test_the_twin_plays_once_beside_the_first_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, played = evaluate.play, list[int]()

    def counted(envs: LockstepEnvs, make_actor: Any, num_runs: int, reached: Any) -> Any:
        played.append(num_runs)
        return plain(envs, make_actor, num_runs, reached)

    monkeypatch.setattr(evaluate, "play", counted)
    monkeypatch.setattr(evaluate, "_LONG_SECONDS", 0.0)
    told: list[Evaluated | None] = []
    plan = block(MORPH, MORPH_ARMS, eval={"mode": "both"})
    held = BlockTrainer(plan, CPU, progress=lambda *at: told.append(at[2]))
    held.runs[0].diverged = "before a resume"
    live = held.runs[1].plan.run_id
    first, second = (held.evaluator.evaluate(held.runs, 0) for _ in range(2))
    assert played == [3, 2, 2, 2]
    assert list(first) == [live]
    assert first[live].metrics == second[live].metrics
    # a twin beside one live arm, then the arm alone in both modes
    shown = [(one.over, one.episodes) for one in told if one is not None]
    half = len(shown) // 2
    assert (shown[0], shown[half - 1], shown[half], shown[-1]) == ((0, 6), (6, 6), (0, 4), (4, 4))
    without = trainer(block(MORPH, MORPH_ARMS, eval={"twin": False}))
    played.clear()
    assert "eval/gain_over_twin" not in without.evaluator.evaluate(without.runs, 0)[live].metrics
    assert played == [2]


def test_nothing_is_played_where_every_run_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    held = trainer(block(MORPH, MORPH_ARMS))
    for run in held.runs:
        run.diverged = "non-finite"
    monkeypatch.setattr(evaluate, "play", None)
    assert held.evaluator.evaluate(held.runs, 0) == {}


def test_evaluation_episodes_are_equal_for_all_arms_and_differ_between_replicates() -> None:
    keys = []
    for seed in (321, 322):
        last = train(block(GYM, GYM_ARMS, seed=seed))[-1]
        rows = [[row["host_seed_key"] for row in run.eval_episodes] for run in last.runs]
        assert rows[0] == rows[1]
        keys.append(rows[0])
    assert not set(keys[0]) & set(keys[1])


def test_mean_of_a_missing_value_is_not_a_number() -> None:
    assert mean([1.0, 3.0]) == 2.0
    assert math.isnan(mean([1.0, None]))
    assert math.isnan(mean([]))
