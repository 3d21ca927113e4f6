"""What a report is built from: plain frozen records handed over by the service.

One record per thing that was observed; nothing is aggregated over replicates here. Scores arrive
in raw units of their metric. NaN and infinities are data (a diverged run), never an error.

From records to outcomes: join scores by replicate index and orient them. Nothing is averaged over replicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from lockstep.spec.environments.gymnasium import RANDOM_NUMBERS, RESUMED_EPISODES
from lockstep.spec.inference.analysis import AnalysisSpec
from lockstep.spec.metrics import find_metric
from lockstep.stats.scores import ArmScores, arm_scores

#: The note that says of each arm how many evaluation episodes were cut at their limit of steps.
CUT_EPISODES = "Evaluation episodes cut"
#: The note that says how frozen policies acted when they were judged.
EVALUATION = "Evaluation"
#: The note that says which attempts stopped, and why, that later ones made up for.
REPEATED = "Attempts made again"
#: Notes that stand among the facts where there are any.
FACT_NOTES = (EVALUATION, CUT_EPISODES, REPEATED, RANDOM_NUMBERS, RESUMED_EPISODES)
#: The outcome of one run: a score, a failure of its own, or a loss that says nothing of how its arm trains.
STATUSES = ("ok", "failed", "lost")


#: Between the codes of a plug-in that trained one run, one after another.
_THEN = ", then "


def one_after_another(former: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """Return the plug-ins of a run that is resumed: where the code of one has changed, all of its codes in order."""
    found = {**former, **present}
    for name in former.keys() & present.keys():
        is_same = codes_of(former[name])[-1] == present[name]
        found[name] = former[name] if is_same else f"{former[name]}{_THEN}{present[name]}"
    return found


def codes_by_name(records: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the codes of each plug-in that runs were computed with, by the runs' records; each code once."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, identity in (record.get("plugins") or {}).items():
            found.setdefault(name, {}).update(dict.fromkeys(codes_of(identity)))
    return {name: [*codes] for name, codes in sorted(found.items())}


def codes_of(identity: str) -> list[str]:
    """Return the codes that an identity of ``one_after_another`` is made of."""
    return identity.split(_THEN)


@dataclass(frozen=True)
class ScoreRow:
    """The single number of one run for one metric.

    Attributes:
        arm: label of the arm.
        replicate: block index; scores are joined by it, never by completion order.
        run_id: identity of the run.
        metric: registered metric name.
        raw: value in the metric's unit; None when the run has none.
        status: ok, failed (diverged: an outcome) or lost (no outcome of training; the cause says why).
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
        plugins: name of each plug-in that was used, and package, version and digest of its code; None if unknown.
        device_seconds: time the device was held.
        resumed_at: rounds at which the run went on from a checkpoint.
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
    plugins: Mapping[str, str] | None = None
    device_seconds: float | None = None
    resumed_at: tuple[int, ...] = ()
    deterministic: bool | None = None
    repeated_by_hand: bool = False


@dataclass(frozen=True)
class LostBlocks:
    """Blocks that gave no result for one reason.

    Attributes:
        cause: its name.
        text: in a sentence, with the last line of the traceback of whoever's code it was.
        replicates: their numbers.
        run_id: whose log has the rest.
        arms: whose own code it was, where it was that of some arms.
    """

    cause: str
    text: str
    replicates: tuple[int, ...]
    run_id: str | None = None
    arms: tuple[str, ...] = ()


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
class LearningRow:
    """How one run began and ended under a metric that was recorded along training, in raw units."""

    arm: str
    replicate: int
    metric: str
    start: float
    end: float


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
        learning: where each run began and ended, under each metric that shows learning.
        cross_scores: cross-evaluation under all reward modes.
        look: number (1-based) of the registered look this report is, under planned looks.
        looks_taken: replicates that each earlier look analysed, in order; later data never change them.
        ended: whether no planned block is still to come; None: under planned looks when the last one's blocks have
            rows, else yes.
        cancelled: replicates that a user cancelled; None: those lost to cause user.
        lost_blocks: why blocks gave no result, each reason once.
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
    learning: tuple[LearningRow, ...] = ()
    cross_scores: tuple[CrossScore, ...] = ()
    look: int | None = None
    looks_taken: tuple[tuple[int, ...], ...] = ()
    ended: bool | None = None
    cancelled: tuple[int, ...] | None = None
    lost_blocks: tuple[LostBlocks, ...] = ()
    threshold: float | None = None
    extension: Extension | None = None
    stamp: CalibrationStamp | None = None
    code_version: str = "0"
    notes: Mapping[str, str] = field(default_factory=dict)


#: (arm, replicate) -> score row of one metric
Table = Mapping[tuple[str, int], ScoreRow]


@dataclass(frozen=True)
class MetricScores:
    """Arms of one metric over given blocks; ``blocks[arm][i]`` is the replicate index of value i."""

    metric: str
    direction: str
    arms: tuple[ArmScores, ...]
    blocks: Mapping[str, tuple[int, ...]]


def score_table(inputs: ReportInputs, metric: str) -> dict[tuple[str, int], ScoreRow]:
    """Return the rows of one metric by (arm, replicate); two rows for one run are an error."""
    known = {arm.label for arm in inputs.arms}
    table: dict[tuple[str, int], ScoreRow] = {}
    for row in inputs.scores:
        if row.metric != metric or row.arm not in known:
            continue
        if (row.arm, row.replicate) in table:
            raise ValueError(f"{metric}: arm {row.arm!r}, replicate {row.replicate} has two scores; keep one")
        table[row.arm, row.replicate] = row
    return table


def direction_of(analysis: AnalysisSpec, metric: str) -> str:
    """Return max or min for a metric: as registered in the analysis, else as in the registry."""
    if metric == analysis.primary.metric:
        return analysis.primary.direction
    for guard in analysis.guardrails:
        if guard.metric == metric:
            return guard.good_direction
    known = find_metric(metric)
    for choice in analysis.secondary:
        if choice.metric == metric and (known is None or choice.direction != "max"):
            return choice.direction
    return known.direction if known else "max"


def metric_scores(inputs: ReportInputs, metric: str, blocks: Iterable[int], alone: bool = False) -> MetricScores:
    """Return oriented outcomes of one metric over the given blocks.

    ``alone``: keep every further replicate of an arm too, as unpaired arms do not need each other's.
    """
    table, direction = score_table(inputs, metric), direction_of(inputs.analysis, metric)
    wanted = list(blocks)
    arms, indices = [], {}
    for arm in inputs.arms:
        rows = _rows_of(arm.label, table, wanted, inputs.extension if alone else None, alone)
        arms.append(_oriented(arm.label, rows, direction))
        indices[arm.label] = tuple(row.replicate for row in rows)
    return MetricScores(metric, direction, tuple(arms), indices)


def _rows_of(
    label: str, table: Table, blocks: Sequence[int], extension: Extension | None, alone: bool
) -> list[ScoreRow]:
    if not alone:
        return [table[label, r] for r in blocks if (label, r) in table]
    limit = inf if extension is None else extension.first_block
    return [table[label, r] for r in sorted(r for arm, r in table if arm == label) if r < limit]


def _oriented(label: str, rows: Sequence[ScoreRow], direction: str) -> ArmScores:
    # a successful run without a score fails the gate "primary present"; here it counts as lost
    statuses = ["lost" if row.status == "ok" and row.raw is None else row.status for row in rows]
    return arm_scores(label, [row.raw for row in rows], statuses, direction)
