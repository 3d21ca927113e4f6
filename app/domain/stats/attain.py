"""What an exact test can reach: smallest p, smallest n and attained levels.

Used to refuse a design that could never reject, and to print why. Null hypothesis throughout:
the arms are exchangeable (within a block when paired). Resampling unit: the replicate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np

from app.domain.stats.nulls import rank_sum_null, signed_rank_null

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


def smallest_n_anytime(alpha: float) -> int:
    """Return the smallest n with 2^n / 2 >= 1/alpha, before which no sign e-value can reject."""
    return _first(lambda n: 2.0**n / 2 * alpha >= 1 - LEVEL_SLACK)


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
