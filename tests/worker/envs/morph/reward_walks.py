"""Random legal trajectories of the lifecycle, as scalar states and as batches for the vectorised code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tests.worker.envs.morph.reward_oracle import (
    ADVANCE,
    FOSSILIZE,
    GERMINATE,
    NAN,
    PRUNE,
    SET_ALPHA,
    WAIT,
    Moment,
    Slot,
    State,
)
from worker.envs.morph.rewards.context import RewardContext, SlotState

HOST = 6418.0
START_ACCURACY = 10.0


@dataclass
class World:
    """What grafts are worth: gain per slot, gain per pair, host accuracy by step."""

    gains: list[float]
    pairs: np.ndarray
    host: list[float]

    def accuracy(self, t: int, on: list[int]) -> float:
        value = self.host[t] + sum(self.gains[i] for i in on)
        return value + sum(float(self.pairs[i, j]) for i in on for j in on if i < j)


Policy = Callable[[list[tuple[int, int]], State, int], tuple[int, int]]


def walk(
    rng: np.random.Generator,
    num_slots: int,
    horizon: int,
    policy: Policy | None = None,
    *,
    truncated: bool = False,
) -> list[Moment]:
    """One episode; ``policy`` picks among legal (op, slot) pairs, else uniformly."""
    pairs = np.triu(rng.normal(0, 1.5, (num_slots, num_slots)), 1)
    drift = np.cumsum(rng.uniform(-0.5, 3.0, horizon + 1)) + START_ACCURACY
    world = World(list(rng.normal(0.8, 2.5, num_slots)), pairs + pairs.T, list(drift))
    slots = [Slot() for _ in range(num_slots)]
    state = measure(world, slots, 0, rng)
    moments: list[Moment] = []
    for t in range(horizon):
        options = legal(state)
        op, target = options[rng.integers(len(options))] if policy is None else policy(options, state, t)
        pre = state
        slots = copies(pre.slots)
        apply(slots, op, target, t, rng)
        state = measure(world, slots, t + 1, rng)
        last = t + 1 == horizon
        moments.append(
            Moment(
                pre,
                state,
                op,
                target,
                t,
                horizon,
                last,
                last and not truncated,
                HOST,
                pre_accuracy(moments, pre),
            )
        )
    return moments


def pre_accuracy(moments: list[Moment], first: State) -> float:
    return moments[0].pre.accuracy if moments else first.accuracy


def legal(state: State) -> list[tuple[int, int]]:
    options = [(WAIT, -1)]
    for i, s in enumerate(state.slots):
        if s.stage == 1:
            options.append((GERMINATE, i))
        if s.stage in (2, 3, 4):
            options.append((ADVANCE, i))
        if s.stage in (4, 6):
            options.append((SET_ALPHA, i))
        if s.stage in (2, 3, 4, 6) and s.age >= 1:
            options.append((PRUNE, i))
        if s.stage == 6:
            options.append((FOSSILIZE, i))
    return options


def apply(slots: list[Slot], op: int, target: int, t: int, rng: np.random.Generator) -> None:
    """Execute an op and let one step pass."""
    moved = None
    if op == GERMINATE:
        slots[target] = Slot(2, 0, 0, 0.0, float(rng.integers(40, 2000)), t)
        moved = target
    elif op == ADVANCE:
        slots[target].stage = {2: 3, 3: 4, 4: 6}[slots[target].stage]
        slots[target].e, moved = 0, target
    elif op == FOSSILIZE:
        slots[target].stage, slots[target].e, moved = 7, 0, target
    elif op == PRUNE:
        slots[target] = Slot(8)
        moved = target
    elif op == SET_ALPHA:
        slots[target].alpha = float(rng.choice([0.3, 0.5, 0.7, 1.0]))
    for i, s in enumerate(slots):
        if s.stage == 4:
            s.alpha = min(1.0, s.alpha + 0.25)
        if i != moved:
            s.stage = {8: 9, 9: 10, 10: 1}.get(s.stage, s.stage)
            s.e += 1
        s.age = s.age + 1 if s.stage in (2, 3, 4, 6, 7) else 0


def measure(world: World, slots: list[Slot], t: int, rng: np.random.Generator) -> State:
    on = [i for i, s in enumerate(slots) if s.stage in (4, 6, 7) and s.alpha > 0]
    every = world.accuracy(t, on)
    n = len(slots)
    pairs = [[NAN] * n for _ in range(n)]
    for i, s in enumerate(slots):
        s.c = every - world.accuracy(t, [j for j in on if j != i]) if i in on else NAN
    if len(on) >= 2:
        for i in on:
            for j in on:
                if i != j:
                    pairs[i][j] = float(world.pairs[i, j])
    cf = every - world.accuracy(t, []) if on else NAN
    committed = world.accuracy(t, [i for i in on if slots[i].stage == 7])
    return State(copies(slots), cf, pairs, every, committed, float(rng.uniform(0.5, 5.0)))


def batch(moments: list[Moment], dtype: torch.dtype = torch.float64, pre: SlotState | None = None) -> RewardContext:
    """The same instant of many episodes as one transition [E]; ``pre`` saves building s_t again."""
    m = moments[0]

    def column(get: Callable[[Moment], float], kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.tensor([get(x) for x in moments], dtype=kind)

    return RewardContext(
        pre=states([x.pre for x in moments], dtype) if pre is None else pre,
        post=states([x.post for x in moments], dtype),
        op=column(lambda x: x.op, torch.int64),
        target_slot=column(lambda x: x.target, torch.int64),
        executed_op=column(lambda x: x.op, torch.int64),
        rolled_back=column(lambda x: x.rolled_back, torch.bool),
        terminated=column(lambda x: x.terminated, torch.bool),
        is_last=column(lambda x: x.is_last, torch.bool),
        t=column(lambda x: x.t, torch.int64),
        horizon=m.horizon,
        host_params=column(lambda x: x.host),
        initial_accuracy=column(lambda x: x.a0),
        initial_loss=column(lambda _: 2.3),
        ledgers={},
    )


def states(rows: list[State], dtype: torch.dtype) -> SlotState:
    def grid(name: str, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.tensor([[getattr(s, name) for s in row.slots] for row in rows], dtype=kind)

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=dtype)

    return SlotState(
        stage=grid("stage", torch.int64),
        epochs_in_stage=grid("e", torch.int64),
        age=grid("age", torch.int64),
        alpha=grid("alpha"),
        params=grid("params"),
        germinated_at=grid("germinated_at", torch.int64),
        contribution=grid("c"),
        cf=column("cf"),
        interactions=torch.tensor([row.pairs for row in rows], dtype=dtype),
        accuracy=column("accuracy"),
        committed_accuracy=column("committed"),
        loss=column("loss"),
    )


def copies(slots: list[Slot]) -> list[Slot]:
    return [Slot(s.stage, s.e, s.age, s.alpha, s.params, s.germinated_at, s.c) for s in slots]
