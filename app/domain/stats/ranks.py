"""Unpaired rank test (Mann & Whitney 1947) and the Hodges-Lehmann shift with its interval.

Null hypothesis: both arms' scores come from one distribution. Resampling unit: the replicate.
The conditional null is exact with ties (dynamic programming over doubled mid-ranks); beyond the
exact range it is sampled. The interval describes the shift between arms, not single runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from app.domain.stats.attain import largest_tail
from app.domain.stats.nulls import rank_sum_null, subset_sum_null
from app.domain.stats.results import Interval, TailPs
from app.domain.stats.ties import Floats, Ints, as_floats, doubled_midranks

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
