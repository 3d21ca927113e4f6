"""Unpaired permutation test of means and its inverted interval.

Null hypothesis: arms are exchangeable. Resampling unit: the replicate. All C(n+m, n) splits up to
200,000, else one fixed set of 19,999 random splits plus the identity, shared by the test and its
interval. With unequal variances and unequal n the Welch t statistic takes the difference's place.

Unpaired rank test (Mann & Whitney 1947) and the Hodges-Lehmann shift with its interval.

Null hypothesis: both arms' scores come from one distribution. Resampling unit: the replicate.
The conditional null is exact with ties (dynamic programming over doubled mid-ranks); beyond the
exact range it is sampled. The interval describes the shift between arms, not single runs.

Brunner-Munzel test (2000) and interval of P(x < y) + P(x = y)/2, unpaired.

Null hypothesis: that probability is one half (variances may differ). Unit: the replicate. The t
approximation is liberal below ten replicates. Under complete separation its variance is 0/0:
then there is no statistic, and the exact rank test stands in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, gcd, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtr, stdtrit

from lockstep.stats.exact import largest_tail, rank_sum_null, subset_sum_null, within
from lockstep.stats.paired import inversion_reach
from lockstep.stats.results import TIE, Floats, Interval, Ints, TailPs, as_floats, doubled_midranks

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


MONTE_CARLO_DRAWS = 99_999
_EXACT_PRODUCT = 40_000
_EXACT_TOTAL_TIED = 200


@dataclass(frozen=True)
class RankTest:
    """U = #(x > y) + #(x = y)/2 with its exact tails; ``method`` is exact or monte-carlo."""

    u: float
    p: TailPs
    a12: float
    method: str

    @property
    def cliffs_delta(self) -> float:
        """Return 2 A12 - 1."""
        return 2 * self.a12 - 1


def mann_whitney(x: ArrayLike, y: ArrayLike, rng: np.random.Generator | None = None) -> RankTest:
    """Test whether x tends to exceed y; -inf (a failure) is the worst rank and ties with itself.

    ``rng`` is needed only beyond the exact range (about 200 replicates in total with ties).
    """
    first, second = as_floats(x, "x", True), as_floats(y, "y", True)
    n, m = first.size, second.size
    weights = doubled_midranks(np.concatenate([first, second]))
    doubled_u = int(weights[:n].sum()) - n * (n + 1)
    untied = bool(np.unique(weights).size == n + m)
    method = "exact"
    if untied and n * m <= _EXACT_PRODUCT:
        tails = _tails(rank_sum_null(n, m), doubled_u // 2)
    elif n + m <= _EXACT_TOTAL_TIED:
        tails = _tied_tails(weights, n)
    else:
        tails, method = _sampled_tails(weights, n, rng), "monte-carlo"
    u = doubled_u / 2
    return RankTest(u, tails, u / (n * m), method)


def a12(x: ArrayLike, y: ArrayLike) -> float:
    """Return U / (nm), the share of pairs that x wins with half of ties (Vargha & Delaney 2000)."""
    first, second = as_floats(x, "x", True), as_floats(y, "y", True)
    n = first.size
    doubled = int(doubled_midranks(np.concatenate([first, second]))[:n].sum()) - n * (n + 1)
    return doubled / (2 * n * second.size)


def hodges_lehmann(x: ArrayLike, y: ArrayLike) -> float:
    """Return the median of all differences x_i - y_j (raw units)."""
    return float(np.median(np.subtract.outer(as_floats(x, "x"), as_floats(y, "y"))))


def shift_interval(x: ArrayLike, y: ArrayLike, level: float) -> Interval | None:
    """Return the interval of the shift that inverts the rank test at two-sided ``level``, or None.

    [D_(k), D_(nm+1-k)] of the ordered differences, k = 1 + max{u : P(U <= u) <= level/2}.
    """
    first, second = as_floats(x, "x"), as_floats(y, "y")
    n, m = first.size, second.size
    differences = np.sort(np.subtract.outer(first, second).ravel())
    if n * m > _EXACT_PRODUCT:
        # normal approximation of the untied null, rounded towards the wider interval
        sd = sqrt(n * m * (n + m + 1) / 12)
        k, coverage = int(np.floor(n * m / 2 + ndtri(level / 2) * sd)), None
        return Interval(float(differences[k - 1]), float(differences[n * m - k]), coverage, k)
    null = rank_sum_null(n, m)
    u = largest_tail(null, level / 2)
    if u is None:
        return None
    coverage = 1 - 2 * float(null[: u + 1].sum())
    return Interval(float(differences[u]), float(differences[n * m - 1 - u]), coverage, u + 1)


def _tails(null: Floats, observed: int) -> TailPs:
    return TailPs(
        greater=min(1.0, float(null[max(observed, 0) :].sum())),
        less=min(1.0, float(null[: observed + 1].sum())),
    )


def _tied_tails(weights: Ints, n: int) -> TailPs:
    # the smaller arm gives the smaller table; common factors of the doubled ranks shrink it further
    total, size = weights.size, n
    observed, flipped = int(weights[:n].sum()), 2 * n > weights.size
    if flipped:
        observed, size = int(weights[n:].sum()), total - n
    base = int(weights.min())
    factor = gcd(*(int(w) - base for w in weights)) or 1
    reduced = tuple(sorted((int(w) - base) // factor for w in weights))
    tails = _tails(subset_sum_null(reduced, size), (observed - size * base) // factor)
    return TailPs(tails.less, tails.greater) if flipped else tails


def _sampled_tails(weights: Ints, n: int, rng: np.random.Generator | None) -> TailPs:
    if rng is None:
        raise ValueError(f"{weights.size} replicates are beyond the exact rank test: pass rng")
    observed = weights[:n].sum()
    above = below = 1
    for _ in range(MONTE_CARLO_DRAWS):
        drawn = rng.permutation(weights)[:n].sum()
        above += bool(drawn >= observed)
        below += bool(drawn <= observed)
    return TailPs(above / (MONTE_CARLO_DRAWS + 1), below / (MONTE_CARLO_DRAWS + 1))


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
