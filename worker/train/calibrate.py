"""Shared frozen observation statistics: one calibration rollout before round 0 (training.md 1.15).

A uniform random policy plays on scratch environments whose every stream hangs under
``obs_calibration``; the statistics are the same for all arms and are never moved again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lockstep.keys import derive, generator
from worker.envs.base import LockstepEnvs
from worker.rl.heads import Heads, choose
from worker.rl.learner import noise_of
from worker.rl.normalise import ObsNormalizer
from worker.train.environments import make_environments
from worker.train.plan import BlockPlan, RunPlan


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
        runs=[_unmapped(plan.runs[0])],
        alive=alive,
    )
    with contextlib.closing(envs):
        _observe(envs, plan, normalisers, device, alive)


def _unmapped(run: RunPlan) -> RunPlan:
    """Return a run whose real-numbered actions are the environment's own: what the random policy draws."""
    return replace(run, config={**run.config, "action": {}})


def _observe(
    envs: LockstepEnvs,
    plan: BlockPlan,
    normalisers: Sequence[ObsNormalizer],
    device: torch.device,
    alive: Callable[[], None],
) -> None:
    episodes = envs.num_envs
    heads = Heads.build(list(envs.heads), device)
    draw = generator(plan.replicate_seed, "obs_calibration")
    noise = noise_of(draw, (envs.steps_per_round, episodes, heads.num_columns), None)
    bounds = torch.tensor([pair for head in heads.specs for pair in head.bounds or [(0.0, 0.0)]], device=device)
    logits = torch.zeros(episodes, len(heads.specs), heads.width, device=device)
    [(observation, masks)] = envs.begin_round(0)
    valid = torch.ones(episodes, dtype=torch.bool, device=device)
    for t in range(envs.steps_per_round):
        for normaliser in normalisers:
            normaliser.update(observation.features, valid)
        uniforms = torch.from_numpy(noise[t]).to(device)
        actions, _ = choose(heads, logits, masks, uniforms)
        for columns in (c for c, head in zip(heads.columns, heads.specs, strict=True) if head.is_gaussian):
            low, high = bounds[columns].unbind(1)
            actions[:, columns] = low + (high - low) * uniforms[:, columns]
        [result] = envs.step([actions])
        if result is None:
            raise RuntimeError("a calibration environment gave no result")
        observation, masks = result.observation, result.masks
        valid = result.valid & ~(result.terminated if envs.resets_each_round else torch.zeros_like(valid))
        alive()
