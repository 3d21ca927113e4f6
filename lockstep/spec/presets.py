"""Presets: named sets of values under a spec's own keys (training.md 5.2). Own keys win."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_GYM: dict[str, Any] = {
    "env": {"kind": "gymnasium", "n_envs": 4, "rollout_steps": 128},
    "reward": {"mode": "native"},
    "net": {"body": "mlp", "hidden": 64},
    "ppo": {
        "lr": 2.5e-4,
        "lr_end_frac": 0.0,
        "gamma": 0.99,
        "lambda": 0.95,
        "epochs": 4,
        "minibatches": 4,
        "clip": 0.2,
        "value_clip": 0.2,
        "entropy_normalised": False,
        "entropy_coef_start": 0.01,
        "entropy_coef_end": 0.01,
        "value_coef": 0.5,
        "grad_clip": 0.5,
        "adv_norm": "minibatch",
        "adv_std_floor": 0.0,
        "target_kl": None,
    },
    "obs_norm": {"enabled": False},
    "return_norm": "none",
    "reward_norm": "none",
    "eval": {"episodes": 100},
}


#: The published settings of PPO for MuJoCo tasks (docs/environments.md).
_CONTINUOUS: dict[str, Any] = {
    **_GYM,
    "env": {"kind": "gymnasium", "n_envs": 1, "rollout_steps": 2048},
    "ppo": {
        **_GYM["ppo"],
        "lr": 3e-4,
        "epochs": 10,
        "minibatches": 32,
        "entropy_coef_start": 0.0,
        "entropy_coef_end": 0.0,
    },
    "action": {"bounds": "clip"},
    "obs_norm": {"enabled": True, "clip": 10.0},
    "reward_norm": "return_std",
}


#: The published settings of PPO for Atari games, on images as they are (docs/environments.md).
_IMAGES: dict[str, Any] = {
    **_GYM,
    "env": {"kind": "gymnasium", "n_envs": 8, "rollout_steps": 128},
    "ppo": {**_GYM["ppo"], "clip": 0.1, "value_clip": 0.1},
    "net": {"body": "mlp", "hidden": 64, "encoder": "small"},
}


#: The same with the games prepared as published (docs/environments.md).
_ATARI: dict[str, Any] = {
    **_IMAGES,
    "env": {**_IMAGES["env"], "wrappers": ["atari"], "kwargs": {"repeat_action_probability": 0.0}},
    "net": {"body": "mlp", "hidden": 512, "encoder": "nature"},
}


#: Many environments in one simulator on a GPU (docs/environments.md).
_SIMULATOR: dict[str, Any] = {
    **_GYM,
    "env": {"kind": "gymnasium", "n_envs": 4096, "rollout_steps": 16},
    "ppo": {
        **_GYM["ppo"],
        "lr": 1e-3,
        "lr_end_frac": 1.0,
        "epochs": 5,
        "entropy_coef_start": 0.005,
        "entropy_coef_end": 0.005,
        "value_coef": 1.0,
        "grad_clip": 1.0,
        "target_kl": 0.01,
    },
    "net": {"body": "mlp", "hidden": 256},
    "obs_norm": {"enabled": True},
}


def _cifar(task: str, start: float, end: float, **env: Any) -> dict[str, Any]:
    ppo = {"entropy_coef_start": start, "entropy_coef_end": end}
    return {"env": {"task": task, **env}, "ppo": ppo}


_STABLE = _cifar("cifar_baseline", 0.06, 0.03)

_DIGITS_BENCH: dict[str, Any] = {
    "env": {
        "task": "digits_tiny",
        "n_envs": 8,
        "horizon": 20,
        "batch_size": 64,
        "batches_per_step": 8,
        "pace": "quick",
        "min_prune_age": 6,
    },
    "host": {"lr": 0.02},
    "graft": {"lr": 0.1},
    "budget": {"rounds": 20},
    "net": {"body": "lstm", "hidden": 64, "lstm_hidden": 64},
    "ppo": {
        "lr": 3e-3,
        "lr_end_frac": 0.1,
        "epochs": 8,
        "minibatches": 4,
        "target_kl": 0.05,
        "entropy_coef_start": 0.05,
        "entropy_coef_end": 0.01,
    },
    "eval": {"every_rounds": 20, "episodes": 8, "mode": "both"},
    "lockstep": {"placement": "shared_device"},
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cifar_baseline": _cifar("cifar_baseline", 0.10, 0.01),
    # at graft lr 0.01 a late graft needs more updates to help than it has before it is judged
    # (docs/results/headroom.md)
    "cifar_bench": {**_cifar("cifar_baseline", 0.10, 0.01), "graft": {"lr": 0.1}},
    "cifar_baseline_stable": {
        **_STABLE,
        "ppo": {**_STABLE["ppo"], "clip": 0.1},
        "budget": {"rounds": 200},
    },
    "cifar_scale": _cifar("cifar_scale", 0.08, 0.01, val_images=2000),
    "cifar_impaired": _cifar("cifar_impaired", 0.10, 0.01),
    "cifar_minimal": _cifar("cifar_minimal", 0.10, 0.01),
    "tinystories": {
        "env": {"task": "tinystories", "n_envs": 2, "batch_size": 32},
        "ppo": {
            "minibatches": 2,
            "entropy_coef_start": 0.05,
            "entropy_coef_end": 0.01,
            "entropy_anneal_rounds": 10,
        },
        "reward": {"sparse_scale": 0.5},
    },
    "digits_cpu": {
        "env": {
            "task": "digits_tiny",
            "n_envs": 4,
            "horizon": 16,
            "batch_size": 64,
            "batches_per_step": 4,
            "pace": "quick",
            "min_prune_age": 4,
        },
        "host": {"lr": 0.05},
        "graft": {"lr": 0.1},
        "budget": {"rounds": 6},
        "net": {"body": "lstm", "hidden": 64, "lstm_hidden": 64},
        "ppo": {"lr": 3e-3, "target_kl": 0.05},
        "eval": {"every_rounds": 6, "episodes": 8, "mode": "greedy"},
        "lockstep": {"placement": "shared_device"},
        "checkpoint": {"every_rounds": 1},
    },
    "digits_bench": _DIGITS_BENCH,
    # with the 480 updates of the task the host alone reaches 93 % and grafts add 4 pp; here they add 7
    # (docs/results/headroom.md)
    "digits_small_bench": {
        **_DIGITS_BENCH,
        "env": {**_DIGITS_BENCH["env"], "task": "digits_small"},
        "host": {"lr": 0.01},
    },
    "synth_small_bench": {"env": {"task": "synth_small"}, "host": {"lr": 0.001}},
    "lm_bench": {"env": {"task": "lm_tiny", "horizon": 40}, "host": {"lr": 3e-4}, "graft": {"lr": 0.02}},
    "gym_classic": _GYM,
    "gym_continuous": _CONTINUOUS,
    "gym_atari": _ATARI,
    "gym_image_small": _IMAGES,
    "gpu_sim": _SIMULATOR,
    "gym_lstm": {
        **_GYM,
        "env": {**_GYM["env"], "n_envs": 8},
        "net": {"body": "lstm", "hidden": 64, "lstm_hidden": 128},
    },
}


#: Env steps for which the source of a preset's settings trains a run (docs/environments.md).
PUBLISHED_STEPS: Mapping[str, int] = {
    "gym_classic": 500_000,
    "gym_lstm": 500_000,
    "gym_continuous": 1_000_000,
    "gym_atari": 10_000_000,
    "gym_image_small": 10_000_000,
}


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``overrides`` laid over it, dictionary by dictionary; neither is changed."""
    result = dict(base)
    for key, value in overrides.items():
        below = result.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merge(below, value) if nested else value  # type: ignore[arg-type]
    return result
