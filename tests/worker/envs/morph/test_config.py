"""Parsing a resolved spec, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lockstep.spec.tasks import PACES, get_task
from tests.worker.envs.morph.factories import CPU, tiny
from worker.envs.morph.task.config import EnvConfig, parse, resolve_path, resolve_precision


def spec(**env: Any) -> dict[str, Any]:
    base = {"kind": "morphogenesis", "task": "digits_tiny", "n_envs": 4, "horizon": 16, "batches_per_step": 4}
    return {
        "env": {**base, **env},
        "host": {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "grad_clip": 1.0},
        "graft": {"lr": 0.1, "momentum": None, "weight_decay": 0.0, "grad_clip": 1.0},
        "precision": {"policy": "fp32", "host": "auto", "tf32": False},
        "engine": {"path": "auto"},
        "lockstep": {},
        "telemetry": {"level": "normal"},
        "budget": {"rounds": 6},
    }


def test_resolved_spec_is_read_with_nulls_meaning_the_task_or_the_pace() -> None:
    config = parse(spec(min_prune_age=4, embargo=None, slots=["r0c1"], governor={"window": 30}))
    assert (config.horizon, config.batches_per_step, config.batch_size) == (16, 4, 64)
    assert (config.pace.min_prune_age, config.pace.embargo, config.pace.tempos) == (4, 1, (1, 2, 3))
    assert config.slots == ("r0c1",)
    assert config.governor.window == 30
    assert (config.host.lr, config.graft.lr, config.graft.momentum) == (0.05, 0.1, 0.9)


@pytest.mark.parametrize(("env", "message"), [
    ({"task": "mnist"}, "env.task 'mnist' is unknown"),
    ({"slots": ["r0c7"]}, "env.slots 'r0c7' does not exist in digits_tiny"),
    ({"slots": ["r0c0", "r0c0"]}, "unique"),
    ({"horizon": 5}, "shortest legal life"),
    ({"slot": ["r0c0"]}, "env.slot is not a known setting"),
    ({"governor": {"windows": 3}}, "env.governor.windows is not a known setting"),
])  # fmt: skip
def test_bad_settings_are_refused_by_name(env: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(spec(**env))


# defect 37
def test_half_precision_is_refused_with_the_reason() -> None:
    config = spec()
    config["precision"]["host"] = "fp16"
    with pytest.raises(ValueError, match=r"precision.host 'fp16' is refused: .* loss scaling"):
        parse(config)


def test_precision_resolves_to_fp32_on_the_cpu_and_refuses_bf16_there() -> None:
    assert resolve_precision(tiny(precision="auto"), CPU) == "fp32"
    with pytest.raises(ValueError, match="not supported"):
        resolve_precision(tiny(precision="bf16"), CPU)


def test_auto_takes_kernels_only_for_hosts_that_they_can_train() -> None:
    cuda = torch.device("cuda")
    huge = EnvConfig.for_task("cifar_baseline", batch_size=1 << 20)
    assert resolve_path(EnvConfig.for_task("lm_tiny"), cuda) == "captured"
    assert resolve_path(huge, cuda) == "captured"
    assert resolve_path(tiny(), CPU) == "eager"
    with pytest.raises(ValueError, match=r"'fused' cannot train lm_tiny here: .* convolutional hosts; use captured"):
        resolve_path(EnvConfig.for_task("lm_tiny", path="fused"), cuda)
    with pytest.raises(ValueError, match=r"2\^31 elements; use captured"):
        resolve_path(replace(huge, path="fused"), cuda)
    with pytest.raises(ValueError, match="needs a CUDA device"):
        resolve_path(tiny(path="fused"), CPU)


@pytest.mark.parametrize("name", ["digits_tiny", "synth_small", "cifar_baseline", "lm_tiny", "tinystories"])
def test_defaults_of_a_task_are_those_of_the_specification(name: str) -> None:
    config, task = EnvConfig.for_task(name), get_task(name)
    quick = name in ("digits_tiny", "lm_tiny")
    assert config.pace == PACES["quick" if quick else "standard"]
    assert config.horizon == {"digits_tiny": 30, "synth_small": 40, "cifar_baseline": 150, "lm_tiny": 30}.get(name, 100)
    assert (config.batches_per_step, config.batch_size) == {
        "digits_tiny": (16, 64),
        "synth_small": (32, 64),
        "cifar_baseline": (24, 512),
        "lm_tiny": (24, 16),
        "tinystories": (96, 32),
    }[name]
    assert config.augment == (task.dataset == "cifar10")
    assert config.dtype is torch.float32
