"""States of every object, the causes apart from them, and the one table of allowed transitions.

The store applies a transition as ``UPDATE .. WHERE id = :id AND status IN (:from)``; zero rows
means refused. Terminal states are never overwritten. The status of an experiment is derived, here,
and stored nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class BlockStatus(StrEnum):
    """State of a block: all arms of one replicate."""

    QUEUED = "queued"  # waits for devices
    RESERVED = "reserved"  # devices are assigned, children start
    RUNNING = "running"  # every child is ready, rounds go in
    STOPPING = "stopping"  # no new round; waits until no assignment is live
    PAUSED = "paused"  # stopped at a round border by request
    SUCCEEDED = "succeeded"  # every run finished
    FAILED = "failed"  # stopped for a cause that may not be tried again
    CANCELLED = "cancelled"  # stopped by request


class RunStatus(StrEnum):
    """State of a run: one arm in one block."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class WorkerStatus(StrEnum):
    """State of a worker: one supervisor bound to one device."""

    STARTING = "starting"
    IDLE = "idle"
    RESERVED = "reserved"
    BUSY = "busy"
    CLEANING = "cleaning"
    LOST = "lost"
    QUARANTINED = "quarantined"
    RETIRED = "retired"


class AssignmentState(StrEnum):
    """State of an assignment: the tie of block, attempt and worker that carries the lease."""

    OFFERED = "offered"
    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"


_ENDS = {"succeeded": "has succeeded", "failed": "has failed", "cancelled": "was cancelled", "partial": "ended in part"}


def ended_text(status: str) -> str:
    """Return what is said of an experiment, block or run in a state, as the rest of a sentence."""
    return _ENDS.get(status, f"is {status}")


class ExperimentStatus(StrEnum):
    """Derived state of an experiment."""

    QUEUED = "queued"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PARTIAL = "partial"


class Desired(StrEnum):
    """What the user wants of an experiment or block."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class Cause(StrEnum):
    """Why something stopped; a column of its own, never part of the status."""

    WORKER_LOST = "worker_lost"
    PREEMPTED = "preempted"
    OOM = "oom"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    USER = "user"
    BUG = "bug"  # ours
    DEVICE = "device"  # a signal of the device itself
    ENVIRONMENT = "environment"  # the user's environment, reward or plug-in raised, hung or broke its own spaces
    CONFIG = "config"  # the child refused the spec, its environment or its data before it was ready
    DECIDED = "decided"


CAUSE_SENTENCES: Mapping[Cause, str] = {
    Cause.WORKER_LOST: "the worker stopped answering and its lease expired",
    Cause.PREEMPTED: "the worker was asked to stop and gave the block back at a round border",
    Cause.OOM: "the device ran out of memory",
    Cause.DIVERGED: "the policy became non-finite or could not be updated any more",
    Cause.TIMEOUT: "no progress within the allowed time",
    Cause.USER: "stopped by request",
    Cause.BUG: "the training process failed with an error",
    Cause.DEVICE: "the device failed",
    Cause.ENVIRONMENT: "the environment or the reward function failed",
    Cause.CONFIG: "the training process refused the specification, its environment or its data",
    Cause.DECIDED: "a registered look settled the experiment",
}

#: How often a block goes back to the queue for a cause (control-plane.md 4.5).
REQUEUE_BUDGET: Mapping[Cause, int] = {
    Cause.PREEMPTED: 100,
    Cause.WORKER_LOST: 5,
    Cause.OOM: 1,
    Cause.BUG: 1,
    Cause.TIMEOUT: 1,
    Cause.ENVIRONMENT: 1,
    Cause.DEVICE: 3,
}

#: Causes that may be the job's own: a requeue waits, and one that repeats before the first round is the job's.
OF_THE_JOB = frozenset({Cause.BUG, Cause.TIMEOUT, Cause.ENVIRONMENT})
#: Causes that leave open whether the device is at fault; one experiment alone never settles it (control-plane.md 7.4).
PERHAPS_OF_THE_DEVICE = frozenset({Cause.BUG, Cause.TIMEOUT, Cause.WORKER_LOST})

TERMINAL_BLOCK = frozenset({BlockStatus.SUCCEEDED, BlockStatus.FAILED, BlockStatus.CANCELLED})
OPEN_BLOCK = frozenset(BlockStatus) - TERMINAL_BLOCK
ACTIVE_BLOCK = frozenset({BlockStatus.RESERVED, BlockStatus.RUNNING, BlockStatus.STOPPING})
TERMINAL_RUN = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})
LIVE_ASSIGNMENT = frozenset({AssignmentState.OFFERED, AssignmentState.ACTIVE})
TERMINAL_EXPERIMENT = frozenset(
    {
        ExperimentStatus.SUCCEEDED,
        ExperimentStatus.FAILED,
        ExperimentStatus.CANCELLED,
        ExperimentStatus.PARTIAL,
    }
)

BLOCK_TRANSITIONS: Mapping[BlockStatus, frozenset[BlockStatus]] = {
    BlockStatus.QUEUED: frozenset(
        # failed: another block of the experiment has shown that the job cannot run
        {BlockStatus.RESERVED, BlockStatus.PAUSED, BlockStatus.CANCELLED, BlockStatus.FAILED}
    ),
    BlockStatus.RESERVED: frozenset({BlockStatus.RUNNING, BlockStatus.STOPPING}),
    BlockStatus.RUNNING: frozenset({BlockStatus.STOPPING, BlockStatus.SUCCEEDED}),
    BlockStatus.STOPPING: frozenset(
        # succeeded: every run had finished before the stop took effect
        {BlockStatus.SUCCEEDED, BlockStatus.CANCELLED, BlockStatus.PAUSED, BlockStatus.QUEUED, BlockStatus.FAILED}
    ),
    BlockStatus.PAUSED: frozenset({BlockStatus.QUEUED, BlockStatus.CANCELLED}),
    BlockStatus.SUCCEEDED: frozenset(),
    BlockStatus.FAILED: frozenset(),
    BlockStatus.CANCELLED: frozenset(),
}

RUN_TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.RUNNING: frozenset(
        {
            RunStatus.PENDING,
            RunStatus.PAUSED,
            RunStatus.SUCCEEDED,
            RunStatus.FAILED,
            RunStatus.CANCELLED,
        }
    ),
    RunStatus.PAUSED: frozenset({RunStatus.PENDING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.SUCCEEDED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}

WORKER_TRANSITIONS: Mapping[WorkerStatus, frozenset[WorkerStatus]] = {
    WorkerStatus.STARTING: frozenset({WorkerStatus.IDLE, WorkerStatus.LOST, WorkerStatus.QUARANTINED}),
    WorkerStatus.IDLE: frozenset(
        {WorkerStatus.RESERVED, WorkerStatus.RETIRED, WorkerStatus.LOST, WorkerStatus.QUARANTINED}
    ),
    WorkerStatus.RESERVED: frozenset({WorkerStatus.BUSY, WorkerStatus.CLEANING, WorkerStatus.LOST}),
    WorkerStatus.BUSY: frozenset({WorkerStatus.CLEANING, WorkerStatus.LOST}),
    WorkerStatus.CLEANING: frozenset(
        {WorkerStatus.IDLE, WorkerStatus.LOST, WorkerStatus.QUARANTINED, WorkerStatus.RETIRED}
    ),
    WorkerStatus.QUARANTINED: frozenset({WorkerStatus.IDLE, WorkerStatus.RETIRED}),
    WorkerStatus.LOST: frozenset({WorkerStatus.CLEANING, WorkerStatus.RETIRED}),
    WorkerStatus.RETIRED: frozenset(),
}

ASSIGNMENT_TRANSITIONS: Mapping[AssignmentState, frozenset[AssignmentState]] = {
    AssignmentState.OFFERED: frozenset(
        {
            AssignmentState.ACTIVE,
            AssignmentState.RELEASED,
            AssignmentState.EXPIRED,
            AssignmentState.REVOKED,
        }
    ),
    AssignmentState.ACTIVE: frozenset({AssignmentState.RELEASED, AssignmentState.EXPIRED, AssignmentState.REVOKED}),
    AssignmentState.RELEASED: frozenset(),
    AssignmentState.EXPIRED: frozenset(),
    AssignmentState.REVOKED: frozenset(),
}


def block_sources(target: BlockStatus) -> frozenset[BlockStatus]:
    """Return the states from which a block may go to ``target``."""
    return frozenset(source for source, targets in BLOCK_TRANSITIONS.items() if target in targets)


def run_sources(target: RunStatus) -> frozenset[RunStatus]:
    """Return the states from which a run may go to ``target``."""
    return frozenset(source for source, targets in RUN_TRANSITIONS.items() if target in targets)


def worker_sources(target: WorkerStatus) -> frozenset[WorkerStatus]:
    """Return the states from which a worker may go to ``target``."""
    return frozenset(source for source, targets in WORKER_TRANSITIONS.items() if target in targets)


def assignment_sources(target: AssignmentState) -> frozenset[AssignmentState]:
    """Return the states from which an assignment may go to ``target``."""
    return frozenset(source for source, targets in ASSIGNMENT_TRANSITIONS.items() if target in targets)


def experiment_status(
    blocks: Iterable[tuple[BlockStatus, Cause | None]], desired: Desired, *, ever_started: bool
) -> ExperimentStatus:
    """Derive the status of an experiment from its newest blocks (control-plane.md 3.3).

    Args:
        blocks: state and cause of the newest generation of each replicate's block.
        desired: what the user wants of the experiment.
        ever_started: whether any block was ever assigned.
    """
    states = list(blocks)
    present = {status for status, _ in states}
    if present & ACTIVE_BLOCK:
        return _active_status(desired)
    if BlockStatus.QUEUED in present:
        return ExperimentStatus.WAITING if ever_started else ExperimentStatus.QUEUED
    if BlockStatus.PAUSED in present:
        return ExperimentStatus.PAUSED
    if all(_counts_as_success(status, cause) for status, cause in states):
        return ExperimentStatus.SUCCEEDED
    if desired is Desired.CANCEL:
        return ExperimentStatus.CANCELLED
    return ExperimentStatus.PARTIAL if BlockStatus.SUCCEEDED in present else ExperimentStatus.FAILED


def _active_status(desired: Desired) -> ExperimentStatus:
    if desired is Desired.CANCEL:
        return ExperimentStatus.CANCELLING
    return ExperimentStatus.PAUSING if desired is Desired.PAUSE else ExperimentStatus.RUNNING


def _counts_as_success(status: BlockStatus, cause: Cause | None) -> bool:
    return status is BlockStatus.SUCCEEDED or (status is BlockStatus.CANCELLED and cause is Cause.DECIDED)
