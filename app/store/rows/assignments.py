"""Records of assignments, and of where the runs of one stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class AssignmentRow:
    """An assignment; ``token`` is the hash of its lease."""

    id: str
    block_id: str
    attempt: int
    worker_id: str
    incarnation: str
    device_uid: str
    device_index: int
    slot: int
    token: str
    state: str
    expires_epoch: float
    collected: bool
    ready: bool
    progress: Mapping[str, Any]
    frame_age_seconds: float
    outcome: str | None
    cause: str | None
    detail: str | None
    cleanup_status: str | None
    offered_at: datetime
    ready_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class EndedAssignment(AssignmentRow):
    """An assignment that has just ended; ``num_given``: it and those that its worker was given together with it."""

    num_given: int


@dataclass(frozen=True, slots=True)
class AssignmentOfExperiment(AssignmentRow):
    """An assignment with its experiment."""

    experiment_id: str


@dataclass(frozen=True, slots=True)
class LiveAssignment(AssignmentRow):
    """A live assignment with the state of its block."""

    block_status: str
    stop_deadline_epoch: float | None
    experiment_id: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """Which attempt of which block a renewed lease belongs to."""

    block_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Which rounds of a run an attempt holds: from ``from_round`` up to, not with, ``until_round`` if that is set."""

    attempt: int
    from_round: int
    until_round: int | None


@dataclass(frozen=True, slots=True)
class RunPosition:
    """How far the points of a run's newest attempt have come."""

    no: int
    id: str
    experiment_id: str
    attempt: int
    from_round: int
    last_seq: int
