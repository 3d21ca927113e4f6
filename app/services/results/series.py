"""Metric series in buckets: what charts read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.errors import InvalidError
from app.services.context import Context
from app.services.steering import existing
from app.store import experiments
from app.store.records import points
from app.store.records import series as stored
from app.store.records.series import SeriesQuery
from app.store.rows.experiments import RunOfArm
from lockstep.nonfinite import word
from lockstep.quoting import shortened

MAX_SERIES = 200
MAX_VALUES = 200_000


@dataclass(frozen=True)
class SeriesRequest:
    """What series to read."""

    runs: Sequence[str]
    metrics: Sequence[str]
    x: Literal["step", "round", "time"] = "step"
    low: float | None = None
    high: float | None = None
    max_points: int = 1_000
    all_attempts: bool = False


def read_series(ctx: Context, experiment_id: str, request: SeriesRequest) -> dict[str, Any]:
    """Return bucketed series; bounded by rows, and says how many it stands for.

    Raises:
        InvalidError: beyond 200 series or 200,000 values, or for an unknown run.
    """
    with ctx.store.read() as session:
        existing(session, experiment_id)
        known = {row.id: row for row in experiments.runs(session, experiment_id)}
        chosen = list(request.runs) or list(known)
        unknown = [run_id for run_id in chosen if run_id not in known]
        if unknown:
            raise InvalidError(f"no run {shortened(unknown[0])} in this experiment", code="unknown_run")
        count = len(chosen) * len(request.metrics)
        if count > MAX_SERIES or count * request.max_points > MAX_VALUES:
            raise InvalidError(
                f"{count} series of {request.max_points} points exceed {MAX_SERIES} series or {MAX_VALUES} "
                "values; name fewer runs or metrics, or lower max_points",
                code="too_many_series",
            )
        names = points.known_names(session, request.metrics)
        keys = [(run_id, metric) for run_id in chosen for metric in request.metrics]
        queries = [_query(known[run_id], names[metric], request) for run_id, metric in keys if metric in names]
        columns = iter(stored.read_series(session, queries))
        series = [
            _document(known[run_id], metric, next(columns) if metric in names else None) for run_id, metric in keys
        ]
    return {"x": request.x, "series": series}


def _query(run: RunOfArm, name_id: int, request: SeriesRequest) -> SeriesQuery:
    low, high = request.low, request.high
    return SeriesQuery(run.no, name_id, request.x, request.max_points, low, high, request.all_attempts)


def _document(run: RunOfArm, metric: str, columns: dict[str, Any] | None) -> dict[str, Any]:
    head = {"run_id": run.id, "group_id": run.label, "replicate": run.replicate, "metric": metric}
    if columns is None:
        return {**head, "total": 0, "shown": 0, "bucketed": False, "x": [], "mean": [], "min": [], "max": []}
    kinds = columns.pop("kind") or []
    attempt = columns.pop("attempt")
    document = {**head, **columns, "shown": len(columns["x"])}
    document["nf"] = [[index, word(kind)] for index, kind in enumerate(kinds) if kind]
    if attempt is not None:
        document["attempt"] = attempt
    return document
