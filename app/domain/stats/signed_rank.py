"""Paired signed-rank test with zeros by Pratt (1959), and the Walsh-average interval.

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

from app.domain.stats.attain import largest_tail
from app.domain.stats.nulls import sign_sum_null, signed_rank_null
from app.domain.stats.results import Interval, TailPs
from app.domain.stats.ties import Floats, as_floats, doubled_midranks, tolerance


@dataclass(frozen=True)
class SignedRankTest:
    """V = sum of the ranks of positive differences, with exact tails."""

    v: float
    p: TailPs


def signed_rank(d: ArrayLike) -> SignedRankTest:
    """Test whether paired differences tend to be positive; all zero gives p = 1."""
    differences = as_floats(d, "d")
    differences = np.where(np.abs(differences) <= tolerance(differences), 0.0, differences)
    ranks = doubled_midranks(np.abs(differences))
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
