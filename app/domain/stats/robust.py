"""Robust summaries of replicates (secondary, ten or more replicates; Agarwal et al. 2021).

Each describes the spread or centre of replicate scores; none enters a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from app.domain.stats.ranks import a12
from app.domain.stats.ties import Floats, as_floats


def interquartile_mean(values: ArrayLike) -> float:
    """Return the mean after dropping floor(n/4) values on each side (nothing for n <= 3)."""
    ordered = np.sort(as_floats(values, "values"))
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def probability_of_improvement(x_tasks: Sequence[ArrayLike], y_tasks: Sequence[ArrayLike]) -> float:
    """Return the mean over tasks of U/(nm); it is not the probability of winning a pair."""
    if len(x_tasks) != len(y_tasks) or not x_tasks:
        raise ValueError(f"both arms need the same tasks, got {len(x_tasks)} and {len(y_tasks)}")
    wins = [a12(x, y) for x, y in zip(x_tasks, y_tasks, strict=True)]
    return float(np.mean(wins))


def profile(values: ArrayLike, thresholds: ArrayLike) -> Floats:
    """Return the share of replicates with score > tau for each tau of a common grid."""
    scores = as_floats(values, "values")
    return np.asarray((scores[:, None] > np.asarray(thresholds, dtype=np.float64)[None, :]).mean(axis=0))
