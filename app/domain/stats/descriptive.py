"""Descriptive figures that never enter a verdict: episodes, blocks and completion.

A larger episode count never repairs between-replicate variance; these figures show why.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc

from app.domain.stats.ties import doubled_midranks


@dataclass(frozen=True)
class ChiSquare:
    """A chi-square statistic; None when it is undefined (no variation)."""

    chi2: float | None
    df: int
    p: float | None


def effective_size(n: int, phi: float) -> tuple[float, float]:
    """Return asymptotic and exact effective sample size of n AR(1) episodes with coefficient phi."""
    if not -1 < phi < 1:
        raise ValueError(f"phi must lie in (-1, 1), got {phi}")
    lags = np.arange(1, n)
    inflation = 1 + 2 * float(((1 - lags / n) * phi**lags).sum())
    return n * (1 - phi) / (1 + phi), n / inflation


def design_effect(m: int, icc: float, num_seeds: int) -> tuple[float, float]:
    """Return 1 + (m-1) ICC and the effective n per arm of ``num_seeds`` clusters of m episodes."""
    effect = 1 + (m - 1) * icc
    return effect, num_seeds * m / effect


def friedman(blocks: ArrayLike) -> ChiSquare:
    """Return the tie-corrected Friedman statistic of scores (n blocks, K arms)."""
    scores = np.asarray(blocks, dtype=np.float64)
    n, arms = scores.shape
    ranks = np.array([doubled_midranks(row) for row in scores]) / 2
    centred = ranks.sum(axis=0) - n * (arms + 1) / 2
    spread = float((ranks**2).sum() - n * arms * (arms + 1) ** 2 / 4)
    if spread <= 0:
        return ChiSquare(None, arms - 1, None)
    chi2 = float((arms - 1) * (centred**2).sum() / spread)
    return ChiSquare(chi2, arms - 1, float(chdtrc(arms - 1, chi2)))


def completion(observed: ArrayLike, expected: ArrayLike) -> ChiSquare:
    """Return the chi-square of completed replicates per arm against those expected."""
    seen, planned = np.asarray(observed, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    if seen.shape != planned.shape or (planned <= 0).any():
        raise ValueError("observed and expected must be of one length, expected > 0")
    chi2 = float(((seen - planned) ** 2 / planned).sum())
    return ChiSquare(chi2, seen.size - 1, float(chdtrc(seen.size - 1, chi2)))
