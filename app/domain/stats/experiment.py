"""Scores in, verdict out: every pair, the winner rule, the best set and the experiment verdict.

Winner by intersection-union: an arm wins iff it is superior to every other arm, each at level a;
no correction, because claiming the conjunction already needs every test to reject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from app.domain.stats.design import Design
from app.domain.stats.multiplicity import holm, max_t_blocks
from app.domain.stats.pair import (
    EQUAL_VERDICTS,
    EQUIVALENT,
    IDENTICAL_RUNS,
    INCONCLUSIVE,
    INVALID,
    NO_INFERENCE,
    SUPERIOR_VERDICTS,
    Evidence,
    PairVerdict,
    is_superior,
    pair_verdict,
)
from app.domain.stats.registered import PairTest, registered_test
from app.domain.stats.scores import ArmScores, FlooredArm, resolve_floor, usable
from app.domain.stats.signed_rank import pseudo_median

TIE_AT_TOP = "TIE_AT_TOP"
MAX_T_SD_RATIO = 3.0


@dataclass(frozen=True)
class PairResult:
    """One comparison a - b: the registered test and its verdict.

    ``superior`` is +1, -1 or 0 by the unadjusted test at level a (what the winner rule reads);
    ``verdict`` uses ``p_adjusted`` where the comparison asks for it.
    """

    a: FlooredArm
    b: FlooredArm
    test: PairTest | None
    evidence: Evidence
    superior: int
    p_adjusted: float | None
    verdict: PairVerdict

    @property
    def better(self) -> str | None:
        """Return the label of the better arm, or None."""
        return {1: self.a.label, -1: self.b.label}.get(self.verdict.better)


@dataclass(frozen=True)
class ExperimentResult:
    """The experiment verdict with everything it rests on."""

    arms: tuple[FlooredArm, ...]
    pairs: tuple[PairResult, ...]
    adjustment: str
    verdict: str
    winner: str | None
    leader: str | None
    best_set: tuple[str, ...]
    p_max: float | None
    reason: str | None
    flags: tuple[str, ...]
    floor: float


def analyse(arms: Sequence[ArmScores], design: Design, void_gate: str | None = None) -> ExperimentResult:
    """Compare two to eight arms under the registered design. Oriented scores; order = spec order."""
    floor, flags = resolve_floor(arms, design.floor)
    floored = usable(arms, floor, design.paired)
    raw = [_pair(x, y, design, void_gate) for x, y in combinations(floored, 2)]
    adjustment = adjustment_of(floored, design)
    pairs = tuple(_adjusted(raw, floored, design, adjustment))
    leader = _leader(floored, pairs, design)
    winner = _winner(floored, pairs)
    best = _best_set(floored, pairs, leader)
    code, reason = _experiment_verdict(pairs, winner, best, len(floored))
    p_max = None if winner is None else max(_ps_of(winner, pairs))
    seen = tuple(sorted({*flags, *(flag for pair in pairs for flag in _flags(pair))}))
    return ExperimentResult(tuple(floored), pairs, adjustment, code, winner, leader, best, p_max, reason, seen, floor)


def adjustment_of(arms: Sequence[FlooredArm], design: Design) -> str:
    """Return holm or max_t; auto is max_t if paired, three arms and an SD ratio of at most 3."""
    if design.comparisons == "vs_control":
        return "holm"
    if design.adjust != "auto":
        return design.adjust if design.paired else "holm"
    if not design.paired or len(arms) != 3 or arms[0].values.size < 2:
        return "holm"
    sds = sorted(float(arm.values.std(ddof=1)) for arm in arms)
    return "max_t" if sds[-1] <= MAX_T_SD_RATIO * sds[0] else "holm"


def location(arm: FlooredArm, estimand: str) -> float:
    """Return the arm's location: the mean for estimand mean, else the median of Walsh averages."""
    return float(arm.values.mean()) if estimand == "mean" else pseudo_median(arm.values)


def _pair(x: FlooredArm, y: FlooredArm, design: Design, void_gate: str | None) -> PairResult:
    size = min(x.values.size, y.values.size)
    test = registered_test(x, y, design) if size > 0 else None
    identical = design.paired and size > 0 and bool((x.values == y.values).all())
    evidence = Evidence(
        p=test.p if test and size > 1 else None,
        level=design.level,
        ci_superiority=test.ci_superiority if test and size > 1 else None,
        ci_equivalence=test.ci_equivalence if test and size > 1 else None,
        estimate=test.estimate if test else 0.0,
        sesoi=design.sesoi,
        void_gate=void_gate,
        num_usable=size,
        identical=identical,
        min_p=test.min_p if test else 1.0,
        separated=test is not None and "SEPARATED" in test.flags,
        demonstration=design.inference == "none",
        identity_check=design.identity_check,
    )
    return PairResult(x, y, test, evidence, is_superior(evidence), None, pair_verdict(evidence))


def _adjusted(raw: list[PairResult], arms: Sequence[FlooredArm], design: Design, adjustment: str) -> list[PairResult]:
    """Return the pairs with adjusted p; the verdict uses it except under the winner rule."""
    in_family = [design.comparisons != "vs_control" or design.control in (r.a.label, r.b.label) for r in raw]
    family = [r for r, inside in zip(raw, in_family, strict=True) if inside]
    ps = [r.evidence.p for r in family]
    if adjustment == "max_t" and all(p is not None for p in ps):
        adjusted: list[float | None] = list(_max_t(family, arms, design))
    else:
        adjusted = holm(ps)
    remaining = iter(adjusted)
    return [
        _with_adjusted(r, next(remaining), design) if inside else r for r, inside in zip(raw, in_family, strict=True)
    ]


def _with_adjusted(result: PairResult, p: float | None, design: Design) -> PairResult:
    if design.comparisons == "winner" or p is None:
        return replace(result, p_adjusted=p)
    return replace(result, p_adjusted=p, verdict=pair_verdict(replace(result.evidence, p=p)))


def _max_t(family: list[PairResult], arms: Sequence[FlooredArm], design: Design) -> tuple[float, ...]:
    index = {arm.label: i for i, arm in enumerate(arms)}
    blocks = np.column_stack([arm.values for arm in arms])
    pairs = [(index[r.a.label], index[r.b.label]) for r in family]
    own = [1.0 if r.evidence.p is None else r.evidence.p for r in family]
    return max_t_blocks(blocks, pairs, design.rng(), own).p_adjusted


def _winner(arms: Sequence[FlooredArm], pairs: Sequence[PairResult]) -> str | None:
    for arm in arms:
        if all(_beats(arm.label, pair) for pair in pairs if arm.label in (pair.a.label, pair.b.label)):
            return arm.label
    return None


def _beats(label: str, pair: PairResult) -> bool:
    return pair.superior == (1 if label == pair.a.label else -1)


def _leader(arms: Sequence[FlooredArm], pairs: Sequence[PairResult], design: Design) -> str | None:
    if any(arm.values.size == 0 for arm in arms):
        return None
    winner = _winner(arms, pairs)
    if winner is not None:
        return winner
    places = [location(arm, design.estimand) for arm in arms]
    scale = max(abs(p) for p in places)
    return next(a.label for a, p in zip(arms, places, strict=True) if p >= max(places) - 1e-9 * scale)


def _best_set(arms: Sequence[FlooredArm], pairs: Sequence[PairResult], leader: str | None) -> tuple[str, ...]:
    if leader is None:
        return ()
    beaten = {
        pair.b.label if pair.a.label == leader else pair.a.label
        for pair in pairs
        if leader in (pair.a.label, pair.b.label) and _beats(leader, pair)
    }
    return tuple(arm.label for arm in arms if arm.label not in beaten)


def _experiment_verdict(
    pairs: Sequence[PairResult], winner: str | None, best: tuple[str, ...], num_arms: int
) -> tuple[str, str | None]:
    codes = [pair.verdict.code for pair in pairs]
    if INVALID in codes:
        return INVALID, next(p.verdict.reason for p in pairs if p.verdict.code == INVALID)
    if winner is not None:
        return _winner_level(winner, pairs), None
    if all(code == IDENTICAL_RUNS for code in codes):
        return IDENTICAL_RUNS, None
    if all(code in EQUAL_VERDICTS for code in codes):
        return EQUIVALENT, None
    inside = [p.verdict.code for p in pairs if p.a.label in best and p.b.label in best]
    if 2 <= len(best) < num_arms and all(code in EQUAL_VERDICTS for code in inside):
        return TIE_AT_TOP, None
    if all(code == NO_INFERENCE for code in codes):
        return NO_INFERENCE, pairs[0].verdict.reason
    return INCONCLUSIVE, None


def _winner_level(winner: str, pairs: Sequence[PairResult]) -> str:
    """Return the weakest of the winner's unadjusted pair verdicts."""
    own = [pair_verdict(p.evidence).code for p in pairs if winner in (p.a.label, p.b.label)]
    return max(own, key=SUPERIOR_VERDICTS.index)


def _ps_of(label: str, pairs: Sequence[PairResult]) -> list[float]:
    return [p.evidence.p for p in pairs if label in (p.a.label, p.b.label) and p.evidence.p is not None]


def _flags(pair: PairResult) -> tuple[str, ...]:
    own = pair.verdict.flags
    return own if pair.test is None or pair.evidence.identical else (*own, *pair.test.flags)
