"""Unpaired permutation test of means and its inverted interval.

Null hypothesis: arms are exchangeable. Resampling unit: the replicate. All C(n+m, n) splits up to
200,000, else one fixed set of 19,999 random splits plus the identity, shared by the test and its
interval. Studentised (Welch t in the difference's place) it stays right for unequal variances as n grows.

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
_BISECTIONS = 100


@dataclass(frozen=True)
class Splits:
    """Ways to deal n + m scores out to two arms, the identity first.

    ``members``: shape (n + m, splits), 1 where a score goes to the first arm; the first arm's own come first.
    ``from_first``: how many of its scores are the first arm's own.
    """

    members: Floats
    from_first: Floats
    method: str


@dataclass(frozen=True)
class PermutationTest:
    """Difference of means x - y with its permutation p over ``splits`` (one-sided only when not studentised)."""

    x: Floats
    y: Floats
    splits: Splits
    difference: float
    p_greater: float | None
    p_two_sided: float
    method: str
    studentised: _Studentised | None

    def interval(self, level: float) -> Interval | None:
        """Return the interval of the difference that inverts this test on the same splits, or None."""
        if self.studentised is not None:
            return self.studentised.interval(level)
        n, m = self.x.size, self.y.size
        stats = _mean_differences(np.concatenate([self.x, self.y]), self.splits, n, m)
        c = self.splits.from_first / n - (n - self.splits.from_first) / m
        reach = inversion_reach(stats - c * self.difference, c, level)
        if reach is None:
            return None
        return Interval(self.difference - reach[0], self.difference + reach[1])


def permutation_mean(
    x: ArrayLike,
    y: ArrayLike,
    rng: np.random.Generator | None = None,
    studentised: bool = False,
    splits: Splits | None = None,
) -> PermutationTest:
    """Test the difference of means, or its Welch t when studentised (needs two scores an arm).

    Exact under exchangeability; studentised, also asymptotically right for unequal variances (Janssen 1997).
    ``rng``, or the splits themselves, are needed when there are more than 200,000 splits.
    """
    first, second = as_floats(x, "x"), as_floats(y, "y")
    n, m = first.size, second.size
    splits = permutation_splits(n, m, rng) if splits is None else splits
    difference = float(first.mean() - second.mean())
    if studentised and min(n, m) > 1:
        family = _studentise(first, second, splits)
        p = float(family.counts(family.estimate).mean())
        return PermutationTest(first, second, splits, difference, None, p, splits.method, family)
    stats = _mean_differences(np.concatenate([first, second]), splits, n, m)
    limit = TIE * float(np.abs(stats).max(initial=0.0))
    greater = float((stats >= difference - limit).mean())
    both = float((np.abs(stats) >= abs(difference) - limit).mean())
    return PermutationTest(first, second, splits, difference, greater, both, splits.method, None)


def permutation_splits(n: int, m: int, rng: np.random.Generator | None) -> Splits:
    """Return all splits of n + m scores, or 19,999 random ones and the identity beyond 200,000."""
    if comb(n + m, n) <= EXACT_SPLITS:
        return _all_splits(n, m)
    if rng is None:
        raise ValueError(f"C({n + m}, {n}) splits are beyond enumeration: pass rng")
    drawn = np.argsort(rng.random((RANDOM_SPLITS, n + m)), axis=1)[:, :n]
    return _dealt(np.concatenate([np.arange(n)[None, :], drawn]), n, m, "monte-carlo")


@lru_cache(maxsize=8)
def seeded_splits(n: int, m: int, seed: int) -> Splits:
    """Return the splits that all tests of one analysis share: random ones start from the analysis seed."""
    return permutation_splits(n, m, np.random.Generator(np.random.Philox(key=seed)))


@lru_cache(maxsize=8)
def _all_splits(n: int, m: int) -> Splits:
    # combinations come in lexicographic order: row 0 is the identity
    return _dealt(np.array(list(combinations(range(n + m), n)), dtype=np.intp), n, m, "exact")


def _dealt(chosen: NDArray[np.intp], n: int, m: int, method: str) -> Splits:
    members = np.zeros((n + m, len(chosen)))
    np.put_along_axis(members, chosen.T, 1.0, axis=0)
    from_first = members[:n].sum(axis=0)
    members.flags.writeable = from_first.flags.writeable = False
    return Splits(members, from_first, method)


def _mean_differences(pooled: Floats, splits: Splits, n: int, m: int) -> Floats:
    sums = pooled @ splits.members
    return np.asarray(sums / n - (pooled.sum() - sums) / m)


_Terms = tuple[Floats, Floats, Floats, Floats, Floats]


@dataclass(frozen=True)
class _Studentised:
    """Welch t of every split while x - theta and y are dealt out, as a function of u = estimate - theta.

    In units of ``scale`` a split has difference D = r + c u and variance V = v0 + v1 u + v2 u^2; it counts
    against the null where D^2 / V >= u^2 / ``own``, own being the variance of the arms as they are.
    """

    estimate: float
    scale: float
    reach: float
    own: float
    terms: _Terms

    def counts(self, u: float, terms: _Terms | None = None) -> NDArray[np.bool_]:
        """Return which splits are at least as extreme as the arms as they are."""
        r, c, v0, v1, v2 = self.terms if terms is None else terms
        theirs = u**2 * (v0 + u * (v1 + u * v2))
        # 1e-15 u^2: rounding of a variance that is 0
        return np.asarray((r + c * u) ** 2 * self.own >= theirs * (1 - 2 * TIE) - 1e-15 * u**2)

    def interval(self, level: float) -> Interval | None:
        """Return where the two-sided p falls to the level on both sides of the estimate, or None."""
        ends = [self._end(level, sign) for sign in (1.0, -1.0)]
        if ends[0] is None or ends[1] is None:
            return None
        return Interval((self.estimate - ends[0]) * self.scale, (self.estimate - ends[1]) * self.scale)

    def _end(self, level: float, sign: float) -> float | None:
        if not within(float(self.counts(sign * self.reach).mean()), level):
            return None
        inner, outer = self._bracket(level, sign)
        inside, outside = self.counts(inner), self.counts(outer)
        total, fixed = inside.size, int((inside & outside).sum())
        # only splits that change sides between the ends are counted again
        terms, at_inner = _kept(self.terms, inside != outside), inside[inside != outside]
        for _ in range(_BISECTIONS):
            middle = (inner + outer) / 2
            now = self.counts(middle, terms)
            if within((fixed + int(now.sum())) / total, level):
                outer, keep = middle, now != at_inner
            else:
                inner, keep = middle, now == at_inner
            fixed += int(now[~keep].sum())
            terms, at_inner = _kept(terms, keep), at_inner[keep]
            if abs(outer - inner) <= 1e-15 * self.reach:
                break
        return inner

    def _bracket(self, level: float, sign: float) -> tuple[float, float]:
        """Return two distances around the end, near where a t interval would have it."""
        step = sqrt(self.own) * -float(ndtri(level / 2))
        inner, outer = 0.0, self.reach
        for factor in (0.8, 1.6, 3.2):
            if factor * step >= self.reach:
                break
            if within(float(self.counts(sign * factor * step).mean()), level):
                outer = factor * step
                break
            inner = factor * step
        return sign * inner, sign * outer


def _first_half(splits: Splits) -> Splits:
    """Return the splits that keep the first score: with arms of one size the others mirror them, t for -t."""
    half = splits.from_first.size // 2
    return Splits(splits.members[:, :half], splits.from_first[:half], splits.method)


def _kept(terms: _Terms, rows: NDArray[np.bool_]) -> _Terms:
    r, c, v0, v1, v2 = terms
    return r[rows], c[rows], v0[rows], v1[rows], v2[rows]


def _studentise(x: Floats, y: Floats, splits: Splits) -> _Studentised:
    n, m = x.size, y.size
    z = np.concatenate([x - x.mean(), y - y.mean()])
    scale = float(np.abs(z).max()) or 1.0
    z = z / scale
    if n == m and splits.method == "exact":
        splits = _first_half(splits)
    first = np.concatenate([z[:n], np.zeros(m)])
    # sums over the split's first group: of z, of its squares, and of the first arm's own z
    total, squares, crossed = np.stack([z, z**2, first]) @ splits.members
    k, own_squares = splits.from_first, (float((z[:n] ** 2).sum()), float((z[n:] ** 2).sum()))
    rest_squares, rest = sum(own_squares) - squares, n - k
    a, b = n * (n - 1), m * (m - 1)
    v0 = (squares - total**2 / n) / a + (rest_squares - total**2 / m) / b
    v1 = 2 * (crossed - total * k / n) / a - 2 * (crossed - total * rest / m) / b
    v2 = (k - k**2 / n) / a + (rest - rest**2 / m) / b
    estimate = float(x.mean() - y.mean()) / scale
    # for two constant arms any distance will do: no other split can be as extreme as they are
    reach = 4 * (float(np.ptp(x)) + float(np.ptp(y))) / scale or 1.0
    own = own_squares[0] / a + own_squares[1] / b
    return _Studentised(estimate, scale, reach, own, (total / n + total / m, k / n - rest / m, v0, v1, v2))


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
