"""Control policies (environment.md 11): the same loop, masks and keys, and no learning.

A control reads the state that a policy would see and answers with one legal action per environment.
Axes: E environments, S slots, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.runs import RunState
from worker.envs.morph.episode.world import World
from worker.envs.morph.life.actions import FULL_TARGET, LINEAR_ADD, SIGMOID_ADD, canonical_action, relevant_heads
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.network.blueprints import blueprint_id

_FIRST_STEP = 5
_HOLD_STEPS = 3
_ROUND_ROBIN = {
    "cnn": ("conv_light", "conv_heavy", "attention", "norm", "depthwise"),
    "lm": ("mlp_small", "lora", "attention", "norm"),
}


class Control(Protocol):
    """Something that acts."""

    def act(self, step: int) -> Tensor:
        """Return actions [E, H] int64 for step ``step`` of the present round."""
        ...


class _Control:
    """Base: one decision per environment; idle environments wait."""

    def __init__(self, envs: MorphEnvs, run: int) -> None:
        self.envs, self.run_index = envs, run
        self.execution = sorted(range(len(self.world.slots)), key=lambda s: self.world.slots[s].position)
        self.topology = self.world.rules.topology

    @property
    def run(self) -> RunState:
        """Return the run that is controlled."""
        return self.envs.runs[self.run_index]

    @property
    def world(self) -> World:
        """Return its environments."""
        return self.run.world

    def act(self, step: int) -> Tensor:
        """Return actions [E, H]."""
        if step == 0:
            self.begin()
        rows = [self.choose(env, step) if self.world.running[env] else self.wait() for env in range(self.envs.num_envs)]
        return torch.tensor(rows, dtype=torch.int64, device=self.envs.device)

    def begin(self) -> None:
        """Forget the last episode."""

    def choose(self, env: int, step: int) -> list[int]:  # noqa: ARG002 - the interface of all controls
        """Return the action of one environment: WAIT unless a control knows better."""
        return self.wait()

    def wait(self) -> list[int]:
        """Return WAIT."""
        return canonical_action(self.envs.heads)

    def legal(self, env: int, op: Op, slot: int) -> bool:
        """Say whether an op may address a slot now."""
        return bool(self.run.legal.slot[env, op, slot])

    def simple(self, op: Op, slot: int) -> list[int]:
        """Return an op on a slot with every other head canonical (PRUNE: at once)."""
        row = self.wait()
        row[0], row[1] = int(op), slot
        return row

    def germinate(self, slot: int, name: str, style: int, tempo: int) -> list[int]:
        """Return a GERMINATE with target 1."""
        row = self.simple(Op.GERMINATE, slot)
        row[2:6] = [blueprint_id(name), style, tempo, FULL_TARGET]
        return row

    def advance_any(self, env: int) -> list[int] | None:
        """Return ADVANCE on the first slot in execution order where it is legal."""
        for slot in self.execution:
            if self.legal(env, Op.ADVANCE, slot):
                return self.simple(Op.ADVANCE, slot)
        return None


class Noop(_Control):
    """WAIT always: the host alone, or whatever static grafts it was given."""


class Random(_Control):
    """Uniform over legal ops, then legal slots, then the other relevant heads."""

    def choose(self, env: int, step: int) -> list[int]:
        """Return a keyed random legal action."""
        world, legal = self.world, self.run.legal
        draw = world.streams.generator("control_policy", env, world.episode, epoch=step)
        row = self.wait()
        op = Op(_pick(draw, legal.op[env]))
        row[0] = int(op)
        if op is Op.WAIT:
            return row
        slot = _pick(draw, legal.slot[env, op])
        row[1] = slot
        options: Mapping[str, NDArray[np.bool_]] = {
            "blueprint": legal.blueprint[env, slot],
            "alpha_target": legal.alpha_target[env, op, slot],
        }
        heads = self.envs.heads
        for index, relevant in enumerate(relevant_heads(op, heads)):
            if relevant and index > 1:
                head = heads[index]
                row[index] = _pick(draw, options.get(head.name, np.ones(head.size, dtype=bool)))
        return row


@dataclass(frozen=True)
class Script:
    """What a fixed schedule grows.

    Attributes:
        start: first step at which it may germinate.
        last_first: whether it begins at the last slot in execution order.
        blueprints: per topology, the names taken in turn.
    """

    start: int
    last_first: bool
    blueprints: Mapping[str, tuple[str, ...]]


#: ``fixed_schedule`` is that of environment.md 11; the others show what an earlier or larger growth reaches.
SCRIPTS: Mapping[str, Script] = {
    "fixed_schedule": Script(_FIRST_STEP, False, {"cnn": ("conv_light",), "lm": ("mlp_small",)}),
    "fixed_early": Script(0, False, {"cnn": ("conv_heavy",), "lm": ("mlp",)}),
    "fixed_deep_first": Script(0, True, {"cnn": ("conv_heavy", "bottleneck"), "lm": ("mlp", "attention")}),
}


@dataclass
class _Schedule:
    """Where a fixed schedule stands: index into its order of slots."""

    turn: int = 0
    growing: bool = False


class FixedSchedule(_Control):
    """One slot after the other, blended at full weight as soon as legal, kept if it helps, else pruned."""

    def __init__(self, envs: MorphEnvs, run: int, script: Script) -> None:
        super().__init__(envs, run)
        self.script = script
        self.order = self.execution[::-1] if script.last_first else self.execution
        self.names = script.blueprints[self.topology]

    def begin(self) -> None:
        """Start at the first slot of the order."""
        self.states = [_Schedule() for _ in range(self.envs.num_envs)]

    def choose(self, env: int, step: int) -> list[int]:
        """Return the next act of the schedule."""
        state = self.states[env]
        if step < self.script.start or state.turn >= len(self.order):
            return self.wait()
        slot = self.order[state.turn]
        if not state.growing:
            return self._grow(env, slot, state)
        if self.legal(env, Op.ADVANCE, slot):
            return self.simple(Op.ADVANCE, slot)
        return self._settle(env, slot, state)

    def _grow(self, env: int, slot: int, state: _Schedule) -> list[int]:
        name = self.names[state.turn % len(self.names)]
        if not self.legal(env, Op.GERMINATE, slot):
            return self.wait()
        if not self.run.legal.blueprint[env, slot, blueprint_id(name)]:
            state.turn += 1  # what the parameter budget cannot hold now, it never will: fossils stay
            return self.wait()
        state.growing = True
        return self.germinate(slot, name, LINEAR_ADD, 0)

    def _settle(self, env: int, slot: int, state: _Schedule) -> list[int]:
        table, where = self.world.table, (env, slot)
        if table.stage[where] != Stage.HOLDING or table.epochs_in_stage[where] < _HOLD_STEPS:
            return self.wait()
        helps = self.world.tracker.accuracy_gain[where] > 0.0
        op = Op.FOSSILIZE if helps else Op.PRUNE
        if not self.legal(env, op, slot):
            return self.wait()
        state.turn, state.growing = state.turn + 1, False
        return self.simple(op, slot)


@dataclass
class _Gardener:
    """Memory of the heuristic in one environment."""

    stable: bool = False
    next_blueprint: int = 0
    next_slot: int = 0
    penalty: dict[str, float] = field(default_factory=dict)


class Heuristic(_Control):
    """Germinates on a plateau of a stabilised host; keeps what helps, prunes what surely harms."""

    _GAIN, _KEEP, _PATIENCE, _SKIP = 0.5, 0.5, 5, 3.0

    def begin(self) -> None:
        """Forget plateaus and penalties."""
        self.states = [_Gardener() for _ in range(self.envs.num_envs)]

    def choose(self, env: int, step: int) -> list[int]:
        """Return the next act."""
        state = self.states[env]
        state.penalty = {name: value / 2.0 for name, value in state.penalty.items()}
        state.stable = state.stable or self._stabilised(env)
        return self.advance_any(env) or self._settle(env, state) or self._grow(env, step, state) or self.wait()

    def _stabilised(self, env: int) -> bool:
        losses = self.world.tracker.losses[env, -4:]
        gains = (losses[:-1] - losses[1:]) / losses[:-1]
        return bool(((gains > -0.05) & (gains < 0.03)).all())

    def _settle(self, env: int, state: _Gardener) -> list[int] | None:
        table, tracker = self.world.table, self.world.tracker
        for slot in self.execution:
            where = (env, slot)
            if tracker.accuracy_gain[where] > self._KEEP and self.legal(env, Op.FOSSILIZE, slot):
                return self.simple(Op.FOSSILIZE, slot)
            waited = table.stage[where] == Stage.HOLDING and table.epochs_in_stage[where] >= self._PATIENCE
            harms = tracker.loss_gain[where] + 2.0 * tracker.loss_gain_se[where] < 0.0
            if waited and harms and self.legal(env, Op.PRUNE, slot):
                name = self._names()[int(table.blueprint[where])]
                state.penalty[name] = state.penalty.get(name, 0.0) + 2.0
                return self.simple(Op.PRUNE, slot)
        return None

    def _grow(self, env: int, step: int, state: _Gardener) -> list[int] | None:
        accuracies = self.world.tracker.accuracies[env, -4:]
        plateau = bool((np.diff(accuracies) < self._GAIN).all())
        if step < _FIRST_STEP or not (state.stable and plateau):
            return None
        slot = self._next_slot(env, state)
        name = self._next_blueprint(state)
        if slot is None or name is None or not self.run.legal.blueprint[env, slot, blueprint_id(name)]:
            return None
        state.next_slot = self.execution.index(slot) + 1
        return self.germinate(slot, name, SIGMOID_ADD, 1)

    def _next_slot(self, env: int, state: _Gardener) -> int | None:
        count = len(self.execution)
        turns = [self.execution[(state.next_slot + i) % count] for i in range(count)]
        return next((slot for slot in turns if self.legal(env, Op.GERMINATE, slot)), None)

    def _next_blueprint(self, state: _Gardener) -> str | None:
        choices = _ROUND_ROBIN[self.topology]
        for turn in range(len(choices)):
            name = choices[(state.next_blueprint + turn) % len(choices)]
            if state.penalty.get(name, 0.0) < self._SKIP:
                state.next_blueprint += turn + 1
                return name
        return None

    def _names(self) -> dict[int, str]:
        return {blueprint_id(name): name for name in _ROUND_ROBIN[self.topology]}


_CONTROLS: Mapping[str, Callable[[MorphEnvs, int], Control]] = {
    "noop": Noop,
    "random": Random,
    **{name: partial(FixedSchedule, script=script) for name, script in SCRIPTS.items()},
    "heuristic": Heuristic,
    "static_matched": Noop,
    "static_wide": Noop,
}


def make_control(name: str, envs: MorphEnvs, run: int) -> Control:
    """Return the control policy of a run; an unknown name raises ValueError.

    The static controls differ in the network that the environment builds, not in what they do: they wait.
    """
    if name not in _CONTROLS:
        raise ValueError(f"policy {name!r} is not a control; use one of {', '.join(_CONTROLS)}")
    return _CONTROLS[name](envs, run)


def _pick(draw: np.random.Generator, legal: NDArray[np.bool_]) -> int:
    return int(draw.choice(np.flatnonzero(legal)))
