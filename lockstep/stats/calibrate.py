"""A/A calibration: does the whole pipeline keep its error rate?

Mode 2 re-randomises replicates of one configuration into pseudo-arms; mode 3 simulates scores.
Both run aggregation of outcomes, failure handling, tests and winner rule as an experiment does.
For an exact test mode 2 holds by construction: a rate outside its band is a defect of the
pipeline (episodes counted as n, mis-joined pairs, dropped failures), never bad luck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from lockstep.stats.exact import attained_mann_whitney, attained_sign_flip, attained_signed_rank
from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.registered import Design
from lockstep.stats.scores import ArmScores, arm_scores
from lockstep.stats.verdict import DIFFERENT_BUT_NEGLIGIBLE, WINNER, WINNER_MEANINGFUL

BAND = 0.99
#: Largest share of experiments with a winner when three or more equal arms compete.
SEVERAL_EQUAL_RATE = 0.02
_CLAIMS = (WINNER_MEANINGFUL, WINNER, DIFFERENT_BUT_NEGLIGIBLE)

Draw = Callable[[np.random.Generator], Sequence[ArmScores]]


@dataclass(frozen=True)
class Calibration:
    """Rate of experiments that called an arm better, against the band it must lie in."""

    name: str
    repetitions: int
    rate: float
    expected: float
    band: tuple[float, float]

    @property
    def passed(self) -> bool:
        """Return whether the rate lies inside the band."""
        return self.band[0] <= self.rate <= self.band[1]


@dataclass(frozen=True)
class Target:
    """The rate a calibration is held against; ``upper_only`` waives the lower edge (ties, K >= 3)."""

    name: str
    rate: float
    upper_only: bool = False


def attained_rate(design: Design, n: int) -> float:
    """Return the level that the design's exact test attains without ties at n replicates per arm."""
    if not design.paired:
        return attained_mann_whitney(n, n, design.level)
    attained = attained_sign_flip if design.estimand == "mean" else attained_signed_rank
    return attained(n, design.level)


def binomial_band(rate: float, repetitions: int) -> tuple[float, float]:
    """Return the 99 % band of an observed rate."""
    low, high = binom.interval(BAND, repetitions, rate)
    return float(low) / repetitions, float(high) / repetitions


def calibrate(draw: Draw, design: Design, target: Target, repetitions: int, rng: np.random.Generator) -> Calibration:
    """Return how often some arm is called better over fresh draws of arms without a difference."""
    claims = sum(_claims_winner(draw(rng), design) for _ in range(repetitions))
    low, high = binomial_band(target.rate, repetitions)
    band = (0.0 if target.upper_only else low, high)
    return Calibration(target.name, repetitions, claims / repetitions, target.rate, band)


def rerandomised(
    values: Sequence[float | None], statuses: Sequence[str], num_arms: int, direction: str = "max"
) -> Draw:
    """Return a draw that splits replicates of one configuration at random into equal pseudo-arms.

    Needs at least 20 replicates (24 for four arms); what does not divide evenly is left out at random.
    """
    minimum = 20 if num_arms < 4 else 6 * num_arms
    if len(values) < minimum:
        raise ValueError(f"calibration with {num_arms} arms needs {minimum} replicates, got {len(values)}")
    size = len(values) // num_arms

    def draw(rng: np.random.Generator) -> list[ArmScores]:
        order = rng.permutation(len(values))[: size * num_arms].reshape(num_arms, size)
        return [
            arm_scores(f"arm{k}", [values[i] for i in rows], [statuses[i] for i in rows], direction)
            for k, rows in enumerate(order)
        ]

    return draw


def by_device_slot(
    values: Sequence[float | None], statuses: Sequence[str], slots: Sequence[str], direction: str = "max"
) -> list[ArmScores]:
    """Return replicates of one configuration (different seeds) labelled as arms by their device slot.

    Mode 4: analyse them unpaired; a difference is an effect of the device.
    """
    arms = []
    for slot in sorted(set(slots)):
        own = [i for i, name in enumerate(slots) if name == slot]
        arms.append(arm_scores(slot, [values[i] for i in own], [statuses[i] for i in own], direction))
    return arms


@dataclass(frozen=True)
class Simulation:
    """Synthetic scores: unit-variance normal around arm means, correlated within blocks, some failing."""

    means: tuple[float, ...]
    n: int
    rho: float = 0.0
    failure_rate: float = 0.0

    def draw(self, rng: np.random.Generator) -> list[ArmScores]:
        """Return the arms of one simulated experiment."""
        shared = rng.standard_normal(self.n) * np.sqrt(self.rho)
        arms = []
        for k, mean in enumerate(self.means):
            values = mean + shared + rng.standard_normal(self.n) * np.sqrt(1 - self.rho)
            failed = rng.random(self.n) < self.failure_rate
            statuses = ["failed" if f else "ok" for f in failed]
            arms.append(arm_scores(f"arm{k}", [float(v) for v in values], statuses))
        return arms


def standard_suite(repetitions: int, seed: int = 0, scores: Sequence[float] | None = None) -> list[Calibration]:
    """Run modes 2 and 3 with the same number of repetitions; see the two suites."""
    return [*rerandomised_suite(repetitions, seed, scores), *simulated_suite(repetitions, seed)]


def rerandomised_suite(repetitions: int, seed: int = 0, scores: Sequence[float] | None = None) -> list[Calibration]:
    """Run mode 2: K = 2, n = 10 under three tests, and K = 4, n = 6.

    ``scores``: at least 24 replicates of one configuration; default: a normal sample.
    """
    rng = np.random.Generator(np.random.Philox(key=seed))
    values: list[float | None] = [*(rng.standard_normal(24) if scores is None else scores)]
    ok = ["ok"] * len(values)
    found = []
    for paired, estimand, name in (
        (True, "shift", "signed-rank"),
        (True, "mean", "sign-flip"),
        (False, "shift", "unpaired rank"),
    ):
        design = Design(paired=paired, estimand=estimand, sesoi=1.0, floor=-10.0)
        target = Target(f"re-randomised, two pseudo-arms, {name}", attained_rate(design, 10))
        found.append(calibrate(rerandomised(values[:20], ok[:20], 2), design, target, repetitions, rng))
    several = Target("re-randomised, four pseudo-arms", SEVERAL_EQUAL_RATE, upper_only=True)
    found.append(calibrate(rerandomised(values[:24], ok[:24], 4), _WINNER_DESIGN, several, repetitions, rng))
    return found


def simulated_suite(repetitions: int, seed: int = 0) -> list[Calibration]:
    """Run mode 3: normal scores, rho = .5, 20 % failures, tied best arms."""
    rng = np.random.Generator(np.random.Philox(key=seed + 1))
    return [calibrate(s.draw, _WINNER_DESIGN, target, repetitions, rng) for target, s in _SIMULATIONS]


# the winner rule reads no adjusted p, so the table's cheapest adjustment will do
_WINNER_DESIGN = Design(estimand="shift", sesoi=1.0, floor=-10.0, adjust="holm")
_SIGNED_RANK_10 = 0.048828125
_SIMULATIONS = (
    (Target("normal, independent", _SIGNED_RANK_10), Simulation((0.0, 0.0), 10)),
    (Target("normal, rho = .5", _SIGNED_RANK_10), Simulation((0.0, 0.0), 10, rho=0.5)),
    (Target("20 % failures", _SIGNED_RANK_10, True), Simulation((0.0, 0.0), 10, failure_rate=0.2)),
    (Target("two tied best, one bad arm", 0.05, True), Simulation((0.0, 0.0, -9.0), 10)),
    (Target("three equal arms", SEVERAL_EQUAL_RATE, True), Simulation((0.0, 0.0, 0.0), 10)),
    (Target("four equal arms", SEVERAL_EQUAL_RATE, True), Simulation((0.0, 0.0, 0.0, 0.0), 10)),
)


def _claims_winner(arms: Sequence[ArmScores], design: Design) -> bool:
    result, _ = analyse_with_sensitivity(arms, design)
    return result.winner is not None and result.verdict in _CLAIMS
