"""Build the report: one JSON document with the verdict and everything it rests on.

Strict JSON, deterministic: the same inputs give the same bytes apart from ``generated_utc``.
Unavailable numbers are null, with the reason among the flags.

Integrity gates: what must hold before scores may be compared.

A failed gate of class ``void`` makes the verdict INVALID; class ``flag`` only warns. A gate whose
facts were not recorded is ``not checked``, which is never shown as pass.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import scipy

from lockstep.report.comparisons import comparison
from lockstep.report.csv import scores_csv
from lockstep.report.curves import curve_plot, curve_test, time_to_threshold
from lockstep.report.inputs import (
    Clock,
    MetricScores,
    ReportInputs,
    RunFacts,
    clock,
    design_of,
    finished_blocks,
    metric_scores,
    score_table,
)
from lockstep.report.numbers import difference_unit, number, unit_of
from lockstep.report.sections import (
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
)
from lockstep.report.wording import (
    WINNER_WITH_HARM,
    VerdictFacts,
    decisive_pair,
    methods_sentence,
    methods_sentences,
    verdict_sentence,
)
from lockstep.spec.analysis import canonical_hash
from lockstep.spec.metrics import is_reward_dependent
from lockstep.stats.failures import HARM, UNPROVEN, Sensitivity, analyse_with_sensitivity
from lockstep.stats.planning import ReplicatesNeeded
from lockstep.stats.verdict import (
    IDENTICAL_RUNS,
    INCONCLUSIVE,
    INVALID,
    NO_INFERENCE,
    SUPERIOR_VERDICTS,
    Design,
    ExperimentResult,
)

SCHEMA = 1


class _Analysis:
    """What one build computes once and several sections read."""

    def __init__(self, inputs: ReportInputs) -> None:
        self.inputs = inputs
        self.clock: Clock = clock(inputs)
        self.gates: tuple[Gate, ...] = check_gates(inputs)
        self.design: Design = design_of(inputs.analysis, self.clock.level, inputs.kind)
        self.scores: MetricScores = metric_scores(inputs, inputs.analysis.primary.metric, self.clock.blocks)
        self.sign = 1.0 if self.scores.direction == "max" else -1.0
        failed = [g for g in self.gates if g.cls == "void" and g.state == "fail"]
        self.void = failed[0] if failed else None
        self.result: ExperimentResult
        self.sensitivity: Sensitivity
        self.result, self.sensitivity = analyse_with_sensitivity(
            self.scores.arms, self.design, self.void.gate if self.void else None
        )
        self.decisive = decisive_pair(self.result)
        self.guardrails = guardrail_rows(inputs, self.scores, self._winner(), self.clock)
        self.more: ReplicatesNeeded | None = replicates_more(self.decisive, self.design, inputs.analysis.alpha)

    def _winner(self) -> str | None:
        return self.result.winner if self.result.verdict in SUPERIOR_VERDICTS else None


def build_report(inputs: ReportInputs) -> dict[str, Any]:
    """Return the report as JSON data (statistics.md 14.1)."""
    found = _Analysis(inputs)
    result, design = found.result, found.design
    return {
        "schema": SCHEMA,
        "experiment_id": inputs.experiment_id,
        "name": inputs.name,
        "generated_utc": inputs.generated_utc,
        "versions": _versions(inputs),
        "registration": _registration(inputs),
        "verdict": _verdict(found),
        "facts": _facts(found),
        "table": arm_table(result, found.scores, design, found.sign),
        "comparisons": [comparison(p, design, found.sign, dict(found.scores.blocks)) for p in result.pairs],
        "adjustment": result.adjustment,
        "omnibus": omnibus(result, design),
        "guardrails": found.guardrails,
        "secondary": secondary_rows(inputs, found.clock),
        "curve": curve_test(inputs, found.scores, found.clock, design),
        "curves": curve_plot(inputs, found.scores, found.clock),
        "time_to_threshold": time_to_threshold(inputs, found.scores, found.clock, design),
        "scores": score_panel(result, found.scores, found.sign),
        "profile": profile_panel(result, found.sign),
        "sequential": sequential_panel(found.decisive, found.clock, design, inputs.analysis.looks.at),
        "failures": failure_rows(found.scores.arms),
        "sensitivity": asdict(found.sensitivity),
        "leave_one_out": leave_one_out_row(found.decisive, design),
        "integrity": _integrity(found.gates),
        "aa": _calibration(found),
        "more": _more(found.more),
        "bayes": bayes_panel(result, design, found.scores) if inputs.analysis.bayes_panel else None,
        "training": training_rows(inputs),
        "xeval": cross_scores(inputs),
        "exploratory": _exploratory(found),
        "methods_sentence": methods_sentence(inputs.analysis, methods_sentences(inputs, result, design)),
        "scores_sha256": hashlib.sha256(scores_csv(inputs).encode()).hexdigest(),
        "seeds": {"analysis": inputs.analysis.analysis_seed},
        "notes": dict(sorted(inputs.notes.items())),
    }


def report_json(report: dict[str, Any]) -> str:
    """Return the report as strict JSON text (no NaN, no Infinity), one trailing newline."""
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _integrity(gates: Sequence[Gate]) -> list[dict[str, Any]]:
    return [{"gate": g.gate, "class": g.cls, "state": g.state, "detail": g.detail} for g in gates]


def _calibration(found: _Analysis) -> dict[str, Any]:
    inputs = found.inputs
    spread = nondeterminism(found.result) if inputs.kind == "aa" and found.design.paired else None
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
        "as_registered": canonical_hash(inputs.analysis) == inputs.registered_hash,
        "analysis": inputs.analysis.model_dump(mode="json"),
        "experiment_id": inputs.experiment_id,
        "name": inputs.name,
        "kind": inputs.kind,
        "arms": [asdict(arm) | {"differences": [asdict(d) for d in arm.differences]} for arm in inputs.arms],
        "planned_blocks": inputs.planned_blocks,
        "look": inputs.look,
        "extension": None if extension is None else asdict(extension),
    }


def _verdict(found: _Analysis) -> dict[str, Any]:
    result, inputs = found.result, found.inputs
    code, reason = _code(found)
    harmed = tuple(dict.fromkeys(row["metric"] for row in found.guardrails if row["state"] == HARM))
    if harmed and code in SUPERIOR_VERDICTS:
        code = WINNER_WITH_HARM
    flags = _flags(found, code)
    winner = result.winner if code in (*SUPERIOR_VERDICTS, WINNER_WITH_HARM) else None
    words = VerdictFacts(
        code=code,
        reason=reason,
        result=replace(result, flags=tuple(flags)),
        analysis=inputs.analysis,
        level=found.clock.level,
        more=found.more,
        hours_per_block=_hours_per_block(inputs),
        void_detail=found.void.detail if found.void else "",
        harmed=harmed,
        kind=inputs.kind,
        spread=nondeterminism(result) if reason == "AA_DIFFERS" else None,
    )
    shown = code not in (INVALID, NO_INFERENCE)
    return {
        "code": code,
        "level": found.clock.level,
        "winner": winner,
        "leader": result.leader if shown else None,
        "best_set": list(result.best_set) if shown else [],
        "better": winner,
        "reason": reason,
        "p_max": number(result.p_max) if winner else None,
        "flags": flags,
        "suffix": _suffix(found, code),
        "promotable": winner is not None and code in SUPERIOR_VERDICTS[:2] and "GUARDRAIL_UNPROVEN" not in flags,
        "sentence": verdict_sentence(words),
    }


def _code(found: _Analysis) -> tuple[str, str | None]:
    result = found.result
    if not found.clock.reached and result.verdict != INVALID:
        return NO_INFERENCE, "LOOK_NOT_REACHED"
    if found.inputs.analysis.inference == "none" and result.verdict not in (
        INVALID,
        IDENTICAL_RUNS,
        NO_INFERENCE,
    ):
        return NO_INFERENCE, _without_inference(found)
    if result.reason == "DEMONSTRATION":
        return NO_INFERENCE, _without_inference(found)
    return result.verdict, result.reason


def _without_inference(found: _Analysis) -> str:
    """Return why nothing is concluded although there are scores: a demonstration, or an A/A that differs."""
    differs = found.inputs.kind == "aa" and any(not pair.evidence.identical for pair in found.result.pairs)
    return "AA_DIFFERS" if differs else "DEMONSTRATION"


def _flags(found: _Analysis, code: str) -> list[str]:
    flags = {*found.result.flags, *(g.flag for g in found.gates if g.flag)}
    if is_reward_dependent(found.scores.metric):
        flags.add("REWARD_SHARED")
    if any(row["state"] == UNPROVEN for row in found.guardrails):
        flags.add("GUARDRAIL_UNPROVEN")
    arms = found.scores.arms
    if all(arm.num_outcomes and arm.num_failures == arm.num_outcomes for arm in arms):
        flags.add("ALL_FAILED")
    if any(row.cause == "user" and row.status == "lost" for row in found.inputs.scores):
        flags.add("CANCELLED_BY_USER")
    if code == NO_INFERENCE and any(arm.values.size < 2 for arm in found.result.arms):
        flags.add("FEW_REPLICATES")
    if found.inputs.extension is not None:
        flags.add("EXPLORATORY_EXTENSION")
    return sorted(flags)


def _suffix(found: _Analysis, code: str) -> str | None:
    if found.clock.look is not None and code not in (INVALID, NO_INFERENCE, INCONCLUSIVE):
        return f"@look {found.clock.look}"
    if found.design.mode == "anytime":
        return f"@anytime {min(arm.values.size for arm in found.result.arms)}"
    return None


def _facts(found: _Analysis) -> dict[str, Any]:
    inputs, scores = found.inputs, found.scores
    table = score_table(inputs, scores.metric)
    statuses = {s: {a.label: 0 for a in inputs.arms} for s in ("failed", "lost")}
    for (arm, _), row in table.items():
        if row.status in statuses:
            statuses[row.status][arm] += 1
    steps = sorted({run.env_steps for run in inputs.runs if run.env_steps is not None and run.status == "ok"})
    seconds = [run.device_seconds for run in inputs.runs if run.device_seconds is not None]
    paired = found.design.paired
    return {
        "arms": [arm.label for arm in inputs.arms],
        "metric": scores.metric,
        "unit": unit_of(scores.metric),
        "difference_unit": difference_unit(scores.metric, inputs.analysis.estimand),
        "direction": scores.direction,
        "planned": inputs.planned_blocks,
        "complete_blocks": _complete(found),
        "failed": statuses["failed"],
        "lost": statuses["lost"],
        "steps": steps[0] if len(steps) == 1 else None,
        "device_hours": number(sum(seconds) / 3600) if seconds else None,
        "resumed_runs": sum(1 for run in inputs.runs if run.resumed),
        "balanced": is_balanced(inputs.runs, [a.label for a in inputs.arms]),
        "code_revisions": sorted({run.code_revision for run in inputs.runs if run.code_revision}),
        "rho": number(pair_correlation(found.result.arms)) if paired else None,
        "floor": number(found.sign * found.result.floor),
        "looks": {
            "mode": inputs.analysis.looks.mode,
            "k": found.clock.look,
            "K": found.clock.num_looks,
            "levels": list(found.clock.levels),
        },
    }


def _complete(found: _Analysis) -> int:
    sizes: Sequence[int] = [arm.values.size for arm in found.result.arms]
    return int(min(sizes))


def _hours_per_block(inputs: ReportInputs) -> float | None:
    seconds = [run.device_seconds for run in inputs.runs if run.device_seconds is not None]
    blocks = {run.replicate for run in inputs.runs if run.device_seconds is not None}
    return sum(seconds) / 3600 / len(blocks) if blocks else None


def _more(more: ReplicatesNeeded | None) -> dict[str, Any] | None:
    if more is None:
        return None
    return {"N_plugin": more.plugin, "N_upper80": more.upper80, "more": list(more.more)}


def _exploratory(found: _Analysis) -> dict[str, Any] | None:
    """Return the pooled analysis of an extension decided after data were seen; never the verdict."""
    inputs = found.inputs
    if inputs.extension is None:
        return None
    pooled = replace(inputs, extension=None)
    blocks = finished_blocks(pooled, score_table(pooled, found.scores.metric))
    scores = metric_scores(pooled, found.scores.metric, blocks)
    result, _ = analyse_with_sensitivity(scores.arms, replace(found.design, level=inputs.analysis.alpha, mode="fixed"))
    return {
        "label": "EXPLORATORY",
        "decided_utc": inputs.extension.decided_utc,
        "reason": inputs.extension.reason,
        "blocks": len(blocks),
        "pooled_verdict": result.verdict,
        "comparisons": [comparison(p, found.design, found.sign, dict(scores.blocks)) for p in result.pairs],
    }


PASS, FAIL, NOT_CHECKED = "pass", "fail", "not checked"
LOST_SHARE = 0.1


@dataclass(frozen=True)
class Gate:
    """One gate: its class (void or flag), state, detail and the flag it sets when it fails."""

    gate: str
    cls: str
    state: str
    detail: str
    flag: str | None = None


def check_gates(inputs: ReportInputs) -> tuple[Gate, ...]:
    """Return every gate in a fixed order."""
    succeeded = [run for run in inputs.runs if run.status == "ok"]
    return (
        _hash_gate(inputs),
        _primary_gate(inputs),
        _same_per_block("evaluator", succeeded, lambda run: run.evaluator, across=True),
        _same_per_block("evaluation seeds", succeeded, lambda run: run.eval_seeds),
        _same_per_block("evaluation episodes", succeeded, lambda run: run.eval_episodes, across=True),
        _same_per_block("environment steps", succeeded, lambda run: run.env_steps, across=True),
        _seed_gate(inputs),
        _same_per_block("code revision", inputs.runs, lambda run: run.code_revision),
        _hand_gate(inputs.runs),
        _balance_gate(inputs),
        _driver_gate(inputs.runs),
        _complete_gate(inputs),
        _lost_gate(inputs),
        _resumed_gate(inputs.runs),
        _deterministic_gate(inputs.runs),
    )


def is_balanced(runs: Sequence[RunFacts], labels: Sequence[str]) -> bool | None:
    """Return whether arms are spread evenly over devices (counts differ by at most 1), None if unknown."""
    if not runs or any(run.device is None for run in runs):
        return None
    counts = Counter((run.device, run.arm) for run in runs)
    for device in {run.device for run in runs}:
        own = [counts[device, label] for label in labels]
        if max(own) - min(own) > 1:
            return False
    return True


def _gate(name: str, cls: str, holds: bool | None, detail: str, flag: str | None = None) -> Gate:
    state = NOT_CHECKED if holds is None else PASS if holds else FAIL
    return Gate(name, cls, state, detail if holds is False else "", flag if holds is False else None)


def _hash_gate(inputs: ReportInputs) -> Gate:
    same = canonical_hash(inputs.analysis) == inputs.registered_hash
    return _gate("analysis as registered", "void", same, "the analysis differs from the registered one")


def _primary_gate(inputs: ReportInputs) -> Gate:
    metric = inputs.analysis.primary.metric
    missing = [r.run_id for r in inputs.scores if r.metric == metric and r.status == "ok" and r.raw is None]
    scored = {(r.arm, r.replicate) for r in inputs.scores if r.metric == metric}
    missing += [r.run_id for r in inputs.runs if r.status == "ok" and (r.arm, r.replicate) not in scored]
    detail = f"no {metric} for successful runs {', '.join(sorted(missing))}"
    return _gate("primary metric present", "void", not missing, detail)


def _same_per_block(
    name: str, runs: Sequence[RunFacts], read: Callable[[RunFacts], Hashable], across: bool = False
) -> Gate:
    """Gate: equal between the arms of each block, or over all runs when ``across``."""
    if not runs or any(read(run) is None for run in runs):
        return _gate(name, "void", None, "")
    groups: dict[int, set[Hashable]] = defaultdict(set)
    for run in runs:
        groups[0 if across else run.replicate].add(read(run))
    bad = sorted(block for block, values in groups.items() if len(values) > 1)
    where = "between runs" if across else f"between arms in blocks {', '.join(map(str, bad))}"
    return _gate(name, "void", not bad, f"{name} differs {where}")


def _seed_gate(inputs: ReportInputs) -> Gate:
    if not inputs.analysis.paired:
        return Gate("replicate seeds shared", "void", PASS, "")
    gate = _same_per_block("replicate seeds", inputs.runs, lambda run: run.replicate_seed)
    return Gate("replicate seeds shared", gate.cls, gate.state, gate.detail)


def _hand_gate(runs: Sequence[RunFacts]) -> Gate:
    repeated = sorted(run.run_id for run in runs if run.repeated_by_hand)
    holds = None if not runs else not repeated
    return _gate("no result chosen by hand", "void", holds, f"repeated although decided: {', '.join(repeated)}")


def _balance_gate(inputs: ReportInputs) -> Gate:
    balanced = is_balanced(inputs.runs, [arm.label for arm in inputs.arms])
    detail = "some arm ran more often on one device than another arm"
    return _gate("arm x device balanced", "flag", balanced, detail, "HARDWARE_CONFOUNDED")


def _driver_gate(runs: Sequence[RunFacts]) -> Gate:
    drivers = {run.driver for run in runs}
    holds = None if not runs or None in drivers else len(drivers) == 1
    return _gate("one driver", "flag", holds, "driver or library versions differ between runs", "DRIVER_DIFFERS")


def _complete_gate(inputs: ReportInputs) -> Gate:
    metric, labels = inputs.analysis.primary.metric, [arm.label for arm in inputs.arms]
    done = {(r.arm, r.replicate) for r in inputs.scores if r.metric == metric and r.status != "lost"}
    complete = sum(1 for r in {rep for _, rep in done} if all((label, r) in done for label in labels))
    # at a registered look only the blocks up to it are due
    looks = inputs.analysis.looks
    due = looks.at[inputs.look - 1] if looks.mode == "planned" and inputs.look else inputs.planned_blocks
    detail = f"{complete} of {due} planned blocks are complete"
    return _gate("all planned blocks complete", "flag", complete >= due, detail, "INCOMPLETE")


def _lost_gate(inputs: ReportInputs) -> Gate:
    metric = inputs.analysis.primary.metric
    lost = {r.replicate for r in inputs.scores if r.metric == metric and r.status == "lost"}
    share = len(lost) / max(1, inputs.planned_blocks)
    return _gate("at most 10 % of blocks lost", "flag", share <= LOST_SHARE, f"{len(lost)} blocks lost", "MANY_LOST")


def _resumed_gate(runs: Sequence[RunFacts]) -> Gate:
    resumed = sorted(run.run_id for run in runs if run.resumed)
    holds = None if not runs else not resumed
    return _gate("no run resumed", "flag", holds, f"resumed from a checkpoint: {', '.join(resumed)}", "RESUMED_RUNS")


def _deterministic_gate(runs: Sequence[RunFacts]) -> Gate:
    known = [run.deterministic for run in runs]
    holds = None if not runs or None in known else all(known)
    return _gate("deterministic kernels", "flag", holds, "nondeterministic kernels were on", "NONDETERMINISTIC")
