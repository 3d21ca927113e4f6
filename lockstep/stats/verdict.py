"""Scores in, verdict out: the verdict of each comparison, and the answer to the question that was registered.

Pair verdict: the first row of a decision table that holds. Families: under ``winner`` an arm wins iff it is superior
to every other arm, each at level a, uncorrected, because claiming the conjunction already needs every test to reject
(intersection-union). Under ``vs_control`` and ``all_pairs`` each registered comparison is judged at the level of its
step of the correction, its p and its intervals alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from lockstep.stats.exact import within
from lockstep.stats.multiplicity import holm, holm_levels, max_t_blocks, max_t_levels
from lockstep.stats.paired import pseudo_median
from lockstep.stats.registered import Design, PairTest, has_learned, noise, registered_test
from lockstep.stats.results import Interval, sd
from lockstep.stats.scores import ArmScores, FlooredArm, resolve_floor, usable
from lockstep.stats.shares import fisher

INVALID = "INVALID"
NO_INFERENCE = "NO_INFERENCE"
IDENTICAL_RUNS = "IDENTICAL_RUNS"
WINNER_MEANINGFUL = "WINNER_MEANINGFUL"
WINNER = "WINNER"
DIFFERENT_BUT_NEGLIGIBLE = "DIFFERENT_BUT_NEGLIGIBLE"
EQUIVALENT = "EQUIVALENT"
INCONCLUSIVE = "INCONCLUSIVE"
TREATMENTS_BETTER = "TREATMENTS_BETTER"
TIE_AT_TOP = "TIE_AT_TOP"
#: Verdicts that name a better arm, strongest first.
SUPERIOR_VERDICTS = (WINNER_MEANINGFUL, WINNER, DIFFERENT_BUT_NEGLIGIBLE)
#: Verdicts under which no meaningful difference remains.
EQUAL_VERDICTS = (EQUIVALENT, DIFFERENT_BUT_NEGLIGIBLE, IDENTICAL_RUNS)
#: Verdicts of an experiment that call arms alike.
ALIKE_VERDICTS = (*EQUAL_VERDICTS, TIE_AT_TOP)
DRIVEN_BY_FAILURES = "DRIVEN_BY_FAILURES"
MAX_T_SD_RATIO = 3.0


@dataclass(frozen=True)
class Evidence:
    """What the table reads, for the ordered pair first minus second (oriented).

    Attributes:
        p: two-sided p; None: not available.
        level: a.
        ci_superiority: interval at 1 - a.
        ci_equivalence: interval at 1 - 2a.
        estimate: point estimate.
        sesoi: delta.
        void_gate: name of a failed integrity gate of class void.
        num_usable: replicates of the smaller arm (complete blocks when paired).
        identical: paired and every difference is exactly 0.
        min_p: smallest attainable p.
        sign: direction of the test; 0: that of the estimate.
        separated: complete separation, no interval: decide by p alone, at most WINNER.
        demonstration: inference none.
        identity_check: a single identical block may be called identical.
        all_failed: every replicate of both arms failed.
        failures_favour: +1 or -1 when every replicate of the other arm failed and none of this one.
        failures_p: Fisher's p of the failures.
    """

    p: float | None
    level: float
    ci_superiority: Interval | None
    ci_equivalence: Interval | None
    estimate: float
    sesoi: float | None
    void_gate: str | None = None
    num_usable: int = 1_000_000
    identical: bool = False
    min_p: float = 0.0
    sign: int = 0
    separated: bool = False
    demonstration: bool = False
    identity_check: bool = False
    all_failed: bool = False
    failures_favour: int = 0
    failures_p: float = 1.0


@dataclass(frozen=True)
class PairVerdict:
    """Verdict code; ``better`` is +1 (first), -1 (second) or 0."""

    code: str
    better: int = 0
    reason: str | None = None
    flags: tuple[str, ...] = ()


def pair_verdict(evidence: Evidence) -> PairVerdict:
    """Return the verdict of a pair by the first row of the table that holds."""
    early = _without_inference(evidence)
    if early is not None:
        return early if early.reason != "ALPHA_UNREACHABLE" else _by_failures(evidence, early)
    if evidence.sesoi is None:
        raise ValueError("a verdict needs sesoi: register analysis.sesoi or inference none")
    sign = (evidence.estimate > 0) - (evidence.estimate < 0)
    superior, flags = _superior(evidence, sign)
    equivalent = evidence.ci_equivalence is not None and evidence.ci_equivalence.inside(evidence.sesoi)
    if superior:
        low = _lower(evidence.ci_superiority, sign)
        if low is not None and low > evidence.sesoi:
            return PairVerdict(WINNER_MEANINGFUL, sign, None, flags)
        return PairVerdict(DIFFERENT_BUT_NEGLIGIBLE if equivalent else WINNER, sign, None, flags)
    return _by_failures(evidence, PairVerdict(EQUIVALENT if equivalent else INCONCLUSIVE, 0, None, flags))


def _by_failures(evidence: Evidence, verdict: PairVerdict) -> PairVerdict:
    """Return WINNER where only failures can decide, else what was found."""
    if not evidence.failures_favour or not within(evidence.failures_p, evidence.level):
        return verdict
    return PairVerdict(WINNER, evidence.failures_favour, None, (*verdict.flags, DRIVEN_BY_FAILURES))


def _without_inference(evidence: Evidence) -> PairVerdict | None:
    """Return the verdict of rows 1-4, or None."""
    if evidence.void_gate is not None:
        return PairVerdict(INVALID, reason=evidence.void_gate)
    enough = 1 if evidence.identity_check and evidence.identical else 2
    if evidence.num_usable < enough:
        return PairVerdict(NO_INFERENCE, reason="ONE_REPLICATE" if evidence.num_usable else "NO_COMPLETE_BLOCKS")
    if evidence.all_failed:
        return PairVerdict(NO_INFERENCE, reason="ALL_FAILED")
    if evidence.identical:
        return PairVerdict(IDENTICAL_RUNS)
    if evidence.demonstration:
        return PairVerdict(NO_INFERENCE, reason="DEMONSTRATION")
    if not within(evidence.min_p, evidence.level):
        return PairVerdict(NO_INFERENCE, reason="ALPHA_UNREACHABLE")
    return None


def _superior(evidence: Evidence, sign: int) -> tuple[bool, tuple[str, ...]]:
    """Return whether p <= a in the direction of the estimate and the bound is not beyond 0, with flags.

    A bound of exactly 0 is what few distinct scores give: the exact test decides (``BOUND_AT_ZERO``). A bound on
    the wrong side of 0 disagrees with the test: nothing is claimed (``TEST_INTERVAL_DISAGREE``).
    """
    rejects = sign != 0 and evidence.sign in (0, sign) and evidence.p is not None
    rejects = rejects and within(1.0 if evidence.p is None else evidence.p, evidence.level)
    if evidence.separated:
        return rejects, ()
    low = _lower(evidence.ci_superiority, sign)
    if rejects:
        agrees = low is not None and low >= 0
        return agrees, (("BOUND_AT_ZERO",) if low == 0 else ()) if agrees else ("TEST_INTERVAL_DISAGREE",)
    crossed = evidence.p is not None and within(evidence.p, evidence.level)
    disagrees = crossed or (low is not None and low > 0)
    return False, ("TEST_INTERVAL_DISAGREE",) if disagrees else ()


def _lower(interval: Interval | None, sign: int) -> float | None:
    if interval is None:
        return None
    return -interval.high if sign < 0 else interval.low


@dataclass(frozen=True)
class PairResult:
    """One comparison a - b: the registered test and its verdict.

    ``in_family``: whether this comparison was asked for; ``p_adjusted`` is over those that were. ``look``: the
    registered look at which it was analysed (1-based), None where there are none.
    """

    a: FlooredArm
    b: FlooredArm
    test: PairTest | None
    evidence: Evidence
    in_family: bool
    p_adjusted: float | None
    verdict: PairVerdict
    look: int | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether the verdict says better, equal or identical, which later data may not take back."""
        return self.verdict.code in (*SUPERIOR_VERDICTS, EQUIVALENT, IDENTICAL_RUNS)

    @property
    def superior(self) -> int:
        """Return +1 or -1 when the first or the second arm is shown to be better, else 0."""
        return self.verdict.better if self.verdict.code in SUPERIOR_VERDICTS else 0

    @property
    def better(self) -> str | None:
        """Return the label of the better arm, or None."""
        return {1: self.a.label, -1: self.b.label}.get(self.verdict.better)

    @property
    def worse(self) -> str | None:
        """Return the label of the worse arm, or None."""
        return {1: self.b.label, -1: self.a.label}.get(self.verdict.better)

    @property
    def by_failures(self) -> bool:
        """Return whether the failures alone decided, because the metric could not."""
        return DRIVEN_BY_FAILURES in self.verdict.flags

    @property
    def deciding_p(self) -> float | None:
        """Return the p behind the verdict: of the failures where they decided, else of the registered test."""
        return self.evidence.failures_p if self.by_failures else self.evidence.p

    def involves(self, label: str | None) -> bool:
        """Return whether an arm takes part."""
        return label in (self.a.label, self.b.label)

    def other(self, label: str) -> str:
        """Return the arm that is not ``label``."""
        return self.b.label if label == self.a.label else self.a.label


@dataclass(frozen=True)
class ExperimentResult:
    """The experiment verdict with everything it rests on.

    ``treatments_better``: arms shown to be better than the control (``vs_control``) or than some other arm
    (``all_pairs``), in spec order; ``weakest`` is the weakest verdict among what the headline claims.
    """

    arms: tuple[FlooredArm, ...]
    pairs: tuple[PairResult, ...]
    adjustment: str
    verdict: str
    winner: str | None
    treatments_better: tuple[str, ...]
    weakest: str | None
    leader: str | None
    best_set: tuple[str, ...]
    p_max: float | None
    reason: str | None
    flags: tuple[str, ...]
    floor: float

    @property
    def claims(self) -> tuple[PairResult, ...]:
        """Return the comparisons in which the headline says that an arm is better."""
        if self.winner is not None and self.verdict in SUPERIOR_VERDICTS:
            return tuple(p for p in self.pairs if p.involves(self.winner))
        if self.verdict != TREATMENTS_BETTER:
            return ()
        return tuple(p for p in self.pairs if p.in_family and p.superior and p.better in self.treatments_better)


def analyse(arms: Sequence[ArmScores], design: Design, void_gate: str | None = None) -> ExperimentResult:
    """Compare two to eight arms under the registered design. Oriented scores; order = spec order."""
    floor, flags = resolve_floor(arms, design.floor)
    floored = usable(arms, floor, design.paired)
    raw = [_pair(x, y, design, void_gate) for x, y in combinations(floored, 2)]
    adjustment = adjustment_of(floored, design)
    return conclude(floored, _adjusted(raw, floored, design, adjustment), design, adjustment, floor, flags)


def conclude(
    arms: Sequence[FlooredArm],
    pairs: Sequence[PairResult],
    design: Design,
    adjustment: str,
    floor: float,
    flags: Sequence[str],
) -> ExperimentResult:
    """Return the answer to the registered question from the verdicts of the comparisons."""
    winner = None if design.comparisons == "vs_control" else _winner(arms, pairs)
    better = _treatments_better(arms, pairs, design)
    leader = _leader(arms, design, winner)
    best = _best_set(arms, pairs, leader)
    if _is_family(arms, design):
        code, reason = _family_verdict([p for p in pairs if p.in_family], better)
    else:
        code, reason = _winner_verdict(pairs, winner, best, len(arms))
    seen = tuple(sorted({*flags, *(flag for pair in pairs for flag in _flags(pair))}))
    result = ExperimentResult(
        tuple(arms), tuple(pairs), adjustment, code, winner, better, None, leader, best, None, reason, seen, floor
    )
    codes = [p.verdict.code for p in result.claims]
    ps = [p.deciding_p if design.comparisons == "winner" or p.by_failures else p.p_adjusted for p in result.claims]
    return replace(
        result,
        weakest=max(codes, key=SUPERIOR_VERDICTS.index) if codes else None,
        p_max=max((p for p in ps if p is not None), default=None),
    )


def is_answered(result: ExperimentResult) -> bool:
    """Return whether the registered question is answered, so that later data cannot change it.

    A winner, or no meaningful difference anywhere; for a family of comparisons, every one of them settled.
    """
    if result.verdict == TREATMENTS_BETTER:
        return all(pair.is_settled for pair in result.pairs if pair.in_family)
    return result.verdict in (*SUPERIOR_VERDICTS, EQUIVALENT, IDENTICAL_RUNS)


def adjustment_of(arms: Sequence[FlooredArm], design: Design) -> str:
    """Return holm or max_t; auto is max_t if paired, three arms and an SD ratio of at most 3."""
    if design.comparisons == "vs_control" or design.estimand == "learned" or design.mode == "anytime":
        return "holm"
    if design.adjust != "auto":
        return design.adjust if design.paired else "holm"
    if not design.paired or len(arms) != 3 or arms[0].values.size < 2:
        return "holm"
    sds = sorted(sd(arm.values) for arm in arms)
    return "max_t" if sds[-1] <= MAX_T_SD_RATIO * sds[0] else "holm"


def location(arm: FlooredArm, design: Design) -> float:
    """Return where an arm stands under the estimand: mean, share that learned, or median of Walsh averages."""
    if design.estimand == "mean":
        return float(arm.values.mean())
    if design.estimand == "learned" and design.threshold is not None:
        return float(has_learned(arm, design.threshold).mean())
    return pseudo_median(arm.values)


def _pair(x: FlooredArm, y: FlooredArm, design: Design, void_gate: str | None) -> PairResult:
    size = min(x.values.size, y.values.size)
    test = registered_test(x, y, design) if size > 0 else None
    intervals = test.intervals(design.level) if test and size > 1 else (None, None)
    evidence = Evidence(
        p=test.p if test and size > 1 else None,
        level=design.level,
        ci_superiority=intervals[0],
        ci_equivalence=intervals[1],
        estimate=test.estimate if test else 0.0,
        sesoi=design.sesoi,
        void_gate=void_gate,
        num_usable=size,
        identical=design.paired and size > 0 and bool((x.values == y.values).all()),
        min_p=test.min_p if test else 1.0,
        sign=test.sign if test else 0,
        separated=test is not None and "SEPARATED" in test.flags,
        demonstration=design.inference == "none",
        identity_check=design.identity_check,
        all_failed=size > 0 and not np.isfinite(np.concatenate([x.ranked, y.ranked])).any(),
        failures_favour=_failures_favour(x, y, design),
        failures_p=_failures_p(x, y),
    )
    return PairResult(x, y, test, evidence, True, None, pair_verdict(evidence))


def _failures_favour(x: FlooredArm, y: FlooredArm, design: Design) -> int:
    """Return the sign of the arm without a failure when all of the other's replicates failed, else 0."""
    if design.mode == "anytime":  # Fisher's test is valid at one sample size only
        return 0
    (first, n), (second, m) = _failed(x), _failed(y)
    if min(n, m) > 1 and second == m and first == 0:
        return 1
    return -1 if min(n, m) > 1 and first == n and second == 0 else 0


def _failures_p(x: FlooredArm, y: FlooredArm) -> float:
    return fisher([[k, n - k] for k, n in (_failed(x), _failed(y))])


def _failed(arm: FlooredArm) -> tuple[int, int]:
    return int(np.isneginf(arm.ranked).sum()), arm.ranked.size


def _adjusted(raw: list[PairResult], arms: Sequence[FlooredArm], design: Design, adjustment: str) -> list[PairResult]:
    """Return the pairs with adjusted p; outside of the winner rule each is judged at the level of its step."""
    inside = [design.comparisons != "vs_control" or r.involves(design.control) for r in raw]
    family = [r for r, own in zip(raw, inside, strict=True) if own]
    ps = [r.evidence.p for r in family]
    known = [p for p in ps if p is not None]
    if adjustment == "max_t" and len(known) == len(ps):
        found = _max_t(family, arms, design)
        adjusted: list[float | None] = list(found)
        levels = max_t_levels(known, found, design.level)
    else:
        adjusted, levels = holm(ps), holm_levels(ps, design.level)
    judged = iter(_at_level(r, p, a, design) for r, p, a in zip(family, adjusted, levels, strict=True))
    return [next(judged) if own else replace(r, in_family=False) for r, own in zip(raw, inside, strict=True)]


def _at_level(result: PairResult, p_adjusted: float | None, level: float, design: Design) -> PairResult:
    if design.comparisons == "winner" or level == design.level:
        return replace(result, p_adjusted=p_adjusted)
    known = result.test is not None and result.evidence.num_usable > 1
    intervals = result.test.intervals(level) if result.test is not None and known else (None, None)
    evidence = replace(
        result.evidence,
        level=level,
        ci_superiority=intervals[0],
        ci_equivalence=intervals[1],
    )
    # under max-T a steady small difference has a small p of its own and a large adjusted one, which decides
    decides = evidence.p if p_adjusted is None or within(p_adjusted, design.level) else p_adjusted
    verdict = pair_verdict(replace(evidence, p=decides))
    return replace(result, evidence=evidence, p_adjusted=p_adjusted, verdict=verdict)


def _max_t(family: list[PairResult], arms: Sequence[FlooredArm], design: Design) -> tuple[float, ...]:
    index = {arm.label: i for i, arm in enumerate(arms)}
    blocks = np.column_stack([arm.values for arm in arms])
    pairs = [(index[r.a.label], index[r.b.label]) for r in family]
    own = [1.0 if r.evidence.p is None else r.evidence.p for r in family]
    tie = max(noise(r.a, r.b) for r in family)
    return max_t_blocks(blocks, pairs, design.rng(), own, tie).p_adjusted


def _is_family(arms: Sequence[FlooredArm], design: Design) -> bool:
    """Return whether the question is a family of comparisons; two arms under ``all_pairs`` are one comparison."""
    return design.comparisons == "vs_control" or (design.comparisons == "all_pairs" and len(arms) > 2)


def _winner(arms: Sequence[FlooredArm], pairs: Sequence[PairResult]) -> str | None:
    for arm in arms:
        if all(_beats(arm.label, pair) for pair in pairs if pair.involves(arm.label)):
            return arm.label
    return None


def _beats(label: str, pair: PairResult) -> bool:
    return pair.superior == (1 if label == pair.a.label else -1)


def _treatments_better(arms: Sequence[FlooredArm], pairs: Sequence[PairResult], design: Design) -> tuple[str, ...]:
    if not _is_family(arms, design):
        return ()
    control = design.control if design.comparisons == "vs_control" else None
    named = {p.better for p in pairs if p.in_family and p.superior} - {control}
    return tuple(arm.label for arm in arms if arm.label in named)


def _leader(arms: Sequence[FlooredArm], design: Design, winner: str | None) -> str | None:
    if any(arm.values.size == 0 for arm in arms):
        return None
    if winner is not None:
        return winner
    places = [location(arm, design) for arm in arms]
    scale = max(abs(p) for p in places)
    return next(a.label for a, p in zip(arms, places, strict=True) if p >= max(places) - 1e-9 * scale)


def _best_set(arms: Sequence[FlooredArm], pairs: Sequence[PairResult], leader: str | None) -> tuple[str, ...]:
    if leader is None:
        return ()
    beaten = {pair.other(leader) for pair in pairs if pair.involves(leader) and _beats(leader, pair)}
    return tuple(arm.label for arm in arms if arm.label not in beaten)


def _winner_verdict(
    pairs: Sequence[PairResult], winner: str | None, best: tuple[str, ...], num_arms: int
) -> tuple[str, str | None]:
    codes = [pair.verdict.code for pair in pairs]
    if INVALID in codes:
        return INVALID, next(p.verdict.reason for p in pairs if p.verdict.code == INVALID)
    if winner is not None:
        return max((p.verdict.code for p in pairs if p.involves(winner)), key=SUPERIOR_VERDICTS.index), None
    if all(code == IDENTICAL_RUNS for code in codes):
        return IDENTICAL_RUNS, None
    if all(code in EQUAL_VERDICTS for code in codes):
        return EQUIVALENT, None
    inside = [p.verdict.code for p in pairs if p.a.label in best and p.b.label in best]
    if 2 <= len(best) < num_arms and all(code in EQUAL_VERDICTS for code in inside):
        return TIE_AT_TOP, None
    return _nothing_claimed(pairs)


def _family_verdict(pairs: Sequence[PairResult], better: tuple[str, ...]) -> tuple[str, str | None]:
    codes = [pair.verdict.code for pair in pairs]
    if INVALID in codes:
        return INVALID, next(p.verdict.reason for p in pairs if p.verdict.code == INVALID)
    if better:
        return TREATMENTS_BETTER, None
    if all(code == IDENTICAL_RUNS for code in codes):
        return IDENTICAL_RUNS, None
    if all(code in EQUAL_VERDICTS for code in codes):
        return EQUIVALENT, None
    return _nothing_claimed(pairs)


def _nothing_claimed(pairs: Sequence[PairResult]) -> tuple[str, str | None]:
    if all(pair.verdict.code == NO_INFERENCE for pair in pairs):
        return NO_INFERENCE, pairs[0].verdict.reason
    return INCONCLUSIVE, None


def _flags(pair: PairResult) -> tuple[str, ...]:
    own = pair.verdict.flags
    return own if pair.test is None or pair.evidence.identical else (*own, *pair.test.flags)
