"""The observation vector, schema 1 (environment.md 9), built as arrays over all environments.

32 base features, 42 per slot in action order, and one blueprint id per slot. Unknown is -1, only on
features that cannot be negative; signed features use 0 plus a validity bit. Axes: E environments, S
slots. Building an observation mutates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.spec.tasks import CnnShape, SlotSpec
from worker.envs.base import Observation, ObsSpec
from worker.envs.morph.engine.tracker import Tracker
from worker.envs.morph.life.lifecycle import SlotTable, members
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.network.blueprints import NUM_BLUEPRINTS
from worker.envs.morph.task.config import EnvConfig

SCHEMA = 1
BASE, PER_SLOT = 32, 42


def _column(values: Sequence[int]) -> NDArray[np.int64]:
    """Return integers [n, 1, 1], to be compared with [E, S]."""
    return np.array(values)[:, None, None]


_STAGES, _OPERATORS, _OPS = _column(tuple(Stage)), _column(range(3)), np.arange(len(Op))[:, None]
_AT = {stage: place for place, stage in enumerate(Stage)}
#: Rows of the one-hot stages: with a graft, pruned and not yet free, and those of which the host's shares are told.
_WITH_GRAFT = slice(_AT[Stage.GERMINATED], _AT[Stage.FOSSILIZED] + 1)
_EMBARGO = slice(_AT[Stage.PRUNED], _AT[Stage.EMBARGOED] + 1)
_SHARES = [_AT[stage] for stage in (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED, Stage.DORMANT)]
#: Features that ``Tracker.nats``, ``percents`` and ``signed`` fill.
_NATS, _PERCENTS = np.array((1, *range(3, 8), 25)), np.array((2, *range(8, 13), 31))
_SIGNED = np.array((11, 12, 15, 16, 18))
_EMBARGOED = int(Stage.EMBARGOED)
_BASE_CONTINUOUS = (1, 2, *range(3, 13), 25, 26, 27, 30, 31)
_BASE_SENTINEL = (*range(3, 13), 18, 25)
_SLOT_CONTINUOUS = (*range(10, 17), 18, 20, 21, 23, 24, 25, 29, 30, 33, *range(34, 38), 41)
_SLOT_SENTINEL = (13, 14, *range(29, 34))

Array = NDArray[np.float64]


def obs_spec(num_slots: int) -> ObsSpec:
    """Return the layout for S slots: 32 + 42 S features, S blueprint ids of 4 dimensions."""

    def flags(base: Sequence[int], slot: Sequence[int]) -> torch.Tensor:
        found = torch.zeros(BASE + PER_SLOT * num_slots, dtype=torch.bool)
        found[list(base)] = True
        for index in range(num_slots):
            found[[BASE + PER_SLOT * index + feature for feature in slot]] = True
        return found

    return ObsSpec(
        num_features=BASE + PER_SLOT * num_slots,
        continuous=flags(_BASE_CONTINUOUS, _SLOT_CONTINUOUS),
        sentinel=flags(_BASE_SENTINEL, _SLOT_SENTINEL),
        num_ids=num_slots,
        id_vocab=NUM_BLUEPRINTS,
    )


@dataclass
class View:
    """What an observation is built from.

    Attributes:
        table, tracker: state of the run's slots and measurements.
        step: [E] steps done.
        last_op: [E] op executed last, -1 before the first step.
        as_chosen: [E] whether it was executed as chosen.
        streak: [E] governor anomalies in a row.
        host_params: parameters of the host.
    """

    table: SlotTable
    tracker: Tracker
    step: NDArray[np.int64]
    last_op: NDArray[np.int64]
    as_chosen: NDArray[np.bool_]
    streak: NDArray[np.int64]
    host_params: int


class Observer:
    """Builds observations for one slot layout.

    Args:
        config: settings.
        slots: enabled slots in action order.
    """

    def __init__(self, config: EnvConfig, slots: Sequence[SlotSpec]) -> None:
        self.config = config
        self.unit = float(np.log(config.task.host.num_classes))
        self._places = self._place_features(slots)
        self._dwelling = members(Stage.TRAINING, *((Stage.BLENDING,) if config.gates == "strict" else ()))
        nats = 0.1 * self.unit
        #: What signed measurements are divided by: contribution, its loss, velocity, prospect, interactions.
        self._scales = np.array([10.0, nats, 10.0, nats, nats])[:, None, None]

    def build(self, view: View) -> Observation:
        """Return the observation of all environments, on the host."""
        num_envs, num_slots = view.table.stage.shape
        stages = view.table.stage == _STAGES
        features = np.empty((num_envs, BASE + PER_SLOT * num_slots), dtype=np.float32)
        features[:, :BASE] = self._base(view, stages).T
        slots = features[:, BASE:].reshape(num_envs, num_slots, PER_SLOT)
        slots[:] = self._slots(view, stages).transpose(1, 2, 0)
        ids = torch.from_numpy(view.table.blueprint.copy())
        return Observation(torch.from_numpy(features), ids)

    def _base(self, view: View, stages: NDArray[np.bool_]) -> Array:
        """Return [32, E]; ``stages`` [9, E, S] says what each slot is in."""
        table, tracker, config = view.table, view.tracker, self.config
        out = np.zeros((BASE, len(view.step)))
        out[0] = view.step / config.horizon
        # R(l) = min(l / ln K, 5)
        out[_NATS] = np.minimum(tracker.nats / self.unit, 5.0)
        out[_PERCENTS] = tracker.percents / 100.0
        _mark_unknown(out[3:13])
        counts = np.add.reduce(stages, axis=2, dtype=np.float64)
        out[13:18] = counts[_SHARES] / stages.shape[2]
        out[18] = np.where(view.last_op >= 0, view.as_chosen, -1.0)
        out[19:25] = view.last_op == _OPS
        _mark_unknown(out[25])
        out[26] = tracker.accuracy_se / 10.0
        grown = np.add.reduce(table.params, axis=1)
        out[27] = np.minimum(np.log1p(grown / view.host_params) / 5.0, 1.0)
        out[28] = _remaining(config.param_budget, grown)
        out[29] = _remaining(config.max_grafts, np.add.reduce(counts[_WITH_GRAFT]))
        out[30] = view.streak / 3.0
        return out

    def _slots(self, view: View, stages: NDArray[np.bool_]) -> Array:
        """Return [42, E, S]."""
        table, horizon = view.table, self.config.horizon
        out = np.zeros((PER_SLOT, *table.stage.shape))
        out[0] = table.blueprint >= 0
        out[1:10] = stages
        self._gains(out, view)
        self._ramps(out, table)
        self._health(out, view.tracker)
        out[34] = table.epochs_in_stage / horizon
        out[35] = self._dwell_left(table)
        out[36] = table.age / horizon
        out[37] = np.minimum(np.log1p(table.params / view.host_params) / 5.0, 1.0)
        out[38:41] = self._places
        if np.count_nonzero(stages[_EMBARGO]):
            out[41] = self._embargo_left(table, stages)
        return out

    def _gains(self, out: Array, view: View) -> None:
        tracker = view.tracker
        missing, signed = np.isnan(tracker.signed), tracker.signed / self._scales
        np.putmask(signed, missing, 0.0)
        out[_SIGNED] = np.minimum(np.maximum(signed, -1.0), 1.0)
        out[13] = np.minimum(tracker.loss_gain_se / (0.1 * self.unit), 1.0)
        # the validation of s_t was made in step t - 1
        out[14] = 0.995 ** (view.step[:, None] - 1 - tracker.measured_at)
        _mark_unknown(out[13:15])
        out[17], out[19] = ~missing[3], ~missing[4]

    def _ramps(self, out: Array, table: SlotTable) -> None:
        longest, alpha = max(self.config.pace.tempos), table.alpha
        out[10] = alpha.alpha
        out[20] = table.tempo / longest
        out[21], out[22] = alpha.target, alpha.mode
        out[23] = alpha.steps_total / longest
        out[24] = alpha.steps_done / longest
        out[25] = (alpha.steps_total - alpha.steps_done) / longest
        out[26:29] = table.operator == _OPERATORS

    @staticmethod
    def _health(out: Array, tracker: Tracker) -> None:
        out[29] = np.log1p(np.minimum(tracker.grad_norm, 1e12)) / 7.0
        out[30:34] = tracker.gradients
        _mark_unknown(out[29:34])

    def _dwell_left(self, table: SlotTable) -> Array:
        dwell = self.config.pace.dwell
        left = np.maximum(dwell - table.epochs_in_stage, 0)
        return table.within(self._dwelling) * left / max(dwell, 1)

    def _embargo_left(self, table: SlotTable, stages: NDArray[np.bool_]) -> Array:
        embargo = self.config.pace.embargo
        served = (table.stage == _EMBARGOED) * table.epochs_in_stage
        waits = np.logical_or.reduce(stages[_EMBARGO])
        left: Array = np.maximum(embargo - served, 0) * waits / max(embargo, 1)
        return left

    def _place_features(self, slots: Sequence[SlotSpec]) -> Array:
        shape = self.config.task.host
        last = max(1, len(shape.slots()) - 1)
        size = np.log2(shape.size) if isinstance(shape, CnnShape) else 1.0
        places = np.empty((3, 1, len(slots)))
        for index, slot in enumerate(slots):
            relative = np.log2(slot.height) / size if isinstance(shape, CnnShape) else 1.0
            places[:, 0, index] = slot.position / last, relative, np.log2(slot.channels) / 10.0
        return places


def _mark_unknown(values: Array) -> None:
    """Put -1 where nothing was measured."""
    values[np.isnan(values)] = -1.0


def _remaining(budget: int | None, used: NDArray[Any]) -> Array | float:
    if budget is None:
        return 1.0
    left: Array = np.clip((budget - used) / budget, 0.0, 1.0)
    return left
