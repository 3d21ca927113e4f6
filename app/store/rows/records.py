"""Records of what training leaves: events, files, episodes, points, reports and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


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
    """Scores and reward of a training episode of a run; ``further`` holds what has no column."""

    run_no: int
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
