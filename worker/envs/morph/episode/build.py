"""Builds the environments of an assignment from a resolved spec: together, or in cohorts out of phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

from worker.envs.base import Cohort, LockstepEnvs
from worker.envs.cohorts import Cohorts
from worker.envs.family import RunEnv
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import Setup, SharedData
from worker.envs.morph.rewards.account import RewardFunction
from worker.envs.morph.task import config as configs

__all__ = ["in_cohorts", "make_envs", "make_evaluation_envs", "make_training_envs"]


def make_envs(
    config: Mapping[str, Any],
    runs: Sequence[RunEnv],
    *,
    replicate_seed: int,
    device: torch.device,
    num_envs: int,
    phase: Literal["train", "eval"],
    rewards: Sequence[RewardFunction],
    xeval: Mapping[str, RewardFunction] | None = None,
    data_dir: Path | None = None,
) -> MorphEnvs:
    """Build the environments of all runs of an assignment from a resolved spec.

    Args:
        config: resolved spec as nested plain dicts (training.md 5.1).
        runs: runs in the order of the block.
        replicate_seed: root of every key of this replicate.
        device: where hosts train.
        num_envs: E of every run; in phase eval the number of evaluation episodes.
        phase: eval uses the key space ``eval/`` and measures the final networks on the test split.
        rewards: one function per run.
        xeval: in phase eval, further functions under which every transition is scored.
        data_dir: directory of data sets that are not bundled.

    Raises:
        ValueError: a setting is unknown or impossible.
        FileNotFoundError: data files are missing.
    """
    setup = Setup(configs.parse(config), replicate_seed, device, num_envs, phase, data_dir)
    return MorphEnvs(setup, runs, rewards, xeval or {})


def make_training_envs(
    config: Mapping[str, Any],
    runs: Sequence[RunEnv],
    *,
    replicate_seed: int,
    device: torch.device,
    num_envs: int,
    rewards: Sequence[RewardFunction],
    data_dir: Path | None = None,
) -> MorphEnvs | Cohorts:
    """Build as ``make_envs`` for training: cohorts where a device works while the CPU acts, else all together.

    Several runs are a cohort each, a run alone is two. It is acted for half of its environments at a time either way.
    """
    setup = Setup(configs.parse(config), replicate_seed, device, num_envs, "train", data_dir)
    if configs.resolve_path(setup.config, device) == "eager" or num_envs == 1:
        return MorphEnvs(setup, runs, rewards, {})
    return in_cohorts(setup, runs, rewards, 2 if len(runs) == 1 else 1)


def make_evaluation_envs(
    config: Mapping[str, Any],
    runs: Sequence[RunEnv],
    *,
    replicate_seed: int,
    device: torch.device,
    num_envs: int,
    rewards: Sequence[RewardFunction],
    xeval: Mapping[str, RewardFunction],
    beside: LockstepEnvs,
    data_dir: Path | None = None,
) -> MorphEnvs | Cohorts:
    """Build as ``make_envs`` for evaluation, with what the training environments of the same block share.

    These must begin a round before they step again. Where they are cohorts, every run is one here too. It is whole:
    products of half of its rows would not round alike.
    """
    first = beside.cohorts[0].envs
    if not isinstance(first, MorphEnvs):
        raise TypeError(f"{type(first).__name__} share nothing with morphogenesis")
    setup = Setup(configs.parse(config), replicate_seed, device, num_envs, "eval", data_dir)
    shared = first.shared.for_evaluation(setup)
    if len(beside.cohorts) == 1:
        return MorphEnvs(setup, runs, rewards, xeval, shared)
    paid = enumerate(zip(runs, rewards, strict=True))
    return Cohorts([Cohort(MorphEnvs(setup, [run], [pay], xeval, shared), (index,)) for index, (run, pay) in paid])


def in_cohorts(setup: Setup, runs: Sequence[RunEnv], rewards: Sequence[RewardFunction], count: int) -> Cohorts:
    """Build environments in one or two cohorts for each run, acted for half of a run's environments at a time."""
    shared = SharedData.load(setup)
    halves = [0, setup.num_envs // 2, setup.num_envs]
    stops = halves if count == 2 else halves[::2]
    parts = [replace(setup, num_envs=b - a, first_env=a) for a, b in pairwise(stops)]
    groups = () if count == 2 else tuple(b - a for a, b in pairwise(halves))
    paid = list(enumerate(zip(runs, rewards, strict=True)))
    return Cohorts(
        [
            Cohort(MorphEnvs(part, [run], [reward], {}, shared), (position,), index, groups)
            for index, part in enumerate(parts)
            for position, (run, reward) in paid
        ]
    )
