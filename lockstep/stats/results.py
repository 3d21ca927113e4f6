"""Ties: two values are tied when they differ by at most 1e-9 times the largest magnitude.

Applied before ranking and when statistics are compared, so that float noise in differences
neither breaks nor makes a tie.

Small result records shared by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TIE = 1e-9


def as_floats(values: ArrayLike, name: str, allow_infinite: bool = False) -> Floats:
    """Return a one-dimensional float array; NaN (and infinity unless allowed) is an error."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty list of numbers, got shape {array.shape}")
    bad = np.isnan(array) if allow_infinite else ~np.isfinite(array)
    if bad.any():
        raise ValueError(f"{name}[{int(np.argmax(bad))}] is not finite; score failed replicates at the floor")
    return array


def tolerance(values: Floats) -> float:
    """Return 1e-9 x max(|values|) over the finite values, 0 when there are none."""
    finite = np.abs(values[np.isfinite(values)])
    return TIE * float(finite.max()) if finite.size else 0.0


def tie_groups(values: Floats, limit: float | None = None) -> Ints:
    """Return for each value the index of its tie group, 0 for the smallest.

    ``limit``: largest distance of tied neighbours; default 1e-9 times the largest finite magnitude.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    limit = tolerance(values) if limit is None else limit
    with np.errstate(invalid="ignore"):
        # inf - inf is NaN, and NaN > limit is False: equal infinities are tied
        opens = np.concatenate([[False], np.diff(ordered) > limit])
    groups = np.empty(values.size, dtype=np.int64)
    groups[order] = np.cumsum(opens)
    return groups


def doubled_midranks(values: Floats, limit: float | None = None) -> Ints:
    """Return twice the mid-rank of each value (integers), ties by ``tie_groups``."""
    groups = tie_groups(values, limit)
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    # ranks start+1 .. start+size have mean start + (size + 1) / 2
    return np.asarray((2 * starts + sizes + 1)[groups], dtype=np.int64)


def differences(x: ArrayLike, y: ArrayLike, limit: float | None = None) -> Floats:
    """Return x - y by position, those at noise level of the scores they came from set to exactly 0.

    ``limit``: the noise level; default 1e-9 times the largest magnitude of x and y.
    """
    first, second = as_floats(x, "x"), as_floats(y, "y")
    if first.size != second.size:
        raise ValueError(f"paired scores need equal lengths, got {first.size} and {second.size}")
    limit = max(tolerance(first), tolerance(second)) if limit is None else limit
    d = first - second
    return np.where(np.abs(d) <= limit, 0.0, d)


def scaled(values: Floats) -> tuple[Floats, float]:
    """Return values in units of their largest magnitude, and that unit: squares of scores must not overflow."""
    unit = float(np.abs(values).max(initial=0.0)) or 1.0
    return values / unit, unit


def sd(values: Floats) -> float:
    """Return the standard deviation (divisor n - 1); 0 below two values."""
    if values.size < 2:
        return 0.0
    units, unit = scaled(values)
    return unit * float(units.std(ddof=1))


def pooled_sd(x: Floats, y: Floats) -> float:
    """Return the pooled standard deviation of two arms with two values each at least."""
    first, second = sd(x), sd(y)
    unit = max(first, second) or 1.0
    squares = (x.size - 1) * (first / unit) ** 2 + (y.size - 1) * (second / unit) ** 2
    return unit * float(np.sqrt(squares / (x.size + y.size - 2)))


@dataclass(frozen=True)
class Interval:
    """A closed interval; ``coverage`` is its exact probability under the untied null, if known."""

    low: float
    high: float
    coverage: float | None = None
    k: int | None = None

    def negated(self) -> Interval:
        """Return the interval of the mirrored comparison."""
        return Interval(-self.high, -self.low, self.coverage, self.k)

    def inside(self, margin: float) -> bool:
        """Return whether the interval lies strictly inside (-margin, margin)."""
        return -margin < self.low and self.high < margin


@dataclass(frozen=True)
class TailPs:
    """Tail probabilities of an observed statistic, each including the observed value."""

    greater: float
    less: float

    @property
    def two_sided(self) -> float:
        """Return min(1, 2 x the smaller tail)."""
        return min(1.0, 2 * min(self.greater, self.less))
