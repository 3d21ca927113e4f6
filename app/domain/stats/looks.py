"""Group-sequential looks: Pocock, O'Brien-Fleming and Lan-DeMets levels on the replicate clock.

Boundaries hold for the two-sided test of a statistic with independent increments (one increment
per group of blocks). The rectangle probability is computed by recursive Gauss-Legendre
integration (Armitage, McPherson & Rowe 1969), which is deterministic. Levels are cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import e, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]
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
