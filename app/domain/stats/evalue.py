"""Anytime-valid e-values of paired differences: reject when E >= 1/alpha, at any block.

``sign``: a mixture of products over the sequence of blocks, an exact martingale when differences
are symmetric in sign. ``t``: the Gaussian-mixture t e-value (Wang & Ramdas 2023). Unit: the block,
in replicate order. E-values of re-used data are never multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from app.domain.stats.results import Interval
from app.domain.stats.ties import Floats, as_floats, tolerance

KAPPAS = (0.5, 1.0, 2.0)
_GRID = 400
_BISECTIONS = 60


def sign_path(d: ArrayLike, kappas: Sequence[float] = KAPPAS) -> Floats:
    """Return E_1..E_n of the sign e-value; E_n is at most 2^n / 2."""
    differences = as_floats(d, "d")
    differences = np.where(np.abs(differences) <= tolerance(differences), 0.0, differences)
    steps = np.arange(1, differences.size + 1)
    rms = np.sqrt(np.cumsum(differences**2) / steps)
    # factor 1 +/- sign(d_i) tanh(kappa |d_i| / rms_i); d_i = 0 contributes 1
    scaled = np.divide(differences, rms, out=np.zeros_like(differences), where=rms > 0)
    moves = np.tanh(np.asarray(kappas)[:, None] * scaled[None, :])
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
    se = float(d.std(ddof=1)) / np.sqrt(d.size)
    mean = float(d.mean())
    if se == 0:
        return 0.0 if mean == 0 else float("inf")
    return float(mean / se)
