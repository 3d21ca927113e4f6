"""Standardised effect sizes, always printed after the raw units they accompany."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, sqrt

import numpy as np
from numpy.typing import ArrayLike

from app.domain.stats.ranks import a12
from app.domain.stats.ties import TIE, as_floats


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
    pooled = ((first.size - 1) * first.var(ddof=1) + (second.size - 1) * second.var(ddof=1)) / nu
    scale = max(float(np.abs(first).max()), float(np.abs(second).max()))
    if sqrt(pooled) <= TIE * scale:
        return EffectSizes(None, hedges_correction(nu), None, share, 2 * share - 1)
    d = float((first.mean() - second.mean()) / sqrt(pooled))
    j = hedges_correction(nu)
    return EffectSizes(d, j, d * j, share, 2 * share - 1)
