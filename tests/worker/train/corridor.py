"""A toy environment family, both halves, outside of the packages: a corridor of seven cells, paid at its right end.

Axes: E environment; one feature (the cell), one head (left, right).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.keys import generator
from lockstep.spec.environments.family import Family, Score
from worker.envs.base import (
    Cohort,
    EpisodeRecord,
    HeadSpec,
    Masks,
    Observation,
    ObsSpec,
    Seen,
    StepResult,
    whole_step,
)
from worker.envs.family import EnvironmentFamily, Order, Trial, UniformControl

CELLS, STEPS = 7, 10

SPEC = Family(
    name="corridor",
    scores=(
        Score(
            name="native_return_mean",
            column="native_return",
            unit="return",
            direction="max",
            lower=0.0,
            upper=float(STEPS),
            reward_dependent=False,
            description="steps spent at the right end",
            training="train/native_return_mean",
            field="native_return",
            label="native return",
        ),
    ),
    controls=("random",),
    reward_modes=("native",),
    default_reward="native",
    heads=("move",),
    eval_episodes=4,
    eval_max_steps=None,
    return_norm="none",
    keyed_by="env_reset",
    fill=lambda _data: None,
    rules=lambda _env, _arms: iter(()),
    steps_per_round=lambda _env: STEPS,
    memory_bytes=lambda _env, _num_arms: 2**20,
    seconds=lambda _env, steps: steps / 1e5,
    dataset=lambda _env: None,
    packs=True,
    is_package=False,
)


class Native:
    """The corridor's own reward."""

    name, config_hash = "native", "0" * 64

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma


class Corridor:
    """E corridors of each of K runs; every round is one episode."""

    resets_each_round = True
    limits: Mapping[str, str] = {}
    steps_per_round = STEPS
    heads: Sequence[HeadSpec] = (HeadSpec("move", 2),)

    def __init__(self, order: Order, prefix: str, xeval: Sequence[str] = ()) -> None:
        self.num_envs, self._seed, self._prefix = order.num_envs, order.replicate_seed, prefix
        self._xeval = xeval
        flags = torch.ones(1, dtype=torch.bool)
        self.obs_spec = ObsSpec(1, flags, ~flags)
        self._cells = [torch.zeros(order.num_envs) for _ in order.runs]
        self._paid = [torch.zeros(order.num_envs) for _ in order.runs]
        self._episodes: list[list[EpisodeRecord]] = [[] for _ in order.runs]
        self._issued: Sequence[Tensor | None] = ()
        self._step = 0

    @property
    def cohorts(self) -> Sequence[Cohort]:
        return (Cohort(self, tuple(range(len(self._cells)))),)

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        purpose = f"{self._prefix}env_reset"
        draws = [generator(self._seed, purpose, env=e, episode=round_index) for e in range(self.num_envs)]
        start = torch.tensor([float(draw.integers(CELLS)) for draw in draws])
        self._step = 0
        for run in range(len(self._cells)):
            self._cells[run], self._paid[run] = start.clone(), torch.zeros(self.num_envs)
        return [self._view(run) for run in range(len(self._cells))]

    def _view(self, run: int) -> tuple[Observation, Masks]:
        features = (self._cells[run] / CELLS).unsqueeze(-1)
        ids = torch.zeros(self.num_envs, 0, dtype=torch.int64)
        return Observation(features, ids), {"move": torch.ones(self.num_envs, 2, dtype=torch.bool)}

    def rehearse(self) -> None: ...

    def close(self) -> None: ...

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        self._issued = actions

    def collect(self) -> list[Seen | None]:
        self._step += 1
        return [self._seen(run, moves) for run, moves in enumerate(self._issued)]

    def _seen(self, run: int, moves: Tensor | None) -> Seen | None:
        if moves is None:
            return None
        self._cells[run] = (self._cells[run] + 2.0 * moves[:, 0] - 1.0).clamp(0, CELLS - 1)
        observation, masks = self._view(run)
        over = torch.full((self.num_envs,), self._step == STEPS)
        valid = torch.ones(self.num_envs, dtype=torch.bool)
        return Seen(observation=observation, masks=masks, terminated=over, truncated=~valid, valid=valid)

    def pay(self) -> list[Tensor | None]:
        return [None if moves is None else self._pay(run) for run, moves in enumerate(self._issued)]

    def _pay(self, run: int) -> Tensor:
        reward = (self._cells[run] == CELLS - 1).float()
        self._paid[run] += reward
        if self._step == STEPS:
            self._episodes[run] += [EpisodeRecord(e, self._row(float(p))) for e, p in enumerate(self._paid[run])]
        return reward

    def _row(self, paid: float) -> dict[str, Any]:
        scored = {"xeval": dict.fromkeys(self._xeval, paid)} if self._xeval else {}
        return {"episode_reward": paid, "native_return": paid, "env_steps": STEPS, **scored}

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        return whole_step(self, actions)

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        return {"native": self._paid[run]}

    def pop_episodes(self, run: int) -> list[EpisodeRecord]:
        found, self._episodes[run] = self._episodes[run], []
        return found

    def pop_events(self, run: int) -> list[dict[str, Any]]:
        del run
        return []

    def state_dict(self, run: int) -> dict[str, Any]:
        del run
        return {}

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None: ...


FAMILY = EnvironmentFamily(
    train=lambda order, _overlaps: Corridor(order, ""),
    evaluate=lambda order, xeval: Corridor(order, "eval/", list(xeval)),
    reward=lambda _mode, _section, gamma, _env: Native(gamma),
    check_reward=lambda _reward, _task: None,
    try_reward=lambda _reward, _section, _seconds: Trial([], torch.zeros(1, 1, 1), 0.0, 0.0, 0),
    control=lambda _policy, envs, _position, seed, round_index: UniformControl(envs, seed, round_index),
    never_floored={},
    op_names=lambda _num_ops: ["left", "right"],
    split=None,
    twin=None,
    keeps_evaluation=True,
)
