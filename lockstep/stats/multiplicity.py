"""Corrections for several comparisons: Holm, Benjamini-Hochberg, max-T with the pair guard.

Adjusted p values are monotone and at most 1. A missing p (None) counts in the number of tests as
1 and stays missing. Unpaired companions (Tukey, Games-Howell, Dunnett) come from scipy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import factorial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import dunnett, tukey_hsd

from lockstep.stats.exact import within
from lockstep.stats.paired import sign_flip
from lockstep.stats.results import TIE, Floats

MAX_T_ENUMERATION = 50_000
MAX_T_DRAWS = 19_999


@dataclass(frozen=True)
class MaxTBlocks:
    """Within-block permutation: |mean difference| of each pair, single-step and guarded p."""

    statistics: tuple[float, ...]
    p_max_t: tuple[float, ...]
    p_pair: tuple[float, ...]
    p_adjusted: tuple[float, ...]
    num_permutations: int


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return Holm step-down adjusted p: the running maximum of (m - i + 1) p_(i)."""
    order = sorted(range(len(ps)), key=lambda i: _or_one(ps[i]))
    adjusted: list[float | None] = [None] * len(ps)
    running = 0.0
    for i, index in enumerate(order):
        running = max(running, min(1.0, (len(ps) - i) * _or_one(ps[index])))
        adjusted[index] = None if ps[index] is None else running
    return adjusted


def holm_levels(ps: Sequence[float | None], level: float) -> list[float]:
    """Return for each test the level of its Holm step: p is at most this exactly when adjusted p is at most ``level``.

    Step i of m tests at level / (m - i); tests after the first that fails share that one's level, because
    nothing more was rejected that could make room for them.
    """
    order = sorted(range(len(ps)), key=lambda i: _or_one(ps[i]))
    levels = [level] * len(ps)
    step = 0
    for i, index in enumerate(order):
        levels[index] = level / (len(ps) - step)
        if step == i and within(_or_one(ps[index]), levels[index]):
            step += 1
    return levels


def max_t_levels(ps: Sequence[float], adjusted: Sequence[float], level: float) -> list[float]:
    """Return level x p / adjusted p where the adjusted p rejects, level / m elsewhere."""
    m = len(ps)
    return [level * p / q if within(q, level) and p > 0 else level / m for p, q in zip(ps, adjusted, strict=True)]


def benjamini_hochberg(ps: Sequence[float | None]) -> list[float | None]:
    """Return BH step-up adjusted p: the running minimum, from the top, of m p_(i) / i."""
    order = sorted(range(len(ps)), key=lambda i: _or_one(ps[i]))
    adjusted: list[float | None] = [None] * len(ps)
    running = 1.0
    for i in reversed(range(len(order))):
        running = min(running, len(ps) * _or_one(ps[order[i]]) / (i + 1))
        adjusted[order[i]] = None if ps[order[i]] is None else running
    return adjusted


def max_t_blocks(
    blocks: ArrayLike,
    pairs: Sequence[tuple[int, int]],
    rng: np.random.Generator | None = None,
    p_pair: Sequence[float] | None = None,
    noise: float | None = None,
) -> MaxTBlocks:
    """Return single-step max-T over pairs with the pair guard p_adj = max(p_maxT, own exact p).

    Args:
        blocks: scores, shape (n blocks, K arms), finite.
        pairs: index pairs.
        rng: needed when (K!)^n exceeds 50,000.
        p_pair: own exact p of each pair; default the sign-flip p.
        noise: score differences that count as ties, per block; default 1e-9 times the mean |score|.

    Null hypothesis: arms are exchangeable within a block. Unit: the block. Strong control at
    K = 3; for K >= 4 exact under the global null only.
    """
    scores = np.asarray(blocks, dtype=np.float64)
    own = [sign_flip(scores[:, i] - scores[:, j], rng).two_sided for i, j in pairs] if p_pair is None else p_pair
    sums = _permuted_sums(scores, rng)
    first, second = np.array([i for i, _ in pairs]), np.array([j for _, j in pairs])
    spread = np.abs(sums[:, first] - sums[:, second])
    largest, observed = spread.max(axis=1), spread[0]
    limit = TIE * float(np.abs(scores).sum(axis=0).max()) if noise is None else noise * len(scores)
    shares = [float((largest >= value - limit).mean()) for value in observed]
    adjusted = tuple(max(a, float(b)) for a, b in zip(shares, own, strict=True))
    means = tuple(float(value) for value in observed / len(scores))
    return MaxTBlocks(means, tuple(shares), tuple(float(p) for p in own), adjusted, len(sums))


def tukey(groups: Sequence[ArrayLike], equal_variances: bool) -> dict[tuple[int, int], float]:
    """Return Tukey HSD (equal variances) or Games-Howell p for all pairs of unpaired arms."""
    result = tukey_hsd(*(np.asarray(g, dtype=np.float64) for g in groups), equal_var=equal_variances)
    size = len(groups)
    return {(i, j): float(result.pvalue[i, j]) for i in range(size) for j in range(i + 1, size)}


def dunnett_test(
    arms: Sequence[ArrayLike], control: ArrayLike, rng: np.random.Generator
) -> tuple[list[float], list[float]]:
    """Return Dunnett many-to-one t and two-sided p (quasi-Monte-Carlo: the generator is used)."""
    result = dunnett(*(np.asarray(a, dtype=np.float64) for a in arms), control=np.asarray(control), rng=rng)
    return [float(t) for t in result.statistic], [float(p) for p in result.pvalue]


def _or_one(p: float | None) -> float:
    return 1.0 if p is None else p


def _permuted_sums(scores: Floats, rng: np.random.Generator | None) -> Floats:
    """Return column sums (B, K) under within-block permutations, the identity first."""
    n, arms = scores.shape
    if factorial(arms) ** n <= MAX_T_ENUMERATION:
        sums = np.zeros((1, arms))
        for block in scores:
            options = np.array(list(permutations(block)))
            sums = (sums[:, None, :] + options[None, :, :]).reshape(-1, arms)
        return sums
    if rng is None:
        raise ValueError(f"({arms}!)^{n} permutations are beyond enumeration: pass rng")
    orders = np.argsort(rng.random((MAX_T_DRAWS, n, arms)), axis=2)
    drawn = np.take_along_axis(np.broadcast_to(scores, orders.shape), orders, axis=2).sum(axis=1)
    return np.concatenate([scores.sum(axis=0)[None, :], drawn])


@lru_cache(maxsize=32)
def sign_vectors(n: int) -> NDArray[np.float64]:
    """Return all 2^n sign vectors as rows, the identity first (n <= 14)."""
    vectors = np.array(list(product((1.0, -1.0), repeat=n)))
    vectors.flags.writeable = False
    return vectors
