"""Group-sequential looks: Pocock, O'Brien-Fleming and Lan-DeMets levels on the replicate clock.

Boundaries hold for the two-sided test of a statistic with independent increments (one increment
per group of blocks). The rectangle probability is computed by recursive Gauss-Legendre
integration (Armitage, McPherson & Rowe 1969), which is deterministic. Levels are cached.

Anytime-valid e-values of paired differences: reject when E >= 1/alpha, at any block.

``sign``: a mixture of products over the sequence of blocks, an exact martingale when differences
are symmetric in sign. ``t``: the Gaussian-mixture t e-value (Wang & Ramdas 2023). Unit: the block,
in replicate order. E-values of re-used data are never multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import e, log, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from lockstep.stats.results import Floats, Interval, as_floats, scaled, sd, tolerance

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


KAPPAS = (0.5, 1.0, 2.0)
_GRID = 400
_BISECTIONS = 60


def sign_path(d: ArrayLike, kappas: Sequence[float] = KAPPAS) -> Floats:
    """Return E_1..E_n of the sign e-value; E_n is at most 2^n / 2."""
    differences = as_floats(d, "d")
    differences = np.where(np.abs(differences) <= tolerance(differences), 0.0, differences)
    differences, _ = scaled(differences)
    steps = np.arange(1, differences.size + 1)
    rms = np.sqrt(np.cumsum(differences**2) / steps)
    # factor 1 +/- sign(d_i) tanh(kappa |d_i| / rms_i); d_i = 0 contributes 1
    steps_taken = np.divide(differences, rms, out=np.zeros_like(differences), where=rms > 0)
    moves = np.tanh(np.asarray(kappas)[:, None] * steps_taken[None, :])
    paths = [np.cumprod(1 + sign * moves, axis=1) for sign in (1.0, -1.0)]
    return np.asarray(np.concatenate(paths).mean(axis=0))


def t_evalue(n: int, t: float, g: float = 1.0) -> float:
    """Return the t e-value of a one-sample t statistic of n differences; E_1 = 1."""
    if n < 2:
        return 1.0
    nu = n - 1
    ratio = 1.0 + n * g if np.isinf(t) else (1 + t * t / nu) / (1 + t * t / (nu * (1 + n * g)))
    # E = (1 + ng)^(-1/2) [(1 + t^2/nu) / (1 + t^2/(nu (1 + ng)))]^(n/2)
    return float((1 + n * g) ** -0.5 * ratio ** (n / 2))


def t_path(d: ArrayLike, g: float = 1.0) -> Floats:
    """Return E_1..E_n of the t e-value."""
    differences = as_floats(d, "d")
    return np.array([t_evalue(k, _t_statistic(differences[:k]), g) for k in range(1, differences.size + 1)])


def evalue_path(kind: str, d: ArrayLike) -> Floats:
    """Return E_1..E_n of the registered e-value (``sign`` or ``t``)."""
    if kind not in ("sign", "t"):
        raise ValueError(f"e_value must be 'sign' or 't', got {kind!r}")
    return sign_path(d) if kind == "sign" else t_path(d)


def final_evalue(kind: str, d: ArrayLike) -> float:
    """Return E_n of the registered e-value."""
    differences = as_floats(d, "d")
    if kind == "t":
        return t_evalue(differences.size, _t_statistic(differences))
    return float(evalue_path(kind, differences)[-1])


def anytime_p(path: ArrayLike) -> float:
    """Return min(1, 1 / max_k E_k)."""
    return min(1.0, 1.0 / float(np.max(path)))


def anytime_interval(kind: str, d: ArrayLike, alpha: float) -> Interval | None:
    """Return the smallest interval holding every theta with E_n(d - theta) < 1/alpha, or None.

    None when even a far-away theta is not rejected: then the set is unbounded.
    """
    differences = as_floats(d, "d")

    def accepted(theta: float) -> bool:
        return final_evalue(kind, differences - theta) < 1 / alpha

    centre = float(np.median(differences))
    spread = max(float(np.ptp(differences)), tolerance(differences))
    reach = 1000 * spread if spread > 0 else max(1.0, abs(centre))
    if accepted(centre - reach) or accepted(centre + reach):
        return None
    ends = [_outer_end(accepted, centre, sign, spread or reach, reach) for sign in (-1.0, 1.0)]
    return Interval(ends[0], ends[1])


def _outer_end(accepted: Callable[[float], bool], centre: float, sign: float, spread: float, reach: float) -> float:
    """Return the accepted theta farthest from the centre on one side, found on a grid and refined."""
    offsets = np.concatenate([np.linspace(0, 4 * spread, _GRID), np.geomspace(4 * spread, reach, 60)[1:]])
    inside = [i for i, offset in enumerate(offsets) if accepted(centre + sign * offset)]
    if not inside:
        return centre
    if inside[-1] + 1 == offsets.size:
        return centre + sign * float(offsets[-1])
    inner, outer = float(offsets[inside[-1]]), float(offsets[inside[-1] + 1])
    for _ in range(_BISECTIONS):
        middle = (inner + outer) / 2
        if accepted(centre + sign * middle):
            inner = middle
        else:
            outer = middle
    return centre + sign * inner


def _t_statistic(d: Floats) -> float:
    if d.size < 2:
        return 0.0
    se = sd(d) / np.sqrt(d.size)
    mean = float(d.mean())
    if se == 0:
        return 0.0 if mean == 0 else float("inf")
    return float(mean / se)
