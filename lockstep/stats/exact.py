"""What an exact test can reach: smallest p, smallest n and attained levels.

Used to refuse a design that could never reject, and to print why. Null hypothesis throughout:
the arms are exchangeable (within a block when paired). Resampling unit: the replicate.

Exact null distributions of rank statistics, cached by sample size.

Probabilities, not counts, so that the same recursion serves n = 4 and n = 200 without overflow.
The tables are read-only arrays: callers share them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@lru_cache(maxsize=256)
def rank_sum_null(n: int, m: int) -> Floats:
    """Return P(U = u), u = 0..nm, of the untied Mann-Whitney null of sizes n and m.

    Mann & Whitney 1947: f(n, m, u) = f(n-1, m, u-m) + f(n, m-1, u), here divided by C(n+m, n).
    """
    if n < 1 or m < 1:
        raise ValueError(f"rank_sum_null needs n, m >= 1, got n = {n}, m = {m}")
    row = [np.ones(1) for _ in range(m + 1)]
    for i in range(1, n + 1):
        row = _next_row(row, i)
    return _frozen(row[m])


@lru_cache(maxsize=256)
def signed_rank_null(n: int) -> Floats:
    """Return P(V = v), v = 0..n(n+1)/2, of the untied Wilcoxon signed-rank null."""
    if n < 1:
        raise ValueError(f"signed_rank_null needs n >= 1, got {n}")
    return _frozen(sign_sum_null(tuple(range(1, n + 1))))


def sign_sum_null(weights: tuple[int, ...]) -> Floats:
    """Return P(sum of a random half of the weights = v) for non-negative integer weights.

    Each weight enters the sum with probability 1/2, independently (signs of exchangeable
    differences). Index v runs from 0 to the sum of the weights.
    """
    null = np.zeros(sum(weights) + 1)
    null[0] = 1.0
    top = 0
    for weight in weights:
        shifted = null[: top + 1].copy()
        null[: top + 1] *= 0.5
        null[weight : weight + top + 1] += 0.5 * shifted
        top += weight
    return null


def subset_sum_null(weights: tuple[int, ...], size: int) -> Floats:
    """Return P(sum of ``size`` weights drawn without replacement = v), integer weights >= 0.

    Dynamic programming over items; entry (k, v) is the probability that the first j items gave
    k chosen items of sum v when every subset of the full set is equally likely.
    """
    total = len(weights)
    top = sum(sorted(weights)[total - size :])
    table = np.zeros((size + 1, top + 1))
    table[0, 0] = 1.0
    for weight in weights:
        grown = table[:-1, : top + 1 - weight].copy()
        table[1:, weight:] += grown
    counts = table[size]
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def _next_row(row: list[Floats], i: int) -> list[Floats]:
    grown = [np.ones(1)]
    for j in range(1, len(row)):
        cell = np.zeros(i * j + 1)
        # P(i, j, u) = i/(i+j) P(i-1, j, u-j) + j/(i+j) P(i, j-1, u)
        cell[j:] += i / (i + j) * row[j]
        cell[: i * (j - 1) + 1] += j / (i + j) * grown[j - 1]
        grown.append(cell)
    return grown


def _frozen(values: Floats) -> Floats:
    values.flags.writeable = False
    return values


#: Levels are compared with this relative slack, so that 2/40 <= .05 holds in floating point.
LEVEL_SLACK = 1e-9
_SEARCH_LIMIT = 64


def within(p: float, level: float) -> bool:
    """Return whether ``p <= level``, forgiving float noise."""
    return p <= level * (1 + LEVEL_SLACK)


def min_p_paired(n: int) -> float:
    """Return 2 / 2^n (at most 1), the smallest two-sided p of sign-flip and signed-rank tests."""
    return min(1.0, 2.0 / 2.0 ** min(n, 1000)) if n > 0 else 1.0


def min_p_unpaired(n: int, m: int) -> float:
    """Return 2 / C(n+m, n) (at most 1), the smallest two-sided p of rank and permutation tests."""
    return min(1.0, 2 / comb(n + m, n)) if n > 0 and m > 0 else 1.0


def min_p(paired: bool, n: int, m: int | None = None) -> float:
    """Return the smallest attainable two-sided p of the exact test of a design."""
    return min_p_paired(n) if paired else min_p_unpaired(n, n if m is None else m)


def smallest_n(level: float, paired: bool) -> int:
    """Return the smallest number of replicates per arm whose exact test can reach ``level``."""
    return _first(lambda n: within(min_p(paired, n), level))


def mann_whitney_critical(n: int, m: int, alpha: float) -> int | None:
    """Return the largest u with 2 P(U <= u) <= alpha under the untied null, or None."""
    return largest_tail(rank_sum_null(n, m), alpha / 2)


def largest_tail(null: np.ndarray, tail: float) -> int | None:
    """Return the largest index u with P(X <= u) <= tail for a null table, or None."""
    reached = np.flatnonzero(np.cumsum(null) <= tail * (1 + LEVEL_SLACK))
    return int(reached[-1]) if reached.size else None


def attained_sign_flip(n: int, alpha: float) -> float:
    """Return the largest attainable two-sided level <= alpha of the untied sign-flip test."""
    count = int(np.floor(alpha / 2 * 2.0**n * (1 + LEVEL_SLACK)))
    return 2 * count / 2.0**n


def attained_signed_rank(n: int, alpha: float) -> float:
    """Return the largest attainable two-sided level <= alpha of the untied signed-rank test."""
    return _attained(signed_rank_null(n), alpha)


def attained_mann_whitney(n: int, m: int, alpha: float) -> float:
    """Return the largest attainable two-sided level <= alpha of the untied rank test."""
    return _attained(rank_sum_null(n, m), alpha)


def _attained(null: np.ndarray, alpha: float) -> float:
    index = largest_tail(null, alpha / 2)
    return 0.0 if index is None else float(2 * null[: index + 1].sum())


def _first(holds: Callable[[int], bool]) -> int:
    for n in range(1, _SEARCH_LIMIT):
        if holds(n):
            return n
    raise ValueError(f"no number of replicates below {_SEARCH_LIMIT} reaches this level")
