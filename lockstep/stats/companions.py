"""t companions: Welch, paired t and their two one-sided (equivalence) tests.

Null hypothesis: equal means under (approximately) normal replicate scores. Unit: the replicate.
A zero standard error gives no t inference: p = 1 for equal means, otherwise nothing, never 0.

Bias-corrected accelerated bootstrap over replicates (Efron & Tibshirani 1993, ch. 14).

Resampling unit: the replicate (the block when paired). Refused below ten replicates: percentile
intervals of a mean difference cover 82 % at n = 5. The interval describes the statistic, not runs.

Standardised effect sizes, always printed after the raw units they accompany.

Reference posterior of the mean paired difference: a panel, never the verdict.

With the reference prior theta ~ mean(d) + (s / sqrt n) t_{n-1}. Under early stopping it is not
error-controlled. Unit: the block.

Robust summaries of replicates (secondary, ten or more replicates; Agarwal et al. 2021).

Each describes the spread or centre of replicate scores; none enters a verdict.

Variation between runs: tolerance intervals, which describe runs, not means.

Normal factors are exact (Odeh & Owen); the distribution-free interval is [min, max] (Wilks).

Descriptive figures that never enter a verdict: episodes, blocks and completion.

A larger episode count never repairs between-replicate variance; these figures show why.

Leave-one-block-out: how far one block carries the result. Descriptive; never the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import exp, lgamma, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import chdtrc, ndtr, ndtri, stdtr, stdtrit

from lockstep.stats.exact import within
from lockstep.stats.paired import sign_flip, signed_rank
from lockstep.stats.results import TIE, Floats, Interval, as_floats, doubled_midranks, pooled_sd, sd
from lockstep.stats.unpaired import a12


@dataclass(frozen=True)
class TTest:
    """A t test of a difference; without variance only ``estimate`` and perhaps ``p`` are known."""

    estimate: float
    se: float
    t: float | None
    df: float | None
    p: float | None

    def interval(self, level: float) -> Interval | None:
        """Return the 1 - level interval of the difference, or None without a standard error."""
        if self.t is None or self.df is None:
            return None
        half = float(stdtrit(self.df, 1 - level / 2)) * self.se
        return Interval(self.estimate - half, self.estimate + half, 1 - level)


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests against (-bound, bound) (Schuirmann 1987)."""

    bound: float
    t_lower: float | None
    t_upper: float | None
    df: float | None
    p_lower: float | None
    p_upper: float | None
    interval: Interval | None
    equivalent: bool

    @property
    def p(self) -> float | None:
        """Return the larger of the two one-sided p values."""
        if self.p_lower is None or self.p_upper is None:
            return None
        return max(self.p_lower, self.p_upper)


def welch(x: ArrayLike, y: ArrayLike) -> TTest:
    """Welch t test of mean(x) - mean(y) with Satterthwaite degrees of freedom."""
    first, second = as_floats(x, "x"), as_floats(y, "y")
    return welch_from_summary(_summary(first), _summary(second))


def welch_from_summary(first: tuple[float, float, int], second: tuple[float, float, int]) -> TTest:
    """Welch t test from (mean, SD, n) of both arms."""
    (m1, s1, n1), (m2, s2, n2) = first, second
    difference = m1 - m2
    if n1 < 2 or n2 < 2:
        return TTest(difference, 0.0, None, None, None)
    unit = max(s1, s2)
    if unit == 0:
        return _without_variance(difference, max(abs(m1), abs(m2)))
    v1, v2 = (s1 / unit) ** 2 / n1, (s2 / unit) ** 2 / n2
    # Satterthwaite
    df = (v1 + v2) ** 2 / (v1**2 / (n1 - 1) + v2**2 / (n2 - 1))
    return _t_test(difference, unit * sqrt(v1 + v2), df)


def paired_t(d: ArrayLike) -> TTest:
    """Paired t test of the mean difference."""
    differences = as_floats(d, "d")
    mean, spread, n = _summary(differences)
    if n < 2:
        return TTest(mean, 0.0, None, None, None)
    if spread == 0:
        return _without_variance(mean, abs(mean))
    return _t_test(mean, spread / sqrt(n), n - 1)


def equivalence(test: TTest, bound: float, alpha: float = 0.05) -> Equivalence:
    """Return the two one-sided tests of a t test at one-sided ``alpha``."""
    interval = test.interval(2 * alpha)
    if test.t is None or test.df is None or interval is None:
        return Equivalence(bound, None, None, None, None, None, None, False)
    lower, upper = (test.estimate + bound) / test.se, (test.estimate - bound) / test.se
    p_lower, p_upper = 1 - float(stdtr(test.df, lower)), float(stdtr(test.df, upper))
    return Equivalence(bound, lower, upper, test.df, p_lower, p_upper, interval, interval.inside(bound))


def _summary(values: Floats) -> tuple[float, float, int]:
    if values.size < 2 or np.ptp(values) <= TIE * float(np.abs(values).max()):
        return float(values.mean()), 0.0, values.size
    return float(values.mean()), sd(values), values.size


def _without_variance(difference: float, scale: float) -> TTest:
    equal = abs(difference) <= TIE * scale
    return TTest(difference, 0.0, None, None, 1.0 if equal else None)


def _t_test(difference: float, se: float, df: float) -> TTest:
    t = difference / se
    return TTest(difference, se, t, df, min(1.0, 2 * float(stdtr(df, -abs(t)))))


def equivalence_bound(bound_d: float, sd1: float, sd2: float) -> float:
    """Return an equivalence bound given in SD units as raw units: d x sqrt((sd1^2 + sd2^2) / 2)."""
    return bound_d * sqrt((sd1**2 + sd2**2) / 2)


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


@dataclass(frozen=True)
class EffectSizes:
    """Cohen d, its correction J, Hedges g (None without variance), A12 and Cliff delta of x over y."""

    cohen_d: float | None
    j: float | None
    g: float | None
    a12: float
    cliffs_delta: float


def hedges_correction(nu: float) -> float:
    """Return J(nu) = Gamma(nu/2) / (sqrt(nu/2) Gamma((nu-1)/2)), exact form (Hedges 1981)."""
    return exp(lgamma(nu / 2) - lgamma((nu - 1) / 2)) / sqrt(nu / 2)


def effect_sizes(x: ArrayLike, y: ArrayLike) -> EffectSizes:
    """Return effect sizes of two arms of finite scores, pooled SD."""
    first, second = as_floats(x, "x"), as_floats(y, "y")
    share = a12(first, second)
    nu = first.size + second.size - 2
    if first.size < 2 or second.size < 2:
        return EffectSizes(None, None, None, share, 2 * share - 1)
    pooled = pooled_sd(first, second)
    scale = max(float(np.abs(first).max()), float(np.abs(second).max()))
    if pooled <= TIE * scale:
        return EffectSizes(None, hedges_correction(nu), None, share, 2 * share - 1)
    d = float((first.mean() - second.mean()) / pooled)
    j = hedges_correction(nu)
    return EffectSizes(d, j, d * j, share, 2 * share - 1)


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
    scale = sd(differences) / sqrt(differences.size)
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
    unit = float(np.abs(scores).max())
    scores = scores / unit
    covariance = np.cov(scores, rowvar=False) / n
    draws = rng.multivariate_normal(np.zeros(arms), covariance, size=DRAWS, method="eigh")
    draws *= np.sqrt((n - 1) / rng.chisquare(n - 1, size=DRAWS))[:, None]
    draws += scores.mean(axis=0)
    best = np.bincount(draws.argmax(axis=1), minlength=arms) / DRAWS
    loss = unit * (draws.max(axis=1, keepdims=True) - draws).mean(axis=0)
    return np.asarray(best), np.asarray(loss)


def failure_probability(k: int, n: int, other_k: int, other_n: int, rng: np.random.Generator) -> float:
    """Return P(first failure rate > second) under independent Beta(1/2, 1/2) priors per replicate."""
    first = rng.beta(k + 0.5, n - k + 0.5, size=DRAWS)
    second = rng.beta(other_k + 0.5, other_n - other_k + 0.5, size=DRAWS)
    return float((first > second).mean())


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


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


@lru_cache(maxsize=256)
def normal_factor(n: int, content: float = 0.95, confidence: float = 0.95) -> float:
    """Return k so that mean +/- k SD covers ``content`` of runs with the given confidence."""
    if n < 2:
        raise ValueError(f"a tolerance interval needs n >= 2 replicates, got {n}")
    # z = sqrt(n) x mean has density 2 phi(z) on z > 0
    top = 9.0
    z = (np.asarray(_NODES) + 1) / 2 * top
    weights = np.asarray(_WEIGHTS) * top * np.exp(-0.5 * z**2) / sqrt(2 * np.pi)
    radii = np.array([_radius(float(v) / sqrt(n), content) for v in z])

    def lack(k: float) -> float:
        # P(chi2_{n-1} > (n-1) r(z)^2 / k^2), averaged over z
        return float(weights @ chdtrc(n - 1, (n - 1) * radii**2 / k**2)) - confidence

    return float(brentq(lack, 0.1, 1e5, xtol=1e-10))


def nonparametric_n(content: float, confidence: float) -> int:
    """Return the smallest n with 1 - n b^(n-1) + (n-1) b^n >= confidence, for [min, max]."""
    n = 2
    while 1 - n * content ** (n - 1) + (n - 1) * content**n < confidence:
        n += 1
    return n


def _radius(shift: float, content: float) -> float:
    def lack(r: float) -> float:
        return float(ndtr(shift + r) - ndtr(shift - r)) - content

    return float(brentq(lack, 0.0, shift + 10.0, xtol=1e-12))


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


@dataclass(frozen=True)
class LeaveOneOut:
    """Range of p over the leave-one-out sets, and whether any block flips p <= alpha."""

    p_full: float
    p_range: tuple[float, float]
    any_flip: bool


def leave_one_out(d: ArrayLike, test: str, alpha: float, rng: np.random.Generator | None = None) -> LeaveOneOut:
    """Recompute a paired test without each block in turn (n >= 2)."""
    differences = as_floats(d, "d")
    if differences.size < 2:
        raise ValueError("leave-one-out needs at least two blocks")
    full = paired_p(differences, test, rng)
    left_out = [paired_p(np.delete(differences, i), test, rng) for i in range(differences.size)]
    flips = any(within(p, alpha) != within(full, alpha) for p in left_out)
    return LeaveOneOut(full, (min(left_out), max(left_out)), flips)


def paired_p(d: ArrayLike, test: str, rng: np.random.Generator | None = None) -> float:
    """Return the two-sided p of a named paired test: sign_flip, signed_rank or paired_t."""
    if test == "sign_flip":
        return sign_flip(d, rng).two_sided
    if test == "signed_rank":
        return signed_rank(d).p.two_sided
    if test == "paired_t":
        p = paired_t(d).p
        return 1.0 if p is None else p
    raise ValueError(f"test must be sign_flip, signed_rank or paired_t, got {test!r}")
