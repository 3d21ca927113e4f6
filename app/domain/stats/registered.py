"""The registered test of one pair: which test, its p, its two intervals.

Chosen by estimand, pairing, number of replicates and look mode (statistics.md 3 and 5); nothing
here depends on the outcome, except the studentised permutation, which is a rule on the SD ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from app.domain.stats.attain import min_p_paired, min_p_unpaired
from app.domain.stats.brunner_munzel import brunner_munzel
from app.domain.stats.design import Design
from app.domain.stats.evalue import anytime_interval, anytime_p, evalue_path
from app.domain.stats.permutation import permutation_mean
from app.domain.stats.ranks import hodges_lehmann, mann_whitney, shift_interval
from app.domain.stats.results import Interval
from app.domain.stats.scores import FlooredArm
from app.domain.stats.sign_flip import sign_flip
from app.domain.stats.signed_rank import pseudo_median, signed_rank, walsh_interval
from app.domain.stats.ties import TIE, Floats, differences

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
