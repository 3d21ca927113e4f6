"""Reference posterior of the mean paired difference: a panel, never the verdict.

With the reference prior theta ~ mean(d) + (s / sqrt n) t_{n-1}. Under early stopping it is not
error-controlled. Unit: the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from app.domain.stats.ties import Floats, as_floats

DRAWS = 100_000


@dataclass(frozen=True)
class Posterior:
    """Posterior probabilities that theta is above delta, within +/- delta, and below -delta."""

    p_above: float
    p_rope: float
    p_below: float


def reference_posterior(d: ArrayLike, sesoi: float) -> Posterior | None:
    """Return the posterior shares; None below two blocks or without variance."""
    differences = as_floats(d, "d")
    if differences.size < 2 or np.ptp(differences) == 0:
        return None
    scale = float(differences.std(ddof=1)) / sqrt(differences.size)
    df, mean = differences.size - 1, float(differences.mean())
    above = float(stdtr(df, (mean - sesoi) / scale))
    below = float(stdtr(df, (-sesoi - mean) / scale))
    return Posterior(above, 1 - above - below, below)


def best_arm(blocks: ArrayLike, rng: np.random.Generator) -> tuple[Floats, Floats] | None:
    """Return for each arm the probability of being best and the expected loss (raw units).

    ``blocks``: oriented scores (n blocks, K arms). Arm means are drawn jointly: a multivariate t
    with the sample covariance of the blocks. None below K + 1 blocks or without variance.
    """
    scores = np.asarray(blocks, dtype=np.float64)
    n, arms = scores.shape
    if n <= arms or np.ptp(scores, axis=0).max() == 0:
        return None
    covariance = np.cov(scores, rowvar=False) / n
    draws = rng.multivariate_normal(np.zeros(arms), covariance, size=DRAWS, method="eigh")
    draws *= np.sqrt((n - 1) / rng.chisquare(n - 1, size=DRAWS))[:, None]
    draws += scores.mean(axis=0)
    best = np.bincount(draws.argmax(axis=1), minlength=arms) / DRAWS
    loss = (draws.max(axis=1, keepdims=True) - draws).mean(axis=0)
    return np.asarray(best), np.asarray(loss)


def failure_probability(k: int, n: int, other_k: int, other_n: int, rng: np.random.Generator) -> float:
    """Return P(first failure rate > second) under independent Beta(1/2, 1/2) priors per replicate."""
    first = rng.beta(k + 0.5, n - k + 0.5, size=DRAWS)
    second = rng.beta(other_k + 0.5, other_n - other_k + 0.5, size=DRAWS)
    return float((first > second).mean())
