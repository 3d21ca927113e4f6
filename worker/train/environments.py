"""Environments of a block share by kind; the environment packages are loaded by name, only when used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from worker.envs.protocol import LockstepEnvs, ObsSpec
from worker.rl.learner import ObsLayout
from worker.rl.nets import InputLayout
from worker.train.plan import BlockPlan, ConfigRefused

_MODULES: Mapping[str, str] = {"gymnasium": "worker.envs.gym", "morphogenesis": "worker.envs.morph.env"}


def load_kind(kind: str) -> Any:
    """Return the module of an environment kind; a missing optional package is a ``ConfigRefused``."""
    if kind not in _MODULES:
        raise ConfigRefused("env.kind", f"unknown kind {kind!r}", f"use one of {sorted(_MODULES)}")
    try:
        return importlib.import_module(_MODULES[kind])
    except ModuleNotFoundError as error:
        remedy = f"install it on the worker (pip install 'lockstep[worker,gym]'): {error}"
        raise ConfigRefused("env.kind", f"{kind!r} needs the package {error.name!r}", remedy) from error


def obs_layout(spec: ObsSpec) -> ObsLayout:
    """Return the learner's view of an observation layout."""
    inputs = InputLayout(spec.num_features, spec.num_ids, spec.id_vocab, spec.id_dim)
    return ObsLayout(inputs, spec.continuous, spec.sentinel)


def ordered_runs(plan: BlockPlan) -> list[int]:
    """Return indices into ``plan.runs`` in order of issue: arm k of replicate r stands at (k + r) mod K."""
    position = [(run.arm_index + plan.replicate) % plan.num_arms for run in plan.runs]
    return sorted(range(len(plan.runs)), key=position.__getitem__)


def make_environments(
    plan: BlockPlan,
    device: torch.device,
    *,
    phase: str,
    num_envs: int,
    seed: int | None = None,
    data_dir: Any = None,
) -> LockstepEnvs:
    """Build the environments of all runs held, in order of issue; refusals name field and remedy."""
    config = plan.runs[0].config
    module = load_kind(config["env"]["kind"])
    try:
        envs: LockstepEnvs = module.make_envs(
            config,
            [plan.runs[i] for i in ordered_runs(plan)],
            replicate_seed=plan.replicate_seed if seed is None else seed,
            device=device,
            num_envs=num_envs,
            phase=phase,
            data_dir=data_dir,
        )
    except ValueError as error:
        raise ConfigRefused("env", str(error), "correct the named field") from error
    return envs
