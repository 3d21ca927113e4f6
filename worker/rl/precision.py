"""The one factory of autocast contexts: rollout, bootstrap, anchor, update and evaluation share it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

#: Largest |anchor - rollout| log-prob gap by where and how the numbers were made (training.md 1.11).
_ANCHOR_LIMITS = {"bf16": 3e-2, "cpu": 1e-5, "cuda": 1e-4}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which a policy network runs; ``precision`` is ``fp32`` or ``bf16``."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def anchor_limit(device: torch.device, precision: str) -> float:
    """Return the largest log-probability gap between rollout and sequence path that is noise."""
    return _ANCHOR_LIMITS["bf16" if precision == "bf16" else device.type]
