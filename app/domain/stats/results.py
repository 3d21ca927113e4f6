"""Small result records shared by the tests."""

from __future__ import annotations

from dataclasses import dataclass


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
