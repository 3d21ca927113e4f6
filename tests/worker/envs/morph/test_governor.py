"""The governor's checks, and rollback through the environment (environment.md 8)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from lockstep.spec import sections
from tests.worker.envs.morph.factories import act, germinate, host_state, make, play, row, tiny
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.life.governor import Governor, Verdict
from worker.envs.morph.life.stages import Op, Stage

UNIT = math.log(10)


def governor(*losses: float) -> Governor:
    found = Governor(sections.Governor(), UNIT)
    for step, loss in enumerate(losses):
        check(found, loss, step)
    return found


def check(found: Governor, loss: float, step: int = 99, *, finite: bool = True, skipped: int = 0) -> Verdict:
    return found.check(step, loss, finite=finite, skipped=skipped)


@pytest.mark.parametrize(("loss", "finite", "skipped"), [
    (math.nan, True, 0),
    (math.inf, True, 0),
    (1.0, False, 0),
    (1.0, True, 3),
])  # fmt: skip
def test_non_finite_panics_at_once(loss: float, finite: bool, skipped: int) -> None:
    assert check(governor(), loss, finite=finite, skipped=skipped).panic == "non_finite"


def test_two_skipped_batches_do_not_panic() -> None:
    assert check(governor(), 1.0, skipped=2).panic is None


def test_explosion_is_four_times_ln_classes() -> None:
    assert check(governor(), 4 * UNIT + 0.01).panic == "explosion"
    assert check(governor(), 4 * UNIT - 0.01).panic is None
    assert pytest.approx(9.21, abs=0.01) == 4 * UNIT


def test_collapse_needs_ten_samples_a_good_past_and_chance_level_now() -> None:
    good = [0.59 * UNIT] * 10
    assert check(governor(*good), UNIT).panic == "collapse"
    assert check(governor(*good[:9]), UNIT).panic is None
    assert check(governor(*[0.61 * UNIT] * 10), UNIT).panic is None
    assert check(governor(*good), 1.066 * UNIT).panic is None
    assert check(governor(*good), 0.934 * UNIT).panic is None


# defect 28
def test_divergence_is_the_third_anomaly_in_a_row_and_names_the_first() -> None:
    found = governor(*[1.0] * 5)
    anomaly = 1.6 * UNIT
    assert [check(found, anomaly, step).panic for step in (5, 6)] == [None, None]
    assert not check(governor(*[1.0] * 5), anomaly).healthy
    verdict = check(found, anomaly, 7)
    assert (verdict.panic, verdict.first_step) == ("divergence", 5)
    assert anomaly not in found.window


def test_a_healthy_loss_ends_the_streak_and_needs_five_samples() -> None:
    found = governor(*[1.0] * 5)
    for loss in (1.6 * UNIT, 1.6 * UNIT, 1.0, 1.6 * UNIT, 1.6 * UNIT):
        assert check(found, loss).panic is None
    few = governor(*[1.0] * 4)
    assert all(check(few, 1.6 * UNIT).healthy for _ in range(1))


@pytest.mark.parametrize(("past", "loss", "anomalous"), [
    ([1.0] * 5, 1.49 * UNIT, False),
    ([1.0] * 5, 1.51 * UNIT, True),
    ([1.9] * 5, 1.6 * UNIT, False),
    ([1.5, 2.0, 2.5, 3.0, 3.4], 3.6, False),
])  # fmt: skip
def test_anomaly_needs_every_condition(past: list[float], loss: float, anomalous: bool) -> None:
    assert check(governor(*past), loss).healthy != anomalous


def test_window_keeps_the_last_twenty() -> None:
    found = governor(*[0.5, *[1.0] * 20])
    assert len(found.window) == 20
    assert min(found.window) == 1.0


def test_fossilize_is_vetoed_during_a_streak_only() -> None:
    found = governor(*[1.0] * 5)
    assert found.allows(Op.FOSSILIZE)
    check(found, 1.6 * UNIT)
    assert not found.allows(Op.FOSSILIZE)
    assert all(found.allows(op) for op in Op if op is not Op.FOSSILIZE)


def poison(envs: MorphEnvs) -> None:
    envs.runs[0].world.networks[0].store.flat[0] = math.nan


# defects 29, 30 and 31
@pytest.mark.parametrize("fatal", [1, 4, 8])
def test_nan_at_any_step_gives_one_terminal_row_with_the_penalty(fatal: int) -> None:
    envs = make(tiny(horizon=8), num_envs=2)
    envs.begin_round(0)
    rows = []
    for step in range(1, 9):
        if step == fatal:
            poison(envs)
        rows.append(play(envs, row(envs), row(envs)))
    world = envs.runs[0].world
    first = [r for r in rows if bool(r.terminated[0])]
    assert len(first) == 1
    assert first[0] is rows[fatal - 1]
    assert float(first[0].reward[0]) == -10.0
    assert [bool(r.valid[0]) for r in rows] == [step <= fatal for step in range(1, 9)]
    assert all(float(r.reward[0]) == 0.0 for r in rows[fatal:])
    episodes = {e.env: e.values for e in envs.pop_episodes(0)}
    assert episodes[0]["outcome"] == "rolled_back"
    assert (episodes[0]["rollbacks"], episodes[0]["rollback_cause"]) == (1, "non_finite")
    assert (episodes[0]["episode_length"], episodes[0]["rollback_step"]) == (fatal, fatal - 1)
    assert math.isfinite(episodes[0]["final_accuracy"])
    assert episodes[1]["outcome"] == "horizon"
    assert len(world.governors[0].window) == 0
    assert float(world.networks[0].store.momentum.abs().sum()) == 0.0
    assert [e["type"] for e in envs.pop_events(0)].count("governor_rollback") == 1


def test_rollback_restores_the_snapshot_bitwise() -> None:
    envs = make(tiny(horizon=8))
    envs.begin_round(0)
    for _ in range(5):
        play(envs, row(envs))
    store = envs.runs[0].world.networks[0].store
    kept = (store.flat.clone(), store.buffers.clone())
    play(envs, row(envs))
    assert not torch.equal(store.flat, kept[0])
    poison(envs)
    play(envs, row(envs))
    assert torch.equal(store.flat, kept[0])
    assert torch.equal(store.buffers, kept[1])


def test_episode_after_a_rollback_equals_one_after_none() -> None:
    def second_episode(poisoned: bool) -> torch.Tensor:
        envs = make(tiny(horizon=6))
        for episode in range(2):
            envs.begin_round(episode)
            for step in range(6):
                if poisoned and episode == 0 and step == 2:
                    poison(envs)
                envs.step([act(envs, germinate(envs, 0) if step == 0 else row(envs))])
        return host_state(envs)

    assert torch.equal(second_episode(True), second_episode(False))


def fossilise(envs: MorphEnvs, before_last: Callable[[], None] = lambda: None) -> None:
    script = [germinate(envs, 0), row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0)]
    for action in [*script, row(envs, Op.ADVANCE, 0)]:
        play(envs, action)
    before_last()
    play(envs, row(envs, Op.FOSSILIZE, 0))


def test_rollback_keeps_snapshotted_fossils_and_removes_live_grafts() -> None:
    envs = make(tiny(horizon=16))
    envs.begin_round(0)
    fossilise(envs)
    world = envs.runs[0].world
    kept = world.networks[0].cell(0).store.flat.clone()
    play(envs, germinate(envs, 1))
    poison(envs)
    play(envs, row(envs, Op.ADVANCE, 1))
    assert world.table.stage[0].tolist() == [Stage.FOSSILIZED, Stage.PRUNED]
    assert torch.equal(world.networks[0].cell(0).store.flat, kept)
    assert world.networks[0].live[1] is None
    values = envs.pop_episodes(0)[0].values
    assert (values["n_pruned_governor"], values["grafts_fossilized"]) == (1, 1)
    assert values["final_accuracy"] == values["committed_accuracy"]


def test_fossil_of_a_panicking_step_is_taken_back() -> None:
    envs = make(tiny(horizon=16))
    envs.begin_round(0)
    fossilise(envs, before_last=lambda: poison(envs))
    world = envs.runs[0].world
    assert world.table.stage[0, 0] == Stage.PRUNED
    assert world.networks[0].live[0] is None
    assert envs.pop_episodes(0)[0].values["grafts_fossilized"] == 0


# defect 28
def test_learning_rate_times_1000_panics_within_five_steps() -> None:
    envs = make(tiny(horizon=12, batches_per_step=4))
    envs.begin_round(0)
    for _ in range(5):
        play(envs, row(envs))
    envs.runs[0].world.networks[0]._host_step.lr.mul_(1_000)
    for _ in range(5):
        play(envs, row(envs))
    assert envs.pop_episodes(0)[0].values["outcome"] == "rolled_back"


def test_divergence_rewrites_the_first_step_of_its_streak() -> None:
    envs = make(tiny(horizon=12), num_envs=2)
    envs.begin_round(0)
    results = []
    for step in range(12):
        if step == 5:
            # the loss becomes about 0.9 * 6.5 nats: an anomaly, not an explosion
            envs.runs[0].world.networks[0].store.flat[-10] = 6.5
        results.append(play(envs, row(envs), row(envs)))
    assert [len(r.corrections) for r in results] == [0] * 7 + [1] + [0] * 4
    fix = results[7].corrections[0]
    assert (fix.env, fix.step, fix.reward) == (0, 5, -10.0)
    assert [bool(r.valid[0]) for r in results] == [True] * 7 + [False] * 5
    assert not any(bool(r.terminated[0]) for r in results)
    values = next(e.values for e in envs.pop_episodes(0) if e.env == 0)
    assert (values["episode_length"], values["rollback_cause"]) == (6, "divergence")
    assert values["episode_return"] == pytest.approx(values["episode_return_raw"] - 10.0)
    paid = sum(float(r.reward[0]) for r in results[:5])
    assert values["episode_return_raw"] == pytest.approx(paid, abs=1e-4)
    sums = envs.reward_sums(0)
    assert float(sums["gain"][0]) == pytest.approx(paid, abs=1e-4)
    assert float(sums["rollback"][0]) == -10.0
