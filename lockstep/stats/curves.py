"""Time to threshold: log-rank test and restricted mean; never reached = censored at the last step.

Null hypothesis: both arms have the same distribution of time to threshold. Unit: the replicate.
Censored runs are kept: dropping them would reward arms that often fail to get there.

Joint comparison of learning curves at registered steps by whole-curve sign flips.

Null hypothesis: the arms' curves are exchangeable within a block. Unit: the block (evaluations of
one run are dependent, so a block's whole curve keeps one sign). "Above at step t" may be said only
where the adjusted p is at most alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc

from lockstep.stats.multiplicity import sign_vectors
from lockstep.stats.results import TIE, Floats
from lockstep.stats.unpaired import permutation_splits

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
    differences = differences / (np.abs(differences).max(initial=0.0) or 1.0)  # squares must not overflow
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


#: (time, 1 if reached, 0 if censored)
Times = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class LogRank:
    """Observed and expected events of the first arm; chi2 and p are None without any event."""

    observed: float
    expected: float
    chi2: float | None
    p: float | None


def logrank(a: Times, b: Times) -> LogRank:
    """Return the two-sample log-rank test with the hypergeometric variance."""
    times, events, first = _stack(a, b)
    observed, expected, variance = _logrank_sums(times, events, first[None, :])
    if variance[0] <= 0:
        return LogRank(float(observed[0]), float(expected[0]), None, None)
    chi2 = float((observed[0] - expected[0]) ** 2 / variance[0])
    return LogRank(float(observed[0]), float(expected[0]), chi2, float(chdtrc(1, chi2)))


def logrank_permutation(a: Times, b: Times, rng: np.random.Generator | None = None) -> float | None:
    """Return the permutation p of |O - E| (for small n), or None without any event."""
    times, events, _ = _stack(a, b)
    if not events.any():
        return None
    members = permutation_splits(len(a), len(b), rng).members.T > 0
    observed, expected, _ = _logrank_sums(times, events, members)
    deviation = np.abs(observed - expected)
    return float((deviation >= deviation[0] * (1 - 1e-9) - 1e-12).mean())


def restricted_mean(times: Times, horizon: float) -> float:
    """Return the area under the Kaplan-Meier curve up to ``horizon`` (mean steps to threshold)."""
    moments = np.array([t for t, _ in times], dtype=np.float64)
    events = np.array([e for _, e in times], dtype=bool)
    area, survival, before = 0.0, 1.0, 0.0
    for moment in np.unique(moments[events & (moments < horizon)]):
        area += survival * (float(moment) - before)
        at_risk = (moments >= moment).sum()
        survival *= 1 - (events & (moments == moment)).sum() / at_risk
        before = float(moment)
    return float(area + survival * (horizon - before))


def _stack(a: Times, b: Times) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    rows = [*a, *b]
    times = np.array([t for t, _ in rows], dtype=np.float64)
    events = np.array([bool(e) for _, e in rows])
    return times, events, np.arange(times.size) < len(a)


def _logrank_sums(
    times: Floats, events: NDArray[np.bool_], members: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Return O, E and V of the member group for each row of ``members``."""
    observed = (members & events).sum(axis=1).astype(np.float64)
    expected, variance = np.zeros(len(members)), np.zeros(len(members))
    for moment in np.unique(times[events]):
        at_risk = times >= moment
        total, deaths = int(at_risk.sum()), int((events & (times == moment)).sum())
        share = (members & at_risk).sum(axis=1) / total
        expected += deaths * share
        if total > 1:
            variance += deaths * share * (1 - share) * (total - deaths) / (total - 1)
    return observed, expected, variance
