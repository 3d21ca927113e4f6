"""Unpaired permutation test of means and its inverted interval.

Null hypothesis: arms are exchangeable. Resampling unit: the replicate. All C(n+m, n) splits up to
200,000, else one fixed set of 19,999 random splits plus the identity, shared by the test and its
interval. With unequal variances and unequal n the Welch t statistic takes the difference's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.domain.stats.attain import within
from app.domain.stats.results import Interval
from app.domain.stats.sign_flip import inversion_reach
from app.domain.stats.ties import TIE, Floats, as_floats

EXACT_SPLITS = 200_000
RANDOM_SPLITS = 19_999
_BISECTIONS = 60


@dataclass(frozen=True)
class PermutationTest:
    """Difference of means x - y with permutation p; ``splits`` rows hold the indices of the first arm."""

    x: Floats
    y: Floats
    splits: NDArray[np.intp]
    difference: float
    p_greater: float
    p_two_sided: float
    method: str
    studentised: bool

    def interval(self, level: float) -> Interval | None:
        """Return the interval of the difference that inverts this test on the same splits, or None."""
        if self.studentised:
            return _studentised_interval(self, level)
        n, m = self.x.size, self.y.size
        stats = _mean_differences(np.concatenate([self.x, self.y]), self.splits, n, m)
        from_x = (self.splits < n).sum(axis=1)
        c = from_x / n - (n - from_x) / m
        reach = inversion_reach(stats - c * self.difference, c, level)
        if reach is None:
            return None
        return Interval(self.difference - reach[0], self.difference + reach[1])


def permutation_mean(
    x: ArrayLike, y: ArrayLike, rng: np.random.Generator | None = None, studentised: bool = False
) -> PermutationTest:
    """Test the difference of means; ``rng`` is needed when there are more than 200,000 splits."""
    first, second = as_floats(x, "x"), as_floats(y, "y")
    n, m = first.size, second.size
    splits, method = permutation_splits(n, m, rng)
    pooled = np.concatenate([first, second])
    difference = float(first.mean() - second.mean())
    stats, observed = _mean_differences(pooled, splits, n, m), difference
    if studentised:
        stats = _welch_statistics(pooled, splits, n, m)
        observed = float(stats[0])
    limit = TIE * float(np.abs(stats[np.isfinite(stats)]).max(initial=0.0))
    greater = float((stats >= observed - limit).mean())
    both = float((np.abs(stats) >= abs(observed) - limit).mean())
    return PermutationTest(first, second, splits, difference, greater, both, method, studentised)


def permutation_splits(n: int, m: int, rng: np.random.Generator | None) -> tuple[NDArray[np.intp], str]:
    """Return index rows of the first arm (identity first) and whether they are exact or sampled."""
    if comb(n + m, n) <= EXACT_SPLITS:
        return _all_splits(n, m), "exact"
    if rng is None:
        raise ValueError(f"C({n + m}, {n}) splits are beyond enumeration: pass rng")
    drawn = np.argsort(rng.random((RANDOM_SPLITS, n + m)), axis=1)[:, :n]
    return np.concatenate([np.arange(n)[None, :], drawn]), "monte-carlo"


@lru_cache(maxsize=8)
def _all_splits(n: int, m: int) -> NDArray[np.intp]:
    # combinations come in lexicographic order: row 0 is the identity
    return np.array(list(combinations(range(n + m), n)), dtype=np.intp)


def _mean_differences(pooled: Floats, splits: NDArray[np.intp], n: int, m: int) -> Floats:
    sums = pooled[splits].sum(axis=1)
    return np.asarray(sums / n - (pooled.sum() - sums) / m)


def _welch_statistics(pooled: Floats, splits: NDArray[np.intp], n: int, m: int) -> Floats:
    centred = pooled - pooled.mean()
    chosen = centred[splits]
    sums, squares = chosen.sum(axis=1), (chosen**2).sum(axis=1)
    rest, rest_squares = centred.sum() - sums, (centred**2).sum() - squares
    variance = (squares - sums**2 / n) / (n * (n - 1)) + (rest_squares - rest**2 / m) / (m * (m - 1))
    difference = sums / n - rest / m
    noise = TIE * float((centred**2).sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            variance > noise,
            difference / np.sqrt(variance),
            np.where(difference == 0, 0.0, np.inf * difference),
        )


def _studentised_interval(test: PermutationTest, level: float) -> Interval | None:
    n, m = test.x.size, test.y.size

    def accepted(theta: float) -> bool:
        stats = _welch_statistics(np.concatenate([test.x - theta, test.y]), test.splits, n, m)
        limit = TIE * float(np.abs(stats[np.isfinite(stats)]).max(initial=0.0))
        return not within(float((np.abs(stats) >= abs(stats[0]) - limit).mean()), level)

    spread = float(np.ptp(test.x) + np.ptp(test.y))
    ends = []
    for sign in (-1.0, 1.0):
        inner, outer = 0.0, 2 * spread
        if accepted(test.difference + sign * outer) or spread == 0:
            return None
        for _ in range(_BISECTIONS):
            middle = (inner + outer) / 2
            if accepted(test.difference + sign * middle):
                inner = middle
            else:
                outer = middle
        ends.append(test.difference + sign * inner)
    return Interval(ends[0], ends[1])
