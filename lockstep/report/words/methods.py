"""The methods paragraph: generated from the registered analysis, one sentence per choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from lockstep.report.findings.clock import planned_blocks
from lockstep.report.findings.staged import Judged
from lockstep.report.inputs import ReportInputs
from lockstep.report.numbers import difference_unit, exact, percent, plain
from lockstep.spec.inference.analysis import AnalysisSpec
from lockstep.stats.shapes import TrueLevel
from lockstep.stats.verdict import ExperimentResult


def methods_sentence(analysis: AnalysisSpec, facts: Sequence[str]) -> str:
    """Return the methods paragraph from its parts, one sentence each."""
    head = (
        f"Primary metric {analysis.primary.metric} ({analysis.primary.aggregate}, direction "
        f"{analysis.primary.direction}); the unit of analysis is the replicate (one training run)."
    )
    return " ".join([head, *facts])


_NULL = "Null hypothesis: the arms are exchangeable"
_MEAN = "Quantity: the difference of mean scores, failed runs at their score. "
_SHIFT = "Quantity: the shift (Hodges-Lehmann). "
_LEARNED = "Quantity: the difference of the shares of replicates that reach the threshold. "
_TESTS = {
    (True, "shift"): f"{_SHIFT}Exact signed-rank test (Pratt zeros) with Walsh-average intervals. {_NULL} within a "
    "block.",
    (True, "mean"): f"{_MEAN}Sign-flip test, interval by inversion: exact when the arms are exchangeable within a "
    "block; for differences that are skewed about an equal mean no test is exact at small n.",
    (False, "shift"): f"{_SHIFT}Exact rank test with the Hodges-Lehmann interval. {_NULL}.",
    (False, "mean"): f"{_MEAN}Studentised permutation test, interval by inversion on the same splits: exact when the "
    "arms are exchangeable, right for unequal variances as n grows; for unequal shapes no test is exact at small n.",
    (True, "learned"): f"{_LEARNED}Exact sign test of the blocks in which one arm alone did; the interval inverts an "
    "exact unconditional test. Null hypothesis: the shares are equal.",
    (False, "learned"): f"{_LEARNED}Exact unconditional test of two shares, interval by inversion. Null hypothesis: "
    "the shares are equal.",
    (
        False,
        "p_superiority",
    ): "Brunner-Munzel test of P(better) = 1/2, guarded by the exact rank test below ten "
    "replicates and replaced by it under complete separation.",
}


_BETS = {
    "sign": " Null hypothesis: differences are symmetric about 0.",
    "t": " Null hypothesis: differences are normal with mean 0.",
    "betting": " Null hypothesis: differences within the bounds of the metric have mean 0, whatever their shape.",
}


def methods_sentences(inputs: ReportInputs, stand: Judged, level: TrueLevel | None) -> list[str]:
    """Return the sentences: test, levels, multiplicity, looks, failures, seeds, hash."""
    analysis, design, result = inputs.analysis, stand.design, stand.result
    if analysis.inference == "none":
        return ["Demonstration: no inference was registered.", _registered(inputs)]
    unit = difference_unit(analysis.primary.metric, analysis.estimand)
    sesoi = f"{exact(analysis.sesoi)} {unit}".strip()
    scope = "for all arms" if analysis.paired else "for its arm"
    return [
        _registered_test(analysis) + _skewed(level),
        f"Two-sided level {exact(round(design.level, 5))}; smallest effect of interest {sesoi}.",
        _multiplicity(analysis, result, len(inputs.arms)),
        _looks(analysis) + (_stopped(inputs, stand) if stand.stopped else ""),
        f"{_failed(analysis, stand)}, and is never omitted; "
        f"a block that was lost for another reason is dropped {scope}.",
        f"Resampling starts from analysis seed {analysis.analysis_seed}; lockstep {inputs.code_version}, "
        f"scipy {scipy.__version__}, numpy {np.__version__}.",
        _registered(inputs),
    ]


def _failed(analysis: AnalysisSpec, stand: Judged) -> str:
    """Return what a failed run scores in this analysis: as registered, unless a successful run scored worse."""
    registered, seen = analysis.failure.floor, stand.result.floor
    raw = seen if stand.scores.direction == "max" else -seen
    if registered is None:
        return f"A failed run scores {exact(raw)}, the worst score seen"
    if "FLOOR_ABOVE_SCORE" in stand.result.flags:
        return f"A failed run scores {exact(raw)}, the worst score seen: the registered {exact(registered)} is better"
    return f"A failed run scores {exact(registered)}, as registered"


def _registered_test(analysis: AnalysisSpec) -> str:
    if analysis.looks.mode == "anytime":
        return (
            f"Anytime-valid {analysis.looks.e_value} e-value of paired differences in replicate order; "
            f"p = 1/max E, intervals hold what no block has rejected at 1/alpha.{_BETS.get(analysis.looks.e_value, '')}"
        )
    return _TESTS[analysis.paired, analysis.estimand]


def _skewed(level: TrueLevel | None) -> str:
    """Return at what level the test of means runs for scores as skewed as these, where it is far from the nominal."""
    if level is None or not level.is_off:
        return ""
    seen = " and ".join(plain(g, 2) for g in level.skewness)
    return (
        f" In simulation, scores with the skewness that was seen ({seen}) and equal means are called different in "
        f"{percent(level.simulated)} % of experiments of this size, instead of {percent(level.nominal)} %."
    )


def _multiplicity(analysis: AnalysisSpec, result: ExperimentResult, num_arms: int) -> str:
    if num_arms == 2:
        return "One comparison."
    if analysis.comparisons == "winner":
        text = "Winner rule: an arm wins only if it beats every other arm, each at the level, uncorrected. "
    else:
        text = "Each registered comparison is judged by its adjusted p and an interval at the level of its step. "
    if result.adjustment == "max_t":
        strong = "strong control" if num_arms == 3 else "exact under the global null only"
        return text + f"Adjusted p: within-block max-T with the pair guard ({strong} at K = {num_arms})."
    return text + "Adjusted p: Holm over the exact pair p."


def _looks(analysis: AnalysisSpec) -> str:
    looks = analysis.looks
    if looks.mode == "planned":
        at = ", ".join(str(n) for n in looks.at)
        return (
            f"Planned looks after {at} complete blocks with {looks.boundary} levels; the first look that settles a "
            "comparison stands."
        )
    if looks.mode == "anytime":
        return "The data may be looked at after any block."
    return f"One analysis at {analysis.replicates.planned} planned blocks."


def _stopped(inputs: ReportInputs, stand: Judged) -> str:
    return (
        f" The experiment was ended after {stand.clock.complete} complete of {planned_blocks(inputs)} planned blocks. "
        "That was not planned, so the registered error level does not hold."
    )


def _registered(inputs: ReportInputs) -> str:
    return f"Analysis registered before training, SHA-256 {inputs.registered_hash[:12]}."
