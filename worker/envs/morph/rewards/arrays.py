"""A transition as arrays over the memory of its tensors, for the formulas of the built-in modes.

A few environments make arrays so small that an operation costs its call: numpy's are several times cheaper than
torch's. What numpy rounds or orders otherwise (sums, logarithms, tanh, extremes of signed zeros) is torch's here, so
that a mode pays the same bits on either. Axes: E environment, S slot in action order.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worker.envs.morph.life.lifecycle import members
from worker.envs.morph.life.stages import Stage
from worker.envs.morph.rewards.context import RewardContext, SlotState

Array = NDArray[Any]
Bools = NDArray[np.bool_]

_GERMINATED, _TRAINING, _BLENDING = Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING
_HOLDING, _FOSSILIZED = Stage.HOLDING, Stage.FOSSILIZED
#: Up to so many addends are summed one after the other by numpy and by torch.
_IN_TURN = 4
_LIVE, _BLENDED = members(_GERMINATED, _TRAINING, _BLENDING, _HOLDING), members(_BLENDING, _HOLDING, _FOSSILIZED)


class Moment:
    """A ``SlotState``; its attributes have the same names, shapes and units."""

    def __init__(self, state: SlotState) -> None:
        self.stage = state.stage.numpy()
        self.epochs_in_stage = state.epochs_in_stage.numpy()
        self.age = state.age.numpy()
        self.alpha = state.alpha.numpy()
        self.params = state.params.numpy()
        self.germinated_at = state.germinated_at.numpy()
        self.contribution = state.contribution.numpy()
        self.cf = state.cf.numpy()
        self.interactions = state.interactions.numpy()
        self.accuracy = state.accuracy.numpy()
        self.committed_accuracy = state.committed_accuracy.numpy()
        self.loss = state.loss.numpy()

    @cached_property
    def epochs(self) -> Array:
        """Return [E, S]: steps in the present stage, in the type of the measurements."""
        found: Array = self.epochs_in_stage.astype(self.accuracy.dtype)
        return found

    @cached_property
    def paying(self) -> Array:
        """Return [E, S] pp: contributions, 0 where unmeasured."""
        return measured(self.contribution)

    @cached_property
    def is_live(self) -> Bools:
        """Return [E, S]: GERMINATED, TRAINING, BLENDING or HOLDING."""
        found: Bools = _LIVE[self.stage]
        return found

    @cached_property
    def is_fossil(self) -> Bools:
        """Return [E, S]: FOSSILIZED."""
        found: Bools = self.stage == _FOSSILIZED
        return found

    @cached_property
    def is_blended(self) -> Bools:
        """Return [E, S]: BLENDING, HOLDING or FOSSILIZED."""
        found: Bools = _BLENDED[self.stage]
        return found

    def is_in(self, stage: Stage) -> Bools:
        """Return [E, S]: the slot is in a stage."""
        found: Bools = self.stage == stage
        return found


class Transition:
    """A ``RewardContext``; its attributes have the same names, shapes and units."""

    def __init__(self, ctx: RewardContext) -> None:
        self.pre, self.post = Moment(ctx.pre), Moment(ctx.post)
        self.target_slot, self.executed_op = ctx.target_slot.numpy(), ctx.executed_op.numpy()
        self.rolled_back, self.terminated = ctx.rolled_back.numpy(), ctx.terminated.numpy()
        self.is_last, self.t, self.horizon = ctx.is_last.numpy(), ctx.t.numpy(), ctx.horizon
        self.host_params, self.initial_accuracy = ctx.host_params.numpy(), ctx.initial_accuracy.numpy()
        self.ledgers = {name: ledger.numpy() for name, ledger in ctx.ledgers.items()}

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the measurements."""
        return self.post.accuracy.dtype

    @cached_property
    def zero(self) -> Array:
        """Return [E] zeros; read only."""
        return np.zeros_like(self.post.accuracy)

    @cached_property
    def ops(self) -> frozenset[int]:
        """Return the ops that were executed in any environment."""
        return frozenset(self.executed_op.tolist())

    @cached_property
    def addressed(self) -> Bools:
        """Return [E, S]: the slot that the op addresses."""
        found: Bools = np.arange(self.pre.stage.shape[1]) == self.target_slot[:, None]
        return found


def measured(x: Array) -> Array:
    """Return ``x``, finite or NaN, with unmeasured entries paying 0."""
    found = x.copy()
    np.putmask(found, np.isnan(x), 0.0)
    return found


def total(x: Array) -> Array:
    """Return the sum over the last axis, in torch's order."""
    if x.shape[-1] <= _IN_TURN:
        found: Array = np.add.reduce(x, -1)
        return found
    return torch.from_numpy(x).sum(-1).numpy()


def lowest(x: Array) -> Array:
    """Return the minimum over the last axis."""
    return torch.from_numpy(x).amin(-1).numpy()


def log1p(x: Array) -> Array:
    """Return ln(1 + x)."""
    return torch.from_numpy(x).log1p().numpy()


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    return torch.from_numpy(x).tanh().numpy()


def at_least(x: Array, low: float) -> Array:
    """Return ``x``, no less than ``low``; NaN stays, and so does the sign of 0."""
    found = x.copy()
    np.putmask(found, x < low, low)
    return found


def at_most(x: Array, high: float) -> Array:
    """Return ``x``, no more than ``high``; NaN stays, and so does the sign of 0."""
    found = x.copy()
    np.putmask(found, x > high, high)
    return found


def some(flags: Bools) -> bool:
    """Say whether any flag is set; a third of the price of ``any``."""
    return bool(np.count_nonzero(flags))
