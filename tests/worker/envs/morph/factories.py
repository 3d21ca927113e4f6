"""Small environments, networks and actions for the tests of morphogenesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lockstep.spec.tasks import action_order
from worker.envs.base import StepResult
from worker.envs.family import RunEnv
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import Setup
from worker.envs.morph.life.actions import canonical_action
from worker.envs.morph.life.stages import Op
from worker.envs.morph.network.blueprints import blueprint_id
from worker.envs.morph.network.network import Network
from worker.envs.morph.rewards.context import RewardContext, RewardResult
from worker.envs.morph.task.config import EnvConfig

CPU = torch.device("cpu")
SEED = 9150231957862659777


@dataclass
class AccuracyGain:
    """Pays the change of validation accuracy; enough of a reward for the environment's own tests."""

    name: str = "gain"
    version: str = "1"
    death_pay: float = -10.0

    def __call__(self, ctx: RewardContext) -> RewardResult:
        gain = torch.nan_to_num(ctx.post.accuracy - ctx.pre.accuracy)
        return RewardResult(gain, {"gain": gain.clone()}, {})


def tiny(**overrides: Any) -> EnvConfig:
    """digits_tiny at a size for tests: 2 batches of 64 and T = 8 unless overridden."""
    return EnvConfig.for_task("digits_tiny", **{"horizon": 8, "batches_per_step": 2, **overrides})


def make(
    config: EnvConfig,
    *,
    runs: int = 1,
    num_envs: int = 1,
    phase: Literal["train", "eval"] = "train",
    policies: Sequence[str] = (),
    static_set: Mapping[str, str] | None = None,
    seed: int = SEED,
) -> MorphEnvs:
    """Environments of ``runs`` equal runs, or of one run per policy."""
    names = list(policies) or ["ppo"] * runs
    specs = [RunEnv(f"run{i}", f"arm{i}", name, static_set, 0.995) for i, name in enumerate(names)]
    others = {"other": AccuracyGain(name="other")} if phase == "eval" else {}
    return MorphEnvs(Setup(config, seed, CPU, num_envs, phase), specs, [AccuracyGain() for _ in specs], others)


def row(envs: MorphEnvs, op: Op = Op.WAIT, slot: int = 0, **heads: int) -> list[int]:
    """One action with the irrelevant heads canonical; heads by name."""
    action = canonical_action(envs.heads)
    if op is not Op.WAIT:
        action[0], action[1] = int(op), slot
    names = [head.name for head in envs.heads]
    for name, index in heads.items():
        action[names.index(name)] = index
    return action


def germinate(envs: MorphEnvs, slot: int, name: str = "bottleneck", **heads: int) -> list[int]:
    return row(envs, Op.GERMINATE, slot, **{"blueprint": blueprint_id(name), "style": 0, **heads})


def act(envs: MorphEnvs, *rows: Sequence[int]) -> Tensor:
    """Actions [E, H]; one row serves all environments."""
    chosen = list(rows) if len(rows) > 1 else [rows[0]] * envs.num_envs
    return torch.tensor(chosen, dtype=torch.int64)


def play(envs: MorphEnvs, *rows: Sequence[int]) -> StepResult:
    """Step a single-run environment and return the run's result."""
    result = envs.step([act(envs, *rows)])[0]
    assert result is not None
    return result


def network(config: EnvConfig, seed: int = 0) -> Network:
    """A freshly initialised network of a task."""
    slots = action_order([slot for slot in config.task.host.slots() if slot.id in config.slots])
    net = Network(config, slots, CPU)
    net.reset(np.random.Generator(np.random.Philox(key=seed)))
    return net


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def host_state(envs: MorphEnvs, run: int = 0, env: int = 0) -> Tensor:
    """Parameters, momenta and running statistics of a host in one tensor."""
    store = envs.runs[run].world.networks[env].store
    return torch.cat([store.flat, store.momentum, store.buffers])
