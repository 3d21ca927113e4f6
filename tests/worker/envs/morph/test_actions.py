"""Heads, masks, legality: one function, no second opinion."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.spec.tasks import action_order
from tests.worker.envs.morph.factories import act, germinate, make, play, row, tiny
from worker.envs.morph.engine.tracker import Tracker
from worker.envs.morph.life import actions
from worker.envs.morph.life.actions import Rules, canonical_action, decode, head_specs, legality, relevant_heads
from worker.envs.morph.life.alpha import Ramp
from worker.envs.morph.life.gates import evaluate
from worker.envs.morph.life.lifecycle import SlotTable
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.task.config import EnvConfig

HEADS = head_specs(2)


def test_heads_have_the_sizes_of_the_specification() -> None:
    assert [head.size for head in head_specs(3)] == [6, 3, 13, 4, 3, 3, 4, 5]
    assert canonical_action(HEADS) == [0, 0, 0, 2, 0, 2, 0, 0]


@pytest.mark.parametrize(("op", "names"), [
    (Op.WAIT, {"op"}),
    (Op.GERMINATE, {"op", "slot", "blueprint", "style", "tempo", "alpha_target"}),
    (Op.SET_ALPHA_TARGET, {"op", "slot", "alpha_target", "alpha_speed", "alpha_curve"}),
    (Op.PRUNE, {"op", "slot", "alpha_speed", "alpha_curve"}),
    (Op.FOSSILIZE, {"op", "slot"}),
    (Op.ADVANCE, {"op", "slot"}),
])  # fmt: skip
def test_relevant_heads_follow_the_table(op: Op, names: set[str]) -> None:
    assert {head.name for head, used in zip(HEADS, relevant_heads(op, HEADS), strict=True) if used} == names


def rules(config: EnvConfig) -> Rules:
    slots = [slot for slot in config.task.host.slots() if slot.id in config.slots]
    return Rules.build(config, action_order(slots), can_grow=True)


def legal(config: EnvConfig, table: SlotTable) -> actions.Legality:
    return legality(table, evaluate(table, Tracker.unmeasured(*table.stage.shape), config), rules(config))


def test_fresh_environment_may_only_wait_or_germinate() -> None:
    found = legal(tiny(), SlotTable.empty(1, 2))
    assert found.op[0].tolist() == [True, True, False, False, False, False]
    assert found.blueprint[0, 0].tolist() == [False, *[True] * 7, *[False] * 5]


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING])
def test_sequential_development_blocks_germination_while_a_slot_develops(stage: Stage) -> None:
    table = SlotTable.empty(1, 2)
    table.stage[0, 0] = stage
    assert not legal(tiny(), table).op[0, Op.GERMINATE]
    assert legal(tiny(sequential_development=False), table).slot[0, Op.GERMINATE].tolist() == [False, True]


def test_graft_and_parameter_budgets_mask_germination() -> None:
    table = SlotTable.empty(1, 2)
    table.stage[0, 0], table.params[0, 0] = Stage.FOSSILIZED, 100
    assert not legal(tiny(max_grafts=1), table).op[0, Op.GERMINATE]
    assert legal(tiny(max_grafts=2), table).op[0, Op.GERMINATE]
    assert not legal(tiny(param_budget=110), table).op[0, Op.GERMINATE]
    some = legal(tiny(param_budget=200), table).blueprint[0, 1]
    assert some.any()
    assert not some[7]


def test_prune_needs_age_and_a_resting_ramp() -> None:
    table = SlotTable.empty(1, 2)
    table.stage[0, 0], table.age[0, 0] = Stage.HOLDING, 1
    assert not legal(tiny(), table).op[0, Op.PRUNE]
    table.age[0, 0] = 2
    assert legal(tiny(), table).op[0, Op.PRUNE]
    table.alpha.mode[0, 0] = Ramp.UP
    assert not legal(tiny(), table).op[0, Op.PRUNE]
    assert not legal(tiny(), table).op[0, Op.SET_ALPHA_TARGET]


def test_target_equal_to_the_present_alpha_is_masked() -> None:
    table = SlotTable.empty(1, 2)
    table.stage[0, 0] = Stage.HOLDING
    table.alpha.snap(0, 0, 0.7)
    assert legal(tiny(), table).alpha_target[0, Op.SET_ALPHA_TARGET, 0].tolist() == [True, False, True]


# defect 33
@pytest.mark.parametrize("op", list(Op))
def test_stored_heads_that_do_not_matter_must_be_canonical(op: Op) -> None:
    table = SlotTable.empty(1, 2)
    found = legal(tiny(), table)
    found.op[:], found.slot[:] = True, True
    base = canonical_action(HEADS)
    base[0] = int(op)
    if op is Op.GERMINATE:
        base[2] = 1
    for index, (head, used) in enumerate(zip(HEADS, relevant_heads(op, HEADS), strict=True)):
        if used:
            continue
        changed = [*base]
        changed[index] = (head.canonical + 1) % head.size
        with pytest.raises(ValueError, match=f"{head.name} is irrelevant for {op.name}"):
            decode(changed, 0, found, HEADS)
    assert decode(base, 0, found, HEADS).op is op


@pytest.mark.parametrize(("action", "message"), [
    ([4, 0, 0, 2, 0, 2, 0, 0], "op FOSSILIZE is illegal"),
    ([1, 0, 0, 0, 0, 2, 0, 0], "blueprint 0 may not grow"),
    ([1, 0, 8, 0, 0, 2, 0, 0], "blueprint 8 may not grow"),
    ([9, 0, 0, 2, 0, 2, 0, 0], "op 9 is outside"),
    ([0, 0, 0, 2, 0, 2, 0], "8 heads"),
])  # fmt: skip
def test_illegal_action_raises(action: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(action, 0, legal(tiny(), SlotTable.empty(1, 2)), HEADS)


# defect 10
def test_illegal_germination_leaves_the_state_unchanged() -> None:
    envs = make(tiny())
    envs.begin_round(0)
    before = envs.runs[0].world.networks[0].store.flat.clone()
    with pytest.raises(ValueError, match="may not grow"):
        play(envs, row(envs, Op.GERMINATE, 0, blueprint=12))
    world = envs.runs[0].world
    assert world.table.stage[0].tolist() == [Stage.DORMANT] * 2
    assert torch.equal(world.networks[0].store.flat, before)
    assert world.networks[0].live == [None, None]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(-1, 14), min_size=8, max_size=8), st.sampled_from(list(Stage)), st.integers(0, 12))
def test_random_actions_are_executed_exactly_when_the_masks_allow_them(
    action: list[int], stage: Stage, age: int
) -> None:
    table = SlotTable.empty(1, 2)
    table.stage[0, 0], table.age[0, 0] = stage, age
    found = legal(tiny(), table)
    inside = all(0 <= index < head.size for index, head in zip(action, HEADS, strict=True))
    allowed = inside and _masked_in(action, found)
    if allowed:
        assert decode(action, 0, found, HEADS).op == action[0]
    else:
        with pytest.raises(ValueError, match="env 0"):
            decode(action, 0, found, HEADS)


def _masked_in(action: list[int], found: actions.Legality) -> bool:
    """What a policy reading only masks and relevance could have sampled."""
    op, slot = Op(action[0]), action[1]
    masks = {
        "op": found.op[0],
        "slot": found.slot[0, op],
        "blueprint": found.blueprint[0, slot],
        "alpha_target": found.alpha_target[0, op, slot],
    }
    for index, head, used in zip(action, HEADS, relevant_heads(op, HEADS), strict=True):
        if not used and index != head.canonical:
            return False
        if used and head.name in masks and not masks[head.name][index]:
            return False
    return True


# defect 24
def test_stored_slot_of_a_wait_is_refused_so_it_can_never_be_read() -> None:
    envs = make(tiny())
    envs.begin_round(0)
    with pytest.raises(ValueError, match="slot is irrelevant for WAIT"):
        envs.step([act(envs, [0, 1, *canonical_action(envs.heads)[2:]])])
    play(envs, germinate(envs, 1))
