"""Rows for learner tests: small heads, configurations, scripted steps; everything keyed and in the open."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.spec.sections import Net, ObsNorm, Ppo
from worker.envs.base import HeadSpec, Observation, Seen
from worker.rl.config import LearnerConfig
from worker.rl.heads import Heads
from worker.rl.learner import Learner, ObsLayout, Streams, build_learner
from worker.rl.nets import InputLayout
from worker.rl.rollout import Rollout

CPU = torch.device("cpu")


#: Three ops; ``where`` depends on op, ``size`` only counts for op 2.
HEADS = (HeadSpec("op", 3), HeadSpec("where", 2, ("op",), (1, 2), 0), HeadSpec("size", 4, (), (2,), 3))


def ppo_config(**changes: Any) -> Ppo:
    plain: dict[str, Any] = {
        "lr": 3e-3,
        "lr_schedule": "constant",
        "lr_end_frac": 1.0,
        "gamma": 0.99,
        "lambda_": 0.95,
        "minibatches": 2,
        "target_kl": None,
        "entropy_coef_start": 0.01,
        "entropy_coef_end": 0.01,
        "entropy_anneal_rounds": 1,
        "adv_norm": "rollout",
        "adv_std_floor": 0.0,
    }
    return Ppo(**plain | changes)


def learner_config(body: str = "mlp", hidden: int = 16, **changes: Any) -> LearnerConfig:
    ppo = {k: changes.pop(k) for k in list(changes) if k in Ppo.model_fields}
    settings = ppo_config(**ppo)
    base = LearnerConfig(
        ppo=settings,
        net=Net.model_validate({"body": body, "hidden": hidden, "lstm_hidden": hidden}),
        obs_norm=ObsNorm(enabled=False),
        return_norm="none",
        reward_norm="none",
        precision="fp32",
        rounds=100,
        gamma=settings.gamma,
    )
    return replace(base, **changes)


def make_learner(
    cfg: LearnerConfig,
    heads: Sequence[HeadSpec],
    num_features: int,
    num_envs: int,
    seed: int = 7,
    alike: dict[Hashable, Learner] | None = None,
) -> Learner:
    flags = torch.ones(num_features, dtype=torch.bool)
    layout = ObsLayout(InputLayout(num_features, 0, 0, 4), flags, torch.zeros_like(flags))
    return build_learner(cfg, layout, heads, Streams(seed), num_envs=num_envs, device=CPU, alike=alike)


def full_masks(heads: Sequence[HeadSpec], num_envs: int) -> dict[str, Tensor]:
    sizes = {h.name: h.size for h in heads}
    return {h.name: torch.ones(num_envs, *(sizes[p] for p in h.parents), h.outputs, dtype=torch.bool) for h in heads}


def random_masks(heads: Sequence[HeadSpec], num_envs: int, rng: np.random.Generator) -> dict[str, Tensor]:
    """Masks with at least one legal choice per row."""
    masks = full_masks(heads, num_envs)
    for head in heads:
        if not head.is_gaussian:  # which has nothing to mask
            drawn = torch.from_numpy(rng.random(tuple(masks[head.name].shape)) < 0.6)
            drawn[..., 0] |= ~drawn.any(-1)
            masks[head.name] = drawn
    return masks


def random_rollout(
    learner: Learner, heads: Sequence[HeadSpec], num_steps: int, rng: np.random.Generator, *, ends: float = 0.15
) -> Rollout:
    """A rollout of random observations, masks, rewards and episode ends, acted by the learner."""
    E, features = learner.num_envs, learner.net.embed.layout.num_features
    rollout = Rollout(num_steps, learner.heads, learner.obs_norm, learner.cfg.precision)

    def observe() -> tuple[Observation, dict[str, Tensor]]:
        obs = Observation(
            torch.from_numpy(rng.standard_normal((E, features)).astype(np.float32)),
            torch.zeros(E, 0, dtype=torch.int64),
        )
        return obs, random_masks(heads, E, rng)

    observation, masks = observe()
    rollout.begin(observation, masks, learner.net.initial_state(E))
    for t in range(num_steps):
        noise = torch.from_numpy(rng.random((E, learner.heads.num_columns), dtype=np.float32))
        rollout.act(learner.net, t, noise, None)
        observation, masks = observe()
        ended = torch.from_numpy(rng.random(E) < ends)
        kind = torch.from_numpy(rng.random(E) < 0.5)
        final, _ = observe()
        seen = Seen(
            observation=observation,
            masks=masks,
            terminated=ended & kind,
            truncated=ended & ~kind,
            valid=torch.ones(E, dtype=torch.bool),
            final_observation=final,
        )
        rollout.see(t, seen)
        rollout.pay(t, torch.from_numpy(rng.standard_normal(E).astype(np.float32)))
    learner.carry = rollout.state
    return rollout


def build_heads(heads: Sequence[HeadSpec] = HEADS) -> Heads:
    return Heads.build(heads, CPU)
