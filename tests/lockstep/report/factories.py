"""Report inputs built in the open: scores by arm, and every recorded fact in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.report.inputs import ArmFacts, ConfigDifference, CurvePoint, ReportInputs, RunFacts, ScoreRow
from lockstep.spec.inference.analysis_rules import AnalysisSpec, analysis_hash, complete_analysis

NOW = "2026-11-27T00:00:00Z"
Cell = float | str | None


def make_analysis(num_blocks: int, kind: str = "ab", **fields: Any) -> AnalysisSpec:
    """Return a completed analysis of eval/accuracy in percent, sesoi 2 pp, floor 0."""
    raw = {"sesoi": 2.0, "failure": {"floor": 0.0}} | fields
    spec = AnalysisSpec.model_validate(raw)
    return complete_analysis(spec, kind=kind, replicates=num_blocks, env_kind="morphogenesis")


def score_rows(scores: Mapping[str, Sequence[Cell]], metric: str = "eval/accuracy") -> tuple[ScoreRow, ...]:
    """Return rows from values; "failed" and "lost" are outcomes of the run, None a missing score."""
    rows = []
    for arm, values in scores.items():
        for r, value in enumerate(values):
            status = value if isinstance(value, str) else "ok"
            raw = None if isinstance(value, str) else value
            cause = {"failed": "diverged", "lost": "worker_lost"}.get(status)
            rows.append(ScoreRow(arm, r, f"{arm}-{r}", metric, raw, status, cause, f"gpu{r % 2}"))
    return tuple(rows)


def run_facts(rows: Sequence[ScoreRow], arms: Sequence[str], **changes: Any) -> tuple[RunFacts, ...]:
    """Return facts of runs in good order: shared seeds, equal steps, rotated devices."""
    place = {arm: i for i, arm in enumerate(arms)}
    facts = [
        RunFacts(
            arm=row.arm,
            replicate=row.replicate,
            run_id=row.run_id,
            status=row.status,
            cause=row.cause,
            device=f"gpu{(place[row.arm] + row.replicate) % len(arms)}",
            driver="570.1",
            replicate_seed=1000 + row.replicate,
            env_steps=4096,
            evaluator="1",
            eval_seeds=f"seeds{row.replicate}",
            eval_episodes=8,
            code_revision="abc1234",
            plugins={"mine": "mypackage 1.0 (5f3a)"},
            device_seconds=90.0,
            deterministic=True,
        )
        for row in rows
    ]
    return tuple(replace(fact, **changes) for fact in facts)


def make_inputs(
    scores: Mapping[str, Sequence[Cell]],
    analysis: AnalysisSpec | None = None,
    extra: Sequence[ScoreRow] = (),
    **changes: Any,
) -> ReportInputs:
    """Return report inputs for scores of eval/accuracy (percent)."""
    planned = max(len(values) for values in scores.values())
    own = analysis or make_analysis(planned)
    rows = score_rows(scores, own.primary.metric)
    fields: dict[str, Any] = {
        "experiment_id": "exp-1",
        "name": "shaped against simplified",
        "generated_utc": NOW,
        "analysis": own,
        "registered_hash": analysis_hash(own),
        "arms": tuple(
            ArmFacts(label, label, "ppo", (ConfigDifference("reward.mode", "shaped", label),)) for label in scores
        ),
        "planned_blocks": planned,
        "scores": (*rows, *extra),
        "runs": run_facts(rows, list(scores)),
        "code_version": "0.1.0",
    }
    return ReportInputs(**(fields | changes))


def curve_points(
    curves: Mapping[str, Sequence[Sequence[float | None]]],
    steps: Sequence[int],
    metric: str = "eval/accuracy",
) -> tuple[CurvePoint, ...]:
    """Return evaluations along training: curves[arm][replicate][step index]."""
    return tuple(
        CurvePoint(arm, r, metric, step, value)
        for arm, runs in curves.items()
        for r, values in enumerate(runs)
        for step, value in zip(steps, values, strict=True)
    )
