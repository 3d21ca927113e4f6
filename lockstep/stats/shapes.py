"""What unequal shapes do to a test of means: the level at which it really runs, simulated for the shapes seen.

Sign-flip and permutation tests are exact when the arms are exchangeable. Arms with equal means and different skewness
are not: the test then rejects too often, and no test of means is exact at small n. Unit: the replicate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lockstep.stats.batches import batch
from lockstep.stats.exact import LEVEL_SLACK
from lockstep.stats.registered import Design, paired_differences, uses_unpaired_test
from lockstep.stats.results import Floats, sd
from lockstep.stats.scores import FlooredArm

EXPERIMENTS, DRAWS = 2_000, 399
#: A level this many times the nominal one is worth a word (.07 for .05).
TOLERATED = 1.4
#: Below this a skewness is taken for none.
_NO_SKEW = 0.01


@dataclass(frozen=True)
class TrueLevel:
    """How often the registered test rejects at ``nominal`` although the means are equal.

    ``skewness``: of the differences within blocks when paired, else of both arms.
    """

    simulated: float
    nominal: float
    skewness: tuple[float, ...]

    @property
    def is_off(self) -> bool:
        """Return whether it is so far above the nominal level that a reader must know."""
        return self.simulated > TOLERATED * self.nominal


def skewness(values: Floats) -> float | None:
    """Return the bias-adjusted sample skewness, None below three values or without variance."""
    n, spread = values.size, sd(values)
    if n < 3 or spread <= 1e-9 * float(np.abs(values).max()):
        return None
    z = (values - values.mean()) / spread
    # z has divisor n - 1: G1 = n / ((n-1)(n-2)) sum z^3
    return float(n / ((n - 1) * (n - 2)) * (z**3).sum())


def true_level(x: FlooredArm, y: FlooredArm, design: Design, level: float) -> TrueLevel | None:
    """Return the level of the registered test of means for scores with the observed SDs and skewness, means equal.

    Scores are drawn from gamma distributions (Pearson III). None for other quantities, for anytime analyses and where
    an arm has no skewness. It says nothing about a tail that no run has shown yet.
    """
    falls_back = design.paired and uses_unpaired_test(design, x.values.size)
    if design.estimand != "mean" or design.mode == "anytime" or falls_back:
        return None
    samples = [paired_differences(x, y)] if design.paired else [x.values, y.values]
    skews = [skewness(values) for values in samples]
    known = tuple(g for g in skews if g is not None)
    if len(known) < len(skews):
        return None
    rng = np.random.Generator(np.random.Philox(key=design.seed))
    # the level does not hang on the unit: in units of the larger SD nothing overflows
    unit = max(sd(v) for v in samples)
    drawn = [sd(v) / unit * _skewed(rng, (EXPERIMENTS, v.size), g) for v, g in zip(samples, known, strict=True)]
    first, second = (drawn[0], np.zeros_like(drawn[0])) if design.paired else drawn
    p = batch(first, second, design, DRAWS).p
    return TrueLevel(float((p <= level * (1 + LEVEL_SLACK)).mean()), level, known)


def _skewed(rng: np.random.Generator, shape: tuple[int, ...], skew: float) -> Floats:
    """Return values of mean 0, variance 1 and the given skewness."""
    if abs(skew) < _NO_SKEW:
        return rng.standard_normal(shape)
    # gamma of shape k has skewness 2 / sqrt(k)
    k = 4 / skew**2
    return np.asarray(np.sign(skew) * (rng.gamma(k, size=shape) - k) / np.sqrt(k))
