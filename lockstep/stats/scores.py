"""Scores of an arm on their way into the tests: orientation, failures, losses, floors.

A failure (diverged, or a non-finite score) is an outcome; a loss (infrastructure) is not. Blocks
are joined by replicate index. The unit is the replicate: one number each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from lockstep.stats.results import Floats

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ArmScores:
    """One arm's outcomes by replicate: ``values`` oriented (larger is better), NaN unless succeeded."""

    label: str
    values: Floats
    failed: Mask
    lost: Mask

    @property
    def succeeded(self) -> Floats:
        """Return the scores of successful replicates."""
        return self.values[~self.failed & ~self.lost]

    @property
    def num_failures(self) -> int:
        """Return how many replicates failed."""
        return int(self.failed.sum())

    @property
    def num_outcomes(self) -> int:
        """Return how many replicates have an outcome (a score or a failure)."""
        return int((~self.lost).sum())


@dataclass(frozen=True)
class FlooredArm:
    """Outcomes of one arm that enter the analysis: failures at the floor, and at -inf for ranks."""

    label: str
    values: Floats
    ranked: Floats
    replicates: NDArray[np.intp]


def arm_scores(label: str, raw: Sequence[float | None], statuses: Sequence[str], direction: str = "max") -> ArmScores:
    """Return oriented scores; a successful run with a non-finite score counts as failed.

    ``statuses``: ok, failed or lost per replicate; ``raw`` in units of the metric.
    """
    sign = 1.0 if direction == "max" else -1.0
    values = np.full(len(raw), np.nan)
    failed = np.array([s == "failed" for s in statuses], dtype=bool)
    lost = np.array([s == "lost" for s in statuses], dtype=bool)
    for i, (value, status) in enumerate(zip(raw, statuses, strict=True)):
        if status != "ok":
            continue
        if value is None:
            raise ValueError(f"arm {label!r}, replicate {i}: a successful run has no score")
        if isfinite(value):
            values[i] = sign * value
        else:
            failed[i] = True
    return ArmScores(label, values, failed, lost)


def resolve_floor(arms: Sequence[ArmScores], floor: float | None) -> tuple[float, tuple[str, ...]]:
    """Return the oriented floor in force and its flags.

    Never better than the worst score seen (``FLOOR_ABOVE_SCORE``); without a registered floor the
    worst score seen stands in when something failed (``FLOOR_ASSUMED``).
    """
    worst = worst_score(arms)
    if floor is None:
        failures = any(arm.failed.any() for arm in arms)
        return (0.0 if worst is None else worst), (("FLOOR_ASSUMED",) if failures else ())
    if worst is not None and worst < floor:
        return worst, ("FLOOR_ABOVE_SCORE",)
    return floor, ()


def worst_score(arms: Sequence[ArmScores]) -> float | None:
    """Return the worst successful oriented score over all arms, or None."""
    seen = np.concatenate([arm.succeeded for arm in arms])
    return float(seen.min()) if seen.size else None


def best_score(arms: Sequence[ArmScores]) -> float | None:
    """Return the best successful oriented score over all arms, or None."""
    seen = np.concatenate([arm.succeeded for arm in arms])
    return float(seen.max()) if seen.size else None


def complete_blocks(arms: Sequence[ArmScores]) -> NDArray[np.intp]:
    """Return the replicate indices at which every arm has an outcome."""
    size = min(arm.values.size for arm in arms)
    lost = np.any([arm.lost[:size] for arm in arms], axis=0)
    return np.flatnonzero(~lost)


def usable(arms: Sequence[ArmScores], floor: float, paired: bool) -> list[FlooredArm]:
    """Return the outcomes that enter: complete blocks of all arms when paired, else each arm's own."""
    blocks = complete_blocks(arms) if paired else None
    return [_floored(arm, floor, np.flatnonzero(~arm.lost) if blocks is None else blocks) for arm in arms]


def without_failures(arms: Sequence[ArmScores]) -> list[ArmScores]:
    """Return the arms with failures treated as losses (for information only)."""
    none = [np.zeros_like(arm.failed) for arm in arms]
    return [replace(arm, failed=f, lost=arm.lost | arm.failed) for arm, f in zip(arms, none, strict=True)]


def losses_filled_against(arms: Sequence[ArmScores], named: Sequence[str], floor: float) -> list[ArmScores]:
    """Return the arms with losses filled against the named ones: their own at the floor, rivals' at the best."""
    best = best_score(arms)
    filled = []
    for arm in arms:
        value = floor if arm.label in named or best is None else best
        values = np.where(arm.lost, value, arm.values)
        filled.append(replace(arm, values=values, lost=np.zeros_like(arm.lost)))
    return filled


def _floored(arm: ArmScores, floor: float, keep: NDArray[np.intp]) -> FlooredArm:
    failed = arm.failed[keep]
    values = np.where(failed, floor, arm.values[keep])
    return FlooredArm(arm.label, values, np.where(failed, -np.inf, arm.values[keep]), keep)
