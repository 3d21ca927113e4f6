"""The life of grafts: stages, time in stage, and what a tick does (environment.md 3).

One table holds the slots of all environments of a run as arrays [E, S] in action order. Stages
change only through ``move``, which knows the legal transitions; epochs_in_stage and age grow in one
place, ``end_step``. The table knows nothing of networks: it reports what was pruned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.envs.morph.life.alpha import DOWN, HOLD, AlphaController
from worker.envs.morph.life.stages import Stage

BoolES = NDArray[np.bool_]
IntES = NDArray[np.int64]
FloatES = NDArray[np.float64]

LEGAL: frozenset[tuple[Stage, Stage]] = frozenset(
    {
        (Stage.DORMANT, Stage.GERMINATED),
        (Stage.GERMINATED, Stage.TRAINING),
        (Stage.TRAINING, Stage.BLENDING),
        (Stage.BLENDING, Stage.HOLDING),
        (Stage.HOLDING, Stage.BLENDING),
        (Stage.HOLDING, Stage.FOSSILIZED),
        (Stage.GERMINATED, Stage.PRUNED),
        (Stage.TRAINING, Stage.PRUNED),
        (Stage.BLENDING, Stage.PRUNED),
        (Stage.HOLDING, Stage.PRUNED),
        (Stage.PRUNED, Stage.EMBARGOED),
        (Stage.EMBARGOED, Stage.RESETTING),
        (Stage.RESETTING, Stage.DORMANT),
    }
)
WITH_GRAFT = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
DEVELOPING = (Stage.GERMINATED, Stage.TRAINING, Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING)


# integers, as in ``alpha``
_PRUNED, _EMBARGOED, _RESETTING = int(Stage.PRUNED), int(Stage.EMBARGOED), int(Stage.RESETTING)


def members(*stages: Stage) -> NDArray[np.bool_]:
    """Return which stage integers are those of ``stages``, [11]; for ``SlotTable.within``."""
    member = np.zeros(max(Stage) + 1, dtype=bool)
    member[list(stages)] = True
    return member


_EMPTYING = members(Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING)
#: Rows of ``SlotTable.counts``, first those that rewards read.
_COUNTS = (
    "stage",
    "epochs_in_stage",
    "age",
    "germinated_at",
    "params",
    "previous_stage",
    "previous_epochs",
    "blueprint",
    "operator",
    "germinations",
    "tempo",
    "birth_curve",
)


@dataclass
class SlotTable:
    """State of all slots of a run.

    Attributes:
        stage, previous_stage: [E, S] Stage values.
        epochs_in_stage, previous_epochs, age: [E, S] steps.
        blueprint, operator: [E, S] ids, -1 when empty.
        params: [E, S] parameters of the graft with gamma and gate, 0 when empty.
        germinated_at: [E, S] step, -1 when empty.
        germinations: [E, S] germinations in this slot this episode.
        tempo: [E, S] ramp length chosen at germination.
        birth_target: [E, S] alpha target chosen at germination.
        birth_curve: [E, S] ramp shape that belongs to the style.
        alpha: the ramps.
        counts: [12, E, S] all that are integers, the arrays above as its rows.
    """

    stage: IntES
    previous_stage: IntES
    epochs_in_stage: IntES
    previous_epochs: IntES
    age: IntES
    blueprint: IntES
    operator: IntES
    params: IntES
    germinated_at: IntES
    germinations: IntES
    tempo: IntES
    birth_target: FloatES
    birth_curve: IntES
    alpha: AlphaController
    counts: IntES

    @classmethod
    def empty(cls, num_envs: int, num_slots: int) -> SlotTable:
        """Return a table of dormant slots."""
        counts = np.zeros((len(_COUNTS), num_envs, num_slots), dtype=np.int64)
        table = cls(
            **dict(zip(_COUNTS, counts, strict=True)),
            birth_target=np.zeros((num_envs, num_slots)),
            alpha=AlphaController.zeros(num_envs, num_slots),
            counts=counts,
        )
        table.stage[:] = table.previous_stage[:] = Stage.DORMANT
        table.blueprint[:] = table.operator[:] = table.germinated_at[:] = -1
        return table

    def is_in(self, *stages: Stage) -> BoolES:
        """Return [E, S]: the slot is in one of the stages."""
        return self.within(members(*stages))

    def within(self, member: NDArray[np.bool_]) -> BoolES:
        """Return [E, S]: the slot is in one of the stages of ``members``."""
        found: BoolES = member[self.stage]
        return found

    def move(self, env: int, slot: int, to: Stage) -> None:
        """Change a stage; an illegal transition raises ValueError naming both stages."""
        here = Stage(int(self.stage[env, slot]))
        if (here, to) not in LEGAL:
            raise ValueError(f"env {env} slot {slot}: no transition from {here.name} to {to.name}")
        self.previous_stage[env, slot] = here
        self.previous_epochs[env, slot] = self.epochs_in_stage[env, slot]
        self.stage[env, slot] = to
        self.epochs_in_stage[env, slot] = 0

    def prune(self, env: int, slot: int) -> None:
        """Move to PRUNED and forget the graft; alpha rests at 0."""
        self.move(env, slot, Stage.PRUNED)
        self.alpha.clear(env, slot)
        for array, value in (
            (self.blueprint, -1),
            (self.operator, -1),
            (self.params, 0),
            (self.germinated_at, -1),
            (self.age, 0),
            (self.tempo, 0),
            (self.birth_curve, 0),
        ):
            array[env, slot] = value
        self.birth_target[env, slot] = 0.0

    def annul_fossil(self, env: int, slot: int) -> None:
        """Take back a FOSSILIZE whose step ended in a rollback before any snapshot held the fossil."""
        self.stage[env, slot] = Stage.HOLDING

    def tick_empty(self, running: NDArray[np.bool_], embargo: int) -> None:
        """Move PRUNED, EMBARGOED and RESETTING on, if entered in an earlier step.

        A stage entered in this step has epochs_in_stage 0. An embargo of 0 steps is passed through.
        """
        emptying = self.within(_EMPTYING)
        if not np.count_nonzero(emptying):
            return
        for env, slot in np.argwhere(emptying & (self.epochs_in_stage > 0) & running[:, None]):
            stage = self.stage[env, slot]
            if stage == _PRUNED:
                self.move(env, slot, Stage.EMBARGOED)
            elif stage == _RESETTING:
                self.move(env, slot, Stage.DORMANT)
            if self.stage[env, slot] == _EMBARGOED and self.epochs_in_stage[env, slot] >= embargo:
                self.move(env, slot, Stage.RESETTING)

    def tick_alpha(self, running: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Step every ramp and return the slots whose ramp has arrived at 0, not yet pruned."""
        if self.alpha.is_at_rest():
            return []
        falling = self.alpha.mode == DOWN
        self.alpha.step(running)
        arrived = falling & (self.alpha.mode == HOLD) & (self.alpha.alpha == 0.0)
        return [(int(env), int(slot)) for env, slot in np.argwhere(arrived)]

    def end_step(self, running: NDArray[np.bool_]) -> None:
        """Count the step: the only place where epochs_in_stage and age grow."""
        self.epochs_in_stage += running[:, None]
        self.age += running[:, None] & (self.blueprint >= 0)
