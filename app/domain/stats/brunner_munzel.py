"""Brunner-Munzel test (2000) and interval of P(x < y) + P(x = y)/2, unpaired.

Null hypothesis: that probability is one half (variances may differ). Unit: the replicate. The t
approximation is liberal below ten replicates. Under complete separation its variance is 0/0:
then there is no statistic, and the exact rank test stands in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from app.domain.stats.ranks import mann_whitney
from app.domain.stats.results import Interval
from app.domain.stats.ties import Floats, as_floats, doubled_midranks


@dataclass(frozen=True)
class BrunnerMunzelTest:
    """``p_hat`` = P(x < y) + P(x = y)/2; w, df and p are None when the variance vanishes."""

    p_hat: float
    w: float | None
    df: float | None
    p: float | None
    se: float | None
    fallback_p: float

    def interval(self, level: float) -> Interval | None:
        """Return the 1 - level interval of p_hat, clipped to [0, 1], or None under separation."""
        if self.se is None or self.df is None:
            return None
        half = float(stdtrit(self.df, 1 - level / 2)) * self.se
        return Interval(max(0.0, self.p_hat - half), min(1.0, self.p_hat + half))


def brunner_munzel(x: ArrayLike, y: ArrayLike, rng: np.random.Generator | None = None) -> BrunnerMunzelTest:
    """Test P(x < y) + P(x = y)/2 = 1/2; -inf marks failures (worst rank)."""
    first, second = as_floats(x, "x", True), as_floats(y, "y", True)
    n, m = first.size, second.size
    fallback = mann_whitney(first, second, rng)
    p_hat = 1 - fallback.a12
    s1, s2 = _placement_variances(first, second)
    if n < 2 or m < 2 or s1 / n + s2 / m < 1e-20:
        return BrunnerMunzelTest(p_hat, None, None, None, None, fallback.p.two_sided)
    # SE of p_hat from the placements' variances s_i / N_other^2, which are of order 1
    se = sqrt(s1 / n + s2 / m)
    w = (p_hat - 0.5) / se
    df = (s1 / n + s2 / m) ** 2 / ((s1 / n) ** 2 / (n - 1) + (s2 / m) ** 2 / (m - 1))
    p = min(1.0, 2 * float(stdtr(df, -abs(w))))
    return BrunnerMunzelTest(p_hat, w, df, p, se, fallback.p.two_sided)


def _placement_variances(x: Floats, y: Floats) -> tuple[float, float]:
    """Return the variances of the placements (share of the other arm below, half of ties)."""
    n, m = x.size, y.size
    if n < 2 or m < 2:
        return 0.0, 0.0
    pooled = doubled_midranks(np.concatenate([x, y])) / 2
    first = (pooled[:n] - doubled_midranks(x) / 2) / m
    second = (pooled[n:] - doubled_midranks(y) / 2) / n
    return float(first.var(ddof=1)), float(second.var(ddof=1))
