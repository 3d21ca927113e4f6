"""Joint comparison of learning curves at registered steps by whole-curve sign flips.

Null hypothesis: the arms' curves are exchangeable within a block. Unit: the block (evaluations of
one run are dependent, so a block's whole curve keeps one sign). "Above at step t" may be said only
where the adjusted p is at most alpha.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from app.domain.stats.multiplicity import sign_vectors
from app.domain.stats.ties import TIE, Floats

EXACT_BLOCKS = 14
RANDOM_FLIPS = 19_999


@dataclass(frozen=True)
class CurveMaxT:
    """Statistic and adjusted p per step; ``p_any`` is the p of "some step differs"."""

    statistics: tuple[float, ...]
    p_adjusted: tuple[float, ...]
    p_any: float


def curve_max_t(d: ArrayLike, rng: np.random.Generator | None = None) -> CurveMaxT:
    """Test difference curves, shape (n blocks, J steps), finite; ``rng`` is needed beyond 14 blocks."""
    differences = np.asarray(d, dtype=np.float64)
    if differences.ndim != 2 or not np.isfinite(differences).all():
        raise ValueError("difference curves must be a finite (blocks, steps) table; put failed runs at the floor")
    norms = np.sqrt((differences**2).sum(axis=0))
    scaled = np.divide(differences, norms, out=np.zeros_like(differences), where=norms > 0)
    # T_j(s) = |sum_r s_r d_rj| / sqrt(sum_r d_rj^2), 0 for an all-zero column
    largest = np.concatenate([np.abs(s @ scaled).max(axis=1) for s in _flips(len(differences), rng)])
    observed = np.abs(scaled.sum(axis=0))
    limit = TIE * len(differences)
    adjusted = tuple(float((largest >= value - limit).mean()) for value in observed)
    return CurveMaxT(tuple(float(v) for v in observed), adjusted, min(adjusted))


def _flips(n: int, rng: np.random.Generator | None) -> list[Floats]:
    if n <= EXACT_BLOCKS:
        return [sign_vectors(n)]
    if rng is None:
        raise ValueError(f"{n} blocks are beyond all sign flips: pass rng")
    drawn = rng.integers(0, 2, size=(RANDOM_FLIPS, n)) * 2.0 - 1.0
    return [np.ones((1, n)), np.asarray(drawn, dtype=np.float64)]
