"""Action heads, and the one function that says what is legal (environment.md 10).

``legality`` feeds the masks of the policy, the executor's check and the property tests; there is no
second opinion. Axes: E environments, S slots, 6 ops. An action is [H] indices in head order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.spec.tasks import HEADS, SlotSpec, Topology
from worker.envs.base import HeadSpec
from worker.envs.morph.life.alpha import HOLD, Curve
from worker.envs.morph.life.gates import Gates
from worker.envs.morph.life.lifecycle import DEVELOPING, WITH_GRAFT, SlotTable, members
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.blueprints import ALLOWED, NUM_BLUEPRINTS, graft_sizes
from worker.envs.morph.task.config import EnvConfig

BoolArray = NDArray[np.bool_]

ALPHA_TARGETS = (0.5, 0.7, 1.0)
#: Style head: operator and ramp curve.
STYLES: tuple[tuple[str, Operator, Curve], ...] = (
    ("LINEAR_ADD", Operator.ADD, Curve.LINEAR),
    ("LINEAR_MULTIPLY", Operator.MULTIPLY, Curve.LINEAR),
    ("SIGMOID_ADD", Operator.ADD, Curve.SIGMOID_12),
    ("GATED_GATE", Operator.GATE, Curve.LINEAR),
)
LINEAR_ADD, SIGMOID_ADD = 0, 2
FULL_TARGET = 2
_NUM_OPS = len(Op)
_TARGETS = np.array(ALPHA_TARGETS)
# integers, as in ``alpha``
_WAIT, _GERMINATE, _SET_ALPHA_TARGET = int(Op.WAIT), int(Op.GERMINATE), int(Op.SET_ALPHA_TARGET)
_PRUNE, _FOSSILIZE, _ADVANCE = int(Op.PRUNE), int(Op.FOSSILIZE), int(Op.ADVANCE)
#: Which stage integers are DORMANT, may be pruned, may be blended, keep others from germinating, hold a graft; [5, 11].
_KINDS = np.stack(
    [
        members(Stage.DORMANT),
        members(Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING),
        members(Stage.BLENDING, Stage.HOLDING),
        members(*DEVELOPING),
        members(*WITH_GRAFT),
    ]
)


@dataclass(frozen=True)
class Action:
    """One decoded action; slot is -1 for WAIT."""

    op: Op
    slot: int
    blueprint: int
    style: int
    tempo: int
    alpha_target: int
    alpha_speed: int
    alpha_curve: int


def head_specs(num_slots: int) -> tuple[HeadSpec, ...]:
    """Return the eight heads; the first decides which of the others are relevant."""
    germinate, target = int(Op.GERMINATE), int(Op.SET_ALPHA_TARGET)
    ramp = (target, int(Op.PRUNE))
    addressed = tuple(int(op) for op in Op if op is not Op.WAIT)
    op, slot, blueprint, style, tempo, alpha_target, alpha_speed, alpha_curve = HEADS
    return (
        HeadSpec(op, _NUM_OPS),
        HeadSpec(slot, num_slots, (op,), addressed),
        HeadSpec(blueprint, NUM_BLUEPRINTS, (slot,), (germinate,)),
        HeadSpec(style, len(STYLES), (), (germinate,), SIGMOID_ADD),
        HeadSpec(tempo, 3, (), (germinate,)),
        HeadSpec(alpha_target, 3, (op, slot), (germinate, target), FULL_TARGET),
        HeadSpec(alpha_speed, 4, (), ramp),
        HeadSpec(alpha_curve, len(Curve), (), ramp),
    )


def relevant_heads(op: Op, heads: Sequence[HeadSpec]) -> list[bool]:
    """Return for each head whether it matters for an op."""
    return [_is_relevant(head, op) for head in heads]


def _is_relevant(head: HeadSpec, op: Op) -> bool:
    return head.relevant_ops is None or int(op) in head.relevant_ops


def canonical_action(heads: Sequence[HeadSpec]) -> list[int]:
    """Return WAIT with every other head at its canonical index."""
    return [int(Op.WAIT), *(head.canonical for head in heads[1:])]


@dataclass(frozen=True)
class Rules:
    """The constants that legality needs.

    Attributes:
        config: settings.
        sizes: [S, 13] parameters of each blueprint in each slot with the largest gate, so that any
            style fits the budget.
        allowed: [13] blueprints of the topology.
        topology: cnn or lm.
        can_grow: False for hosts without slots (widened controls).
    """

    config: EnvConfig
    sizes: NDArray[np.int64]
    allowed: BoolArray
    topology: Topology
    can_grow: bool = True

    @classmethod
    def build(cls, config: EnvConfig, slots: Sequence[SlotSpec], can_grow: bool) -> Rules:
        """Return the rules for the enabled slots."""
        topology: Topology = "lm" if config.task.is_text else "cnn"
        sizes = [graft_sizes(topology, slot.channels) for slot in slots]
        allowed = np.zeros(NUM_BLUEPRINTS, dtype=bool)
        allowed[list(ALLOWED[topology])] = True
        return cls(config, np.array(sizes, dtype=np.int64), allowed, topology, can_grow)


@dataclass(frozen=True)
class Legality:
    """What may be done now; read only.

    Attributes:
        op: [E, 6].
        slot: [E, 6, S]; the row of WAIT is canonical.
        blueprint: [E, S, 13].
        alpha_target: [E, 6, S, 3].
    """

    op: BoolArray
    slot: BoolArray
    blueprint: BoolArray
    alpha_target: BoolArray

    def equals(self, other: Legality) -> bool:
        """Say whether the same may be done."""
        return all(mine.tobytes() == own.tobytes() for mine, own in zip(self.arrays(), other.arrays(), strict=True))

    def arrays(self) -> tuple[BoolArray, ...]:
        """Return all of it."""
        return self.op, self.slot, self.blueprint, self.alpha_target


def legality(table: SlotTable, gates: Gates, rules: Rules) -> Legality:
    """Return what is legal in every environment."""
    num_envs, num_slots = table.stage.shape
    dormant, prunable, blendable, developing, grafts = _KINDS[:, table.stage]
    blueprint, fits = _fitting(table, rules)
    alpha_target = np.ones((num_envs, _NUM_OPS, num_slots, len(ALPHA_TARGETS)), dtype=bool)
    alpha_target[:, _SET_ALPHA_TARGET] = np.abs(table.alpha.alpha[:, :, None] - _TARGETS) >= 1e-6
    slot = np.zeros((num_envs, _NUM_OPS, num_slots), dtype=bool)
    slot[:, _GERMINATE] = _may_germinate(rules, dormant & fits, developing, grafts)
    slot[:, _ADVANCE] = gates.advance(rules.config.auto_advance)
    slot[:, _FOSSILIZE] = gates.fossilize
    hold = table.alpha.mode == HOLD
    slot[:, _PRUNE] = prunable & hold & (table.age >= rules.config.pace.min_prune_age)
    slot[:, _SET_ALPHA_TARGET] = blendable & hold
    op = np.logical_or.reduce(slot, axis=2)
    op[:, _WAIT] = True
    slot[:, _WAIT, 0] = True
    return Legality(op, slot, blueprint, alpha_target)


def _fitting(table: SlotTable, rules: Rules) -> tuple[BoolArray, BoolArray | Literal[True]]:
    """Return [E, S, 13]: blueprints of the topology that the parameter budget still holds; and [E, S]: any does."""
    found = np.empty((table.stage.shape[0], *rules.sizes.shape), dtype=bool)
    found[:] = rules.allowed
    if rules.config.param_budget is None:
        return found, True
    left = rules.config.param_budget - table.params.sum(1)
    fitting = rules.allowed & (rules.sizes <= left[:, None, None])
    fits: BoolArray = np.logical_or.reduce(fitting, axis=2)
    # rows of slots where nothing fits are never read, but a policy gathers them: keep them non-empty
    found[fits] = fitting[fits]
    return found, fits


def _may_germinate(rules: Rules, legal: BoolArray, developing: BoolArray, grafts: BoolArray) -> BoolArray:
    """Return [E, S]: of the slots where a graft is ``legal``, those where the rules of the whole host let it grow."""
    if not rules.can_grow:
        return np.zeros_like(legal)
    if rules.config.sequential_development:
        legal = legal & ~np.logical_or.reduce(developing, axis=1, keepdims=True)
    if rules.config.max_grafts is not None:
        legal = legal & (grafts.sum(1, keepdims=True) < rules.config.max_grafts)
    return legal


def masks(legal: Legality, heads: Sequence[HeadSpec]) -> dict[str, Tensor]:
    """Return one bool tensor per head on the host, [E, *parents, size]."""
    num_envs = legal.op.shape[0]
    found = {
        "op": legal.op,
        "slot": legal.slot,
        "blueprint": legal.blueprint,
        "alpha_target": legal.alpha_target,
    }
    return {
        head.name: torch.from_numpy(found[head.name].copy())
        if head.name in found
        else torch.ones((num_envs, head.size), dtype=torch.bool)
        for head in heads
    }


def decode(indices: Sequence[int], env: int, legal: Legality, heads: Sequence[HeadSpec]) -> Action:
    """Return the action of one environment.

    Raises:
        ValueError: an index outside its head, outside its mask, or not canonical where irrelevant.
    """
    if len(indices) != len(heads):
        raise ValueError(f"env {env}: an action has {len(heads)} heads, got {len(indices)}")
    for head, index in zip(heads, indices, strict=True):
        if not 0 <= index < head.size:
            raise ValueError(f"env {env}: {head.name} {index} is outside 0..{head.size - 1}")
    op = Op(indices[0])
    for head, index in zip(heads, indices, strict=True):
        if index != head.canonical and not _is_relevant(head, op):
            raise ValueError(f"env {env}: {head.name} is irrelevant for {op.name}; store {head.canonical}")
    action = Action(op, -1 if op is Op.WAIT else indices[1], *indices[2:])
    _check_masks(action, env, legal)
    return action


def _check_masks(action: Action, env: int, legal: Legality) -> None:
    op, slot = action.op, action.slot
    if not legal.op[env, op]:
        raise ValueError(f"env {env}: op {op.name} is illegal in this state")
    if op is Op.WAIT:
        return
    if not legal.slot[env, op, slot]:
        raise ValueError(f"env {env}: {op.name} is illegal for slot {slot}")
    if op is Op.GERMINATE and not legal.blueprint[env, slot, action.blueprint]:
        raise ValueError(f"env {env}: blueprint {action.blueprint} may not grow in slot {slot} now")
    if not legal.alpha_target[env, op, slot, action.alpha_target]:
        raise ValueError(f"env {env}: alpha is already at the chosen target in slot {slot}")
