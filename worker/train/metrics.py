"""Metrics of one run and round (training.md 7.1). Pure; a value that is not available is NaN.

Axes: T step, E environment, H heads, N choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from worker.envs.protocol import EpisodeRecord
from worker.rl.heads import HeadLike
from worker.rl.rollout import Rollout

if TYPE_CHECKING:
    from worker.train.runs import Run


def episode_rows(episodes: Sequence[EpisodeRecord], round_index: int) -> list[dict[str, Any]]:
    """Return the rows of finished episodes."""
    return [{"round": round_index, "env_id": e.env, **e.values} for e in episodes]


def round_metrics(
    run: Run, episodes: Sequence[EpisodeRecord], sums: Mapping[str, Tensor], update: Mapping[str, float]
) -> dict[str, float]:
    """Return all metrics of a round but those of evaluation and system."""
    returns = [float(e.values["episode_reward"]) for e in episodes]
    metrics = {f"train/{k}": v for k, v in _spread("return", returns).items()}
    metrics |= {f"ppo/{k}": v for k, v in update.items()}
    return metrics


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return dict.fromkeys((f"{name}_mean", f"{name}_std", f"{name}_min", f"{name}_max"), math.nan)
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return {f"{name}_mean": mean, f"{name}_std": std, f"{name}_min": min(values), f"{name}_max": max(values)}
