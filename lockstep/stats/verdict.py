"""Scores in, verdict out: every pair, the winner rule, the best set and the experiment verdict.

Winner by intersection-union: an arm wins iff it is superior to every other arm, each at level a;
no correction, because claiming the conjunction already needs every test to reject.

The registered design as the tests see it: oriented units, one level, one generator.

``level`` is alpha of a fixed design, or the nominal level of the current look. All resampling of
one analysis starts from the same analysis seed, so that a test and its interval share their draws
and the order of the tests does not matter.

The registered test of one pair: which test, its p, its two intervals.

Chosen by estimand, pairing, number of replicates and look mode (statistics.md 3 and 5); nothing
here depends on the outcome, except the studentised permutation, which is a rule on the SD ratio.

The pair verdict: the decision table of statistics.md 4, first row that holds.

Bounds are strict, the comparison is mirrored so that the estimate is >= 0, and an unavailable
interval satisfies no condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt

import numpy as np

from lockstep.stats.exact import min_p_paired, min_p_unpaired, within
from lockstep.stats.multiplicity import holm, max_t_blocks
from lockstep.stats.paired import pseudo_median, sign_flip, signed_rank, walsh_interval
from lockstep.stats.results import TIE, Floats, Interval, differences
from lockstep.stats.scores import ArmScores, FlooredArm, resolve_floor, usable
from lockstep.stats.sequential import anytime_interval, anytime_p, evalue_path
from lockstep.stats.unpaired import brunner_munzel, hodges_lehmann, mann_whitney, permutation_mean, shift_interval


@dataclass(frozen=True)
class Design:
    """What decides how two arms are compared.

    Attributes:
        paired: arms share replicate seeds, blocks are matched sets.
        estimand: shift, mean or p_superiority.
        sesoi: smallest effect of interest, raw units (None only for demonstrations).
        level: two-sided level a.
        floor: oriented score of a failed replicate, None when none was registered.
        comparisons: winner, all_pairs or vs_control.
        control: label of the control.
        adjust: auto, holm or max_t.
        fallback: none or unpaired_rank (4 or 5 complete blocks).
        mode: fixed, planned or anytime.
        e_value: sign or t.
        inference: full or none.
        seed: analysis seed.
        equivalence: whether equivalence intervals are wanted (exploratory metrics go without).
        identity_check: identical single blocks may be called identical (A/A determinism).
    """

    paired: bool = True
    estimand: str = "shift"
    sesoi: float | None = None
    level: float = 0.05
    floor: float | None = None
    comparisons: str = "winner"
    control: str | None = None
    adjust: str = "auto"
    fallback: str = "none"
    mode: str = "fixed"
    e_value: str = "sign"
    inference: str = "full"
    seed: int = 0
    equivalence: bool = True
    identity_check: bool = False

    def rng(self) -> np.random.Generator:
        """Return a fresh generator from the analysis seed."""
        return np.random.Generator(np.random.Philox(key=self.seed))


#: Below this the Brunner-Munzel p is liberal: the exact rank p guards it.
BRUNNER_MUNZEL_ALONE = 10
_BRUNNER_MUNZEL_EQUIVALENCE = 6
_STUDENTISE_FROM = 10


@dataclass(frozen=True)
class PairTest:
    """Outcome of the registered test for first minus second, oriented raw units."""

    name: str
    method: str
    estimate: float
    se: float | None
    p: float
    min_p: float
    ci_superiority: Interval | None
    ci_equivalence: Interval | None
    flags: tuple[str, ...] = ()
    e_value: float | None = None


def uses_unpaired_test(design: Design, blocks: int) -> bool:
    """Return whether two arms are compared by an unpaired test."""
    return not design.paired or (design.fallback == "unpaired_rank" and 4 <= blocks < 6)


def registered_test(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    """Run the registered test of two arms with at least one usable replicate each."""
    if not uses_unpaired_test(design, x.values.size):
        return _paired(paired_differences(x, y), design)
    if design.paired or design.estimand == "shift":
        return _rank_test(x, y, design)
    return _permutation(x, y, design) if design.estimand == "mean" else _superiority(x, y, design)


def paired_differences(x: FlooredArm, y: FlooredArm) -> Floats:
    """Return first minus second by block, float noise of the scores set to 0."""
    return differences(x.values, y.values)


def _paired(d: Floats, design: Design) -> PairTest:
    flags = ("ZERO_VARIANCE",) if d.size > 1 and np.ptp(d) <= TIE * np.abs(d).max() else ()
    se = float(d.std(ddof=1)) / sqrt(d.size) if d.size > 1 else None
    floor_p = min_p_paired(d.size)
    if design.mode == "anytime":
        return _anytime(d, design, se, flags)
    if design.estimand == "mean":
        flip = sign_flip(d, design.rng())
        intervals, p = _intervals(flip.interval, design), flip.two_sided
        return PairTest("sign-flip", flip.method, flip.mean, se, p, floor_p, *intervals, flags)
    intervals = _intervals(lambda level: walsh_interval(d, level), design)
    p = signed_rank(d).p.two_sided
    return PairTest("signed-rank", "exact", pseudo_median(d), se, p, floor_p, *intervals, flags)


def _intervals(at_level: Callable[[float], Interval | None], design: Design) -> tuple[Interval | None, Interval | None]:
    """Return the superiority interval at a and, when wanted, the equivalence interval at 2a."""
    return at_level(design.level), at_level(2 * design.level) if design.equivalence else None


def _anytime(d: Floats, design: Design, se: float | None, flags: tuple[str, ...]) -> PairTest:
    path = evalue_path(design.e_value, d)
    interval = anytime_interval(design.e_value, d, design.level)
    estimate = float(d.mean()) if design.estimand == "mean" else pseudo_median(d)
    name = f"{design.e_value} e-value"
    p, e = anytime_p(path), float(path[-1])
    return PairTest(name, "anytime", estimate, se, p, min_p_paired(d.size), interval, interval, flags, e)


def _rank_test(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    test = mann_whitney(x.ranked, y.ranked, design.rng())
    intervals = _intervals(lambda level: shift_interval(x.values, y.values, level), design)
    floor_p = min_p_unpaired(x.values.size, y.values.size)
    estimate = hodges_lehmann(x.values, y.values)
    return PairTest(
        "rank",
        test.method,
        estimate,
        _welch_se(x, y),
        test.p.two_sided,
        floor_p,
        *intervals,
        _constant_flag(x, y),
    )


def _permutation(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    n, m = x.values.size, y.values.size
    studentised = min(n, m) >= _STUDENTISE_FROM and n != m and _sd_ratio(x, y) > 2
    test = permutation_mean(x.values, y.values, design.rng(), studentised)
    name = "studentised permutation" if studentised else "permutation"
    intervals = _intervals(test.interval, design)
    flags, floor_p = _constant_flag(x, y), min_p_unpaired(n, m)
    return PairTest(name, test.method, test.difference, _welch_se(x, y), test.p_two_sided, floor_p, *intervals, flags)


def _superiority(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    n, m = x.values.size, y.values.size
    test = brunner_munzel(y.ranked, x.ranked, design.rng())
    floor_p, estimate = min_p_unpaired(n, m), test.p_hat - 0.5
    if test.p is None:
        separated = test.p_hat in (0.0, 1.0)
        flags = ("SEPARATED",) if separated else _constant_flag(x, y)
        return PairTest("rank", "exact", estimate, None, test.fallback_p, floor_p, None, None, flags)
    p = test.p if min(n, m) >= BRUNNER_MUNZEL_ALONE else max(test.p, test.fallback_p)
    equivalence = test.interval(2 * design.level) if min(n, m) >= _BRUNNER_MUNZEL_EQUIVALENCE else None
    intervals = _centred(test.interval(design.level)), _centred(equivalence)
    flags = _constant_flag(x, y)
    return PairTest("Brunner-Munzel", "t approximation", estimate, test.se, p, floor_p, *intervals, flags)


def _centred(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(interval.low - 0.5, interval.high - 0.5)


def _sds(x: FlooredArm, y: FlooredArm) -> tuple[float, float]:
    scale = TIE * max(float(np.abs(x.values).max()), float(np.abs(y.values).max()))
    found = [float(arm.values.std(ddof=1)) if arm.values.size > 1 else 0.0 for arm in (x, y)]
    return (found[0] if found[0] > scale else 0.0), (found[1] if found[1] > scale else 0.0)


def _sd_ratio(x: FlooredArm, y: FlooredArm) -> float:
    low, high = sorted(_sds(x, y))
    return high / low if low > 0 else float("inf") if high > 0 else 1.0


def _welch_se(x: FlooredArm, y: FlooredArm) -> float | None:
    if min(x.values.size, y.values.size) < 2:
        return None
    first, second = _sds(x, y)
    return sqrt(first**2 / x.values.size + second**2 / y.values.size)


def _constant_flag(x: FlooredArm, y: FlooredArm) -> tuple[str, ...]:
    return ("ZERO_VARIANCE",) if min(x.values.size, y.values.size) > 1 and _sds(x, y) == (0.0, 0.0) else ()


INVALID = "INVALID"
NO_INFERENCE = "NO_INFERENCE"
IDENTICAL_RUNS = "IDENTICAL_RUNS"
WINNER_MEANINGFUL = "WINNER_MEANINGFUL"
WINNER = "WINNER"
DIFFERENT_BUT_NEGLIGIBLE = "DIFFERENT_BUT_NEGLIGIBLE"
EQUIVALENT = "EQUIVALENT"
INCONCLUSIVE = "INCONCLUSIVE"
#: Verdicts that name a better arm, strongest first.
SUPERIOR_VERDICTS = (WINNER_MEANINGFUL, WINNER, DIFFERENT_BUT_NEGLIGIBLE)
#: Verdicts under which no meaningful difference remains.
EQUAL_VERDICTS = (EQUIVALENT, DIFFERENT_BUT_NEGLIGIBLE, IDENTICAL_RUNS)


@dataclass(frozen=True)
class Evidence:
    """What the table reads, for the ordered pair first minus second (oriented).

    Attributes:
        p: two-sided p (adjusted where the comparison asks for it); None: not available.
        level: a.
        ci_superiority: interval at 1 - a.
        ci_equivalence: interval at 1 - 2a.
        estimate: point estimate.
        sesoi: delta.
        void_gate: name of a failed integrity gate of class void.
        num_usable: replicates of the smaller arm (complete blocks when paired).
        identical: paired and every difference is exactly 0.
        min_p: smallest attainable p.
        separated: complete separation, no interval: decide by p alone, at most WINNER.
        demonstration: inference none.
        identity_check: a single identical block may be called identical.
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
    separated: bool = False
    demonstration: bool = False
    identity_check: bool = False


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
        return early
    if evidence.sesoi is None:
        raise ValueError("a verdict needs sesoi: register analysis.sesoi or inference none")
    sign = 1 if evidence.estimate >= 0 else -1
    superior, flags = _superior(evidence, sign)
    equivalent = evidence.ci_equivalence is not None and evidence.ci_equivalence.inside(evidence.sesoi)
    if superior:
        low = _lower(evidence.ci_superiority, sign)
        if low is not None and low > evidence.sesoi:
            return PairVerdict(WINNER_MEANINGFUL, sign, None, flags)
        return PairVerdict(DIFFERENT_BUT_NEGLIGIBLE if equivalent else WINNER, sign, None, flags)
    return PairVerdict(EQUIVALENT if equivalent else INCONCLUSIVE, 0, None, flags)


def is_superior(evidence: Evidence) -> int:
    """Return +1 or -1 when the first or the second arm is superior at level a, else 0."""
    if _without_inference(evidence) is not None:
        return 0
    sign = 1 if evidence.estimate >= 0 else -1
    return sign if _superior(evidence, sign)[0] else 0


def _without_inference(evidence: Evidence) -> PairVerdict | None:
    """Return the verdict of rows 1-4, or None."""
    if evidence.void_gate is not None:
        return PairVerdict(INVALID, reason=evidence.void_gate)
    enough = 1 if evidence.identity_check and evidence.identical else 2
    if evidence.num_usable < enough:
        return PairVerdict(NO_INFERENCE, reason="ONE_REPLICATE" if evidence.num_usable else "NO_COMPLETE_BLOCKS")
    if evidence.identical:
        return PairVerdict(IDENTICAL_RUNS)
    if evidence.demonstration:
        return PairVerdict(NO_INFERENCE, reason="DEMONSTRATION")
    if not within(evidence.min_p, evidence.level):
        return PairVerdict(NO_INFERENCE, reason="ALPHA_UNREACHABLE")
    return None


def _superior(evidence: Evidence, sign: int) -> tuple[bool, tuple[str, ...]]:
    """Return p <= a and lower bound > 0; a disagreement of the two is flagged and claims nothing."""
    rejects = evidence.p is not None and within(evidence.p, evidence.level)
    if evidence.separated:
        return rejects, ()
    low = _lower(evidence.ci_superiority, sign)
    bounded = low is not None and low > 0
    return rejects and bounded, ("TEST_INTERVAL_DISAGREE",) if rejects != bounded else ()


def _lower(interval: Interval | None, sign: int) -> float | None:
    if interval is None:
        return None
    return interval.low if sign > 0 else -interval.high


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
