"""Variation between runs: tolerance intervals, which describe runs, not means.

Normal factors are exact (Odeh & Owen); the distribution-free interval is [min, max] (Wilks).
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtrc, ndtr

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
