"""Control policies in the ordinary loop (environment.md 11, section 14.10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lockstep.spec.tasks import Optim
from tests.worker.envs.morph.factories import germinate, make, play, row, tiny
from worker.envs.morph.episode.controls import FixedSchedule, Heuristic, make_control
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.network.blueprints import blueprint_id
from worker.envs.morph.network.widen import static_params, static_shape
from worker.envs.morph.task.config import EnvConfig

SET = {"r0c0": "bottleneck", "r0c1": "conv_heavy"}


def episodes(policy: str, config: EnvConfig, rounds: int = 1, num_envs: int = 1) -> list[dict[str, Any]]:
    envs = make(config, policies=[policy], num_envs=num_envs, static_set=SET)
    control = make_control(policy, envs, 0)
    for number in range(rounds):
        envs.begin_round(number)
        for step in range(config.horizon):
            envs.step([control.act(step)])
    return [episode.values for episode in envs.pop_episodes(0)]


@pytest.mark.parametrize("policy", ["random", "fixed_schedule", "fixed_early", "fixed_deep_first", "heuristic"])
def test_control_plays_three_episodes_without_an_invalid_action(policy: str) -> None:
    rows = episodes(policy, tiny(horizon=16), rounds=3)
    assert len(rows) == 3
    assert all(row["n_invalid"] == 0 and row["outcome"] == "horizon" for row in rows)


def test_random_control_repeats_for_its_key_and_uses_many_ops() -> None:
    config = tiny(horizon=24, batches_per_step=1)
    first, second = (episodes("random", config, 1, 3) for _ in range(2))
    ops = [{k: v for k, v in row.items() if k.startswith(("n_", "op_share"))} for row in first]
    assert ops == [{k: v for k, v in row.items() if k.startswith(("n_", "op_share"))} for row in second]
    assert sum(row["n_germinated"] for row in first) > 0
    assert sum(row["n_pruned_policy"] + row["n_pruned_ramp"] + row["n_fossilized"] for row in first) > 0


# defect 34
def test_heuristic_settles_grafts_in_more_than_the_first_slot() -> None:
    # a slow host reaches its plateau early, so that there is time for a second graft
    config = tiny(horizon=24, host=Optim(0.002))
    envs = make(config, policies=["heuristic"], num_envs=5)
    control = make_control("heuristic", envs, 0)
    envs.begin_round(0)
    for step in range(config.horizon):
        envs.step([control.act(step)])
    rows = [episode.values for episode in envs.pop_episodes(0)]
    assert sum(row["n_fossilized"] + row["n_pruned_policy"] for row in rows) >= 1
    assert {event["slot"] for event in envs.pop_events(0) if event["type"] == "graft_germinated"} == {
        "r0c0",
        "r0c1",
    }


def germinations(policy: str, config: EnvConfig) -> list[tuple[int, str, str]]:
    envs = make(config, policies=[policy])
    control = make_control(policy, envs, 0)
    envs.begin_round(0)
    for step in range(config.horizon):
        envs.step([control.act(step)])
    events = [event for event in envs.pop_events(0) if event["type"] == "graft_germinated"]
    assert all(event["style"] == "LINEAR_ADD" for event in events)
    return [(event["step"], event["slot"], event["blueprint"]) for event in events]


@pytest.mark.parametrize(("policy", "first", "second"), [
    ("fixed_schedule", (5, "r0c0", "conv_light"), ("r0c1", "conv_light")),
    ("fixed_early", (0, "r0c0", "conv_heavy"), ("r0c1", "conv_heavy")),
    ("fixed_deep_first", (0, "r0c1", "conv_heavy"), ("r0c0", "bottleneck")),
])  # fmt: skip
def test_fixed_schedule_grows_its_blueprints_in_its_order(
    policy: str, first: tuple[int, str, str], second: tuple[str, str]
) -> None:
    grown = germinations(policy, tiny(horizon=20, batches_per_step=1))
    assert grown[0] == first
    assert grown[1][1:] == second


def test_fixed_schedule_passes_over_a_graft_that_the_budget_cannot_hold() -> None:
    # r0c1 conv_heavy has 308 parameters, r1c0 bottleneck 614, r0c0 conv_heavy 82
    config = tiny(slots=("r0c0", "r0c1", "r1c0"), param_budget=200)
    assert germinations("fixed_deep_first", config) == [(2, "r0c0", "conv_heavy")]


def gardening(policy: str, *, holding: bool) -> tuple[MorphEnvs, Heuristic | FixedSchedule]:
    """Environments with their control at the start of an episode, or with a graft that is held in r0c0."""
    envs = make(tiny(horizon=20, batches_per_step=1), policies=[policy])
    control = make_control(policy, envs, 0)
    assert isinstance(control, Heuristic | FixedSchedule)
    envs.begin_round(0)
    control.begin()
    if holding:
        play(envs, germinate(envs, 0, "conv_light", tempo=0))
        for op in (Op.ADVANCE, Op.WAIT, Op.ADVANCE, Op.ADVANCE):
            play(envs, row(envs, op, 0))
        assert envs.runs[0].world.table.stage[0, 0] == Stage.HOLDING
    return envs, control


@pytest.mark.parametrize(
    ("losses", "accuracies", "step", "op"),
    [
        ([2.0, 2.0, 2.0, 2.0], [50.0, 50.4, 50.8, 51.2], 5, Op.GERMINATE),
        ([2.0, 2.0, 2.0, 2.0], [50.0, 50.4, 50.8, 51.2], 4, Op.WAIT),  # not before step 5
        ([2.0, 2.0, 2.0, 2.0], [50.0, 50.4, 50.9, 51.3], 5, Op.WAIT),  # still gains half a point
        ([2.0, 2.0, 2.0, 1.9], [50.0, 50.4, 50.8, 51.2], 5, Op.WAIT),  # the loss still falls by 5 %
        ([2.0, 2.0, 2.0, 2.2], [50.0, 50.4, 50.8, 51.2], 5, Op.WAIT),  # or rises by 10 %
    ],
)
def test_heuristic_germinates_on_a_plateau_of_a_stabilised_host(
    losses: list[float], accuracies: list[float], step: int, op: Op
) -> None:
    envs, control = gardening("heuristic", holding=False)
    tracker = envs.runs[0].world.tracker
    tracker.losses[0, -4:], tracker.accuracies[0, -4:] = losses, accuracies
    assert control.choose(0, step)[0] == op


def test_heuristic_remembers_that_the_host_was_stable_once() -> None:
    envs, control = gardening("heuristic", holding=False)
    tracker = envs.runs[0].world.tracker
    tracker.losses[0, -4:], tracker.accuracies[0, -4:] = 2.0, [50.0, 60.0, 70.0, 80.0]
    assert control.choose(0, 5)[0] == Op.WAIT
    tracker.losses[0, -4:], tracker.accuracies[0, -4:] = [3.0, 2.0, 3.0, 2.0], 80.0
    assert control.choose(0, 6)[0] == Op.GERMINATE


@pytest.mark.parametrize(("penalty", "name"), [(5.9, "conv_light"), (6.0, "conv_heavy")])
def test_heuristic_halves_penalties_every_step_and_skips_a_blueprint_at_three(penalty: float, name: str) -> None:
    envs, control = gardening("heuristic", holding=False)
    tracker = envs.runs[0].world.tracker
    tracker.losses[0, -4:], tracker.accuracies[0, -4:] = 2.0, 50.0
    assert isinstance(control, Heuristic)
    control.states[0].penalty = {"conv_light": penalty}
    chosen = control.choose(0, 5)
    assert (chosen[0], chosen[2]) == (Op.GERMINATE, blueprint_id(name))


@pytest.mark.parametrize(
    ("points", "nats", "error", "held", "op"),
    [
        (0.6, 0.0, 0.0, 0, Op.FOSSILIZE),
        (0.5, 0.0, 0.0, 9, Op.WAIT),  # not above half a point
        (0.0, -0.3, 0.1, 5, Op.PRUNE),
        (0.0, -0.3, 0.1, 4, Op.WAIT),  # not before 5 steps of HOLDING
        (0.0, -0.3, 0.2, 9, Op.WAIT),  # not surely harmful: c + 2 SE > 0
    ],
)
def test_heuristic_keeps_what_helps_and_prunes_what_surely_harms(
    points: float, nats: float, error: float, held: int, op: Op
) -> None:
    envs, control = gardening("heuristic", holding=True)
    world = envs.runs[0].world
    world.tracker.accuracy_gain[0, 0] = points
    world.tracker.loss_gain[0, 0], world.tracker.loss_gain_se[0, 0] = nats, error
    world.tracker.accuracies[0, -4:] = [10.0, 20.0, 30.0, 40.0]  # no plateau, so that it grows nothing
    world.table.epochs_in_stage[0, 0] = held
    assert isinstance(control, Heuristic)
    assert control.choose(0, 5)[0] == op
    assert control.states[0].penalty == ({"conv_light": 2.0} if op is Op.PRUNE else {})


@pytest.mark.parametrize(
    ("points", "held", "op"), [(0.1, 3, Op.FOSSILIZE), (0.0, 3, Op.PRUNE), (0.1, 2, Op.WAIT), (0.0, 2, Op.WAIT)]
)
def test_fixed_schedule_settles_a_graft_after_three_steps_of_holding(points: float, held: int, op: Op) -> None:
    envs, control = gardening("fixed_schedule", holding=True)
    world = envs.runs[0].world
    world.tracker.accuracy_gain[0, 0], world.table.epochs_in_stage[0, 0] = points, held
    assert isinstance(control, FixedSchedule)
    control.states[0].growing = True
    assert control.choose(0, 8)[0] == op


def test_noop_leaves_the_host_alone() -> None:
    row = episodes("noop", tiny())[0]
    assert row["op_share_wait"] == 1.0
    assert (row["total_params"], row["param_ratio"], row["topology"]) == (152, 1.0, {})


def test_static_matched_trains_its_grafts_from_the_first_epoch() -> None:
    row = episodes("static_matched", tiny())[0]
    assert row["total_params"] == 1_074
    assert row["topology"] == SET
    assert row["contribution_fossils"] is not None
    assert row["committed_accuracy"] == row["final_accuracy"]


def test_static_wide_is_an_ungrafted_host_of_the_same_size() -> None:
    row = episodes("static_wide", tiny())[0]
    assert row["graft_params"] == 0
    assert abs(row["total_params"] - 1_074) <= 0.02 * 1_074


@pytest.mark.parametrize(("task", "static_set"), [
    ("digits_tiny", SET),
    ("digits_small", {"r0c0": "conv_heavy"}),
    ("cifar_baseline", {"r0c0": "conv_heavy", "r0c2": "bottleneck"}),
    ("cifar_deep_multichannel", {"r1c1": "conv_light"}),
    ("lm_tiny", {"r0c0": "mlp_small", "r0c2": "norm"}),
])  # fmt: skip
def test_widened_host_matches_within_two_percent(task: str, static_set: dict[str, str]) -> None:
    config = EnvConfig.for_task(task)
    target = static_params(config, static_set)
    assert abs(static_shape(config, static_set).params() - target) <= 0.02 * target


def test_static_wide_without_a_set_is_refused() -> None:
    with pytest.raises(ValueError, match="static_wide needs static_set"):
        static_shape(tiny(), None)
    with pytest.raises(ValueError, match="does not exist"):
        static_params(tiny(), {"r9c9": "norm"})


def test_unknown_control_is_refused() -> None:
    with pytest.raises(ValueError, match="'ppo' is not a control"):
        make_control("ppo", make(tiny()), 0)


def test_idle_environment_waits() -> None:
    envs = make(tiny(), policies=["random"], num_envs=2)
    control = make_control("random", envs, 0)
    envs.begin_round(0)
    envs.step([control.act(0)])
    envs.runs[0].world.running[:] = np.array([False, True])
    assert control.act(1)[0].tolist() == [0, 0, 0, 2, 0, 2, 0, 0]
