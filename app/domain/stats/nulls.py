"""Exact null distributions of rank statistics, cached by sample size.

Probabilities, not counts, so that the same recursion serves n = 4 and n = 200 without overflow.
The tables are read-only arrays: callers share them.
"""

from __future__ import annotations

from functools import lru_cache

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
