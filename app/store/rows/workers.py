"""Records of workers: as much of one as each reader needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lockstep.status import WorkerStatus


@dataclass(frozen=True, slots=True)
class IdleWorker:
    """A worker that may be given work."""

    id: str
    incarnation: str
    device_uid: str


@dataclass(frozen=True, slots=True)
class SchedulableWorker(IdleWorker):
    """What a pass over the queue needs of every worker: it reads them all, so no more than that."""

    device_kind: str
    device_class: str
    memory_bytes: float
    max_blocks: int
    status: str
    drain: bool
    datasets: Any
    rewards: Mapping[str, Any]
    environments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PresentWorker(SchedulableWorker):
    """A worker that has not retired; ``holds``: a live assignment has its device."""

    holds: bool

    @property
    def is_free(self) -> bool:
        """Whether it is idle, holds nothing and is not to go: it has nothing to hear."""
        return self.status == WorkerStatus.IDLE and not (self.drain or self.holds)


@dataclass(frozen=True, slots=True)
class WorkerRow(SchedulableWorker):
    """A worker: one supervisor on one device."""

    name: str
    host: str
    device_model: str
    status_text: str | None
    drain_now: bool
    versions: Mapping[str, Any]
    health: Mapping[str, Any]
    fast_failures: int
    seen_epoch: float
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class HoldingWorker(WorkerRow):
    """A worker with the assignment that it holds, if any."""

    assignment_id: str | None
    block_id: str | None
    progress: Mapping[str, Any] | None
    offered_at: datetime | None
    experiment_id: str | None
    experiment_name: str | None
    rounds: int | None
    replicate: int | None


@dataclass(frozen=True, slots=True)
class Told:
    """What the heartbeat of a live assignment told last."""

    replicate: int
    progress: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FailureOnWorker:
    """The last failure of what a worker trained."""

    worker_id: str
    ended_at: datetime
    cause: str | None
    detail: str | None
    experiment_id: str
    replicate: int


@dataclass(frozen=True, slots=True)
class WorkerEventRow:
    """A change of a worker."""

    worker_id: str
    at: datetime
    status: str
    actor: str
    text: str
