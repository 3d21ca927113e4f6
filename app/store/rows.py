"""What the store hands to the services: one frozen record a kind of row, its fields named as the columns.

A query selects ``columns(Kind, table)``, then the further fields of a record in their order; ``one`` and
``every`` make the records. States are the words of ``lockstep.status`` as the database holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ColumnElement, FromClause, Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind")


def columns(kind: type[DataclassInstance], table: FromClause) -> list[ColumnElement[Any]]:
    """Return the columns of a table that a record holds, in the order of its fields."""
    return [table.c[field.name] for field in fields(kind)]


def one(kind: Callable[..., Kind], result: Result[Any]) -> Kind | None:
    """Return the record of the one row of a result, or None where there is none."""
    row = result.one_or_none()
    return kind(*row) if row is not None else None


def every(kind: Callable[..., Kind], result: Result[Any]) -> list[Kind]:
    """Return the records of all rows of a result."""
    return [kind(*row) for row in result]


@dataclass(frozen=True, slots=True)
class ListedExperiment:
    """An experiment without its documents."""

    id: str
    name: str
    notes: str
    tags: list[str]
    owner: str
    owner_name: str
    kind: str
    mode: str
    spec_hash: str
    analysis_hash: str | None
    warnings: list[str]
    seed: str
    rounds: int
    num_arms: int
    placement: str
    placement_resolved: str | None
    needs: Mapping[str, Any]
    priority: int
    rank: float
    desired: str
    version: int
    event_seq: int
    parent_id: str | None
    exploratory_from: int | None
    unblinded_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ExperimentRow(ListedExperiment):
    """An experiment with its specification: as resolved, and as submitted."""

    spec: Mapping[str, Any]
    submitted: Mapping[str, Any]
    analysis: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ArmRow:
    """An arm; ``diff`` is what sets it apart from the first."""

    experiment_id: str
    arm_index: int
    label: str
    policy: str
    reward_mode: str
    static_set: Any
    config: Mapping[str, Any]
    diff: Any


@dataclass(frozen=True, slots=True)
class BlockState:
    """What the state of an experiment is derived from."""

    experiment_id: str
    replicate: int
    generation: int
    status: str
    cause: str | None
    attempt: int
    open_round: int
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class BlockRow(BlockState):
    """A block; instants that are compared in SQL are seconds of the database's clock."""

    id: str
    cause_text: str | None
    desired: str
    counts_against_budget: bool
    resume_round: int
    num_diverged: int
    budget_used: Mapping[str, int]
    not_before_epoch: float
    reserve_deadline_epoch: float | None
    ready_deadline_epoch: float | None
    stop_deadline_epoch: float | None
    round_opened_epoch: float | None
    waiting_since_epoch: float
    min_memory_bytes: float
    created_at: datetime


@dataclass(frozen=True, slots=True)
class BlockOfExperiment(BlockRow):
    """A block with the name and placement of its experiment."""

    name: str
    placement_resolved: str | None


@dataclass(frozen=True, slots=True)
class StoppedBlock(BlockRow):
    """A stopping block without a device; ``trains``: some of its runs have not ended."""

    trains: bool


@dataclass(frozen=True, slots=True)
class WaitingBlock(BlockRow):
    """A queued block with what the scheduler asks of its experiment."""

    owner: str
    owner_name: str
    priority: int
    rank: float
    placement: str
    placement_resolved: str | None
    needs: Mapping[str, Any]
    num_arms: int


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run; ``no`` is its number in the tables of results."""

    no: int
    id: str
    block_id: str
    experiment_id: str
    replicate: int
    generation: int
    arm_index: int
    status: str
    cause: str | None
    cause_text: str | None
    rounds_done: int
    env_steps: float
    stalled: bool
    resumed: int
    device_uid: str | None
    device_seconds: float
    record: Mapping[str, Any]
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunOfArm(RunRow):
    """A run with what is asked of its arm."""

    label: str
    reward_mode: str
    policy: str


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
class EventRow:
    """An event; ``group_id`` is the label of its arm, or ``*``."""

    experiment_id: str
    seq: int
    id: str
    type: str
    severity: str
    block_id: str | None
    run_id: str | None
    worker_id: str | None
    replicate: int | None
    group_id: str
    reward_mode: str | None
    device: str | None
    round: int | None
    env_id: int | None
    status: str | None
    cause: str | None
    actor: str
    text: str
    payload: Mapping[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True)
class WorkerEventRow:
    """A change of a worker."""

    worker_id: str
    at: datetime
    status: str
    actor: str
    text: str


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A stored file."""

    id: str
    experiment_id: str
    run_id: str | None
    kind: str
    name: str
    sha256: str
    size_bytes: float
    media_type: str
    next_round: int | None
    attempt: int | None
    committed: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class EvalEpisodeRow:
    """An evaluation episode; None where a number is not finite or was not given."""

    run_no: int
    round: int | None
    env_id: int | None
    episode_idx: int | None
    final_accuracy: float | None
    committed_accuracy: float | None
    best_accuracy: float | None
    episode_reward: float | None
    final_loss: float | None
    param_ratio: float | None
    outcome: str | None
    values: Mapping[str, Any]
    mode: str
    split: str
    test_accuracy: float | None


@dataclass(frozen=True, slots=True)
class TrainingEpisode:
    """Scores and reward of a training episode; ``further`` holds what has no column."""

    final_accuracy: float | None
    committed_accuracy: float | None
    final_loss: float | None
    param_ratio: float | None
    episode_reward: float | None
    further: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """The training episodes of a run in four numbers."""

    run_no: int
    episodes: int
    final_accuracy: float | None
    best_accuracy: float | None
    mean_reward: float | None


@dataclass(frozen=True, slots=True)
class PointOfMetric:
    """A point of a metric; ``at`` is its time, ``kind`` tells NaN and infinities apart where ``value`` is None."""

    run_no: int
    attempt: int
    seq: int
    name_id: int
    step: float
    round: int
    at: float
    value: float | None
    kind: int
    name: str


@dataclass(frozen=True, slots=True)
class PointOfRun(PointOfMetric):
    """A point of a metric of a run."""

    run_id: str


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


@dataclass(frozen=True, slots=True)
class Headline:
    """What a report concludes: its verdict, its pairs of arms and what was registered."""

    experiment_id: str
    verdict: Mapping[str, Any]
    comparisons: Sequence[Mapping[str, Any]]
    registration: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportVersion:
    """When and why a report was made."""

    version: int
    trigger: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ReportRow(ReportVersion):
    """A report as it was made."""

    content: Mapping[str, Any]
    scores_csv: str
    scores_sha256: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a training process printed."""

    attempt: int
    seq: int
    level: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token; of its secret only the hash is kept."""

    id: str
    name: str
    identity: str
    role: str
    prefix: str
    sha256: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class TicketRow:
    """A ticket to open one socket."""

    principal: str
    role: str
    experiment_id: str
    expires_epoch: float


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    """What is known of an idempotency key; ``status`` is None while its request runs."""

    request_sha256: str
    status: int | None
    body: str | None
    created_epoch: float
    request_id: str | None
    effect: str | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An act of a person, as it was recorded."""

    id: int
    at: datetime
    actor: str
    actor_id: str | None
    action: str
    target: str
    before: Any
    after: Any
    request_id: str


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """Where news are sent; ``owner`` None: of everybody's experiments."""

    id: str
    url: str
    secret: str
    events: list[str]
    owner: str | None
    failures: int
    not_before_epoch: float
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """News that are to be sent, or were."""

    id: int
    webhook_id: str
    event: str
    experiment_id: str
    body: str
    state: str
    attempts: int
    error: str | None
    created_at: datetime
    ended_at: datetime | None
