"""Issues the training and validation of every environment of every run of a step.

Jobs arrive in the order A0 B0 A1 B1 .. and are issued in it; nothing is read back until all are
issued, then everything returns in one copy. Several batches of jobs may be under way; they are collected in the
order of their issue. ``Engine`` is the plain sequential path: the path of the CPU and the oracle of
``captured.CapturedEngine``. Axes: n batches, B items, W choices per item.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.envs.morph.engine.validate import Measured, Validator, ValPlan, decode
from worker.envs.morph.network.hosts import Pass
from worker.envs.morph.network.network import EpochStats, Network, StepPlan
from worker.envs.morph.task.data import Items, TrainingData


@dataclass
class Job:
    """One environment's epoch.

    Attributes:
        network, validator: what is trained and validated.
        draws: choices of the epoch [n, B, W] on the CPU, or None to validate only.
        step_plan: which grafts take part in training, and how.
        how: training pass with the dropout generator.
        val_plan: configurations to validate.
    """

    network: Network
    validator: Validator
    draws: Tensor | None
    step_plan: StepPlan
    how: Pass
    val_plan: ValPlan


@dataclass
class Outcome:
    """What a job measured, on the host.

    Attributes:
        training: [2 + 3 S] float64 (``EpochStats.packed``); empty when only validated.
        finite: whether every parameter of the host and of grafts that trained is finite.
        measured: the validation.
        issue_seconds: time spent issuing the job (on the CPU: running it).
    """

    training: NDArray[np.float64]
    finite: bool
    measured: Measured
    issue_seconds: float


@dataclass
class Counters:
    """Work done since the start, for reports: never read by training.

    Attributes:
        host_steps, train_items: batches trained, and items in them.
        val_asked: validation items times configurations asked for.
        val_forwarded: items run through segments in validation, in units of whole networks.
        copies: device-to-host copies of results.
        captures, hits, replays, evictions: of graphs.
        capture_seconds, graph_bytes: cost of capture.
        issue_seconds, wait_seconds: CPU time to issue a step, and to wait for its results.
        train_seconds, validate_seconds: device time between events, mean over environments that ran side by
            side; measured on the captured path only.
    """

    host_steps: int = 0
    train_items: int = 0
    val_asked: int = 0
    val_forwarded: float = 0.0
    copies: int = 0
    captures: int = 0
    hits: int = 0
    replays: int = 0
    evictions: int = 0
    capture_seconds: float = 0.0
    graph_bytes: int = 0
    issue_seconds: float = 0.0
    wait_seconds: float = 0.0
    train_seconds: float = 0.0
    validate_seconds: float = 0.0

    def count(self, job: Job, val: Items, rows: int) -> None:
        """Add one job; ``rows`` items went through segments in its validation."""
        if job.draws is not None:
            self.host_steps += job.draws.shape[0]
            self.train_items += job.draws.shape[0] * job.draws.shape[1]
        plan = job.val_plan
        self.val_asked += val.x.shape[0] * (len(plan.masks) + len(plan.prospective))
        self.val_forwarded += rows / job.network.host.num_segments


@dataclass
class IssuedJobs:
    """Jobs that have been issued.

    Attributes:
        jobs: in the order of issue.
        sizes: numbers that each job returns.
    """

    jobs: Sequence[Job]
    sizes: Sequence[int]


class StepEngine(Protocol):
    """What the environments ask of an engine."""

    counters: Counters

    @property
    def loads(self) -> bool:
        """Whether a step that is new costs time once, so that it pays to rehearse."""

    def rehearse(self, job: Job, val: Items) -> None:
        """Run a job once, so that what it needs is loaded; nothing of it is counted or kept."""
        ...

    def issue(self, jobs: Sequence[Job], val: Items) -> Any:
        """Start to train and validate every job, in order; their networks belong to the engine until collected.

        Args:
            jobs: at least one.
            val: items to validate on.
        """
        ...

    def collect(self, issued: Any) -> list[Outcome]:
        """Wait for the jobs of an issue and return what they measured."""
        ...


def run_jobs(engine: StepEngine, jobs: Sequence[Job], val: Items) -> list[Outcome]:
    """Train and validate every job, in order, and wait for all."""
    return engine.collect(engine.issue(jobs, val))


@dataclass
class Computed(IssuedJobs):
    """Jobs of the plain path: done when issued.

    Attributes:
        flat: all numbers, on the host.
        seconds: what each job took.
    """

    flat: NDArray[np.float64]
    seconds: Sequence[float]


@dataclass
class Engine:
    """Plain sequential engine.

    Attributes:
        precision: precision of the training pass; validation is float32.
        data: where batches are gathered from.
        device: where the networks live.
        counters: work done.
    """

    precision: Literal["fp32", "bf16"]
    data: TrainingData
    device: torch.device
    counters: Counters = field(default_factory=Counters)

    #: Nothing that runs here has to be loaded.
    loads = False

    def rehearse(self, job: Job, val: Items) -> None:
        """Do nothing."""

    def issue(self, jobs: Sequence[Job], val: Items) -> Computed:
        """Train and validate every job, in order, and read all results in one copy."""
        packed: list[Tensor] = []
        seconds: list[float] = []
        drawn: Tensor | None = None
        batches: tuple[Tensor, Tensor] | None = None
        for job in jobs:
            start = time.perf_counter()
            if job.draws is not None and job.draws is not drawn:
                # runs of one environment share its batches
                drawn, batches = job.draws, self.data.gather(job.draws.to(self.device))
            packed.append(self._issue(job, batches, val))
            seconds.append(time.perf_counter() - start)
        self.counters.issue_seconds += sum(seconds)
        # the one device-to-host copy of the step
        flat = torch.cat(packed).cpu().numpy()
        self.counters.copies += 1
        return Computed(jobs, [part.numel() for part in packed], flat, seconds)

    def collect(self, issued: Computed) -> list[Outcome]:
        """Return what the jobs of an issue measured."""
        return outcomes(issued.jobs, issued.sizes, issued.flat, issued.seconds)

    def _issue(self, job: Job, batches: tuple[Tensor, Tensor] | None, val: Items) -> Tensor:
        before = job.validator.forward_rows
        parts: list[Tensor] = []
        if job.draws is not None and batches is not None:
            stats = self._train(job, *batches)
            parts.append(stats.packed(len(job.network.slots)))
        parts.append(job.network.magnitude(job.step_plan))
        parts.append(job.validator.run(val.x, val.y, job.val_plan))
        self.counters.count(job, val, job.validator.forward_rows - before)
        return torch.cat(parts)

    def _train(self, job: Job, x: Tensor, y: Tensor) -> EpochStats:
        stats = EpochStats()
        last = x.shape[0] - 1
        for batch in range(x.shape[0]):
            # entered anew for every batch: autocast keeps its casts of weights until it is left
            with autocast(self.precision, self.device):
                job.network.train_batch(x[batch], y[batch], job.step_plan, job.how, stats, measure=batch == last)
        return stats


def autocast(precision: Literal["fp32", "bf16"], device: torch.device) -> AbstractContextManager[object]:
    """Return the context of the training pass."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def outcomes(
    jobs: Sequence[Job], sizes: Sequence[int], flat: NDArray[np.float64], seconds: Sequence[float]
) -> list[Outcome]:
    """Return the results of all jobs from the one vector that came back."""
    parts = [flat[stop - size : stop] for stop, size in zip(accumulate(sizes), sizes, strict=True)]
    return [_outcome(*item) for item in zip(jobs, parts, seconds, strict=True)]


def _outcome(job: Job, packed: NDArray[np.float64], seconds: float) -> Outcome:
    split = 0 if job.draws is None else 2 + 3 * len(job.network.slots)
    return Outcome(
        training=packed[:split],
        finite=math.isfinite(packed[split]),
        measured=decode(packed[split + 1 :], job.val_plan),
        issue_seconds=seconds,
    )
