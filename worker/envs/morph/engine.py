"""Issues the training and validation of every environment of every run of a step.

Jobs arrive in the order A0 B0 A1 B1 .. and are issued in it; nothing is read back until all are
issued, then everything returns in one copy. This is the eager path.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.envs.morph.data import Items
from worker.envs.morph.hosts import Pass
from worker.envs.morph.network import Network, StepPlan
from worker.envs.morph.validate import Measured, Validator, ValPlan, decode


@dataclass
class Job:
    """One environment's epoch.

    Attributes:
        network, validator: what is trained and validated.
        batches: x [n, B, ..] and y [n, B, ..], or None to validate only.
        step_plan: which grafts take part in training, and how.
        how: training pass with the dropout generator.
        val_plan: configurations to validate.
    """

    network: Network
    validator: Validator
    batches: tuple[Tensor, Tensor] | None
    step_plan: StepPlan
    how: Pass
    val_plan: ValPlan


@dataclass
class Outcome:
    """What a job measured, on the host.

    Attributes:
        training: [2 + 3 S] float64 (``EpochStats.packed``); empty when only validated.
        finite: whether every parameter of host and live grafts is finite.
        measured: the validation.
        issue_seconds: time spent issuing the job (on the CPU: running it).
    """

    training: NDArray[np.float64]
    finite: bool
    measured: Measured
    issue_seconds: float


class Engine:
    """Eager engine.

    Args:
        precision: precision of the training pass; validation is float32.
        device: where the networks live.
    """

    def __init__(self, precision: Literal["fp32", "bf16"], device: torch.device) -> None:
        self.precision, self.device = precision, device

    def run(self, jobs: Sequence[Job], val: Items) -> list[Outcome]:
        """Train and validate every job, in order, and read all results in one copy."""
        packed, seconds = [], []
        for job in jobs:
            start = time.perf_counter()
            packed.append(self._issue(job, val))
            seconds.append(time.perf_counter() - start)
        if not packed:
            return []
        sizes = [part.numel() for part in packed]
        # the one device-to-host copy of the step
        flat = torch.cat(packed).cpu().numpy()
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return [_outcome(*item) for item in zip(jobs, parts, seconds, strict=True)]

    def _issue(self, job: Job, val: Items) -> Tensor:
        parts: list[Tensor] = []
        if job.batches is not None:
            with self._autocast():
                stats = job.network.train_epoch(*job.batches, job.step_plan, job.how)
            parts.append(stats.packed(len(job.network.slots)))
        parts.append(job.network.magnitude())
        parts.append(job.validator.run(val.x, val.y, job.val_plan))
        return torch.cat(parts)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def _outcome(job: Job, packed: NDArray[np.float64], seconds: float) -> Outcome:
    split = 0 if job.batches is None else 2 + 3 * len(job.network.slots)
    return Outcome(
        training=packed[:split],
        finite=bool(np.isfinite(packed[split])),
        measured=decode(packed[split + 1 :], job.val_plan),
        issue_seconds=seconds,
    )
