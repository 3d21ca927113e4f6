"""The registered design as the tests see it, and the registered test of one pair: its p and its intervals.

Chosen by estimand, pairing, number of replicates and look mode; nothing here depends on the outcome. All resampling
of one analysis starts from the same analysis seed, so that a test and its interval share their draws and the order of
the tests does not matter. Units are oriented: larger is better. Null hypothesis: the arms are exchangeable (within a
block when paired). Unit: the replicate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from lockstep.stats.exact import min_p_paired, min_p_unpaired
from lockstep.stats.paired import pseudo_median, sign_flip, signed_rank, walsh_interval
from lockstep.stats.results import TIE, Floats, Interval, differences, sd
from lockstep.stats.scores import FlooredArm
from lockstep.stats.sequential import Wager, anytime_p
from lockstep.stats.shares import min_p_shares, paired_share_difference, share_difference
from lockstep.stats.unpaired import (
    brunner_munzel,
    hodges_lehmann,
    mann_whitney,
    permutation_mean,
    seeded_splits,
    shift_interval,
)

#: Below this the Brunner-Munzel p is liberal: the exact rank p guards it.
BRUNNER_MUNZEL_ALONE = 10
_BRUNNER_MUNZEL_EQUIVALENCE = 6
ESTIMANDS = ("mean", "shift", "learned", "p_superiority")


@dataclass(frozen=True)
class Design:
    """What decides how two arms are compared.

    Attributes:
        paired: arms share replicate seeds, blocks are matched sets.
        estimand: mean (difference of means), shift (Hodges-Lehmann), learned (difference of the shares of
            replicates that reach the threshold) or p_superiority.
        sesoi: smallest effect of interest, raw units (None only for demonstrations).
        level: two-sided level a.
        floor: oriented score of a failed replicate, None when none was registered.
        threshold: oriented score from which on a replicate has learned.
        comparisons: winner, all_pairs or vs_control.
        control: label of the control.
        adjust: auto, holm or max_t.
        fallback: none or unpaired_rank (4 or 5 complete blocks).
        mode: fixed, planned or anytime.
        e_value: sign, t or betting.
        reach: largest possible |difference| of two scores, for betting.
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
    threshold: float | None = None
    comparisons: str = "winner"
    control: str | None = None
    adjust: str = "auto"
    fallback: str = "none"
    mode: str = "fixed"
    e_value: str = "sign"
    reach: float | None = None
    inference: str = "full"
    seed: int = 0
    equivalence: bool = True
    identity_check: bool = False

    def rng(self) -> np.random.Generator:
        """Return a fresh generator from the analysis seed."""
        return np.random.Generator(np.random.Philox(key=self.seed))


#: Superiority interval at 1 - a and equivalence interval at 1 - 2a of a level a.
Intervals = Callable[[float], tuple[Interval | None, Interval | None]]


@dataclass(frozen=True)
class PairTest:
    """Outcome of the registered test for first minus second, oriented raw units.

    ``sign`` is the direction of the test statistic, which ties can set apart from that of the estimate.
    """

    name: str
    method: str
    estimate: float
    se: float | None
    p: float
    min_p: float
    sign: int
    intervals: Intervals
    flags: tuple[str, ...] = ()
    e_value: float | None = None


def uses_unpaired_test(design: Design, blocks: int) -> bool:
    """Return whether two arms are compared by an unpaired test."""
    falls_back = design.fallback == "unpaired_rank" and design.mode != "anytime" and 4 <= blocks < 6
    return not design.paired or falls_back


def registered_test(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    """Run the registered test of two arms with at least one usable replicate each."""
    if uses_unpaired_test(design, x.values.size) and (design.paired or design.estimand == "shift"):
        return _rank_test(x, y, design)
    if design.mode == "anytime":
        return _anytime(x, y, design)
    if design.estimand == "learned":
        return _learned(x, y, design)
    if design.paired:
        return _sign_flip(x, y, design) if design.estimand == "mean" else _signed_rank(x, y, design)
    return _permutation(x, y, design) if design.estimand == "mean" else _superiority(x, y, design)


def noise(x: FlooredArm, y: FlooredArm) -> float:
    """Return within which distance two scores are tied: 1e-9 times the largest successful score."""
    seen = np.abs(np.concatenate([arm.values[np.isfinite(arm.ranked)] for arm in (x, y)]))
    return TIE * float(seen.max()) if seen.size else 0.0


def paired_differences(x: FlooredArm, y: FlooredArm) -> Floats:
    """Return first minus second by block, float noise of the scores set to 0."""
    return differences(x.values, y.values, noise(x, y))


def has_learned(arm: FlooredArm, threshold: float) -> np.ndarray:
    """Return for each replicate whether it reached the threshold; a failed one has not."""
    return np.asarray(arm.ranked >= threshold)


def _sign_flip(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    d = paired_differences(x, y)
    flip = sign_flip(d, design.rng(), noise(x, y))
    at = _intervals(flip.interval, design)
    sign = _sign(flip.p.less - flip.p.greater)
    return PairTest(
        "sign-flip", flip.method, flip.mean, _se(d), flip.two_sided, min_p_paired(d.size), sign, at, _constant(d)
    )


def _signed_rank(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    d = paired_differences(x, y)
    tails = signed_rank(d, noise(x, y)).p
    at, sign = _intervals(lambda level: walsh_interval(d, level), design), _sign(tails.less - tails.greater)
    estimate, floor_p = pseudo_median(d), min_p_paired(d.size)
    return PairTest("signed-rank", "exact", estimate, _se(d), tails.two_sided, floor_p, sign, at, _constant(d))


def _anytime(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    d, wager = anytime_differences(x, y, design), wager_of(design)
    path = wager.path(d)

    def at(level: float) -> tuple[Interval | None, Interval | None]:
        interval = wager.interval(d, level)
        return interval, interval if design.equivalence else None

    estimate = pseudo_median(d) if design.estimand == "shift" else float(d.mean())
    standing = at(design.level)[0]
    if standing is not None:
        # what earlier blocks rejected stays rejected, though the estimate may wander back
        estimate = min(max(estimate, standing.low), standing.high)
    name, p, e = f"{design.e_value} e-value", anytime_p(path), float(path.max())
    floor_p, sign = wager.min_p(d.size), _sign(estimate)
    return PairTest(name, "anytime", estimate, _se(d), p, floor_p, sign, at, _constant(d), e)


def wager_of(design: Design) -> Wager:
    """Return the registered e-value; a share that learned is bounded by itself."""
    return Wager(design.e_value, 1.0 if design.estimand == "learned" else design.reach)


def anytime_differences(x: FlooredArm, y: FlooredArm, design: Design) -> Floats:
    """Return the differences on which an anytime analysis bets: of scores, or of having learned."""
    if design.estimand == "learned" and design.threshold is not None:
        learned = [has_learned(arm, design.threshold).astype(np.float64) for arm in (x, y)]
        return np.asarray(learned[0] - learned[1])
    return paired_differences(x, y)


def _rank_test(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    test = mann_whitney(x.ranked, y.ranked, design.rng())
    at = _intervals(lambda level: shift_interval(x.values, y.values, level), design)
    floor_p, sign = min_p_unpaired(x.values.size, y.values.size), _sign(test.p.less - test.p.greater)
    estimate, flags = hodges_lehmann(x.values, y.values), _constant_arms(x, y)
    return PairTest("rank", test.method, estimate, _welch_se(x, y), test.p.two_sided, floor_p, sign, at, flags)


def _permutation(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    n, m = x.values.size, y.values.size
    test = permutation_mean(x.values, y.values, studentised=True, splits=seeded_splits(n, m, design.seed))
    tie = noise(x, y)
    at, sign = _intervals(lambda level: _snapped(test.interval(level), tie), design), _sign(test.difference)
    name, flags, floor_p = "studentised permutation", _constant_arms(x, y), min_p_unpaired(n, m)
    se = _welch_se(x, y)
    return PairTest(name, test.method, test.difference, se, test.p_two_sided, floor_p, sign, at, flags)


def _learned(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    if design.threshold is None:
        raise ValueError("estimand learned needs a threshold: register analysis.threshold")
    first, second = has_learned(x, design.threshold), has_learned(y, design.threshold)
    n, m = first.size, second.size
    if design.paired:
        test, floor_p = paired_share_difference(int((first & ~second).sum()), int((~first & second).sum()), n), None
    else:
        test, floor_p = share_difference(int(first.sum()), n, int(second.sum()), m), min_p_shares(n, m)
    name = "paired sign" if design.paired else "unconditional"
    at, floor_p = _intervals(test.interval, design), min_p_paired(n) if floor_p is None else floor_p
    shares = float(first.mean()), float(second.mean())
    se = sqrt(shares[0] * (1 - shares[0]) / n + shares[1] * (1 - shares[1]) / m)
    return PairTest(name, test.method, test.difference, se, test.p, floor_p, test.sign, at)


def _superiority(x: FlooredArm, y: FlooredArm, design: Design) -> PairTest:
    n, m = x.values.size, y.values.size
    test = brunner_munzel(y.ranked, x.ranked, design.rng())
    floor_p, estimate = min_p_unpaired(n, m), test.p_hat - 0.5
    if test.p is None:
        flags = ("SEPARATED",) if test.p_hat in (0.0, 1.0) else _constant_arms(x, y)
        nothing = _intervals(lambda _: None, design)
        return PairTest("rank", "exact", estimate, None, test.fallback_p, floor_p, _sign(estimate), nothing, flags)

    def at(level: float) -> tuple[Interval | None, Interval | None]:
        wanted = design.equivalence and min(n, m) >= _BRUNNER_MUNZEL_EQUIVALENCE
        return _centred(test.interval(level)), _centred(test.interval(2 * level)) if wanted else None

    p = test.p if min(n, m) >= BRUNNER_MUNZEL_ALONE else max(test.p, test.fallback_p)
    name, flags = "Brunner-Munzel", _constant_arms(x, y)
    return PairTest(name, "t approximation", estimate, test.se, p, floor_p, _sign(estimate), at, flags)


def as_estimand(design: Design, estimand: str) -> Design:
    """Return the design of a fixed analysis of another quantity on the same scores."""
    return replace(design, estimand=estimand, mode="fixed", fallback="none")


def _intervals(at_level: Callable[[float], Interval | None], design: Design) -> Intervals:
    """Return the superiority interval at a and, when wanted, the equivalence interval at 2a, for every a."""
    return lambda a: (at_level(a), at_level(2 * a) if design.equivalence else None)


def _snapped(interval: Interval | None, tie: float) -> Interval | None:
    """Return an interval whose ends are 0 where they differ from it by less than two tied scores do."""
    if interval is None:
        return None
    low, high = (0.0 if abs(end) <= tie else end for end in (interval.low, interval.high))
    return replace(interval, low=low, high=high)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _se(d: Floats) -> float | None:
    return sd(d) / sqrt(d.size) if d.size > 1 else None


def _constant(d: Floats) -> tuple[str, ...]:
    return ("ZERO_VARIANCE",) if d.size > 1 and np.ptp(d) <= TIE * np.abs(d).max() else ()


def _centred(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(interval.low - 0.5, interval.high - 0.5)


def _sds(x: FlooredArm, y: FlooredArm) -> tuple[float, float]:
    scale = TIE * max(float(np.abs(x.values).max()), float(np.abs(y.values).max()))
    deviations = [sd(arm.values) for arm in (x, y)]
    return (deviations[0] if deviations[0] > scale else 0.0), (deviations[1] if deviations[1] > scale else 0.0)


def _welch_se(x: FlooredArm, y: FlooredArm) -> float | None:
    if min(x.values.size, y.values.size) < 2:
        return None
    first, second = (s / sqrt(arm.values.size) for s, arm in zip(_sds(x, y), (x, y), strict=True))
    scale = max(first, second)
    return scale * sqrt((first / scale) ** 2 + (second / scale) ** 2) if scale > 0 else 0.0


def _constant_arms(x: FlooredArm, y: FlooredArm) -> tuple[str, ...]:
    return ("ZERO_VARIANCE",) if min(x.values.size, y.values.size) > 1 and _sds(x, y) == (0.0, 0.0) else ()
