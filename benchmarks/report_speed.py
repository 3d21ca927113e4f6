"""How long a full report, a curve test and a validation take (statistics.md 17).

Bars on two cores, cold process excluded: report of 4 arms x 20 replicates x 50 metrics under 2 s,
curve test of 20 blocks x 200 steps under 1 s, validation under 50 ms. Prints medians, writes
benchmarks/results/report_speed.json.

Run: python -m benchmarks.report_speed
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

from lockstep.report import build_report, render_html, report_json
from lockstep.report.inputs import ArmFacts, ReportInputs, RunFacts, ScoreRow
from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.inference.analysis_rules import AnalysisSpec, analysis_hash, complete_analysis, validate_analysis
from lockstep.stats.curves import curve_max_t

RESULT = Path(__file__).parent / "results" / "report_speed.json"
ARMS, REPLICATES, NUM_METRICS = ("a", "b", "c", "d"), 20, 50
ROUNDS = 5


def main() -> int:
    """Time every case, print bars and medians; 1 when a bar is missed."""
    family = FAMILIES["morphogenesis"]
    extra = tuple(replace(family.scores[0], name=f"extra_{i}", lower=None, upper=None) for i in range(NUM_METRICS))
    FAMILIES[family.name] = replace(family, scores=(*family.scores, *extra))
    rng = np.random.default_rng(0)
    curves = rng.normal(size=(20, 200))
    planned = AnalysisSpec.model_validate(_raw("shift") | {"looks": {"mode": "planned", "at": [9, 18, 27]}})
    cases: list[tuple[str, float, Callable[[], object]]] = [
        ("report, estimand shift", 2.0, lambda: report_json(build_report(_inputs("shift")))),
        ("report, estimand mean", 2.0, lambda: report_json(build_report(_inputs("mean")))),
        ("curve test, 20 blocks x 200 steps", 1.0, lambda: curve_max_t(curves, np.random.default_rng(0))),
        ("validation", 0.05, lambda: validate_analysis(planned, labels=ARMS, replicates=27)),
        ("HTML with plots (no bar)", float("inf"), lambda: render_html(build_report(_inputs("shift")))),
    ]
    rows = [{"case": name, "bar_seconds": bar, "seconds": _median_seconds(case)} for name, bar, case in cases]
    for row in rows:
        print(f"{row['case']:36} {row['seconds']:8.3f} s   bar {row['bar_seconds']} s")
    _write([row | {"bar_seconds": None if row["bar_seconds"] == float("inf") else row["bar_seconds"]} for row in rows])
    return 1 if any(float(str(row["seconds"])) > float(str(row["bar_seconds"])) for row in rows) else 0


def _median_seconds(case: Callable[[], object]) -> float:
    case()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        case()
        seconds.append(time.perf_counter() - start)
    return round(median(seconds), 4)


def _raw(estimand: str) -> dict[str, object]:
    secondary = [f"eval/extra_{i}" for i in range(NUM_METRICS - 1)]
    return {"sesoi": 2.0, "estimand": estimand, "failure": {"floor": 0.0}, "secondary": secondary}


def _inputs(estimand: str) -> ReportInputs:
    rng = np.random.default_rng(1)
    spec = AnalysisSpec.model_validate(_raw(estimand))
    analysis = complete_analysis(spec, kind="ab", replicates=REPLICATES, env_kind="morphogenesis")
    names = ["eval/accuracy", *(choice.metric for choice in analysis.secondary)]
    scores = tuple(
        ScoreRow(arm, r, f"{arm}{r}", name, float(60 + 3 * rng.normal() + (4 if arm == "d" else 0)), "ok")
        for name in names
        for arm in ARMS
        for r in range(REPLICATES)
    )
    runs = tuple(RunFacts(arm, r, f"{arm}{r}", "ok", device_seconds=90.0) for arm in ARMS for r in range(REPLICATES))
    return ReportInputs(
        experiment_id="speed",
        name="speed",
        generated_utc="",
        analysis=analysis,
        registered_hash=analysis_hash(analysis),
        arms=tuple(ArmFacts(arm) for arm in ARMS),
        planned_blocks=REPLICATES,
        scores=scores,
        runs=runs,
    )


def _write(rows: list[dict[str, object]]) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    date = datetime.now(UTC).date().isoformat()
    RESULT.write_text(json.dumps({"date": date, "lockstep": version("lockstep"), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
