"""Mask equals executor over many random states, and settings of the environment that reach their value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lockstep.spec.tasks import action_order
from tests.worker.envs.morph.factories import act, germinate, make, tiny
from worker.envs.morph.engine.tracker import Tracker
from worker.envs.morph.life.actions import Legality, Rules, decode, head_specs, legality, relevant_heads
from worker.envs.morph.life.gates import evaluate
from worker.envs.morph.life.lifecycle import SlotTable
from worker.envs.morph.life.stages import Op, Stage

HEADS = head_specs(2)


@pytest.mark.parametrize("states", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mask_equals_executor_on_random_states(states: int) -> None:
    rng = np.random.default_rng(7)
    found = _legality(rng, states)
    sizes = [head.size for head in HEADS]
    allowed = 0
    for env in range(states):
        action = [int(rng.integers(size)) for size in sizes]
        for index, used in enumerate(relevant_heads(Op(action[0]), HEADS)):
            action[index] = action[index] if used else HEADS[index].canonical
        legal = _in_masks(action, env, found)
        try:
            decode(action, env, found, HEADS)
        except ValueError:
            assert not legal, (env, action)
        else:
            assert legal, (env, action)
        allowed += legal
    assert 0.05 * states < allowed < 0.95 * states


def _legality(rng: np.random.Generator, states: int) -> Legality:
    config = tiny()
    table = SlotTable.empty(states, 2)
    table.stage[:] = rng.choice([int(stage) for stage in Stage], (states, 2))
    table.age[:], table.epochs_in_stage[:] = rng.integers(0, 12, (2, states, 2))
    slots = [slot for slot in config.task.host.slots() if slot.id in config.slots]
    rules = Rules.build(config, action_order(slots), can_grow=True)
    return legality(table, evaluate(table, Tracker.unmeasured(states, 2), config), rules)


def _in_masks(action: list[int], env: int, found: Legality) -> bool:
    op, slot = action[0], action[1]
    held = [found.op[env, op]]
    if op != Op.WAIT:
        held.append(found.slot[env, op, slot])
    if op == Op.GERMINATE:
        held.append(found.blueprint[env, slot, action[2]])
    if op in (Op.GERMINATE, Op.SET_ALPHA_TARGET):
        held.append(found.alpha_target[env, op, slot, action[5]])
    return bool(np.all(held))


@pytest.mark.parametrize("weight", [0.0, 0.9])
def test_velocity_ema_of_the_setting_is_the_weight_of_the_old_value(
    weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    plain = Tracker.record_grafts

    def record(tracker: Tracker, env: int, measured: Any, step: int, keep: float) -> None:
        used.append(keep)
        plain(tracker, env, measured, step, keep)

    monkeypatch.setattr(Tracker, "record_grafts", record)
    envs = make(tiny(velocity_ema=weight))
    envs.begin_round(0)
    envs.step([act(envs, germinate(envs, 0))])
    assert set(used) == {weight}
