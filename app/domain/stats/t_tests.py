"""t companions: Welch, paired t and their two one-sided (equivalence) tests.

Null hypothesis: equal means under (approximately) normal replicate scores. Unit: the replicate.
A zero standard error gives no t inference: p = 1 for equal means, otherwise nothing, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from app.domain.stats.results import Interval
from app.domain.stats.ties import TIE, Floats, as_floats


@dataclass(frozen=True)
class TTest:
    """A t test of a difference; without variance only ``estimate`` and perhaps ``p`` are known."""

    estimate: float
    se: float
    t: float | None
    df: float | None
    p: float | None

    def interval(self, level: float) -> Interval | None:
        """Return the 1 - level interval of the difference, or None without a standard error."""
        if self.t is None or self.df is None:
            return None
        half = float(stdtrit(self.df, 1 - level / 2)) * self.se
        return Interval(self.estimate - half, self.estimate + half, 1 - level)


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests against (-bound, bound) (Schuirmann 1987)."""

    bound: float
    t_lower: float | None
    t_upper: float | None
    df: float | None
    p_lower: float | None
    p_upper: float | None
    interval: Interval | None
    equivalent: bool

    @property
    def p(self) -> float | None:
        """Return the larger of the two one-sided p values."""
        if self.p_lower is None or self.p_upper is None:
            return None
        return max(self.p_lower, self.p_upper)


def welch(x: ArrayLike, y: ArrayLike) -> TTest:
    """Welch t test of mean(x) - mean(y) with Satterthwaite degrees of freedom."""
    first, second = as_floats(x, "x"), as_floats(y, "y")
    return welch_from_summary(_summary(first), _summary(second))


def welch_from_summary(first: tuple[float, float, int], second: tuple[float, float, int]) -> TTest:
    """Welch t test from (mean, SD, n) of both arms."""
    (m1, s1, n1), (m2, s2, n2) = first, second
    difference = m1 - m2
    if n1 < 2 or n2 < 2:
        return TTest(difference, 0.0, None, None, None)
    v1, v2 = s1**2 / n1, s2**2 / n2
    if v1 + v2 == 0:
        return _without_variance(difference, max(abs(m1), abs(m2)))
    # Satterthwaite
    df = (v1 + v2) ** 2 / (v1**2 / (n1 - 1) + v2**2 / (n2 - 1))
    return _t_test(difference, sqrt(v1 + v2), df)


def paired_t(d: ArrayLike) -> TTest:
    """Paired t test of the mean difference."""
    differences = as_floats(d, "d")
    mean, sd, n = _summary(differences)
    if n < 2:
        return TTest(mean, 0.0, None, None, None)
    if sd == 0:
        return _without_variance(mean, abs(mean))
    return _t_test(mean, sd / sqrt(n), n - 1)


def equivalence(test: TTest, bound: float, alpha: float = 0.05) -> Equivalence:
    """Return the two one-sided tests of a t test at one-sided ``alpha``."""
    interval = test.interval(2 * alpha)
    if test.t is None or test.df is None or interval is None:
        return Equivalence(bound, None, None, None, None, None, None, False)
    lower, upper = (test.estimate + bound) / test.se, (test.estimate - bound) / test.se
    p_lower, p_upper = 1 - float(stdtr(test.df, lower)), float(stdtr(test.df, upper))
    return Equivalence(bound, lower, upper, test.df, p_lower, p_upper, interval, interval.inside(bound))


def _summary(values: Floats) -> tuple[float, float, int]:
    if values.size < 2 or np.ptp(values) <= TIE * float(np.abs(values).max()):
        return float(values.mean()), 0.0, values.size
    return float(values.mean()), float(values.std(ddof=1)), values.size


def _without_variance(difference: float, scale: float) -> TTest:
    equal = abs(difference) <= TIE * scale
    return TTest(difference, 0.0, None, None, 1.0 if equal else None)


def _t_test(difference: float, se: float, df: float) -> TTest:
    t = difference / se
    return TTest(difference, se, t, df, min(1.0, 2 * float(stdtr(df, -abs(t)))))


def equivalence_bound(bound_d: float, sd1: float, sd2: float) -> float:
    """Return an equivalence bound given in SD units as raw units: d x sqrt((sd1^2 + sd2^2) / 2)."""
    return bound_d * sqrt((sd1**2 + sd2**2) / 2)
