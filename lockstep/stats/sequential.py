"""Group-sequential looks: Pocock, O'Brien-Fleming and Lan-DeMets levels on the replicate clock.

Boundaries hold for the two-sided test of a statistic with independent increments (one increment
per group of blocks). The rectangle probability is computed by recursive Gauss-Legendre
integration (Armitage, McPherson & Rowe 1969), which is deterministic. Levels are cached.

Early stops: a z that was large enough to stop is too large on average. The median-unbiased estimate and its
interval order outcomes by stage (Jennison & Turnbull 2000, ch. 8): the earlier a boundary is crossed, the more extreme.

Anytime-valid e-values of paired differences: reject when max E >= 1/alpha, at any block. What was rejected once
stays rejected, so that p takes the running maximum and the interval the running intersection.

``sign``: a mixture of products over the sequence of blocks, an exact martingale when differences
are symmetric in sign. ``t``: the Gaussian-mixture t e-value (Wang & Ramdas 2023). ``betting``: the hedged capital of
bounded differences (Waudby-Smith & Ramdas 2023), exact for their mean whatever their shape. Unit: the block,
in replicate order. E-values of re-used data are never multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import e, log, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from lockstep.stats.exact import LEVEL_SLACK, min_p_paired
from lockstep.stats.results import TIE, Floats, Interval, as_floats, sd, tolerance

MAX_LOOKS = 5
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)


def spending(kind: str, fraction: float, alpha: float) -> float:
    """Return the cumulative two-sided alpha spent at an information fraction (Lan & DeMets 1983)."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"information fraction must lie in [0, 1], got {fraction}")
    if fraction == 0:
        return 0.0
    if kind == "obf":
        return float(2 * ndtr(ndtri(alpha / 2) / sqrt(fraction)))
    if kind == "pocock":
        return alpha * log(1 + (e - 1) * fraction)
    raise ValueError(f"boundary must be 'pocock' or 'obf', got {kind!r}")


@lru_cache(maxsize=128)
def equal_boundaries(kind: str, looks: int, alpha: float) -> tuple[float, ...]:
    """Return the z boundaries of equally spaced looks (Jennison & Turnbull 2000, ch. 2)."""
    if not 1 <= looks <= MAX_LOOKS:
        raise ValueError(f"looks must number 1..{MAX_LOOKS}, got {looks}")
    fractions = tuple((k + 1) / looks for k in range(looks))
    shape = _shape(kind, looks)

    def excess(c: float) -> float:
        return crossing_probability(fractions, tuple(c * s for s in shape)) - alpha

    constant = brentq(excess, 0.5, 8.0, xtol=1e-10)
    return tuple(constant * s for s in shape)


@lru_cache(maxsize=128)
def spending_boundaries(kind: str, fractions: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Return the z boundaries that spend alpha by a Lan-DeMets function at given fractions."""
    bounds: list[float] = []
    for k, fraction in enumerate(fractions):
        target = spending(kind, fraction, alpha)
        bounds.append(_spend(fractions[: k + 1], tuple(bounds), target))
    return tuple(bounds)


def look_boundaries(at: Sequence[int], boundary: str, alpha: float) -> tuple[float, ...]:
    """Return the z boundaries of looks after ``at`` blocks (strictly increasing).

    Looks within one block of equal spacing (such as 7, 14, 20) use the classical constants,
    others the Lan-DeMets spending function of the same name.
    """
    if is_equally_spaced(at):
        return equal_boundaries(boundary, len(at), alpha)
    return spending_boundaries(boundary, tuple(n / at[-1] for n in at), alpha)


def look_levels(at: Sequence[int], boundary: str, alpha: float) -> tuple[float, ...]:
    """Return the two-sided nominal level a_k = 2(1 - Phi(z_k)) of each look."""
    return tuple(float(2 * ndtr(-z)) for z in look_boundaries(at, boundary, alpha))


def crossing_probability(fractions: tuple[float, ...], z: tuple[float, ...]) -> float:
    """Return P(|Z_k| >= z_k for some look k) under the null, at increasing information fractions."""
    times = np.asarray(fractions)
    limits = np.asarray(z) * np.sqrt(times)
    crossed = 2 * float(ndtr(-z[0]))
    grid = limits[0] * _NODES
    density = _normal_density(grid, sqrt(times[0]))
    weights = limits[0] * _WEIGHTS
    for k in range(1, len(times)):
        spread = sqrt(times[k] - times[k - 1])
        mass = density * weights
        outside = ndtr((grid - limits[k]) / spread) + ndtr((-limits[k] - grid) / spread)
        crossed += float(mass @ outside)
        target = limits[k] * _NODES
        density = _step(mass, grid, target, spread)
        grid, weights = target, limits[k] * _WEIGHTS
    return crossed


@dataclass(frozen=True)
class EarlyStop:
    """What is left of an estimate after a stop at a look, as shares of the plain estimate."""

    median_unbiased: float
    low: float
    high: float


def early_stop(at: Sequence[int], z: Sequence[float], look: int, observed: float, level: float) -> EarlyStop:
    """Return the median-unbiased share of an estimate with statistic ``observed`` > 0 at a look (1-based).

    ``z``: boundaries of the looks; ``level``: two-sided level of the interval. Null: independent normal increments.
    """
    times = tuple(n / at[-1] for n in at[:look])

    def drift(probability: float) -> float:
        def excess(theta: float) -> float:
            return _as_extreme(times, tuple(z[: look - 1]), observed, theta) - probability

        return float(brentq(excess, -40.0 - observed / sqrt(times[0]), 40.0 + observed / sqrt(times[0]), xtol=1e-9))

    plain = observed / sqrt(times[-1])
    return EarlyStop(*(drift(p) / plain for p in (0.5, level / 2, 1 - level / 2)))


def _as_extreme(times: tuple[float, ...], z: tuple[float, ...], observed: float, drift: float) -> float:
    """Return P(an upper boundary is crossed earlier, or none and Z is at least ``observed``) under a drift."""
    crossed, start = 0.0, 0.0
    grid, mass = np.zeros(1), np.ones(1)
    for time, limit in zip(times, (*z, observed), strict=True):
        step = time - start
        bound = limit * sqrt(time)
        crossed += float(mass @ ndtr((grid + drift * step - bound) / sqrt(step)))
        target = bound * _NODES
        mass = _step(mass, grid + drift * step, target, sqrt(step)) * bound * _WEIGHTS
        grid, start = target, time
    return crossed


def is_equally_spaced(at: Sequence[int]) -> bool:
    """Return whether every look lies within one block of its equally spaced place."""
    return all(abs(n - at[-1] * (k + 1) / len(at)) < 1 for k, n in enumerate(at))


def _shape(kind: str, looks: int) -> tuple[float, ...]:
    if kind == "pocock":
        return (1.0,) * looks
    if kind == "obf":
        # z_k = c sqrt(K / k)
        return tuple(sqrt(looks / (k + 1)) for k in range(looks))
    raise ValueError(f"boundary must be 'pocock' or 'obf', got {kind!r}")


def _spend(fractions: tuple[float, ...], earlier: tuple[float, ...], target: float) -> float:
    def excess(z: float) -> float:
        return crossing_probability(fractions, (*earlier, z)) - target

    return float(brentq(excess, 0.1, 12.0, xtol=1e-10))


def _step(mass: Floats, grid: Floats, target: Floats, spread: float) -> Floats:
    return np.asarray(_normal_density(target[:, None] - grid[None, :], spread) @ mass)


def _normal_density(x: Floats, sd: float) -> Floats:
    return np.asarray(np.exp(-0.5 * (x / sd) ** 2) / (sd * sqrt(2 * pi)))


KAPPAS = (0.5, 1.0, 2.0)
#: Bets on bounded differences are sized for this level; they are valid at every level.
_BET_LEVEL = 0.05
#: Share of its capital that a bet may lose in one block.
_BET_LIMIT = 0.5
_GRID = 400
_BISECTIONS = 60


def sign_path(d: ArrayLike, kappas: Sequence[float] = KAPPAS) -> Floats:
    """Return E_1..E_n of the sign e-value; E_n is at most 2^n / 2."""
    return np.asarray(_sign_paths(as_floats(d, "d"), np.zeros(1), kappas)[0])


def t_evalue(n: int, t: float, g: float = 1.0) -> float:
    """Return the t e-value of a one-sample t statistic of n differences; E_1 = 1."""
    return float(_t_evalues(np.array([float(n)]), np.array([t]), g)[0])


@dataclass(frozen=True)
class Wager:
    """A registered e-value: its kind, and for ``betting`` the largest possible |difference| of two scores."""

    kind: str
    reach: float | None = None

    def paths(self, d: Floats, thetas: Floats) -> Floats:
        """Return E_1..E_n of d - theta for every theta, shape (thetas, n)."""
        if self.kind == "sign":
            return _sign_paths(d, thetas, KAPPAS)
        if self.kind == "t":
            return _t_paths(d, thetas)
        if self.kind != "betting":
            raise ValueError(f"e_value must be 'sign', 't' or 'betting', got {self.kind!r}")
        if self.reach is None:
            raise ValueError("e_value betting needs a metric with two bounds, or estimand learned")
        # a metric that broke its own bounds shows how far they really are
        return _betting_paths(d[None, :], thetas, max(self.reach, float(np.abs(d).max(initial=0.0))))

    def path(self, d: ArrayLike) -> Floats:
        """Return E_1..E_n of the differences as they are."""
        return np.asarray(self.paths(as_floats(d, "d"), np.zeros(1))[0])

    def largest(self, d: Floats, theta: float) -> Floats:
        """Return the largest E of d - theta for every row of d, shape (experiments, n)."""
        if self.kind == "sign":
            return np.asarray(_sign_rows(d - theta, KAPPAS).max(axis=1))
        if self.kind == "t":
            return np.asarray(_t_rows(d, theta).max(axis=1))
        reach = max(self.reach or 0.0, float(np.abs(d).max(initial=0.0)))
        return np.asarray(_betting_paths(d, np.full(len(d), theta), reach).max(axis=1))

    def min_p(self, n: int) -> float:
        """Return the smallest p that n differences can give: of E <= 2^n / 2, or where each is as large as can be."""
        if self.kind != "betting" or self.reach is None or n < 1:
            return min_p_paired(n)
        return anytime_p(self.path(np.full(n, self.reach)))

    def fewest(self, difference: float, level: float, most: int) -> int | None:
        """Return after how many blocks E reaches 1/level when every one differs by ``difference``, None beyond most."""
        reached = np.flatnonzero(self.path(np.full(most, difference)) >= (1 - LEVEL_SLACK) / level)
        return int(reached[0]) + 1 if reached.size else None

    def interval(self, d: ArrayLike, level: float) -> Interval | None:
        """Return the smallest interval holding every theta that no block has rejected at 1/level, or None.

        None when even a far-away theta is not rejected: then the set is unbounded.
        """
        differences = as_floats(d, "d")

        def accepted(thetas: Floats) -> NDArray[np.bool_]:
            return np.asarray(self.paths(differences, thetas).max(axis=1) < 1 / level)

        centre = float(np.median(differences))
        width = float(np.ptp(differences))
        spread = width if width > tolerance(differences) else abs(centre) or 1.0
        if accepted(centre + 1000 * spread * np.array([-1.0, 1.0])).any():
            return None
        offsets = np.concatenate([np.linspace(0, 4 * spread, _GRID), np.geomspace(4 * spread, 1000 * spread, 60)[1:]])
        grid = centre + np.concatenate([-offsets[:0:-1], offsets])
        inside = np.flatnonzero(accepted(grid))
        if inside.size == 0:
            # every theta was rejected at some block: the one that was least so
            best = float(grid[np.argmin(self.paths(differences, grid).max(axis=1))])
            return Interval(best, best)
        return Interval(_edge(accepted, grid, int(inside[0]), -1), _edge(accepted, grid, int(inside[-1]), 1))


def anytime_p(path: ArrayLike) -> float:
    """Return min(1, 1 / max_k E_k)."""
    return min(1.0, 1.0 / float(np.max(path)))


def _edge(accepted: Callable[[Floats], NDArray[np.bool_]], grid: Floats, at: int, step: int) -> float:
    """Return the end of the accepted set between a grid point inside and its neighbour outside."""
    if not 0 <= at + step < grid.size:
        return float(grid[at])
    inner, outer = float(grid[at]), float(grid[at + step])
    for _ in range(_BISECTIONS):
        middle = (inner + outer) / 2
        if accepted(np.array([middle]))[0]:
            inner = middle
        else:
            outer = middle
    return inner


def _sign_paths(d: Floats, thetas: Floats, kappas: Sequence[float]) -> Floats:
    return _sign_rows(d[None, :] - thetas[:, None], kappas)


def _sign_rows(moved: Floats, kappas: Sequence[float]) -> Floats:
    largest = np.abs(moved).max(axis=1, keepdims=True)
    moved = np.where(np.abs(moved) <= TIE * largest, 0.0, moved)
    # in units of the largest: squares of scores must not overflow
    moved = np.divide(moved, largest, out=np.zeros_like(moved), where=largest > 0)
    rms = np.sqrt(np.cumsum(moved**2, axis=1) / np.arange(1, moved.shape[1] + 1))
    # factor 1 +/- sign(d_i) tanh(kappa |d_i| / rms_i); d_i = 0 contributes 1
    steps = np.divide(moved, rms, out=np.zeros_like(moved), where=rms > 0)
    bets = np.tanh(np.asarray(kappas)[:, None, None] * steps[None])
    paths = [np.cumprod(1 + sign * bets, axis=2) for sign in (1.0, -1.0)]
    return np.asarray(np.concatenate(paths).mean(axis=0))


def _t_paths(d: Floats, thetas: Floats) -> Floats:
    sizes = np.arange(1.0, d.size + 1)
    means = np.cumsum(d) / sizes
    errors = np.array([sd(d[:k]) / sqrt(k) for k in range(1, d.size + 1)])
    off = means[None, :] - thetas[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(off == 0, 0.0, np.abs(off) / errors)
    return _t_evalues(np.broadcast_to(sizes, t.shape), t)


def _t_rows(d: Floats, theta: float) -> Floats:
    """Return E_1..E_n for every row of d - theta."""
    sizes = np.arange(1.0, d.shape[1] + 1)
    centre = d.mean(axis=1, keepdims=True)
    sums, squares = np.cumsum(d - centre, axis=1), np.cumsum((d - centre) ** 2, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(np.maximum(squares - sums**2 / sizes, 0.0) / (sizes - 1) / sizes)
        t = np.abs(sums / sizes + centre - theta) / errors
    return _t_evalues(np.broadcast_to(sizes, t.shape), np.nan_to_num(t, nan=0.0, posinf=np.inf))


def _t_evalues(n: Floats, t: Floats, g: float = 1.0) -> Floats:
    nu = np.maximum(n - 1, 1.0)
    square = np.where(np.isinf(t), 0.0, t) ** 2
    ratio = (1 + square / nu) / (1 + square / (nu * (1 + n * g)))
    # E = (1 + ng)^(-1/2) [(1 + t^2/nu) / (1 + t^2/(nu (1 + ng)))]^(n/2)
    inverse = (1 + n * g) ** -0.5 * np.where(np.isinf(t), 1 + n * g, ratio) ** (n / 2)
    return np.asarray(np.where(n < 2, 1.0, inverse))


def _betting_paths(d: Floats, thetas: Floats, reach: float) -> Floats:
    """Return the hedged capital (K+ + K-)/2 of bets that the mean is above or below theta."""
    x, m = (d / reach + 1) / 2, ((thetas / reach + 1) / 2)[:, None]
    steps = np.arange(1.0, x.shape[1] + 1)
    # predictable plug-in: bet i knows blocks 1..i-1 only, with a prior block of mean 1/2 and variance 1/4
    mean = (0.5 + np.cumsum(x, axis=1)) / (steps + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2, axis=1)) / (steps + 1)
    known = np.concatenate([np.full((len(x), 1), 0.25), variance[:, :-1]], axis=1)
    bets = np.sqrt(2 * log(2 / _BET_LEVEL) / (known * steps * np.log(steps + 1)))
    inside = (m > 0) & (m < 1)
    safe = np.where(inside, m, 0.5)
    up = np.cumprod(1 + np.minimum(bets, _BET_LIMIT / safe) * (x - safe), axis=1)
    down = np.cumprod(1 - np.minimum(bets, _BET_LIMIT / (1 - safe)) * (x - safe), axis=1)
    # no difference lies beyond the reach, so no mean does
    return np.asarray(np.where(inside, (up + down) / 2, np.inf))
