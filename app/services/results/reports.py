"""Reports: gather what the store holds, let the domain conclude, keep the result immutable."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib.metadata import version as package_version
from itertools import pairwise
from statistics import fmean, pstdev, stdev
from typing import Any

from sqlalchemy.orm import Session

from app.errors import ConflictError, NotFoundError
from app.services.context import Context
from app.services.steering import existing
from app.services.training import causes
from app.store import experiments
from app.store.database.engine import utc
from app.store.queue import scheduling
from app.store.records import events, points, reports, results
from app.store.rows.experiments import ArmRow, BlockRow, ExperimentRow, RunOfArm
from app.store.rows.records import EpisodeSummary, EvalEpisodeRow, ReportRow
from lockstep.nonfinite import from_column
from lockstep.replicates import replicates_text
from lockstep.report.build import build_report
from lockstep.report.csv import scores_csv
from lockstep.report.findings.learning import learning_row
from lockstep.report.inputs import (
    CUT_EPISODES,
    EVALUATION,
    REPEATED,
    ArmFacts,
    CalibrationStamp,
    ConfigDifference,
    CrossScore,
    CurvePoint,
    Extension,
    LearningRow,
    LostBlocks,
    ReportInputs,
    RunFacts,
    ScoreRow,
    TrainingRow,
)
from lockstep.spec.environments.families import family_of
from lockstep.spec.environments.gymnasium import CAPPED, EVAL_MAX_STEPS, RANDOM_NUMBERS, RESUMED_EPISODES, TIME_LIMIT
from lockstep.spec.inference.analysis_rules import AnalysisSpec
from lockstep.spec.metrics import shown_of
from lockstep.spec.plan import ACTING
from lockstep.status import REQUEUE_BUDGET, TERMINAL_BLOCK, BlockStatus, Cause, RunStatus

#: Where the stamp of the last calibration is kept.
STAMP_KEY = "calibration"


@dataclass(frozen=True)
class _Gathered:
    """Rows of the runs that count: the newest ended block of each replicate."""

    experiment: ExperimentRow
    arms: Sequence[ArmRow]
    runs: Sequence[RunOfArm]
    values: Mapping[tuple[str, str], Mapping[int, float]]
    eval_rows: Sequence[EvalEpisodeRow]
    training: Mapping[int, EpisodeSummary]
    resumes: Mapping[int, tuple[int, ...]]


def has_analysis(experiment: ExperimentRow) -> bool:
    """Return whether an experiment registered an analysis."""
    return experiment.analysis is not None


def build(
    ctx: Context, experiment_id: str, *, look: int | None = None, num_blocks: int | None = None
) -> tuple[dict[str, Any], str]:
    """Return (report, scores as CSV) from what the store holds now; stores nothing.

    Raises:
        ConflictError: ``no_data`` when no block has ended or no analysis was registered.
    """
    with ctx.store.read() as session:
        inputs = gather(ctx, session, experiment_id, look=look, num_blocks=num_blocks)
    return build_report(inputs), scores_csv(inputs)


def gather(
    ctx: Context,
    session: Session,
    experiment_id: str,
    *,
    look: int | None = None,
    num_blocks: int | None = None,
) -> ReportInputs:
    """Return the inputs of a report."""
    experiment = existing(session, experiment_id)
    if not has_analysis(experiment):
        raise ConflictError("no analysis was registered with this experiment", code="no_data")
    analysis = AnalysisSpec.model_validate_json(json.dumps(experiment.analysis))
    rows = experiments.blocks(session, experiment_id)
    ended = _ended_blocks(rows, num_blocks)
    if not ended:
        raise ConflictError("no block has ended yet; there is nothing to report", code="no_data")
    gathered = _gather(session, experiment, analysis, ended)
    return ReportInputs(
        experiment_id=experiment_id,
        name=experiment.name,
        generated_utc=utc(ctx.store.now(session)).isoformat(),
        kind=experiment.kind,
        analysis=analysis,
        registered_hash=experiment.analysis_hash or "",
        arms=tuple(_arm(arm) for arm in gathered.arms),
        planned_blocks=_planned(session, experiment),
        scores=tuple(_scores(gathered, analysis)),
        runs=tuple(_run_facts(gathered, run) for run in gathered.runs),
        curves=tuple(_curves(gathered, analysis)),
        training=tuple(_training(gathered)),
        learning=tuple(_learning(gathered, analysis)),
        cross_scores=tuple(_cross_scores(gathered)),
        look=look,
        looks_taken=tuple(tuple(blocks) for blocks in reports.looks_seen(session, experiment_id)),
        ended=look is None and all(BlockStatus(row.status) in TERMINAL_BLOCK for row in rows),
        lost_blocks=_lost([row for row in rows if row.id in set(ended.values())], gathered.runs),
        extension=_extension(session, experiment),
        stamp=stamp_of(scheduling.get_meta(session, STAMP_KEY)),
        code_version=package_version("lockstep"),
        notes=_notes(gathered) | _repeated(session, experiment_id, [row for row in rows if row.id in ended.values()]),
    )


def pilot_scores(session: Session, experiment_id: str, analysis: AnalysisSpec) -> list[list[float]]:
    """Return the primary scores of an earlier experiment: one row a complete block, one column an arm, NaN a failure.

    Raises:
        NotFoundError: no such experiment.
    """
    experiment = existing(session, experiment_id)
    gathered = _gather(session, experiment, analysis, _ended_blocks(experiments.blocks(session, experiment_id), None))
    rows: dict[int, list[float]] = {}
    for row in _scores(gathered, analysis):
        if row.metric == analysis.primary.metric and (row.status == "failed" or row.raw is not None):
            value = math.nan if row.status == "failed" or row.raw is None else row.raw
            rows.setdefault(row.replicate, []).append(value if math.isfinite(value) else math.nan)
    return [rows[r] for r in sorted(rows) if len(rows[r]) == len(gathered.arms)]


def _ended_blocks(rows: Sequence[BlockRow], num_blocks: int | None) -> dict[int, str]:
    """Return {replicate: block id}: the newest succeeded generation, else the newest that ended."""
    chosen: dict[int, BlockRow] = {}
    for row in rows:
        if BlockStatus(row.status) not in TERMINAL_BLOCK or row.cause == Cause.DECIDED:
            continue
        before = chosen.get(row.replicate)
        succeeded = row.status == BlockStatus.SUCCEEDED
        if before is None or succeeded or before.status != BlockStatus.SUCCEEDED:
            chosen[row.replicate] = row
    replicates = sorted(chosen) if num_blocks is None else [r for r in sorted(chosen) if r < num_blocks]
    return {replicate: str(chosen[replicate].id) for replicate in replicates}


def _lost(blocks: Sequence[BlockRow], runs: Sequence[RunOfArm]) -> tuple[LostBlocks, ...]:
    return tuple(
        LostBlocks(item["cause"], item["text"], tuple(item["replicates"]), item["run_id"], tuple(item["arms"]))
        for item in causes.told(blocks, runs)
    )


def _gather(session: Session, experiment: ExperimentRow, analysis: AnalysisSpec, ended: Mapping[int, str]) -> _Gathered:
    wanted = set(ended.values())
    runs = [run for run in experiments.runs(session, experiment.id) if run.block_id in wanted]
    values: dict[tuple[str, str], dict[int, float]] = {}
    for row in points.last_values(session, experiment.id, _metric_names(analysis)):
        values.setdefault((row.run_id, row.name), {})[row.round] = from_column(row.value, row.kind)
    ids = {run.no for run in runs}
    return _Gathered(
        experiment=experiment,
        arms=experiments.arms(session, experiment.id),
        runs=runs,
        values=values,
        eval_rows=[row for row in results.evaluation_episodes(session, experiment.id) if row.run_no in ids],
        training={row.run_no: row for row in results.episode_summaries(session, experiment.id)},
        resumes=results.resumes(session, experiment.id),
    )


def _metric_names(analysis: AnalysisSpec) -> list[str]:
    names = {*_learning_metrics(analysis), *(item.metric for item in analysis.secondary)}
    names |= {item.metric for item in analysis.guardrails}
    if analysis.curve is not None:
        names.add(analysis.curve.metric)
    return sorted(names)


def _arm(arm: ArmRow) -> ArmFacts:
    differences = tuple(ConfigDifference(item["path"], item["base"], item["value"]) for item in arm.diff)
    return ArmFacts(arm.label, arm.reward_mode, arm.policy, differences)


def _planned(session: Session, experiment: ExperimentRow) -> int:
    return len(experiments.newest_blocks(experiments.blocks(session, experiment.id)))


def outcome_of(run: RunOfArm) -> str:
    """Return ok, failed (the arm's own outcome) or lost (for any other reason)."""
    if run.status == RunStatus.SUCCEEDED:
        return "ok"
    return "failed" if run.status == RunStatus.FAILED and run.cause == Cause.DIVERGED else "lost"


def _scores(gathered: _Gathered, analysis: AnalysisSpec) -> Iterable[ScoreRow]:
    aggregates = {item.metric: item.aggregate for item in analysis.secondary}
    aggregates[analysis.primary.metric] = analysis.primary.aggregate
    for item in analysis.guardrails:
        aggregates.setdefault(item.metric, "final_mean")
    for metric, aggregate in aggregates.items():
        for run in gathered.runs:
            outcome = outcome_of(run)
            curve = gathered.values.get((run.id, metric), {})
            raw = score_of(curve, aggregate, gathered.experiment.rounds) if outcome == "ok" else None
            yield ScoreRow(run.label, run.replicate, run.id, metric, raw, outcome, run.cause, run.device_uid)


def score_of(curve: Mapping[int, float], aggregate: str, rounds: int) -> float | None:
    """Return the score of a run: its value at the fixed last round, or the area over the grid / range."""
    if aggregate == "final_mean":
        return curve.get(rounds - 1)
    steps = sorted(curve)
    if not steps or steps[-1] != rounds - 1:
        return None
    if len(steps) == 1:
        return curve[steps[0]]
    area = sum((right - left) * (curve[left] + curve[right]) / 2 for left, right in pairwise(steps))
    return area / (steps[-1] - steps[0])


def _run_facts(gathered: _Gathered, run: RunOfArm) -> RunFacts:
    record = run.record
    last = gathered.experiment.rounds - 1
    greedy = [row for row in gathered.eval_rows if row.run_no == run.no and row.round == last]
    mode = "greedy" if any(row.mode == "greedy" for row in greedy) else "sample"
    return RunFacts(
        arm=run.label,
        replicate=run.replicate,
        run_id=run.id,
        status=outcome_of(run),
        cause=run.cause,
        device=run.device_uid,
        driver=record.get("driver"),
        replicate_seed=record.get("replicate_seed"),
        env_steps=int(run.env_steps),
        evaluator=record.get("evaluator"),
        eval_seeds=record.get("eval_seeds"),
        eval_episodes=sum(row.mode == mode for row in greedy) or None,
        code_revision=record.get("code_revision"),
        plugins=record.get("plugins"),
        device_seconds=run.device_seconds,
        resumed_at=gathered.resumes.get(run.no, ()),
        deterministic=record.get("deterministic"),
    )


def _curves(gathered: _Gathered, analysis: AnalysisSpec) -> Iterable[CurvePoint]:
    metrics = {analysis.primary.metric} | ({analysis.curve.metric} if analysis.curve else set())
    for metric in sorted(metrics):
        for run in gathered.runs:
            for step, value in sorted(gathered.values.get((run.id, metric), {}).items()):
                finite = value if math.isfinite(value) else None
                yield CurvePoint(run.label, run.replicate, metric, step, finite)


def _learning_metrics(analysis: AnalysisSpec) -> tuple[str, str]:
    """Return the metrics that show learning: that of every round from the first on, and the evaluations."""
    return shown_of(analysis.primary.metric).training, analysis.primary.metric


def _learning(gathered: _Gathered, analysis: AnalysisSpec) -> Iterable[LearningRow]:
    for metric in _learning_metrics(analysis):
        for run in gathered.runs:
            values = gathered.values.get((run.id, metric), {}) if outcome_of(run) == "ok" else {}
            row = learning_row(run.label, run.replicate, metric, values)
            if row is not None:
                yield row


def _training(gathered: _Gathered) -> Iterable[TrainingRow]:
    for run in gathered.runs:
        row = gathered.training.get(run.no)
        if row is not None:
            yield TrainingRow(
                run.label, run.replicate, row.episodes, row.final_accuracy, row.best_accuracy, row.mean_reward
            )


def _cross_scores(gathered: _Gathered) -> Iterable[CrossScore]:
    last = gathered.experiment.rounds - 1
    for run in gathered.runs:
        rows = [row for row in gathered.eval_rows if row.run_no == run.no and row.round == last]
        scored: dict[str, list[float]] = {}
        for row in rows:
            if row.mode == rows[0].mode:
                for mode, value in (row.values.get("xeval") or {}).items():
                    scored.setdefault(mode, []).append(float(value if value is not None else math.nan))
        for mode, values in sorted(scored.items()):
            finite = [value for value in values if math.isfinite(value)]
            mean = fmean(finite) if finite else None
            spread = stdev(finite) if len(finite) > 1 else (pstdev(finite) if finite else None)
            yield CrossScore(run.label, mode, run.replicate, mean, spread, len(finite))


def _extension(session: Session, experiment: ExperimentRow) -> Extension | None:
    if experiment.exploratory_from is None:
        return None
    decided = events.newest(session, experiment.id, "extended")
    at = decided.at.isoformat() if decided is not None else ""
    return Extension(experiment.exploratory_from, at, "replicates added after results were seen")


def stamp_of(text: str | None) -> CalibrationStamp | None:
    """Return the stamp stored in the key-value table, or None when no mode has passed."""
    if text is None:
        return None
    stamp = json.loads(text)
    return CalibrationStamp(stamp["date"], stamp["version"], tuple(stamp["modes"])) if stamp["modes"] else None


def _notes(gathered: _Gathered) -> dict[str, str]:
    experiment, spec = gathered.experiment, gathered.experiment.spec
    notes = {
        "spec_hash": experiment.spec_hash,
        "root_seed": experiment.seed,
        "placement": experiment.placement_resolved or experiment.placement,
        "barrier": spec["lockstep"]["barrier"],
        "common random numbers": spec["lockstep"]["crn"],
        "deterministic": "yes" if spec["lockstep"]["deterministic"] else "no",
        "rounds": str(experiment.rounds),
    }
    if gathered.eval_rows:
        number = spec["eval"]["episodes"]
        each = f"{number} episode{'s' if number != 1 else ''} of each frozen policy"
        notes[EVALUATION] = f"{each}, {ACTING[spec['eval']['mode']]}"
    if gathered.eval_rows and family_of(spec["env"]["kind"]).eval_max_steps is not None:
        notes[CUT_EPISODES] = _cut_episodes(gathered)
    limits = {name: text for run in gathered.runs for name, text in (run.record.get("limits") or {}).items()}
    if RANDOM_NUMBERS in limits:
        notes[RANDOM_NUMBERS] = limits[RANDOM_NUMBERS]
    if RESUMED_EPISODES in limits and any(gathered.resumes.get(run.no) for run in gathered.runs):
        notes[RESUMED_EPISODES] = limits[RESUMED_EPISODES]
    return {key: str(value) for key, value in notes.items()}


def _repeated(session: Session, experiment_id: str, rows: Sequence[BlockRow]) -> dict[str, str]:
    """Return the note on attempts that stopped and were made up for, if there are any."""
    again = any(row.attempt > 1 for row in rows)
    stops = events.stops(session, experiment_id, list(REQUEUE_BUDGET)) if again else []
    told = [
        f"{replicates_text(item['replicates'])} ({item['cause']}: {item['text']})"
        for item in causes.repeated(rows, stops)
    ]
    return {REPEATED: "; ".join(told)} if told else {}


def _cut_episodes(gathered: _Gathered) -> str:
    """Return how many episodes of the last evaluation of each arm were cut, and where; their return so far counts."""
    labels = {run.no: run.label for run in gathered.runs}
    last = [row for row in gathered.eval_rows if row.round == gathered.experiment.rounds - 1]
    told = []
    for arm in gathered.arms:
        cut = [row.outcome in (CAPPED, TIME_LIMIT) for row in last if labels[row.run_no] == arm.label]
        told.append(f"{arm.label}: {sum(cut)} of {len(cut)}")
    return f"{', '.join(told)}; {where_cut(gathered.experiment.spec, {str(row.outcome) for row in last})}"


def where_cut(spec: Mapping[str, Any], outcomes: Set[str]) -> str:
    """Return the limits at which episodes of evaluation ended by these outcomes, or would have ended, in words."""
    cap, limit = spec["eval"].get("max_steps"), spec["env"].get("max_episode_steps")
    own = f"after {limit} steps (env.max_episode_steps)" if limit else "at the environment's own limit"
    where = [own] if TIME_LIMIT in outcomes or (CAPPED not in outcomes and cap is None) else []
    if cap is not None or CAPPED in outcomes:
        where.append(f"after {cap or EVAL_MAX_STEPS:,} steps (eval.max_steps)")
    return ", or ".join(where)


def store_report(
    session: Session, now: float, experiment_id: str, content: Mapping[str, Any], scores: str, trigger: str
) -> int:
    """Append a report in the caller's transaction; return its version."""
    return reports.insert_report(session, now, experiment_id, content, scores, trigger)


def read(ctx: Context, experiment_id: str, version: int | None = None) -> ReportRow:
    """Return a stored report and note that results were seen.

    Raises:
        ConflictError: ``no_data`` while there is no report yet.
        NotFoundError: no such version.
    """
    with ctx.store.read() as session:
        experiment = existing(session, experiment_id)
        row = reports.get(session, experiment_id, version)
        if row is None and version is not None:
            raise NotFoundError(f"no report version {version}", code="unknown_report")
        if row is None:
            raise ConflictError(
                "there is no report yet: until the registered analysis is due, only curves and health are shown",
                code="no_data",
            )
    if experiment.unblinded_at is None:
        with ctx.store.write() as session:
            experiments.change(session, experiment_id, unblinded_at=utc(ctx.store.now(session)))
    return row


def versions(ctx: Context, experiment_id: str) -> list[dict[str, Any]]:
    """Return the versions of an experiment's report."""
    with ctx.store.read() as session:
        existing(session, experiment_id)
        rows = reports.versions(session, experiment_id)
    return [{"version": row.version, "trigger": row.trigger, "created_at": row.created_at.isoformat()} for row in rows]
