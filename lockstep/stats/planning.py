"""Sample sizes by formula, for orientation and as where a search by simulation begins; never from an observed effect.

What a registered design finds is simulated in ``power``. Two-sided t tests at a level; the alternative is a shift of
``delta`` raw units against an assumed or bounded SD (of paired differences, or within an arm when unpaired). Rank
estimands use the asymptotic relative efficiency .955 of Wilcoxon tests under normality.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isnan, sqrt

from scipy.stats import chi2, nct, norm, t

from lockstep.stats.exact import smallest_n

RANK_EFFICIENCY = 0.955
_RANK_ESTIMANDS = ("shift", "p_superiority")
_MAX_N = 100_000


@dataclass(frozen=True)
class ReplicatesNeeded:
    """Replicates per arm in total: with the SD as seen, and with its upper 80 % bound."""

    plugin: int
    upper80: int
    more: tuple[int, int]


def t_power(effect: float, n: float, paired: bool, alpha: float) -> float:
    """Return the two-sided noncentral-t power for a standardised effect and n replicates per arm."""
    df, root = (n - 1, sqrt(n)) if paired else (2 * n - 2, sqrt(n / 2))
    critical = t.isf(alpha / 2, df)
    shift = abs(effect) * root
    power = float(nct.sf(critical, df, shift) + nct.cdf(-critical, df, shift)) if shift <= 20 else float("nan")
    if isnan(power):
        # scipy's noncentral t loses accuracy far out; the noise of Z is small against such a shift, so
        # P(T > c) = P(sqrt(chi2/df) < shift/c) to three digits
        return float(chi2.cdf(df * (shift / critical) ** 2, df))
    return power


def sample_size(effect: float, paired: bool, alpha: float = 0.05, power: float = 0.8) -> int:
    """Return the smallest n per arm (blocks when paired) with the given t power; no exact floor."""
    if not effect > 0:
        raise ValueError(f"effect must be > 0 SD, got {effect}")
    low, high = 1, 2
    while t_power(effect, high, paired, alpha) < power:
        low, high = high, 2 * high
        if high > _MAX_N:
            return _MAX_N
    while high - low > 1:
        middle = (low + high) // 2
        if t_power(effect, middle, paired, alpha) < power:
            low = middle
        else:
            high = middle
    return high


def sd_inflation(n: int) -> float:
    """Return sqrt((n-1) / chi2_{.2, n-1}): the factor from an SD to its upper 80 % bound."""
    if n < 2:
        raise ValueError(f"an SD needs n >= 2 replicates, got {n}")
    return sqrt((n - 1) / chi2.ppf(0.2, n - 1))


@dataclass(frozen=True)
class Goal:
    """What a number of replicates is wanted for: an effect, found with a power at a level."""

    delta: float
    paired: bool
    estimand: str
    alpha: float
    power: float = 0.8


def replicates_needed(n_now: int, sd: float, goal: Goal) -> ReplicatesNeeded | None:
    """Return how many replicates resolve ``delta``; None below three replicates.

    ``sd``: of the paired differences, or pooled within arms when unpaired (raw units). For
    ``p_superiority`` delta is a distance from .5 and is turned into SD units of a normal shift.
    """
    if n_now < 3:
        return None
    floor = smallest_n(goal.alpha, goal.paired)
    plugin = max(floor, _needed(sd, goal))
    bound = max(floor, _needed(sd * sd_inflation(n_now), goal))
    return ReplicatesNeeded(plugin, bound, (max(0, plugin - n_now), max(0, bound - n_now)))


def _efficiency(estimand: str) -> float:
    return RANK_EFFICIENCY if estimand in _RANK_ESTIMANDS else 1.0


def _standardised(delta: float, sd: float, estimand: str) -> float:
    if estimand == "p_superiority":
        # P(X > Y) = Phi(d / sqrt 2) for two unit-variance normal arms
        return sqrt(2) * float(norm.ppf(0.5 + delta))
    return float("inf") if sd == 0 else delta / sd


def _needed(sd: float, goal: Goal) -> int:
    effect = _standardised(goal.delta, sd, goal.estimand)
    if effect == float("inf"):
        return 2
    size = sample_size(effect, goal.paired, goal.alpha, goal.power)
    return ceil(size / _efficiency(goal.estimand) - 1e-9)
