"""Build the report: one JSON document with the verdict and everything it rests on.

Strict JSON, deterministic: the same inputs give the same bytes apart from ``generated_utc``.
Unavailable numbers are null, with the reason among the flags.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import scipy

from lockstep.report.csv import scores_csv
from lockstep.report.findings.clock import Clock, cancelled_blocks, finished_blocks, is_extendable
from lockstep.report.findings.comparisons import comparison, early_stop_rows, quantity_row
from lockstep.report.findings.curves import curve_plot, curve_test, time_to_threshold
from lockstep.report.findings.gates import Gate, failed_void, flag_gates, is_balanced, void_gates
from lockstep.report.findings.learning import Learning, learning, learning_section
from lockstep.report.findings.opposed import Opposed, opposed, opposed_section
from lockstep.report.findings.sections import (
    arm_table,
    bayes_panel,
    cross_scores,
    failure_rows,
    guardrail_rows,
    leave_one_out_row,
    nondeterminism,
    omnibus,
    pair_correlation,
    profile_panel,
    replicates_more,
    score_panel,
    secondary_rows,
    sequential_panel,
    training_rows,
    worst_level,
)
from lockstep.report.findings.staged import Judged, judge
from lockstep.report.headline import Finding, headline
from lockstep.report.inputs import MetricScores, ReportInputs, metric_scores, score_table
from lockstep.report.numbers import difference_unit, number, unit_of
from lockstep.report.words.methods import methods_sentence, methods_sentences
from lockstep.report.words.sentences import decisive_pair
from lockstep.spec.inference.analysis import analysis_hash
from lockstep.stats.estimands import bimodal_arms
from lockstep.stats.failures import Sensitivity, analyse_with_sensitivity
from lockstep.stats.power import Needed
from lockstep.stats.registered import Design, registered_test
from lockstep.stats.scores import usable
from lockstep.stats.shapes import TrueLevel
from lockstep.stats.verdict import INCONCLUSIVE, ExperimentResult, PairResult

SCHEMA = 2


class _Analysis:
    """What one build computes once and several sections read."""

    def __init__(self, inputs: ReportInputs) -> None:
        self.inputs = inputs
        voids = void_gates(inputs)
        void = failed_void(voids)
        self.stand: Judged = judge(inputs, void.gate if void else None)
        self.clock: Clock = self.stand.clock
        self.gates: tuple[Gate, ...] = (*voids, *flag_gates(inputs, self.clock))
        self.design: Design = self.stand.design
        self.scores: MetricScores = self.stand.scores
        self.sign = 1.0 if self.scores.direction == "max" else -1.0
        self.result: ExperimentResult = self.stand.result
        self.sensitivity: Sensitivity = self.stand.sensitivity
        self.decisive = decisive_pair(self.result)
        self.guardrails = guardrail_rows(inputs, self.scores, self.result, self.clock)
        self.early = early_stop_rows(inputs, self.clock, self.result.pairs)
        self.more: Needed | None = None
        if self.result.verdict == INCONCLUSIVE and self.result.reason is None and self.design.inference == "full":
            self.more = replicates_more(self.decisive, self.result, inputs.analysis, self.design)
        self.learning: Learning = learning(inputs, self.scores, self.result, self.design)
        self.opposed: tuple[Opposed, ...] = opposed(inputs, self.scores, self.result, self.design)
        self.level: TrueLevel | None = worst_level(self.decisive, self.result, self.design)

    def judged(self, pair: PairResult) -> bool:
        """Return whether a comparison carries a verdict of its own: it was asked for, not one of many of a winner."""
        return pair.in_family and (self.design.comparisons != "winner" or len(self.result.arms) == 2)

    def finding(self) -> Finding:
        """Return what the headline is written from."""
        return Finding(
            self.inputs,
            self.gates,
            self.stand,
            self.guardrails,
            self.more,
            self.early,
            self.level,
            self.learning,
            self.opposed,
        )


def build_report(inputs: ReportInputs) -> dict[str, Any]:
    """Return the report as JSON data (statistics.md 14.1)."""
    analysis = _Analysis(inputs)
    result, design = analysis.result, analysis.design
    return {
        "schema": SCHEMA,
        "experiment_id": inputs.experiment_id,
        "name": inputs.name,
        "generated_utc": inputs.generated_utc,
        "versions": _versions(inputs),
        "registration": _registration(inputs),
        "verdict": headline(analysis.finding()),
        "facts": _facts(analysis),
        "table": arm_table(result, analysis.scores, design, analysis.sign),
        "comparisons": [
            comparison(p, design, analysis.sign, analysis.scores.blocks, analysis.judged(p)) for p in result.pairs
        ],
        "early_stops": list(analysis.early),
        "overrun": _overrun(analysis),
        "quantities": [quantity_row(p, design, analysis.scores.arms) for p in result.pairs if p.in_family],
        "bimodal": {label: [number(v) for v in gap] for label, gap in bimodal_arms(result.arms, design).items()},
        "true_level": _true_level(analysis.level),
        "adjustment": result.adjustment,
        "omnibus": omnibus(result, design),
        "guardrails": analysis.guardrails,
        "secondary": secondary_rows(inputs, analysis.clock),
        "curve": curve_test(inputs, analysis.scores, analysis.clock, design),
        "curves": curve_plot(inputs, analysis.scores, analysis.clock),
        "time_to_threshold": time_to_threshold(inputs, analysis.scores, analysis.clock, design),
        "scores": score_panel(result, analysis.scores, analysis.sign),
        "profile": profile_panel(result, analysis.sign),
        "sequential": sequential_panel(analysis.decisive, analysis.clock, design, inputs.analysis.looks.at),
        "failures": failure_rows(analysis.scores.arms),
        "lost_blocks": [
            asdict(item) | {"replicates": list(item.replicates), "arms": list(item.arms)} for item in inputs.lost_blocks
        ],
        "sensitivity": asdict(analysis.sensitivity),
        "leave_one_out": leave_one_out_row(analysis.decisive, design),
        "integrity": _integrity(analysis.gates),
        "aa": _calibration(analysis),
        "more": _more(analysis),
        "bayes": bayes_panel(result, design, analysis.scores) if inputs.analysis.bayes_panel else None,
        "training": training_rows(inputs),
        "learning": learning_section(analysis.learning, analysis.sign),
        "opposed": opposed_section(analysis.opposed, analysis.sign),
        "xeval": cross_scores(inputs),
        "exploratory": _exploratory(analysis),
        "methods_sentence": methods_sentence(
            inputs.analysis, methods_sentences(inputs, analysis.stand, analysis.level)
        ),
        "scores_sha256": hashlib.sha256(scores_csv(inputs).encode()).hexdigest(),
        "seeds": {"analysis": inputs.analysis.analysis_seed},
        "notes": dict(sorted(inputs.notes.items())),
    }


def report_json(report: dict[str, Any]) -> str:
    """Return the report as strict JSON text (no NaN, no Infinity), one trailing newline."""
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _integrity(gates: Sequence[Gate]) -> list[dict[str, Any]]:
    return [{"gate": g.gate, "class": g.cls, "state": g.state, "detail": g.detail} for g in gates]


def _calibration(analysis: _Analysis) -> dict[str, Any]:
    inputs = analysis.inputs
    spread = nondeterminism(analysis.result) if inputs.kind == "aa" and analysis.design.paired else None
    if inputs.stamp is None:
        return {"modes": [], "stamp": None, "spread": spread}
    modes = list(inputs.stamp.modes)
    return {"modes": modes, "stamp": asdict(inputs.stamp) | {"modes": modes}, "spread": spread}


def _versions(inputs: ReportInputs) -> dict[str, str]:
    return {
        "lockstep": inputs.code_version,
        "scipy": scipy.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _registration(inputs: ReportInputs) -> dict[str, Any]:
    """Return what, with scores.csv, suffices to compute the report again."""
    extension = inputs.extension
    return {
        "hash": inputs.registered_hash,
        "as_registered": analysis_hash(inputs.analysis) == inputs.registered_hash,
        "analysis": inputs.analysis.model_dump(mode="json"),
        "experiment_id": inputs.experiment_id,
        "name": inputs.name,
        "kind": inputs.kind,
        "arms": [asdict(arm) | {"differences": [asdict(d) for d in arm.differences]} for arm in inputs.arms],
        "planned_blocks": inputs.planned_blocks,
        "look": inputs.look,
        "looks_taken": [list(blocks) for blocks in inputs.looks_taken],
        "ended": inputs.ended,
        "cancelled": list(cancelled_blocks(inputs)),
        "extension": None if extension is None else asdict(extension),
    }


def _true_level(level: TrueLevel | None) -> dict[str, Any] | None:
    """Return at what level the test of means runs for scores as skewed as these."""
    if level is None:
        return None
    return {"simulated": level.simulated, "nominal": level.nominal, "skewness": [number(g) for g in level.skewness]}


def _facts(analysis: _Analysis) -> dict[str, Any]:
    inputs, scores = analysis.inputs, analysis.scores
    table = score_table(inputs, scores.metric)
    statuses = {s: {a.label: 0 for a in inputs.arms} for s in ("failed", "lost")}
    for (arm, _), row in table.items():
        if row.status in statuses:
            statuses[row.status][arm] += 1
    steps = sorted({run.env_steps for run in inputs.runs if run.env_steps is not None and run.status == "ok"})
    seconds = [run.device_seconds for run in inputs.runs if run.device_seconds is not None]
    paired = analysis.design.paired
    return {
        "arms": [arm.label for arm in inputs.arms],
        "metric": scores.metric,
        "unit": unit_of(scores.metric),
        "difference_unit": difference_unit(scores.metric, inputs.analysis.estimand),
        "direction": scores.direction,
        "planned": inputs.planned_blocks,
        "complete_blocks": _complete(analysis),
        "failed": statuses["failed"],
        "lost": statuses["lost"],
        "steps": steps[0] if len(steps) == 1 else None,
        "device_hours": number(sum(seconds) / 3600) if seconds else None,
        "resumed_runs": sum(1 for run in inputs.runs if run.resumed_at),
        "resumed_at": {run.run_id: list(run.resumed_at) for run in inputs.runs if run.resumed_at},
        "balanced": is_balanced(inputs.runs, [a.label for a in inputs.arms]),
        "plugins": sorted({f"{name} of {code}" for run in inputs.runs for name, code in (run.plugins or {}).items()}),
        "code_revisions": sorted({run.code_revision for run in inputs.runs if run.code_revision}),
        "rho": number(pair_correlation(analysis.result.arms)) if paired else None,
        "floor": number(analysis.sign * analysis.result.floor),
        "looks": {
            "mode": inputs.analysis.looks.mode,
            "k": analysis.clock.look,
            "K": analysis.clock.num_looks,
            "levels": list(analysis.clock.levels),
        },
    }


def _complete(analysis: _Analysis) -> int:
    if not analysis.clock.reached:
        return analysis.clock.complete
    return int(min(arm.values.size for arm in analysis.result.arms))


def _more(analysis: _Analysis) -> dict[str, Any] | None:
    if analysis.more is None:
        return None
    low, high = analysis.more.plugin, analysis.more.upper80
    seen = analysis.clock.complete
    more = [None if n is None else max(0, n - seen) for n in (low, high)]
    return {
        "N_plugin": low,
        "N_upper80": high,
        "more": more,
        "extendable": is_extendable(analysis.inputs, analysis.clock),
    }


def _overrun(analysis: _Analysis) -> dict[str, Any] | None:
    """Return the pooled estimates with the blocks that finished after the answer; they never confirm or refute it."""
    if not analysis.stand.overrun:
        return None
    inputs, design = analysis.inputs, analysis.design
    scores = metric_scores(inputs, analysis.scores.metric, (*analysis.clock.blocks, *analysis.stand.overrun))
    arms = {arm.label: arm for arm in usable(scores.arms, analysis.result.floor, design.paired)}
    pairs = [
        (p, registered_test(arms[p.a.label], arms[p.b.label], design)) for p in analysis.result.pairs if p.in_family
    ]
    return {
        "label": "OVERRUN",
        "blocks": list(analysis.stand.overrun),
        "comparisons": [
            {"a": p.a.label, "b": p.b.label, "estimate": number(p.evidence.estimate), "pooled": number(test.estimate)}
            for p, test in pairs
        ],
    }


def _exploratory(analysis: _Analysis) -> dict[str, Any] | None:
    """Return the pooled analysis of an extension decided after data were seen; never the verdict."""
    inputs = analysis.inputs
    if inputs.extension is None or not analysis.clock.reached:
        return None
    pooled = replace(inputs, extension=None)
    blocks = finished_blocks(pooled, score_table(pooled, analysis.scores.metric))
    scores = metric_scores(pooled, analysis.scores.metric, blocks, not inputs.analysis.paired)
    result, _ = analyse_with_sensitivity(
        scores.arms, replace(analysis.design, level=inputs.analysis.alpha, mode="fixed")
    )
    return {
        "label": "EXPLORATORY",
        "decided_utc": inputs.extension.decided_utc,
        "reason": inputs.extension.reason,
        "blocks": len(blocks),
        "pooled_verdict": result.verdict,
        "comparisons": [comparison(p, analysis.design, analysis.sign, scores.blocks, False) for p in result.pairs],
    }
