"""Gate verdicts (environment.md 3.2), from the same numbers for masks and for automatic advance.

An unmeasured gate fails. Axes: E environments, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.envs.morph.engine.tracker import Tracker
from worker.envs.morph.life.alpha import HOLD
from worker.envs.morph.life.lifecycle import SlotTable
from worker.envs.morph.life.stages import Stage
from worker.envs.morph.task.config import EnvConfig

BoolArray = NDArray[np.bool_]
_HEALTH, _ACCURACY_PP = 0.7, 1.0
#: The stages that the gates stand in, as a column beside [E, S].
_STAGES = np.array((Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING))[:, None, None]


@dataclass(frozen=True)
class Gates:
    """Verdicts [E, S]; each is False outside its stage.

    Attributes:
        g1, g2, g3: GERMINATED, TRAINING and BLENDING may advance.
        fossilize: HOLDING may be kept for good (G5).
    """

    g1: BoolArray
    g2: BoolArray
    g3: BoolArray
    fossilize: BoolArray

    def advance(self, automatic: Sequence[str] = ()) -> BoolArray:
        """Return where ADVANCE passes, leaving out the gates (g1, g2, g3) that advance by themselves."""
        passes = np.zeros(self.g1.shape, dtype=bool)
        for name in ("g1", "g2", "g3"):
            if name not in automatic:
                passes |= getattr(self, name)
        return passes


def evaluate(table: SlotTable, tracker: Tracker, config: EnvConfig) -> Gates:
    """Return the verdicts on the present state; NaN comparisons are False, so unmeasured fails."""
    alpha, waited = table.alpha, table.epochs_in_stage >= config.pace.dwell
    g1, g2, g3, g5 = table.stage == _STAGES
    g2 &= waited & (tracker.health >= _HEALTH) & (tracker.exploding == 0.0)
    g3 &= (np.abs(alpha.alpha - alpha.target) <= 1e-6) & (alpha.mode == HOLD)
    g5 &= tracker.fresh
    if config.gates == "strict":
        g2 &= tracker.prospective - 2.0 * tracker.prospective_se > 0.0
        g3 &= (np.abs(alpha.target - 1.0) <= 1e-6) & waited
        g5 &= (tracker.accuracy_gain >= _ACCURACY_PP) & (tracker.loss_gain - 2.0 * tracker.loss_gain_se > 0.0)
    return Gates(g1, g2, g3, g5)
