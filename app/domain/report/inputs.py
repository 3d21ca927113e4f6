"""What a report is built from: plain frozen records handed over by the service.

One record per thing that was observed; nothing is aggregated over replicates here. Scores arrive
in raw units of their metric. NaN and infinities are data (a diverged run), never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.analysis_spec import AnalysisSpec

#: The outcome of one run: a score, an algorithmic failure, or an infrastructure loss.
STATUSES = ("ok", "failed", "lost")


@dataclass(frozen=True)
class ScoreRow:
    """The single number of one run for one metric.

    Attributes:
        arm: label of the arm.
        replicate: block index; scores are joined by it, never by completion order.
        run_id: identity of the run.
        metric: registered metric name.
        raw: value in the metric's unit; None when the run has none.
        status: ok, failed (diverged: an outcome) or lost (infrastructure).
        cause: why it failed or was lost.
        device: identity of the device.
    """

    arm: str
    replicate: int
    run_id: str
    metric: str
    raw: float | None
    status: str
    cause: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"score of {self.run_id}: status must be one of {STATUSES}, got {self.status!r}")


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation of one run along training (step = round)."""

    arm: str
    replicate: int
    metric: str
    step: int
    value: float | None


@dataclass(frozen=True)
class RunFacts:
    """What is recorded of one run besides its scores; None means not recorded.

    Attributes:
        arm: label of the arm.
        replicate: block index.
        run_id: identity of the run.
        status: ok, failed or lost.
        cause: why it failed or was lost.
        device: device identity (UUID or CPU slot).
        driver: driver and library versions, as one string.
        replicate_seed: seed the run was started with.
        env_steps: environment steps trained in total.
        evaluator: version of the frozen evaluator.
        eval_seeds: hash of the evaluation seeds.
        eval_episodes: number of evaluation episodes.
        code_revision: revision of the code, with container image if any.
        device_seconds: time the device was held.
        resumed: how often the run went on from a checkpoint.
        deterministic: whether deterministic kernels were on.
        repeated_by_hand: whether a user repeated the run although it had an outcome.
    """

    arm: str
    replicate: int
    run_id: str
    status: str
    cause: str | None = None
    device: str | None = None
    driver: str | None = None
    replicate_seed: int | None = None
    env_steps: int | None = None
    evaluator: str | None = None
    eval_seeds: str | None = None
    eval_episodes: int | None = None
    code_revision: str | None = None
    device_seconds: float | None = None
    resumed: int = 0
    deterministic: bool | None = None
    repeated_by_hand: bool = False


@dataclass(frozen=True)
class ConfigDifference:
    """One field in which an arm departs from the base."""

    path: str
    base: object
    value: object


@dataclass(frozen=True)
class ArmFacts:
    """An arm as submitted; the order of arms is the order of the spec."""

    label: str
    reward_mode: str | None = None
    policy: str = "ppo"
    differences: tuple[ConfigDifference, ...] = ()


@dataclass(frozen=True)
class TrainingRow:
    """Training summary of one run: what the reference's own comparison printed; never decides.

    Accuracies in percent of the validation split, reward in the arm's own reward units.
    """

    arm: str
    replicate: int
    episodes: int
    final_accuracy: float | None
    best_accuracy: float | None
    mean_reward: float | None


@dataclass(frozen=True)
class CrossScore:
    """Evaluation episodes of one arm's policy in one replicate, scored under one reward mode."""

    arm: str
    mode: str
    replicate: int
    mean: float | None
    sd: float | None
    episodes: int


@dataclass(frozen=True)
class Extension:
    """Blocks added after results were seen; shown apart, never replaces the registered verdict."""

    first_block: int
    decided_utc: str
    reason: str


@dataclass(frozen=True)
class CalibrationStamp:
    """Evidence that the analysis pipeline keeps its error rate: date, code version, modes passed."""

    date: str
    version: str
    modes: tuple[str, ...]


@dataclass(frozen=True)
class ReportInputs:
    """Everything one report is built from.

    Attributes:
        experiment_id: identity of the experiment.
        name: its title.
        generated_utc: ISO instant; the only field in which two equal reports may differ.
        kind: ab or aa.
        analysis: the completed analysis section.
        registered_hash: SHA-256 of the analysis as stored before the first training step.
        arms: arms in spec order.
        planned_blocks: blocks queued.
        scores: one row per run and metric.
        runs: one row per run.
        curves: evaluations along training.
        training: training summaries.
        cross_scores: cross-evaluation under all reward modes.
        look: number (1-based) of the registered look this report is, under planned looks.
        threshold: value for time to threshold, raw units; None: a descriptive midpoint.
        extension: exploratory blocks added after unblinding.
        stamp: A/A calibration stamp.
        code_version: version of lockstep.
        notes: further facts for the methods section, such as device models.
    """

    experiment_id: str
    name: str
    generated_utc: str
    analysis: AnalysisSpec
    registered_hash: str
    arms: tuple[ArmFacts, ...]
    planned_blocks: int
    scores: tuple[ScoreRow, ...]
    kind: str = "ab"
    runs: tuple[RunFacts, ...] = ()
    curves: tuple[CurvePoint, ...] = ()
    training: tuple[TrainingRow, ...] = ()
    cross_scores: tuple[CrossScore, ...] = ()
    look: int | None = None
    threshold: float | None = None
    extension: Extension | None = None
    stamp: CalibrationStamp | None = None
    code_version: str = "0"
    notes: Mapping[str, str] = field(default_factory=dict)
