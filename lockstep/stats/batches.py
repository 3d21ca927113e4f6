"""The registered tests of one comparison for many simulated experiments at once.

Same statistics, same null hypotheses and the same reference tables as ``registered``; what is drawn there from the
analysis seed for one experiment is drawn here once for all of them. Up to ``EXACT_SIGNS`` blocks (or a thousand splits)
the reference set is complete. Shapes: B experiments, n or m replicates. Unit: the replicate.

A bound of an interval lies above theta exactly where the two-sided p of theta is at most the level and the estimate is
larger, so that p as a function of theta is all that a verdict needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr
from scipy.stats import rankdata

from lockstep.stats.exact import LEVEL_SLACK, rank_sum_null, signed_rank_null
from lockstep.stats.multiplicity import sign_vectors
from lockstep.stats.registered import Design, wager_of
from lockstep.stats.results import TIE, Floats
from lockstep.stats.shares import paired_share_difference, paired_tails, share_difference, unpaired_tails

EXACT_SIGNS = 11
_EXACT_SPLITS = 1_000
_SINGLE = 1e-5
#: Most pairs of runs that are listed. Beyond, U is normal to three digits (continuity corrected), and the difference of
#: the medians has the sign of the median difference for all purposes.
_SMALL = 1_600
#: A share of fewer draws than this says little.
_FEW = 10


@dataclass(frozen=True)
class Batch:
    """One comparison in B experiments: the test's p of no difference, p of a difference theta, and the estimates."""

    p: Floats
    p_at: Callable[[float, NDArray[np.intp]], Floats]
    estimate: Floats


def batch(x: Floats, y: Floats, design: Design, draws: int) -> Batch:
    """Return the registered test of arms x (B, n) and y (B, m); -inf marks failures of which the floor is filled in.

    ``draws``: random signs or splits where not all are listed.
    """
    floor = 0.0 if design.floor is None else design.floor
    first, second = (np.where(np.isneginf(v), floor, v) for v in (x, y))
    if design.estimand == "learned":
        return _learned(x, y, design)
    if design.mode == "anytime":
        return _anytime(first - second, design)
    if design.paired:
        return _sign_flip(first - second, draws) if design.estimand == "mean" else _signed_rank(first - second, draws)
    if design.estimand == "mean":
        return _studentised(first, second, draws)
    return _rank(x, y, first, second, draws)


def _sign_flip(d: Floats, draws: int) -> Batch:
    n = d.shape[1]
    signs = _signs(n, draws)

    def p_at(theta: float, rows: NDArray[np.intp]) -> Floats:
        moved = d[rows] - theta
        total = np.abs(moved.sum(axis=1, keepdims=True))
        slack = TIE * np.abs(moved).sum(axis=1, keepdims=True)
        share = np.asarray((np.abs(moved @ signs) >= total - slack).mean(axis=1))
        return (
            share if n <= EXACT_SIGNS else _sharpened(share, draws, _t_p(moved.mean(axis=1), _variance(moved), n - 1))
        )

    return Batch(p_at(0.0, np.arange(len(d))), p_at, d.mean(axis=1))


def _signed_rank(d: Floats, draws: int) -> Batch:
    n = d.shape[1]
    null = signed_rank_null(n)
    rows, columns = np.triu_indices(n)
    walsh = (d[:, rows] + d[:, columns]) / 2
    ranks = np.where(d == 0, 0.0, rankdata(np.abs(d), axis=1))
    p = _doubled(null, (walsh > 0).sum(axis=1))
    tied = _has_ties(np.abs(d)) | (d == 0).any(axis=1)
    if tied.any():
        signed = ranks[tied] * np.sign(d[tied])
        total = np.abs(signed.sum(axis=1, keepdims=True))
        p[tied] = (np.abs(signed @ _signs(n, draws)) >= total - 1e-9).mean(axis=1)

    def p_at(theta: float, some: NDArray[np.intp]) -> Floats:
        return _doubled(null, (walsh[some] > theta).sum(axis=1))

    return Batch(p, p_at, np.median(walsh, axis=1))


def _studentised(x: Floats, y: Floats, draws: int) -> Batch:
    n, m = x.shape[1], y.shape[1]
    # half the digits at twice the speed: a split is tied when its t2 agrees to 1e-5
    members = _splits(n, m, draws).astype(np.float32)

    def p_at(theta: float, rows: NDArray[np.intp]) -> Floats:
        pooled = np.concatenate([x[rows] - theta, y[rows]], axis=1)
        pooled = pooled - pooled.mean(axis=1, keepdims=True)
        pooled = (pooled / np.abs(pooled).max(axis=1, keepdims=True, initial=1e-300)).astype(np.float32)
        sums, squares = pooled @ members, pooled**2 @ members
        rest = (pooled**2).sum(axis=1, keepdims=True) - squares
        variance = (squares - sums**2 / n) / (n * (n - 1)) + (rest - sums**2 / m) / (m * (m - 1))
        t2 = (sums / n + sums / m) ** 2 / np.maximum(variance, 1e-9)
        share = np.asarray((t2 >= t2[:, :1] * (1 - _SINGLE)).mean(axis=1), dtype=np.float64)
        if members.shape[1] == comb(n + m, n):
            return share
        errors = _variance(x[rows]), _variance(y[rows])
        with np.errstate(divide="ignore", invalid="ignore"):
            df = sum(errors) ** 2 / (errors[0] ** 2 / (n - 1) + errors[1] ** 2 / (m - 1))
        off = x[rows].mean(axis=1) - theta - y[rows].mean(axis=1)
        return _sharpened(share, draws, _t_p(off, errors[0] + errors[1], np.nan_to_num(df, nan=n + m - 2.0)))

    return Batch(p_at(0.0, np.arange(len(x))), p_at, x.mean(axis=1) - y.mean(axis=1))


def _rank(x: Floats, y: Floats, first: Floats, second: Floats, draws: int) -> Batch:
    n, m = x.shape[1], y.shape[1]
    ranks = rankdata(np.concatenate([x, y], axis=1), axis=1)
    p = _rank_p(np.rint(ranks[:, :n].sum(axis=1) - n * (n + 1) / 2).astype(np.int64), n, m)
    tied = _has_ties(ranks)
    if tied.any():
        sums = ranks[tied] @ _splits(n, m, draws)
        above, below = (sums >= sums[:, :1] - 1e-9).mean(axis=1), (sums <= sums[:, :1] + 1e-9).mean(axis=1)
        p[tied] = np.minimum(1.0, 2 * np.minimum(above, below))

    def p_at(theta: float, some: NDArray[np.intp]) -> Floats:
        larger = first[some][:, :, None] - second[some][:, None, :] > theta
        return _rank_p(larger.sum(axis=(1, 2)), n, m)

    if n * m <= _SMALL:
        differences = (first[:, :, None] - second[:, None, :]).reshape(len(x), -1)
        return Batch(p, p_at, np.median(differences, axis=1))
    return Batch(p, p_at, np.median(first, axis=1) - np.median(second, axis=1))


def _learned(x: Floats, y: Floats, design: Design) -> Batch:
    threshold = np.inf if design.threshold is None else design.threshold
    first, second = x >= threshold, y >= threshold
    if design.mode == "anytime":
        return _anytime(first.astype(np.float64) - second, design)
    n, m = x.shape[1], y.shape[1]
    if design.paired:
        one, two = (first & ~second).sum(axis=1), (~first & second).sum(axis=1)
    else:
        one, two = first.sum(axis=1), second.sum(axis=1)
    p = np.array([_share_p(design.paired, int(k), int(j), n, m) for k, j in zip(one, two, strict=True)])

    def p_at(theta: float, some: NDArray[np.intp]) -> Floats:
        above = paired_tails(n, theta) if design.paired else unpaired_tails(n, m, theta)
        below = paired_tails(n, -theta) if design.paired else unpaired_tails(m, n, -theta)
        return np.asarray(np.minimum(1.0, 2 * np.minimum(above[one[some], two[some]], below[two[some], one[some]])))

    return Batch(p, p_at, one / n - two / (n if design.paired else m))


@lru_cache(maxsize=4096)
def _share_p(paired: bool, k: int, j: int, n: int, m: int) -> float:
    return paired_share_difference(k, j, n).p if paired else share_difference(k, n, j, m).p


def _anytime(d: Floats, design: Design) -> Batch:
    wager = wager_of(design)

    def p_at(theta: float, rows: NDArray[np.intp]) -> Floats:
        return np.asarray(np.minimum(1.0, 1 / wager.largest(d[rows], theta)))

    estimate = np.median(d, axis=1) if design.estimand == "shift" else d.mean(axis=1)
    return Batch(p_at(0.0, np.arange(len(d))), p_at, estimate)


def _rank_p(u: NDArray[np.int64], n: int, m: int) -> Floats:
    """Return the two-sided p of the untied rank test."""
    if n * m <= _SMALL:
        return _doubled(rank_sum_null(n, m), u)
    off = np.maximum(np.abs(u - n * m / 2) - 0.5, 0.0)
    return np.asarray(2 * ndtr(-off / np.sqrt(n * m * (n + m + 1) / 12)))


def _has_ties(values: Floats) -> NDArray[np.bool_]:
    return np.asarray((np.diff(np.sort(values, axis=1), axis=1) == 0).any(axis=1))


def _sharpened(share: Floats, draws: int, t_p: Floats) -> Floats:
    """Return p from a sample of the reference set; so far out that it counts few draws, p of the t distribution."""
    return np.where(share <= _FEW / (draws + 1), np.minimum(t_p, _FEW / (draws + 1)), share)


def _variance(values: Floats) -> Floats:
    return np.asarray(values.var(axis=1, ddof=1) / values.shape[1])


def _t_p(off: Floats, variance: Floats, df: Floats | float) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(off == 0, 0.0, np.abs(off) / np.sqrt(variance))
    return np.asarray(2 * stdtr(df, -t))


def _doubled(null: Floats, observed: NDArray[np.int64]) -> Floats:
    """Return min(1, 2 x the smaller tail) of a symmetric null table."""
    below = np.cumsum(null)
    low = np.minimum(observed, null.size - 1 - observed)
    return np.asarray(np.minimum(1.0, 2 * below[low] * (1 - LEVEL_SLACK)))


@lru_cache(maxsize=64)
def _signs(n: int, draws: int) -> Floats:
    if n <= EXACT_SIGNS:
        return np.ascontiguousarray(sign_vectors(n)[: 2 ** (n - 1)].T)
    rng = np.random.Generator(np.random.Philox(key=n))
    drawn = rng.integers(0, 2, size=(n, draws)) * 2.0 - 1.0
    return np.concatenate([np.ones((n, 1)), drawn], axis=1)


@lru_cache(maxsize=64)
def _splits(n: int, m: int, draws: int) -> Floats:
    """Return splits of n + m scores, shape (n + m, splits), 1 where one goes to the first arm; identity first."""
    if comb(n + m, n) <= _EXACT_SPLITS:
        chosen = np.array(list(combinations(range(n + m), n)))
    else:
        rng = np.random.Generator(np.random.Philox(key=1000 * n + m))
        chosen = np.concatenate([np.arange(n)[None], np.argsort(rng.random((draws, n + m)), axis=1)[:, :n]])
    members = np.zeros((n + m, len(chosen)))
    np.put_along_axis(members, chosen.T, 1.0, axis=0)
    return members
