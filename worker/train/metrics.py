"""Metrics of one run and round (training.md 7.1). Pure; a value that is not available is NaN.

Axes: T step, E environment, H heads, N choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from worker.envs.base import EpisodeRecord
from worker.rl.algorithms.base import Algorithm, Prepared
from worker.rl.gaussian import LOG_STD_MAX, LOG_STD_MIN
from worker.rl.heads import Heads
from worker.rl.learner import Learner
from worker.rl.rollout import Rollout

_MIB = 2**20

#: Groups that telemetry level ``minimal`` keeps, beside what is essential of the algorithm.
_MINIMAL = ("train/", "eval/", "sys/")
#: Metric under ``train/``: column of the episode row, of which the mean is taken.
_EPISODE_MEANS: Mapping[str, str] = {
    "episode_length_mean": "env_steps",
    "committed_accuracy_mean": "committed_accuracy",
    "native_return_mean": "native_return",
    "loss_mean": "final_loss",
    "param_ratio_mean": "param_ratio",
    "grafts_live_mean": "grafts_live",
    "grafts_fossilized_mean": "grafts_fossilized",
}


def episode_rows(episodes: Sequence[EpisodeRecord], round_index: int) -> list[dict[str, Any]]:
    """Return the rows of finished episodes."""
    return [{"env_id": e.env, **e.values, "round": round_index} for e in episodes]


def kept_metrics(metrics: Mapping[str, float], level: str, algorithm: Algorithm | None) -> dict[str, float]:
    """Return what a telemetry level keeps; the level changes no number."""
    if level != "minimal":
        return dict(metrics)
    kept = (*_MINIMAL, *(f"{algorithm.name}/{name}" for name in algorithm.essential)) if algorithm else _MINIMAL
    return {name: value for name, value in metrics.items() if name.startswith(kept)}


def gradient_metrics(
    learner: Learner, algorithm: Algorithm, telemetry: Mapping[str, Any], round_index: int
) -> dict[str, float]:
    """Return ``<algorithm>/grad_norm_<parameter>`` of the gradient that the update's last minibatch left.

    Level ``debug`` only, in every ``grad_stride``-th round from 0. Read only: it changes no number. One transfer.
    """
    if telemetry["level"] != "debug" or round_index % int(telemetry["grad_stride"]):
        return {}
    grads = {name: p.grad for name, p in learner.net.named_parameters() if p.grad is not None}
    norms = torch.stack([grad.norm() for grad in grads.values()]).tolist()
    prefix = f"{algorithm.name}/grad_norm_"
    return {prefix + name.replace(".", "_"): norm for name, norm in zip(grads, norms, strict=True)}


def train_metrics(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the group ``train/`` from the episodes that finished in this round."""
    rows = [e.values for e in episodes]
    returns = _known(rows, "episode_reward")
    accuracies = _known(rows, "final_accuracy")
    metrics = _spread("train/return", returns)
    for name in ("mean", "min", "max"):
        metrics[f"train/accuracy_{name}"] = _spread("x", accuracies)[f"x_{name}"]
    for name, column in _EPISODE_MEANS.items():
        metrics[f"train/{name}"] = _spread("x", _known(rows, column))["x_mean"]
    if any("success" in row for row in rows):  # few environments tell
        metrics["train/success_rate"] = _spread("x", _known(rows, "success"))["x_mean"]
    metrics["train/rollbacks"] = math.fsum(_known(rows, "rollbacks"))
    return metrics


def reward_metrics(sums: Mapping[str, Tensor], episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the group ``reward/``: component sums of the round, mean over environments."""
    means = {name: float(total.double().mean()) for name, total in sums.items()}
    metrics = {f"reward/{name}_mean": value for name, value in means.items()}
    size = math.fsum(abs(v) for v in means.values())
    metrics["reward/shaping_share"] = abs(means["shaping"]) / size if "shaping" in means and size > 0 else math.nan
    rows = [e.values for e in episodes if e.values.get("final_accuracy") is not None]
    metrics["reward/accuracy_return_corr"] = _correlation(
        [float(r["final_accuracy"]) for r in rows], [float(r["episode_reward"]) for r in rows]
    )
    return metrics


def policy_metrics(
    heads: Heads, rollout: Rollout, prepared: Prepared | None, op_names: Sequence[str]
) -> dict[str, float]:
    """Return the group ``policy/``; entropies need a policy that learns, the rest counts actions.

    ``entropy_<head>`` is normalised by ln n and averaged over relevant steps with at least two legal
    choices, in nats for a Gaussian head; ``entropy_op_conditional`` is that of head 0. One transfer to the host.
    """
    if prepared is None:
        masks = {name: mask[: rollout.num_steps] for name, mask in rollout.masks.items()}
        choices = heads.choices(masks, rollout.actions, rollout.valid)
        summary = heads.summary(choices, rollout.actions, rollout.valid, None)
    else:
        summary = prepared.summary
    told = summary.tolist()
    shares, values = told[: heads.num_ops], iter(told[heads.num_ops :])
    metrics = {f"policy/op_frac_{name}": share for name, share in zip(op_names, shares, strict=False)}
    forced_frac, idle_frac = next(values), next(values)
    metrics["policy/forced_frac"] = forced_frac if prepared is not None else 1.0
    # choice 0 on steps where something else was legal; WAIT in the morphogenesis environment
    metrics["policy/wait_unforced"] = idle_frac if "WAIT" in op_names[:1] else math.nan
    metrics |= {f"policy/mask_valid_mean_{name}": next(values) for name in heads.names}
    for spec in heads.specs:
        if spec.is_gaussian:  # which has no choices to count
            del metrics[f"policy/mask_valid_mean_{spec.name}"]
    metrics |= {f"policy/open_steps_{name}": next(values) for name in heads.names}
    if prepared is not None:
        metrics |= {f"policy/entropy_{name}": next(values) for name in heads.names}
        metrics["policy/entropy_op_conditional"] = metrics[f"policy/entropy_{heads.names[0]}"]
    return metrics


def std_metrics(learner: Learner) -> dict[str, float]:
    """Return ``policy/std``, the mean standard deviation of all components of Gaussian heads; nothing without any."""
    log_std = [part.detach().clamp(LOG_STD_MIN, LOG_STD_MAX) for part in learner.net.outputs.log_std.values()]
    return {"policy/std": float(torch.cat(log_std).exp().mean())} if log_std else {}


def system_metrics(
    round_index: int, steps: int, num_runs: int, seconds: tuple[float, float, float], device: torch.device
) -> dict[str, float]:
    """Return what a round took.

    Args:
        round_index: of the round.
        steps: environment steps of a run in a round.
        num_runs: of the block.
        seconds: of rollout, update and evaluation.
        device: where policies live.
    """
    peak = torch.cuda.max_memory_allocated(device) / _MIB if device.type == "cuda" else math.nan
    return {
        "sys/env_steps": float((round_index + 1) * steps),
        "sys/env_steps_per_second": steps * num_runs / seconds[0],
        "sys/round_seconds": sum(seconds),
        "sys/rollout_seconds": seconds[0],
        "sys/device_mem_peak_mib": peak,
    }


def _known(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row.get(column) is not None]


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return dict.fromkeys((f"{name}_mean", f"{name}_std", f"{name}_min", f"{name}_max"), math.nan)
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return {f"{name}_mean": mean, f"{name}_std": std, f"{name}_min": min(values), f"{name}_max": max(values)}


def _correlation(x: Sequence[float], y: Sequence[float]) -> float:
    if len(x) < 3:
        return math.nan
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    xy = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    xx, yy = math.fsum((a - mean_x) ** 2 for a in x), math.fsum((b - mean_y) ** 2 for b in y)
    return xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else math.nan
