"""Records of experiments, their arms, blocks and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


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
    name: str


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
class RunInRound(RunOfArm):
    """A run of a block as a round comes in.

    Attributes:
        is_mine: whether it is of the assignment that hands in.
        digest: of the result that is stored of this round and attempt, None without one.
    """

    is_mine: bool
    digest: str | None
