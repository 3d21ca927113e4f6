"""End-to-end golden keys: evidence or scores in, verdict out, through the report's own analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.report.numbers import ends
from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.registered import Design
from lockstep.stats.results import Interval
from lockstep.stats.scores import ArmScores, arm_scores, complete_blocks
from lockstep.stats.verdict import Evidence, PairResult, pair_verdict

Inputs = Mapping[str, Any]
Outputs = dict[str, Any]


def pair_verdicts(i: Inputs) -> Outputs:
    """Return the verdict of each row of evidence."""
    found = [pair_verdict(_evidence(row)) for row in i["rows"]]
    return {
        "verdicts": [v.code for v in found],
        "better": [{1: "x", -1: "y"}.get(v.better) for v in found],
        "flags": [list(v.flags) for v in found],
    }


def _evidence(row: Inputs) -> Evidence:
    def interval(name: str) -> Interval | None:
        return None if row[name] is None else Interval(row[name][0], row[name][1])

    return Evidence(
        p=row["p"],
        level=row["alpha"],
        ci_superiority=interval("ci_superiority"),
        ci_equivalence=interval("ci_equivalence"),
        estimate=row["estimate"],
        sesoi=row["sesoi"],
        void_gate=row.get("void_gate"),
        num_usable=row.get("n", 1_000_000),
        identical=row.get("identical", False),
        min_p=row.get("min_p", 0.0),
    )


def _arm(label: str, values: Sequence[Any], direction: str) -> ArmScores:
    statuses = [v if v in ("failed", "lost") else "ok" for v in values]
    raw = [None if s != "ok" else float(v) for v, s in zip(values, statuses, strict=True)]
    return arm_scores(label, raw, statuses, direction)


def _design(i: Inputs) -> Design:
    floor = i.get("failure_floor")
    sign = -1.0 if i.get("direction") == "min" else 1.0
    return Design(
        paired=i["paired"],
        estimand=i["estimand"],
        sesoi=i["sesoi"],
        level=i["alpha"],
        floor=None if floor is None else sign * floor,
        comparisons=i.get("comparisons", "winner"),
        control=i.get("control"),
        adjust=i.get("pairwise_adjust", "auto"),
        fallback=i.get("small_n_fallback", "none"),
        threshold=None if i.get("threshold") is None else sign * i["threshold"],
    )


def _pair_outputs(pair: PairResult) -> Outputs:
    tested = pair.test is not None and pair.evidence.p is not None
    return {
        "estimate": pair.test.estimate if pair.test else None,
        "p": pair.evidence.p,
        "p_adj": pair.p_adjusted,
        "CI95": ends(pair.evidence.ci_superiority) if tested else None,
        "CI90": ends(pair.evidence.ci_equivalence) if tested else None,
        "verdict": pair.verdict.code,
        "better": pair.better,
        "reason": pair.verdict.reason,
    }


def compare(i: Inputs) -> Outputs:
    """Return the verdict on two arms, scores in."""
    direction = i.get("direction", "max")
    arms = [_arm("x", i["x"], direction), _arm("y", i["y"], direction)]
    result, _ = analyse_with_sensitivity(arms, _design(i))
    pair = result.pairs[0]
    sizes = [pair.a.values.size, pair.b.values.size]
    paired_losses = len(i["x"]) - complete_blocks(arms).size if i["paired"] else None
    lost = int(sum(arm.lost.sum() for arm in arms)) if paired_losses is None else paired_losses
    return _pair_outputs(pair) | {
        "n_used": sizes[0] if i["paired"] else sizes,
        "failures": [arm.num_failures for arm in arms],
        "lost": lost,
        "flags": list(result.flags),
    }


def experiment(i: Inputs) -> Outputs:
    """Return the experiment verdict over all arms, scores in."""
    arms = [_arm(label, values, i.get("direction", "max")) for label, values in i["arms"].items()]
    result, _ = analyse_with_sensitivity(arms, _design(i))
    return {
        "winner": result.winner,
        "treatments_better": list(result.treatments_better),
        "leader": result.leader,
        "best_set": list(result.best_set),
        "verdict": result.verdict,
        "reason": result.reason,
        "p_max": result.p_max,
        "flags": list(result.flags),
        "pairs": {f"{pair.a.label}|{pair.b.label}": _pair_outputs(pair) for pair in result.pairs},
    }
