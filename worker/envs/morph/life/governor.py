"""The governor: detects a network that has blown up and decides what happens (environment.md 8).

Pure bookkeeping on one environment's validation losses, in multiples of L = ln K; restoring weights is
the environment's work. A panic ends the episode. While an anomaly streak runs, FOSSILIZE is vetoed:
nothing irreversible is committed on a network that may be about to be rolled back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from lockstep.spec import sections
from worker.envs.morph.life.stages import Op

Cause = Literal["non_finite", "explosion", "collapse", "divergence"]


@dataclass(frozen=True)
class Verdict:
    """Result of one check.

    Attributes:
        panic: cause of a rollback, or None.
        healthy: vitals pass, so that a snapshot may be taken.
        first_step: step whose transition becomes terminal on panic.
        threshold: the limit that was crossed, nats (NaN where none).
    """

    panic: Cause | None
    healthy: bool
    first_step: int
    threshold: float = math.nan


@dataclass
class Governor:
    """State of the checks of one environment.

    Attributes:
        config: thresholds.
        log_classes: ln K.
        window: finite losses of this episode, newest last.
        streak: anomalies in a row.
    """

    config: sections.Governor
    log_classes: float
    window: deque[float] = field(default_factory=deque)
    streak: int = 0

    def reset(self) -> None:
        """Forget the episode."""
        self.window.clear()
        self.streak = 0

    def allows(self, op: Op) -> bool:
        """Say whether preflight lets an op pass."""
        return not (op is Op.FOSSILIZE and self.streak > 0)

    def check(self, step: int, loss: float, *, finite: bool, skipped: int) -> Verdict:
        """Judge the state after a step.

        Args:
            step: index of the step.
            loss: validation loss of main, nats.
            finite: whether every parameter of the host and of grafts that trained is finite.
            skipped: batches of the epoch with a non-finite gradient norm.
        """
        c, unit = self.config, self.log_classes
        if not (math.isfinite(loss) and finite) or skipped >= c.nonfinite_batches:
            return self._panic("non_finite", step, math.nan)
        if loss > c.explosion * unit:
            return self._panic("explosion", step, c.explosion * unit)
        if self._collapsed(loss):
            return self._panic("collapse", step, unit)
        limit = self._divergence_limit()
        if loss <= limit:
            self.streak = 0
            self.window.append(loss)
            if len(self.window) > c.window:
                self.window.popleft()
            return Verdict(None, True, step)
        self.streak += 1
        if self.streak < c.divergence_streak:
            return Verdict(None, False, step, limit)
        return self._panic("divergence", step - self.streak + 1, limit)

    def _panic(self, cause: Cause, first_step: int, threshold: float) -> Verdict:
        return Verdict(cause, False, first_step, threshold)

    def _collapsed(self, loss: float) -> bool:
        c, unit = self.config, self.log_classes
        if len(self.window) < c.collapse_min_samples:
            return False
        was_good = min(self.window) < c.collapse_best * unit
        return was_good and abs(loss - unit) < c.collapse_band * unit

    def _divergence_limit(self) -> float:
        c, unit = self.config, self.log_classes
        if len(self.window) < c.divergence_min_samples:
            return math.inf
        centre = median(self.window)
        mad = median(abs(value - centre) for value in self.window)
        robust = centre + c.divergence_mad * max(1.4826 * mad, c.divergence_floor * unit)
        return max(c.divergence * unit, c.divergence_ratio * min(self.window), robust)
