"""scores.csv: every score behind the report, and the way back from it.

Columns: arm, replicate, metric, raw, oriented, status, device. Registered curve steps appear as metric
``name@step``, where a run began and ended as ``name@start`` and ``name@end``. Text cells that a spreadsheet
could run as a formula get a leading apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from lockstep.report.inputs import (
    ArmFacts,
    ConfigDifference,
    CurvePoint,
    Extension,
    LearningRow,
    ReportInputs,
    ScoreRow,
    direction_of,
)
from lockstep.spec.inference.analysis import AnalysisSpec

COLUMNS = ("arm", "replicate", "metric", "raw", "oriented", "status", "device")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(text: str) -> str:
    """Return a text cell that no spreadsheet takes for a formula; numbers are never passed here."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def scores_csv(inputs: ReportInputs) -> str:
    """Return scores.csv with LF line ends, ordered by metric, arm (spec order) and replicate."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(inputs))
    return out.getvalue()


def inputs_from_csv(text: str, registration: Mapping[str, Any], generated_utc: str, code_version: str) -> ReportInputs:
    """Return report inputs from scores.csv and the ``registration`` block of report.json."""
    rows = list(csv.DictReader(io.StringIO(text)))
    if rows and set(rows[0]) != set(COLUMNS):
        raise ValueError(f"scores.csv must have the columns {', '.join(COLUMNS)}")
    extension = registration.get("extension")
    return ReportInputs(
        experiment_id=registration["experiment_id"],
        name=registration["name"],
        generated_utc=generated_utc,
        analysis=AnalysisSpec.model_validate(registration["analysis"]),
        registered_hash=registration["hash"],
        arms=tuple(_arm(arm) for arm in registration["arms"]),
        planned_blocks=registration["planned_blocks"],
        scores=tuple(_score(i, row) for i, row in enumerate(rows) if "@" not in row["metric"]),
        curves=tuple(_curve(i, row) for i, row in enumerate(rows) if row["metric"].rpartition("@")[2].isdecimal()),
        learning=_learning(rows),
        kind=registration["kind"],
        look=registration["look"],
        looks_taken=tuple(tuple(blocks) for blocks in registration.get("looks_taken", ())),
        ended=registration.get("ended"),
        cancelled=tuple(registration["cancelled"]) if "cancelled" in registration else None,
        extension=None if extension is None else Extension(**extension),
        code_version=code_version,
    )


def _rows(inputs: ReportInputs) -> Iterator[tuple[str | int, ...]]:
    order = {arm.label: i for i, arm in enumerate(inputs.arms)}
    ordered = sorted(
        (row for row in inputs.scores if row.arm in order),
        key=lambda r: (r.metric, order[r.arm], r.replicate),
    )
    for row in ordered:
        sign = 1.0 if direction_of(inputs.analysis, row.metric) == "max" else -1.0
        yield _row(row, sign, row.metric)
    yield from _learning_rows(inputs, order)
    registered = inputs.analysis.curve
    if registered is None:
        return
    device = {(r.arm, r.replicate): r for r in ordered}
    steps, sign = (
        set(registered.at),
        1.0 if direction_of(inputs.analysis, registered.metric) == "max" else -1.0,
    )
    points = [p for p in inputs.curves if p.metric == registered.metric and p.step in steps and p.arm in order]
    for p in sorted(points, key=lambda p: (p.step, order[p.arm], p.replicate)):
        known = device.get((p.arm, p.replicate))
        status = "failed" if p.value is None or not isfinite(p.value) else "ok"
        score = ScoreRow(p.arm, p.replicate, "", p.metric, p.value, status, None, known.device if known else None)
        yield _row(score, sign, f"{p.metric}@{p.step}")


def _learning_rows(inputs: ReportInputs, order: Mapping[str, int]) -> Iterator[tuple[str | int, ...]]:
    sign = 1.0 if inputs.analysis.primary.direction == "max" else -1.0
    known = [row for row in inputs.learning if row.arm in order]
    for row in sorted(known, key=lambda row: (row.metric, order[row.arm], row.replicate)):
        for name, value in (("start", row.start), ("end", row.end)):
            yield _row(ScoreRow(row.arm, row.replicate, "", row.metric, value, "ok"), sign, f"{row.metric}@{name}")


def _row(row: ScoreRow, sign: float, metric: str) -> tuple[str | int, ...]:
    raw = "" if row.raw is None else repr(float(row.raw))
    oriented = "" if row.raw is None or row.status != "ok" else repr(sign * float(row.raw))
    cells = safe_cell(row.arm), row.replicate, safe_cell(metric), raw, oriented, row.status
    return (*cells, safe_cell(row.device or ""))


def _score(index: int, row: Mapping[str, str]) -> ScoreRow:
    raw = float(row["raw"]) if row["raw"] else None
    device = _unsafe(row["device"]) or None
    arm, metric = _unsafe(row["arm"]), _unsafe(row["metric"])
    return ScoreRow(arm, int(row["replicate"]), f"row {index + 2}", metric, raw, row["status"], None, device)


def _curve(index: int, row: Mapping[str, str]) -> CurvePoint:
    score = _score(index, row)
    metric, _, step = score.metric.rpartition("@")
    return CurvePoint(score.arm, score.replicate, metric, int(step), score.raw)


def _learning(rows: Sequence[Mapping[str, str]]) -> tuple[LearningRow, ...]:
    found: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        metric, _, name = _unsafe(row["metric"]).rpartition("@")
        if name in ("start", "end"):
            found.setdefault((metric, _unsafe(row["arm"]), int(row["replicate"])), {})[name] = float(row["raw"])
    return tuple(LearningRow(arm, replicate, metric, **ends) for (metric, arm, replicate), ends in found.items())


def _unsafe(text: str) -> str:
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text


def _arm(arm: Mapping[str, Any]) -> ArmFacts:
    differences = tuple(ConfigDifference(**d) for d in arm["differences"])
    return ArmFacts(arm["label"], arm["reward_mode"], arm["policy"], differences)
