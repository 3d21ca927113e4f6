"""Several quantities of the same scores: what the registered claim looks like in terms of the others.

A shift can say that nothing changed while one arm collapses in one run of ten, and a mean can hide it among large
scores. Mean difference, shift and counts of failures are always computed; a claim that the mean or the failures
contradict is flagged and never promoted. Unit: the replicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.stats.exact import within
from lockstep.stats.registered import Design, PairTest, as_estimand, noise, registered_test
from lockstep.stats.results import Floats
from lockstep.stats.scores import ArmScores, FlooredArm
from lockstep.stats.shares import fisher
from lockstep.stats.verdict import (
    EQUIVALENT,
    INCONCLUSIVE,
    INVALID,
    NO_INFERENCE,
    TIE_AT_TOP,
    ExperimentResult,
    PairResult,
)

ESTIMANDS_DISAGREE = "ESTIMANDS_DISAGREE"
BIMODAL = "BIMODAL"
#: From this p on, Fisher's test of failures says nothing against a claim.
FAILURE_DOUBT = 0.1
_GAP_SHARE = 0.5
#: Normal scores have such a gap in 10 % of samples of six, in 3 % of eight and in 0.9 % of ten.
_GAP_FROM = 10


@dataclass(frozen=True)
class Contradiction:
    """Why a claim about a - b does not stand: ``kind`` is mean, margin or failures.

    mean: the difference of means favours the other arm; margin: an equivalence whose difference of means is at least
    the smallest effect of interest; failures: the failures speak against the claimed arm (Fisher p).
    """

    a: str
    b: str
    kind: str
    mean_difference: float
    failures: tuple[tuple[int, int], tuple[int, int]]
    fisher_p: float


def contradictions(result: ExperimentResult, arms: Sequence[ArmScores], design: Design) -> tuple[Contradiction, ...]:
    """Return what the means and the failures have against the claims of the headline."""
    by_label = {arm.label: arm for arm in arms}
    notes = []
    for pair in claimed_pairs(result, design):
        kind = _against(pair, by_label, design)
        if kind is not None:
            counts = _failures(by_label[pair.a.label]), _failures(by_label[pair.b.label])
            mean = float(pair.a.values.mean() - pair.b.values.mean())
            notes.append(Contradiction(pair.a.label, pair.b.label, kind, mean, counts, _fisher_p(*counts)))
    return tuple(notes)


def claimed_pairs(result: ExperimentResult, design: Design) -> tuple[PairResult, ...]:
    """Return the comparisons about which the headline claims something: better, or no meaningful difference."""
    if result.verdict in (INVALID, NO_INFERENCE):
        return ()
    if result.winner is not None and result.treatments_better == ():
        return result.claims
    if result.verdict == TIE_AT_TOP:
        best = result.best_set
        among = [p for p in result.pairs if p.a.label in best and p.b.label in best]
        return (*among, *(p for p in result.pairs if p.superior and p.better == result.leader))
    if result.verdict == INCONCLUSIVE and design.comparisons == "winner":
        return ()
    return tuple(p for p in result.pairs if p.in_family and (p.superior or p.verdict.code == EQUIVALENT))


def bimodal_gap(values: Floats) -> tuple[float, float] | None:
    """Return the ends of a gap wider than half the range with at least two runs on each side, or None below ten."""
    ordered = np.sort(values)
    if ordered.size < _GAP_FROM:
        return None
    gaps = np.diff(ordered)
    at = int(np.argmax(gaps))
    inside = 2 <= at + 1 <= ordered.size - 2
    if not inside or gaps[at] <= _GAP_SHARE * (ordered[-1] - ordered[0]):
        return None
    return float(ordered[at]), float(ordered[at + 1])


def bimodal_arms(arms: Sequence[FlooredArm], design: Design) -> Mapping[str, tuple[float, float]]:
    """Return the gap of every arm whose scores fall into two groups that lie as far apart as matters."""
    gaps = {arm.label: bimodal_gap(arm.values) for arm in arms}
    least = design.sesoi if design.estimand in ("mean", "shift") and design.sesoi is not None else 0.0
    return {label: gap for label, gap in gaps.items() if gap is not None and gap[1] - gap[0] >= least}


def quantity_flags(result: ExperimentResult, arms: Sequence[ArmScores], design: Design) -> set[str]:
    """Return ESTIMANDS_DISAGREE and BIMODAL where they apply."""
    flags = {ESTIMANDS_DISAGREE} if contradictions(result, arms, design) else set()
    return flags | ({BIMODAL} if bimodal_arms(result.arms, design) else set())


def other_quantities(pair: PairResult, design: Design) -> Mapping[str, PairTest]:
    """Return the tests of the mean difference, of the shift, and of the share learned where a threshold is known."""
    if min(pair.a.values.size, pair.b.values.size) < 2:
        return {}
    wanted = ["mean", "shift", *(["learned"] if design.threshold is not None else [])]
    return {name: registered_test(pair.a, pair.b, as_estimand(design, name)) for name in wanted}


def _against(pair: PairResult, arms: Mapping[str, ArmScores], design: Design) -> str | None:
    mean = float(pair.a.values.mean() - pair.b.values.mean())
    counts = _failures(arms[pair.a.label]), _failures(arms[pair.b.label])
    doubt = within(_fisher_p(*counts), FAILURE_DOUBT)
    excess = np.sign(_rate(counts[0]) - _rate(counts[1]))
    if pair.superior:
        if design.estimand != "mean" and mean * pair.superior < -noise(pair.a, pair.b):
            return "mean"
        return "failures" if doubt and excess == pair.superior else None
    if design.estimand == "shift" and design.sesoi is not None and abs(mean) >= design.sesoi:
        return "margin"
    return "failures" if doubt else None


def _failures(arm: ArmScores) -> tuple[int, int]:
    return arm.num_failures, arm.num_outcomes


def _rate(count: tuple[int, int]) -> float:
    return count[0] / count[1] if count[1] else 0.0


def _fisher_p(first: tuple[int, int], second: tuple[int, int]) -> float:
    return fisher([[k, n - k] for k, n in (first, second)])
