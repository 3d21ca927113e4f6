"""Bias-corrected accelerated bootstrap over replicates (Efron & Tibshirani 1993, ch. 14).

Resampling unit: the replicate (the block when paired). Refused below ten replicates: percentile
intervals of a mean difference cover 82 % at n = 5. The interval describes the statistic, not runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from app.domain.stats.results import Interval
from app.domain.stats.ties import Floats, as_floats

MIN_REPLICATES = 10
#: Maps samples in rows (B, n) to B values.
RowStatistic = Callable[[Floats], Floats]


@dataclass(frozen=True)
class BcaResult:
    """The estimate with z0, acceleration, percentile levels and interval (None parts: degenerate)."""

    theta: float
    z0: float | None
    acceleration: float | None
    levels: tuple[float, float] | None
    interval: Interval


def row_mean(samples: Floats) -> Floats:
    """Return the mean of each row."""
    return np.asarray(samples.mean(axis=1))


def row_plug_in_variance(samples: Floats) -> Floats:
    """Return the variance of each row with divisor n."""
    return np.asarray(samples.var(axis=1))


def row_sd(samples: Floats) -> Floats:
    """Return the SD of each row with divisor n - 1."""
    return np.asarray(samples.std(axis=1, ddof=1))


def row_median(samples: Floats) -> Floats:
    """Return the median of each row."""
    return np.asarray(np.median(samples, axis=1))


def row_interquartile_mean(samples: Floats) -> Floats:
    """Return the interquartile mean of each row."""
    ordered = np.sort(samples, axis=1)
    cut = ordered.shape[1] // 4
    return np.asarray(ordered[:, cut : ordered.shape[1] - cut].mean(axis=1))


def bootstrap_rows(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Return ``resamples`` rows drawn with replacement."""
    return values[rng.integers(0, values.size, size=(resamples, values.size))]


def all_rows(values: Floats) -> Floats:
    """Return all n^n resamples (a check of the formula for very small n)."""
    if values.size > 6:
        raise ValueError(f"all resamples of {values.size} values are too many: give a number of resamples")
    return np.array(list(product(values, repeat=values.size)))


def bca(
    values: ArrayLike, statistic: RowStatistic, level: float, resamples: int, rng: np.random.Generator
) -> BcaResult:
    """Return the BCa interval over at least ten replicates; a degenerate sample gives a point."""
    sample = as_floats(values, "values")
    if sample.size < MIN_REPLICATES:
        raise ValueError(f"a bootstrap interval needs {MIN_REPLICATES} replicates, got {sample.size}")
    return bca_from_rows(sample, statistic, level, bootstrap_rows(sample, resamples, rng))


def bca_from_rows(sample: Floats, statistic: RowStatistic, level: float, rows: Floats) -> BcaResult:
    """Return the BCa interval from given resamples (rows)."""
    theta = float(statistic(sample[None, :])[0])
    boot = np.sort(_in_chunks(rows, statistic))
    jackknife = statistic(np.array([np.delete(sample, i) for i in range(sample.size)]))
    deviations = jackknife.mean() - jackknife
    spread = float((deviations**2).sum())
    below = float((boot < theta).mean() + 0.5 * (boot == theta).mean())
    if spread == 0 or below in (0.0, 1.0):
        return BcaResult(theta, None, None, None, Interval(theta, theta))
    z0 = float(ndtri(below))
    acceleration = float((deviations**3).sum()) / (6 * spread**1.5)
    levels = _adjusted(z0, acceleration, (1 - level) / 2), _adjusted(z0, acceleration, (1 + level) / 2)
    low, high = np.quantile(boot, levels)
    return BcaResult(theta, z0, acceleration, levels, Interval(float(low), float(high)))


def _adjusted(z0: float, acceleration: float, probability: float) -> float:
    # Efron & Tibshirani 1993, eq. 14.10
    z = z0 + float(ndtri(probability))
    return float(ndtr(z0 + z / (1 - acceleration * z)))


def _in_chunks(rows: Floats, statistic: RowStatistic) -> Floats:
    return np.concatenate([statistic(rows[i : i + 50_000]) for i in range(0, len(rows), 50_000)])
