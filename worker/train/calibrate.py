"""Shared frozen observation statistics: one calibration rollout before round 0 (training.md 1.15).

A uniform random policy plays on scratch environments whose every stream hangs under
``obs_calibration``; the statistics are the same for all arms and are never moved again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from lockstep.keys import derive, generator
from worker.envs.base import LockstepEnvs
from worker.rl.heads import Heads, choose
from worker.rl.learner import bounded_uniforms
from worker.rl.normalise import ObsNormalizer
from worker.train.environments import make_environments
from worker.train.plan import BlockPlan


def calibrate(
    plan: BlockPlan,
    normalisers: Sequence[ObsNormalizer],
    episodes: int,
    device: torch.device,
    data_dir: Path | None,
    alive: Callable[[], None],
) -> None:
    """Fill ``normalisers`` with the statistics of ``episodes`` episodes of a uniform random policy."""
    envs = make_environments(
        plan,
        device,
        phase="train",
        num_envs=episodes,
        seed=derive(plan.replicate_seed, "obs_calibration"),
        data_dir=data_dir,
        runs=plan.runs[:1],
        alive=alive,
    )
    with contextlib.closing(envs):
        _observe(envs, plan, normalisers, device, alive)


def _observe(
    envs: LockstepEnvs,
    plan: BlockPlan,
    normalisers: Sequence[ObsNormalizer],
    device: torch.device,
    alive: Callable[[], None],
) -> None:
    episodes = envs.num_envs
    heads = Heads.build(list(envs.heads), device)
    noise = generator(plan.replicate_seed, "obs_calibration").random(
        (envs.steps_per_round, episodes, len(heads.specs)), dtype="float32"
    )
    logits = torch.zeros(episodes, len(heads.specs), heads.width, device=device)
    [(observation, masks)] = envs.begin_round(0)
    valid = torch.ones(episodes, dtype=torch.bool, device=device)
    for t in range(envs.steps_per_round):
        for normaliser in normalisers:
            normaliser.update(observation.features, valid)
        actions, _ = choose(heads, logits, masks, bounded_uniforms(noise[t]).to(device))
        [result] = envs.step([actions])
        if result is None:
            raise RuntimeError("a calibration environment gave no result")
        observation, masks = result.observation, result.masks
        valid = result.valid & ~(result.terminated if envs.resets_each_round else torch.zeros_like(valid))
        alive()
