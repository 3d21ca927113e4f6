"""The environment's settings, parsed once from a resolved spec into frozen records.

Field names and defaults are those of the spec's sections. ``EnvConfig.for_task`` needs no server. Nothing else in this
package reads raw mappings; unknown keys and impossible batches are refused before anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from shutil import which
from typing import Any, Literal

import torch

from lockstep.spec.sections import Engine, Env, Governor, Precision
from lockstep.spec.tasks import PACES, CnnShape, Optim, Pace, TaskSpec, get_task

Choice = Literal["g1", "g2", "g3"]
Path = Literal["auto", "eager", "captured", "fused"]


#: What a field is when nobody names it; the section of the spec says so.
_DEFAULT, _DEFAULT_PRECISION = Env(), Precision()


@dataclass(frozen=True)
class EnvConfig:
    """Everything the environment needs to know; units as in training.md 5.1."""

    task: TaskSpec
    slots: tuple[str, ...]
    horizon: int
    batch_size: int
    batches_per_step: int
    pace: Pace
    host: Optim
    graft: Optim
    augment: bool = False
    horizon_end: Literal["terminated", "truncated"] = _DEFAULT.horizon_end
    max_grafts: int | None = _DEFAULT.max_grafts
    param_budget: int | None = _DEFAULT.param_budget
    val_images: int | None = _DEFAULT.val_images
    train_signal: Literal["shadow", "ste"] = _DEFAULT.train_signal
    sequential_development: bool = _DEFAULT.sequential_development
    ablate_fossils: Literal["always", "final"] = _DEFAULT.ablate_fossils
    shapley: Literal["last", "always"] = _DEFAULT.shapley
    gates: Literal["permissive", "strict"] = _DEFAULT.gates
    auto_advance: tuple[Choice, ...] = _DEFAULT.auto_advance
    velocity_ema: float = _DEFAULT.velocity_ema
    governor: Governor = _DEFAULT.governor
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    tf32: bool = _DEFAULT_PRECISION.tf32
    path: Path = Engine().path
    dtype: torch.dtype = torch.float32

    @classmethod
    def for_task(cls, name: str, **overrides: Any) -> EnvConfig:
        """Return a task's defaults; ``overrides`` replace fields, ``pace`` may be a name."""
        task = get_task(name)
        pace = overrides.pop("pace", task.pace)
        base = cls(
            task=task,
            slots=task.slots,
            horizon=task.horizon,
            batch_size=task.batch_size,
            batches_per_step=task.batches_per_step,
            pace=PACES[pace] if isinstance(pace, str) else pace,
            host=task.host_optim,
            graft=task.graft_optim,
            augment=task.augment,
        )
        return validate(replace(base, **overrides))


#: env keys which this record takes over as they are.
_PLAIN = (
    "horizon",
    "batch_size",
    "batches_per_step",
    "augment",
    "horizon_end",
    "max_grafts",
    "param_budget",
    "val_images",
    "train_signal",
    "sequential_development",
    "ablate_fossils",
    "shapley",
    "gates",
    "velocity_ema",
)
#: env keys of other environments, of the loop, or handled by name below.
_OTHER = {
    "kind", "id", "task", "n_envs", "rollout_steps", "wrappers", "kwargs", "slots", "pace", "governor",
    "auto_advance", "min_training_epochs", "min_prune_age", "embargo",
}  # fmt: skip


def parse(config: Mapping[str, Any]) -> EnvConfig:
    """Read the sections env, host, graft and precision of a resolved spec.

    Raises:
        ValueError: unknown key or impossible value, naming field, value and remedy.
    """
    env: Mapping[str, Any] = config["env"]
    unknown = sorted(set(env) - set(_PLAIN) - _OTHER)
    if unknown:
        raise ValueError(f"env.{unknown[0]} is not a known setting; remove it")
    overrides = {key: env[key] for key in _PLAIN if env.get(key) is not None}
    if env.get("slots") is not None:
        overrides["slots"] = tuple(env["slots"])
    overrides["auto_advance"] = tuple(env.get("auto_advance", ()))
    overrides["governor"] = _governor(env.get("governor") or {})
    overrides["pace"] = _pace(env)
    task = get_task(env["task"])
    overrides["host"] = _record(task.host_optim, config.get("host") or {}, "host")
    overrides["graft"] = _record(task.graft_optim, config.get("graft") or {}, "graft")
    precision: Mapping[str, Any] = config.get("precision") or {}
    overrides["precision"] = precision.get("host", "auto")
    overrides["tf32"] = bool(precision.get("tf32", False))
    overrides["path"] = (config.get("engine") or {}).get("path", "auto")
    return EnvConfig.for_task(env["task"], **overrides)


def validate(config: EnvConfig) -> EnvConfig:
    """Return the configuration, or raise ValueError naming field, value and remedy."""
    _check_slots(config)
    if config.precision not in ("auto", "fp32", "bf16"):
        raise ValueError(
            f"precision.host {config.precision!r} is refused: fp16 needs loss scaling, which skips different "
            "steps in different arms; use fp32 or bf16"
        )
    shortest_life = config.pace.dwell + min(config.pace.tempos) + 3
    if shortest_life > config.horizon:
        raise ValueError(
            f"env.horizon {config.horizon} is shorter than the shortest legal life of a graft, "
            f"{shortest_life} (env.min_training_epochs + shortest tempo + 3); raise one or lower the other"
        )
    return config


def check_batches(config: EnvConfig, train_size: int) -> None:
    """Refuse a batch plan which the training split cannot fill (environment.md 5.3)."""
    available = train_size // config.batch_size
    if available == 0:
        raise ValueError(
            f"batch_size {config.batch_size} leaves 0 training batches in {train_size} examples; "
            f"use at most {train_size}"
        )
    if config.batches_per_step > available:
        raise ValueError(
            f"env.batches_per_step {config.batches_per_step} exceeds the {available} batches of "
            f"{config.batch_size} in {train_size} examples; use at most {available}"
        )


def resolve_precision(config: EnvConfig, device: torch.device) -> Literal["fp32", "bf16"]:
    """Return the training precision on a device: auto = bf16 on CUDA capability >= 8, else fp32."""
    if config.precision == "fp32" or (config.precision == "auto" and device.type != "cuda"):
        return "fp32"
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if config.precision == "bf16" and not capable:
        raise ValueError(f"precision.host bf16 is not supported by {device}; use fp32")
    return "bf16" if capable else "fp32"


def resolve_path(config: EnvConfig, device: torch.device) -> Literal["eager", "captured", "fused"]:
    """Return how training steps are executed: auto = fused on CUDA where its kernels take the hosts, else captured.

    On a CPU auto is eager.
    """
    if config.path == "auto":
        if device.type != "cuda":
            return "eager"
        return "fused" if _lacks_kernels(config, device) is None else "captured"
    if config.path == "fused" and device.type == "cuda" and (lack := _lacks_kernels(config, device)):
        raise ValueError(f"engine.path 'fused' cannot train {config.task.name} here: {lack}; use captured or auto")
    if config.path != "eager" and device.type != "cuda":
        raise ValueError(f"engine.path {config.path!r} needs a CUDA device, this is {device}; use auto or eager")
    return config.path


def _lacks_kernels(config: EnvConfig, device: torch.device) -> str | None:
    """Return why the kernels of ``fused`` cannot take the hosts of a configuration on a CUDA device, or None."""
    host = config.task.host
    if not isinstance(host, CnnShape):
        return "its kernels are for convolutional hosts"
    largest = max(max(host.in_channels, slot.channels) * slot.height * slot.width for slot in host.slots())
    if config.batch_size * largest >= 1 << 31:
        return f"a batch of {config.batch_size} makes maps of more than 2^31 elements"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "its kernels need compute capability 8.0"
    if find_spec("triton") is None or not (os.environ.get("CC") or which("gcc") or which("clang")):
        return "the worker needs the package triton and a C compiler"
    return None


def _check_slots(config: EnvConfig) -> None:
    known = [slot.id for slot in config.task.host.slots()]
    if not config.slots or len(set(config.slots)) != len(config.slots):
        raise ValueError(f"env.slots {list(config.slots)} must be non-empty and unique")
    for slot in config.slots:
        if slot not in known:
            raise ValueError(f"env.slots {slot!r} does not exist in {config.task.name}; use some of {', '.join(known)}")


def _pace(env: Mapping[str, Any]) -> Pace:
    pace = PACES[env.get("pace") or get_task(env["task"]).pace]
    own = {"min_training_epochs": "dwell", "min_prune_age": "min_prune_age", "embargo": "embargo"}
    changes = {own[key]: env[key] for key in own if env.get(key) is not None}
    return replace(pace, **changes)


def _governor(values: Mapping[str, Any]) -> Governor:
    unknown = sorted(set(values) - set(Governor.model_fields))
    if unknown:
        raise ValueError(f"env.governor.{unknown[0]} is not a known setting; use {', '.join(Governor.model_fields)}")
    return Governor.model_validate(values)


def _record(base: Any, values: Mapping[str, Any], where: str) -> Any:
    known = {item.name for item in fields(base)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{where}.{unknown[0]} is not a known setting; use {', '.join(sorted(known))}")
    return replace(base, **{key: value for key, value in values.items() if value is not None})
