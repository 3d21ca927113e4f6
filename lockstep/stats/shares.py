"""Shares of replicates: how many failed, how many learned, and tests and intervals of a difference of two shares.

A replicate has learned when its score reaches a registered threshold; a failed one has not. Unit: the replicate.
Unpaired: exact unconditional test on the score statistic of Farrington & Manning (1990), its p the largest over the
unknown share, and the interval that inverts both one-sided tests (Chan & Zhang 1999). Paired: exact sign test of the
blocks in which one arm alone learned (McNemar); the interval inverts the unconditional test on the statistic of Tango
(1998) and is cut at 0 where the sign test decides otherwise. Null hypothesis: the shares are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv, gammaln, ndtr, xlogy
from scipy.stats import binom, fisher_exact

from lockstep.stats.exact import within
from lockstep.stats.results import Floats, Interval

#: Largest replicates per arm (blocks when paired) whose outcomes are all listed; beyond, the statistic is normal.
EXACT_UP_TO = 40
_NUISANCE = 101
#: Ends of intervals are resolved to 2^-16, on the side of the wider interval.
_BISECTIONS = 17
_LIKELIEST = 40


def clopper_pearson(k: int, n: int, level: float = 0.95) -> Interval:
    """Return the exact interval of a rate k/n; [0, 1] for n = 0."""
    if not 0 <= k <= n:
        raise ValueError(f"need 0 <= k <= n, got {k} of {n}")
    if n == 0:
        return Interval(0.0, 1.0)
    tail = (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return Interval(low, high)


def fisher(table: Sequence[Sequence[int]]) -> float:
    """Return Fisher's exact two-sided p of a 2 x 2 table [[failed, ok], [failed, ok]]."""
    return _fisher(*(int(cell) for row in table for cell in row))


@lru_cache(maxsize=4096)
def _fisher(a: int, b: int, c: int, d: int) -> float:
    return float(fisher_exact([[a, b], [c, d]]).pvalue)


@dataclass(frozen=True)
class ShareTest:
    """Difference of shares, first minus second, with p = min(1, 2 x the smaller tail); ``sign`` is its direction."""

    difference: float
    p: float
    sign: int
    counts: tuple[int, int, int, int]
    paired: bool
    method: str

    def interval(self, level: float) -> Interval:
        """Return the interval of the difference of shares at two-sided ``level``."""
        low, high = _lower_end(self.paired, self.counts, level / 2), -_lower_end(self.paired, _swapped(self), level / 2)
        if self.paired:
            # at 0 the sign test is the registered one: the interval excludes 0 where, and only where, it rejects
            rejects = within(self.p, level)
            low = max(low, 0.0) if rejects and self.sign > 0 else min(low, 0.0)
            high = min(high, 0.0) if rejects and self.sign < 0 else max(high, 0.0)
        return Interval(low, high)


def share_difference(first: int, n: int, second: int, m: int) -> ShareTest:
    """Test k of n against j of m replicates that learned, unpaired."""
    greater, less = _tail(False, (first, n, second, m), 0.0), _tail(False, (second, m, first, n), 0.0)
    method = "exact" if max(n, m) <= EXACT_UP_TO else "normal"
    p, sign = min(1.0, 2 * min(greater, less)), int(np.sign(less - greater))
    return ShareTest(first / n - second / m, p, sign, (first, n, second, m), False, method)


def paired_share_difference(only_first: int, only_second: int, n: int) -> ShareTest:
    """Test blocks in which only the first arm learned against those in which only the second did."""
    discordant = only_first + only_second
    p = min(1.0, 2 * float(binom.cdf(min(only_first, only_second), discordant, 0.5))) if discordant else 1.0
    sign = int(np.sign(only_first - only_second))
    return ShareTest((only_first - only_second) / n, p, sign, (only_first, n, only_second, n), True, "exact")


def min_p_shares(n: int, m: int) -> float:
    """Return the smallest two-sided p of the unpaired test: all of one arm learned and none of the other."""
    if n < 1 or m < 1:
        return 1.0
    share = n / (n + m)
    return min(1.0, 2 * share**n * (1 - share) ** m)


@lru_cache(maxsize=4096)
def unpaired_tails(n: int, m: int, theta: float) -> Floats:
    """Return the one-sided p of every outcome (k, j), shape (n + 1, m + 1), against difference <= theta.

    It is the largest probability, over the second arm's share, of a statistic at least as large.
    """
    k, j = np.meshgrid(np.arange(n + 1.0), np.arange(m + 1.0), indexing="ij")
    second = _grid(max(0.0, -theta), min(1.0, 1.0 - theta))
    first = np.clip(second + theta, 0.0, 1.0)
    pmf = np.exp(_log_binomial(n, first)[:, None, :] + _log_binomial(m, second)[None, :, :])
    return _largest_tail(_score(k, n, j, m, theta).ravel(), pmf.reshape(-1, second.size)).reshape(n + 1, m + 1)


@lru_cache(maxsize=4096)
def paired_tails(n: int, theta: float) -> Floats:
    """Return the one-sided p of every outcome (b, c), shape (n + 1, n + 1), against difference <= theta.

    b blocks in which only the first arm learned, c in which only the second did; 1 where b + c > n.
    """
    b, c = np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0), indexing="ij")
    possible = b + c <= n
    b, c = b[possible], c[possible]
    lowest = max(0.0, -theta)
    second = _grid(lowest, max(lowest, (1.0 - theta) / 2))
    first = np.clip(second + theta, 0.0, 1.0)
    rest = np.clip(1 - first - second, 0.0, 1.0)
    ways = gammaln(n + 1) - gammaln(b + 1) - gammaln(c + 1) - gammaln(n - b - c + 1)
    log_pmf = ways[:, None] + xlogy(b[:, None], first) + xlogy(c[:, None], second)
    log_pmf = log_pmf + xlogy((n - b - c)[:, None], rest)
    tails = np.ones(possible.shape)
    tails[possible] = _largest_tail(_tango(b, c, n, theta), np.exp(log_pmf))
    return tails


def _swapped(test: ShareTest) -> tuple[int, int, int, int]:
    first, n, second, m = test.counts
    return second, m, first, n


def _tail(paired: bool, counts: tuple[int, int, int, int], theta: float) -> float:
    """Return the one-sided p of one outcome against difference <= theta."""
    first, n, second, m = counts
    if max(n, m) > EXACT_UP_TO:
        k, j = np.array([float(first)]), np.array([float(second)])
        statistic = _tango(k, j, n, theta) if paired else _score(k, n, j, m, theta)
        return float(ndtr(-statistic[0]))
    tails = paired_tails(n, theta) if paired else unpaired_tails(n, m, theta)
    return float(tails[first, second])


def _lower_end(paired: bool, counts: tuple[int, int, int, int], tail: float) -> float:
    """Return the largest tested difference that is rejected from below, -1 when none is."""
    rejected, accepted = -1.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (rejected + accepted) / 2
        if within(_tail(paired, counts, middle), tail):
            rejected = middle
        else:
            accepted = middle
    return rejected


def _grid(low: float, high: float) -> Floats:
    # denser at both ends, where probabilities change fastest
    return np.asarray(low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, _NUISANCE))) / 2)


def _log_binomial(n: int, share: Floats) -> Floats:
    k = np.arange(n + 1.0)[:, None]
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + xlogy(k, share) + xlogy(n - k, 1 - share))


def _largest_tail(statistic: Floats, pmf: Floats) -> Floats:
    """Return for each outcome the largest share, over the columns, of outcomes with as large a statistic."""
    order = np.argsort(-statistic, kind="stable")
    upper, ordered = np.cumsum(pmf[order], axis=0), -statistic[order]
    # tied outcomes enter together
    last = np.searchsorted(ordered, ordered + 1e-9, side="right") - 1
    tails = np.empty(statistic.size)
    tails[order] = np.minimum(1.0, upper[last].max(axis=1))
    return tails


def _score(k: Floats, n: int, j: Floats, m: int, theta: float) -> Floats:
    """Return the score statistic of difference = theta, with the shares that are likeliest under it."""
    second = _likeliest(k, n, j, m, theta)
    first = np.clip(second + theta, 0.0, 1.0)
    return _ratio(k / n - j / m - theta, first * (1 - first) / n + second * (1 - second) / m)


def _likeliest(k: Floats, n: int, j: Floats, m: int, theta: float) -> Floats:
    """Return the second share that maximises the likelihood under difference = theta (concave: bisect its slope)."""
    low = np.full(k.shape, max(0.0, -theta))
    high = np.full(k.shape, min(1.0, 1.0 - theta))
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(_LIKELIEST):
            second = (low + high) / 2
            first = second + theta
            slope = _over(k, first) - _over(n - k, 1 - first) + _over(j, second) - _over(m - j, 1 - second)
            low, high = np.where(slope > 0, second, low), np.where(slope > 0, high, second)
    return np.asarray((low + high) / 2)


def _over(count: Floats, share: Floats) -> Floats:
    return np.where(count > 0, count / share, 0.0)


def _tango(b: Floats, c: Floats, n: int, theta: float) -> Floats:
    # Tango 1998, eq. 2: the likeliest share of "only the second" under difference = theta
    half = -b - c + (2 * n - b + c) * theta
    second = (np.sqrt(np.maximum(half**2 + 8 * n * c * theta * (1 - theta), 0.0)) - half) / (4 * n)
    return _ratio(b - c - n * theta, n * (2 * second + theta * (1 - theta)))


def _ratio(difference: Floats, variance: Floats) -> Floats:
    root = np.sqrt(np.maximum(variance, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(root > 1e-9, difference / root, np.where(np.abs(difference) < 1e-9, 0.0, np.inf * difference))
