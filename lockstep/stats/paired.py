"""Paired sign-flip (Fisher 1935 randomisation) test of the mean, and its inverted interval.

Null hypothesis: arms are exchangeable within a block. Resampling unit: the block. Exact to
n = 30 by meeting in the middle, sampled beyond. With equal means but skewed differences every
symmetric method, this one included, is off (.09-.13 in simulation).

Paired signed-rank test with zeros by Pratt (1959), and the Walsh-average interval.

Null hypothesis: each paired difference is symmetric about zero (arms exchangeable within a
block). Resampling unit: the block. Exact with ties and zeros by dynamic programming over doubled
ranks. The interval describes the pseudo-median of the differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from lockstep.stats.exact import LEVEL_SLACK, largest_tail, sign_sum_null, signed_rank_null
from lockstep.stats.results import TIE, Floats, Interval, TailPs, as_floats, doubled_midranks, tolerance

EXACT_LIMIT = 30
MONTE_CARLO_DRAWS = 99_999
_ENUMERATED_INTERVAL = 14
#: Subset means that may remain before they are enumerated.
_WINDOW = 2_000


@dataclass(frozen=True)
class _Draws:
    """Sampled flips: sums of signed differences and of the signs themselves, identity first."""

    sums: Floats
    signs: Floats


@dataclass(frozen=True)
class SignFlipTest:
    """Mean difference with the tails of the sign-flip distribution of its sum."""

    differences: Floats
    mean: float
    p: TailPs
    two_sided: float
    method: str
    draws: _Draws | None

    def interval(self, level: float) -> Interval | None:
        """Return the interval of the mean that inverts this test, or None when n is too small.

        [M_(k), M_(2^n - k)] of the sorted means of all non-empty subsets (Hartigan 1969),
        k = floor(level/2 x 2^n).
        """
        if self.draws is not None:
            return _sampled_interval(self.mean, self.draws, level)
        d = self.differences
        k = int(np.floor(level / 2 * 2.0**d.size * (1 + LEVEL_SLACK)))
        if k == 0:
            return None
        ends = (k, 2**d.size - k)
        low, high = _enumerated(d, ends) if d.size <= _ENUMERATED_INTERVAL else _bisected(d, ends)
        return Interval(low, high, 1 - 2 * k / 2.0**d.size, k)


def sign_flip(d: ArrayLike, rng: np.random.Generator | None = None, noise: float | None = None) -> SignFlipTest:
    """Test the mean of paired differences; zeros stay in. ``rng`` is needed beyond n = 30.

    ``noise``: differences of sums that count as ties, per block; default 1e-9 times mean |d|.
    """
    differences = as_floats(d, "d")
    mean = float(differences.mean())
    limit = _slack(differences, noise)
    if differences.size > EXACT_LIMIT:
        return _sampled(differences, mean, limit, rng)
    left, right = _half_sums(differences)
    total = float(differences.sum())
    count = 2.0**differences.size
    greater = _pairs_at_least(left, right, total - limit) / count
    less = _pairs_at_least(left, right, -total - limit) / count
    both = min(1.0, 2 * _pairs_at_least(left, right, abs(total) - limit) / count)
    both = 1.0 if abs(total) <= limit else both
    return SignFlipTest(differences, mean, TailPs(greater, less), both, "exact", None)


def _slack(d: Floats, noise: float | None) -> float:
    """Return by how much sums may differ and count as tied: never below the rounding of the sum itself."""
    size = float(np.abs(d).sum())
    return TIE * size if noise is None else max(noise * d.size, 8 * np.finfo(np.float64).eps * size)


def _half_sums(d: Floats) -> tuple[Floats, Floats]:
    half = d.size // 2
    return np.sort(_signed_sums(d[:half])), np.sort(_signed_sums(d[half:]))


def _signed_sums(d: Floats) -> Floats:
    sums = np.zeros(1)
    for value in d:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def _pairs_at_least(left: Floats, right: Floats, threshold: float) -> float:
    return float((right.size - np.searchsorted(right, threshold - left, side="left")).sum())


def _subset_sums(d: Floats) -> Floats:
    sums = np.zeros(1)
    for value in d:
        sums = np.concatenate([sums, sums + value])
    return sums


def _enumerated(d: Floats, ends: tuple[int, int]) -> tuple[float, float]:
    counts = _subset_sums(np.ones(d.size))[1:]
    means = np.partition(_subset_sums(d)[1:] / counts, (ends[0] - 1, ends[1] - 1))
    return float(means[ends[0] - 1]), float(means[ends[1] - 1])


@dataclass(frozen=True)
class _Halves:
    """Subset sums and sizes of both halves; together they are all 2^n subsets."""

    left: Floats
    left_sizes: Floats
    right: Floats
    right_sizes: Floats

    def count_below(self, theta: float, margin: float = 0.0) -> float:
        """Return the number of subsets S with sum_S(d - theta) <= margin, the empty one included."""
        left = self.left - theta * self.left_sizes
        right = np.sort(self.right - theta * self.right_sizes)
        # sorted keys make the search run through memory in order, three times faster
        return float(np.searchsorted(right, np.sort(margin - left), side="right").sum())

    def window(self, theta: float, reach: float) -> tuple[float, Floats]:
        """Return how many subsets have sum_S(d - theta) < -reach, and the sorted means of those within it."""
        left = self.left - theta * self.left_sizes
        shifted = self.right - theta * self.right_sizes
        order = np.argsort(shifted)
        right, sizes = shifted[order], self.right_sizes[order]
        start = np.searchsorted(right, -reach - left, side="left")
        stop = np.searchsorted(right, reach - left, side="right")
        rows = np.repeat(np.arange(left.size), stop - start)
        columns = np.arange(rows.size) - np.repeat(np.cumsum(stop - start) - (stop - start), stop - start)
        columns += np.repeat(start, stop - start)
        totals, counts = left[rows] + right[columns], self.left_sizes[rows] + sizes[columns]
        held = counts > 0
        return float(start.sum()), np.sort(theta + totals[held] / counts[held])

    def tied_mean(self, theta: float, reach: float) -> float:
        """Return the mean of one of the many tied subsets with |sum_S(d - theta)| <= reach."""
        left = self.left - theta * self.left_sizes
        right = self.right - theta * self.right_sizes
        order = np.argsort(right)
        above = np.searchsorted(right[order], -left)
        # the right half's neighbours on both sides bring the total nearest to 0
        places = np.stack([np.minimum(above, right.size - 1), np.maximum(above - 1, 0)])
        totals, counts = left + right[order][places], self.left_sizes + self.right_sizes[order][places]
        best = np.unravel_index(np.argmin(np.where(counts > 0, np.abs(totals), np.inf)), totals.shape)
        near = counts[best] > 0 and abs(totals[best]) <= reach
        return float(theta + totals[best] / counts[best]) if near else theta


def _bisected(d: Floats, ends: tuple[int, int]) -> tuple[float, float]:
    half = d.size // 2
    ones = np.ones(d.size)
    halves = _Halves(
        _subset_sums(d[:half]), _subset_sums(ones[:half]), _subset_sums(d[half:]), _subset_sums(ones[half:])
    )
    return _order_statistic(halves, ends[0], d), _order_statistic(halves, ends[1], d)


def _order_statistic(halves: _Halves, k: int, d: Floats) -> float:
    """Return the k-th smallest subset mean: bracket it by counts, then enumerate what is left."""
    # far below the width of an honest bracket, above the rounding of subset sums beside a far-away floor
    noise = 1e-12 * float(np.abs(d).max())
    low, high = float(d.min()) - noise, float(d.max()) + noise
    below, upto = 0.0, 2.0**d.size - 1
    while upto - below > _WINDOW and high - low > noise:
        theta = _probe((low, below), (high, upto), k, 2.0**d.size)
        # subsets with mean <= theta are those with sum(d - theta) <= 0; the empty one is no subset mean
        count = halves.count_below(theta) - 1
        if count >= k:
            high, upto = theta, count
        else:
            low, below = theta, count
    if upto - below > _WINDOW:
        return halves.tied_mean((low + high) / 2, d.size * noise)
    middle, reach = (low + high) / 2, d.size * ((high - low) / 2 + noise)
    # every subset below the window has mean < low, every one above it mean > high
    under, means = halves.window(middle, reach)
    return float(means[k - int(under) - 1])


def _probe(left: tuple[float, float], right: tuple[float, float], k: int, total: float) -> float:
    """Return where to count next between two (theta, count) ends.

    Subset means are nearly normal, so the count's normal quantile is nearly linear in theta: aim
    just beyond the k-th on the side of the looser end, or half way while an end has no quantile.
    """
    (low, below), (high, upto) = left, right
    if below <= 0 or upto >= total - 1:
        return (low + high) / 2
    aim = k + _WINDOW / 3 if upto - k > k - below else k - _WINDOW / 3
    at, start, stop = (float(v) for v in ndtri(np.array([aim, below, upto]) / total))
    share = (at - start) / (stop - start) if np.isfinite(at) and stop > start else 0.5
    return low + min(0.98, max(0.02, share)) * (high - low)


def _sampled(d: Floats, mean: float, limit: float, rng: np.random.Generator | None) -> SignFlipTest:
    if rng is None:
        raise ValueError(f"{d.size} blocks are beyond the exact sign-flip test: pass rng")
    signs = rng.integers(0, 2, size=(MONTE_CARLO_DRAWS + 1, d.size), dtype=np.int8) * 2 - 1
    signs[0] = 1
    draws = _Draws(signs @ d, signs.sum(axis=1, dtype=np.float64))
    total = float(d.sum())
    p = TailPs(float((draws.sums >= total - limit).mean()), float((draws.sums <= total + limit).mean()))
    both = float((np.abs(draws.sums) >= abs(total) - limit).mean())
    return SignFlipTest(d, mean, p, both, "monte-carlo", draws)


def _sampled_interval(mean: float, draws: _Draws, level: float) -> Interval | None:
    n = float(draws.signs[0])
    # flip s counts at mean - theta = u iff |r + c u| >= |u|, with c = mean sign and r = its sum/n - c mean
    c = draws.signs / n
    r = draws.sums / n - c * mean
    reach = inversion_reach(r, c, level)
    return None if reach is None else Interval(mean - reach[0], mean + reach[1])


def inversion_reach(r: Floats, c: Floats, level: float) -> tuple[float, float] | None:
    """Return how far below and above the estimate a two-sided resampling test does not reject.

    A draw has statistic r + c u when the null value lies u below the estimate; it counts against
    the null where |r + c u| >= |u|, which holds up to a bound in closed form for |c| <= 1.
    """
    rank = int(np.floor(level * r.size * (1 + LEVEL_SLACK)))
    with np.errstate(divide="ignore", invalid="ignore"):
        up, down = r / (1 - c), -r / (1 + c)
        mirrored_up, mirrored_down = r / (1 + c), -r / (1 - c)
    always = (np.abs(1 - c) < TIE) | (np.abs(1 + c) < TIE)
    below = np.where(always, np.inf, np.maximum(up, down))
    above = np.where(always, np.inf, np.maximum(mirrored_up, mirrored_down))
    index = r.size - 1 - rank
    reach = float(np.partition(below, index)[index]), float(np.partition(above, index)[index])
    return reach if np.isfinite(reach).all() else None


@dataclass(frozen=True)
class SignedRankTest:
    """V = sum of the ranks of positive differences, with exact tails."""

    v: float
    p: TailPs


def signed_rank(d: ArrayLike, noise: float | None = None) -> SignedRankTest:
    """Test whether paired differences tend to be positive; all zero gives p = 1.

    ``noise``: magnitudes this close are tied, and this close to 0 are 0; default 1e-9 times the largest.
    """
    differences = as_floats(d, "d")
    limit = tolerance(differences) if noise is None else noise
    differences = np.where(np.abs(differences) <= limit, 0.0, differences)
    ranks = doubled_midranks(np.abs(differences), limit)
    # Pratt: rank with the zeros included, then drop the zeros' ranks
    kept = ranks[differences != 0]
    positive = int(ranks[differences > 0].sum())
    if kept.size == 0:
        return SignedRankTest(0.0, TailPs(1.0, 1.0))
    factor = gcd(*(int(r) for r in kept))
    null = _null(tuple(sorted(int(r) // factor for r in kept)))
    at = positive // factor
    tails = TailPs(min(1.0, float(null[at:].sum())), min(1.0, float(null[: at + 1].sum())))
    return SignedRankTest(positive / 2, tails)


def walsh_averages(d: ArrayLike) -> Floats:
    """Return the n(n+1)/2 sorted averages (d_i + d_j)/2, i <= j."""
    differences = as_floats(d, "d")
    rows, columns = _pairs(differences.size)
    return np.sort((differences[rows] + differences[columns]) / 2)


def pseudo_median(d: ArrayLike) -> float:
    """Return the Hodges-Lehmann estimate of one sample: the median of the Walsh averages."""
    return float(np.median(walsh_averages(d)))


def walsh_interval(d: ArrayLike, level: float) -> Interval | None:
    """Return the interval that inverts the untied signed-rank test at two-sided ``level``, or None.

    Conservative with ties; None when no order statistic reaches the level (n < 6 at .05).
    """
    averages = walsh_averages(d)
    n = np.asarray(d).size
    null = signed_rank_null(n)
    v = largest_tail(null, level / 2)
    if v is None:
        return None
    coverage = 1 - 2 * float(null[: v + 1].sum())
    return Interval(float(averages[v]), float(averages[averages.size - 1 - v]), coverage, v + 1)


@lru_cache(maxsize=64)
def _pairs(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows, columns = np.triu_indices(n)
    return rows, columns


@lru_cache(maxsize=256)
def _null(weights: tuple[int, ...]) -> Floats:
    if weights == tuple(range(1, len(weights) + 1)):
        return signed_rank_null(len(weights))
    return sign_sum_null(weights)
