"""A scripted life through MorphEnvs: stages, dwell, embargo, identity of streams, rows."""

from __future__ import annotations

import pytest
import torch

from tests.worker.envs.morph.factories import act, germinate, host_state, make, play, row, tiny
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.life.stages import Op, Stage


def stage_of(envs: MorphEnvs, slot: int, env: int = 0) -> Stage:
    return Stage(int(envs.runs[0].world.table.stage[env, slot]))


def legal(envs: MorphEnvs, op: Op, slot: int) -> bool:
    return bool(envs.runs[0].legal.slot[0, op, slot])


def test_life_from_germination_to_fossil_and_prune_follows_the_script() -> None:
    envs = make(tiny(horizon=16))
    envs.begin_round(0)
    script = [
        (germinate(envs, 0, tempo=1), Stage.GERMINATED),
        (row(envs, Op.ADVANCE, 0), Stage.TRAINING),
        (row(envs), Stage.TRAINING),
        (row(envs, Op.ADVANCE, 0), Stage.BLENDING),
        (row(envs), Stage.BLENDING),
        (row(envs, Op.ADVANCE, 0), Stage.HOLDING),
        (row(envs, Op.FOSSILIZE, 0), Stage.FOSSILIZED),
    ]
    alphas = []
    for action, expected in script:
        envs.step([act(envs, action)])
        assert stage_of(envs, 0) is expected
        alphas.append(float(envs.runs[0].world.table.alpha.alpha[0, 0]))
    assert alphas == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]
    assert not any(legal(envs, op, 0) for op in Op if op is not Op.WAIT)
    second = [
        (germinate(envs, 1), Stage.GERMINATED),
        (row(envs, Op.ADVANCE, 1), Stage.TRAINING),
        (row(envs, Op.PRUNE, 1), Stage.PRUNED),
    ]
    for action, expected in second:
        envs.step([act(envs, action)])
        assert stage_of(envs, 1) is expected


# defect 9
@pytest.mark.parametrize(("pace", "embargo"), [("quick", 1), ("standard", 5)])
def test_embargo_sequence_lasts_exactly_as_specified(pace: str, embargo: int) -> None:
    envs = make(tiny(horizon=24, batches_per_step=1, pace=pace))
    envs.begin_round(0)
    envs.step([act(envs, germinate(envs, 0))])
    while not legal(envs, Op.PRUNE, 0):
        envs.step([act(envs, row(envs))])
    result = play(envs, row(envs, Op.PRUNE, 0))
    seen = []
    for _ in range(embargo + 3):
        features = result.observation.features[0, 32:42]
        assert features[1:10].sum() == 1.0
        seen.append(tuple(Stage)[int(features[1:10].argmax())])
        seen_legal = bool(result.masks["slot"][0, Op.GERMINATE, 0])
        assert seen_legal == (len(seen) == embargo + 3)
        if len(seen) < embargo + 3:
            result = play(envs, row(envs))
    # step t+1 .. t+E+2 are illegal, t+E+3 is the first legal GERMINATE
    assert seen == [Stage.PRUNED, *[Stage.EMBARGOED] * embargo, Stage.RESETTING, Stage.DORMANT]


def test_shortest_standard_life_fossilises_at_step_16() -> None:
    envs = make(tiny(horizon=20, batches_per_step=1, pace="standard"))
    envs.begin_round(0)
    acts = {1: germinate(envs, 0), 2: row(envs, Op.ADVANCE, 0), 12: row(envs, Op.ADVANCE, 0)}
    acts |= {15: row(envs, Op.ADVANCE, 0), 16: row(envs, Op.FOSSILIZE, 0)}
    for step in range(1, 17):
        for due, op in ((12, Op.ADVANCE), (15, Op.ADVANCE), (16, Op.FOSSILIZE)):
            if step in (due - 1, due):
                assert legal(envs, op, 0) == (step == due), (step, op)
        envs.step([act(envs, acts.get(step, row(envs)))])
    assert stage_of(envs, 0) is Stage.FOSSILIZED


# defect 13
def test_environment_is_equal_beside_one_and_beside_seven_others() -> None:
    results = []
    for num_envs in (2, 8):
        envs = make(tiny(horizon=6), num_envs=num_envs)
        envs.begin_round(3)
        for step in range(6):
            envs.step([act(envs, germinate(envs, 0) if step == 0 else row(envs))])
        results.append(torch.stack([host_state(envs, env=i) for i in range(2)]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0][0], results[0][1])


def test_runs_with_equal_actions_are_bitwise_equal_and_repeat() -> None:
    states = []
    for _ in range(2):
        envs = make(tiny(horizon=6), runs=2, num_envs=2)
        envs.begin_round(0)
        for step in range(6):
            action = act(envs, germinate(envs, 0) if step == 0 else row(envs))
            left, right = envs.step([action, action])
            assert left is not None
            assert right is not None
            assert torch.equal(left.observation.features, right.observation.features)
            assert torch.equal(left.reward, right.reward)
        states.append(host_state(envs, 0))
        assert torch.equal(host_state(envs, 0), host_state(envs, 1))
    assert torch.equal(states[0], states[1])


def test_grafts_in_one_run_leave_the_other_run_unchanged() -> None:
    def final(second: bool) -> torch.Tensor:
        envs = make(tiny(horizon=8), runs=2)
        envs.begin_round(0)
        for step in range(8):
            other = germinate(envs, 0) if second and step == 0 else row(envs)
            if second and step in (1, 3, 4):
                other = row(envs, Op.ADVANCE, 0)
            envs.step([act(envs, row(envs)), act(envs, other)])
        return host_state(envs, 0)

    assert torch.equal(final(False), final(True))


def test_run_that_has_ended_is_skipped_and_leaves_the_other_unchanged() -> None:
    def final(stop: bool) -> torch.Tensor:
        envs = make(tiny(horizon=6), runs=2)
        envs.begin_round(0)
        for _ in range(6):
            wait = act(envs, row(envs))
            results = envs.step([wait, None if stop else wait])
            assert (results[1] is None) == stop
        return host_state(envs, 0)

    assert torch.equal(final(False), final(True))


def test_graft_on_a_falling_ramp_is_frozen_and_pruned_on_arrival() -> None:
    envs = make(tiny(horizon=16))
    envs.begin_round(0)
    for action in (germinate(envs, 0), row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0)):
        play(envs, action)
    play(envs, row(envs, Op.ADVANCE, 0))
    world = envs.runs[0].world
    store = world.networks[0].cell(0).store
    play(envs, row(envs))
    kept = (store.flat.clone(), store.momentum.clone())
    play(envs, row(envs, Op.PRUNE, 0, alpha_speed=2))
    assert stage_of(envs, 0) is Stage.BLENDING
    assert float(world.table.alpha.alpha[0, 0]) == 0.5
    assert torch.equal(store.flat, kept[0])
    assert torch.equal(store.momentum, kept[1])
    assert not legal(envs, Op.PRUNE, 0)
    play(envs, row(envs))
    assert stage_of(envs, 0) is Stage.PRUNED
    assert world.accounts[0].pruned == {"policy": 0, "ramp": 1, "governor": 0}


def test_input_is_isolated_only_while_a_cnn_graft_blends_upwards() -> None:
    envs = make(tiny(horizon=20))
    envs.begin_round(0)
    world = envs.runs[0].world

    def detached() -> list[bool]:
        return [item.detach for item in world.step_plan(0)]

    start = germinate(envs, 0, tempo=1)
    seen = []
    for action in (start, row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0), row(envs)):
        play(envs, action)
        seen.append(detached())
    play(envs, row(envs, Op.ADVANCE, 0))
    seen.append(detached())
    # GERMINATED takes no part, TRAINING is shadowed, BLENDING is isolated, HOLDING is not
    assert seen == [[], [True], [True], [True], [True], [False]]
    play(envs, row(envs, Op.PRUNE, 0, alpha_speed=3))
    assert stage_of(envs, 0) is Stage.BLENDING
    assert detached() == [False]


def test_new_alpha_target_returns_a_held_graft_to_blending() -> None:
    envs = make(tiny(horizon=16))
    envs.begin_round(0)
    start = germinate(envs, 0, alpha_target=0)
    for action in (start, row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0)):
        play(envs, action)
    play(envs, row(envs, Op.ADVANCE, 0))
    assert stage_of(envs, 0) is Stage.HOLDING
    alpha = envs.runs[0].world.table.alpha.alpha
    assert float(alpha[0, 0]) == 0.5
    assert legal(envs, Op.FOSSILIZE, 0)
    play(envs, row(envs, Op.SET_ALPHA_TARGET, 0, alpha_target=2, alpha_speed=2))
    assert (stage_of(envs, 0), float(alpha[0, 0])) == (Stage.BLENDING, 0.75)
    play(envs, row(envs))
    assert float(alpha[0, 0]) == 1.0
    play(envs, row(envs, Op.ADVANCE, 0))
    assert stage_of(envs, 0) is Stage.HOLDING


def test_ramp_to_a_lower_target_keeps_the_graft() -> None:
    envs = make(tiny(horizon=16))
    envs.begin_round(0)
    for action in (germinate(envs, 0), row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0)):
        play(envs, action)
    play(envs, row(envs, Op.ADVANCE, 0))
    play(envs, row(envs, Op.SET_ALPHA_TARGET, 0, alpha_target=0, alpha_speed=1))
    assert stage_of(envs, 0) is Stage.BLENDING
    assert float(envs.runs[0].world.table.alpha.alpha[0, 0]) == 0.5
    assert envs.runs[0].world.networks[0].live[0] is not None


def test_step_after_the_horizon_raises() -> None:
    envs = make(tiny(horizon=6))
    envs.begin_round(0)
    for _ in range(6):
        result = play(envs, row(envs))
    assert bool(result.terminated.all())
    with pytest.raises(RuntimeError, match="round is over"):
        envs.step([act(envs, row(envs))])
