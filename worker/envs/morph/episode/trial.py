"""A reward mode on some steps of a real task: what `lockstep reward check NAME --env TASK` plays and prints.

Hosts are small and little trained: it shows what a mode computes, not what a policy learns. Axes: E environment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from worker.envs.family import RunEnv, Trial
from worker.envs.morph.episode.controls import make_control
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import Setup
from worker.envs.morph.rewards.account import RewardFunction, paid_by
from worker.envs.morph.rewards.context import RewardContext, RewardResult
from worker.envs.morph.task.config import EnvConfig
from worker.envs.paid import payer

#: Of this seed grafts are blended in, so that contributions are measured.
_SEED = 1
_ENVS, _BATCHES = 2, 2
#: Steps that are played however long they take.
_LEAST_STEPS = 12


@dataclass
class _Recorder:
    """Pays nothing and keeps every transition."""

    name: str = "recorded"
    version: str = "1"
    death_pay: float = 0.0
    steps: list[RewardContext] = field(default_factory=list)

    def __call__(self, ctx: RewardContext) -> RewardResult:
        self.steps.append(ctx)
        return RewardResult(torch.zeros_like(ctx.host_params), {}, {})


def played(task: str, seconds: float) -> tuple[list[RewardContext], float]:
    """Return the transitions of an episode of a task under the random control, and the seconds it took.

    The episode is a whole one, unless it takes longer than ``seconds``.
    """
    config = EnvConfig.for_task(task, batches_per_step=_BATCHES)
    recorder = _Recorder()
    setup = Setup(config, _SEED, torch.device("cpu"), _ENVS, "train")
    envs = MorphEnvs(setup, [RunEnv("run", "", "random", None, 1.0)], [recorder], {})
    began = time.perf_counter()
    envs.begin_round(0)
    control = make_control("random", envs, 0)
    for step in range(config.horizon):
        if step >= _LEAST_STEPS and time.perf_counter() - began > seconds:
            break
        envs.step([control.act(step)])
    return recorder.steps, time.perf_counter() - began


def try_mode(function: RewardFunction, task: str, seconds: float) -> Trial:
    """Return what a mode pays there; what training would refuse raises an ``EnvironmentFault``."""
    steps, stepping = played(task, seconds)
    who, everybody = payer(function.name, ""), np.ones(_ENVS, dtype=bool)
    ledgers: Mapping[str, Tensor] = {}
    paid, names = [], [""]
    began = time.perf_counter()
    for ctx in steps:
        rows, names, ledgers = paid_by(function, replace(ctx, ledgers=ledgers), who, None, everybody)
        paid.append(rows)
    scoring = time.perf_counter() - began
    episodes = sum(int(ctx.is_last.sum()) for ctx in steps)
    return Trial(names, torch.stack(paid, dim=1), scoring, stepping, episodes)
