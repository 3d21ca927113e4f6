"""A transition as arrays: what the environments measure and the built-in modes compute with.

A few environments make arrays so small that an operation costs its call: numpy's are several times cheaper than
torch's. What numpy rounds or orders otherwise (sums, logarithms, tanh, extremes of signed zeros) is torch's here, so
that a mode pays the same bits on either. Modes of packages are told tensors over the same memory.
Axes: E environment, S slot in action order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.envs.morph.life.lifecycle import members
from worker.envs.morph.life.stages import Stage
from worker.envs.morph.rewards.context import RewardContext, SlotState

Array = NDArray[Any]
Bools = NDArray[np.bool_]

_FOSSILIZED = int(Stage.FOSSILIZED)
_STATE = [item.name for item in fields(SlotState)]
#: The tensors of a ``RewardContext`` itself.
_TENSORS = [item.name for item in fields(RewardContext) if item.name not in ("pre", "post", "horizon", "ledgers")]
#: Up to so many addends are summed one after the other by numpy and by torch.
_IN_TURN = 4
_LIVE = members(Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
_BLENDED = members(Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)


@dataclass(eq=False)
class Moment:
    """A ``SlotState``; its attributes have the same names, shapes and units."""

    stage: Array
    epochs_in_stage: Array
    age: Array
    alpha: Array
    params: Array
    germinated_at: Array
    contribution: Array
    cf: Array
    interactions: Array
    accuracy: Array
    committed_accuracy: Array
    loss: Array

    @classmethod
    def of(cls, state: SlotState) -> Moment:
        """Return what the tensors of a state hold."""
        return cls(**{name: getattr(state, name).numpy() for name in _STATE})

    @cached_property
    def told(self) -> SlotState:
        """Return it as tensors."""
        return SlotState(*(torch.from_numpy(getattr(self, name)) for name in _STATE))

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
        found: Bools = self.stage == int(stage)  # a member of an enum takes five times as long
        return found


@dataclass(eq=False)
class Transition:
    """A ``RewardContext``; its attributes have the same names, shapes and units."""

    pre: Moment
    post: Moment
    op: Array
    target_slot: Array
    executed_op: Array
    rolled_back: Bools
    terminated: Bools
    is_last: Bools
    t: Array
    horizon: int
    host_params: Array
    initial_accuracy: Array
    initial_loss: Array
    ledgers: Mapping[str, Array]

    @classmethod
    def of(cls, ctx: RewardContext) -> Transition:
        """Return what the tensors of a transition hold."""
        return cls(
            pre=Moment.of(ctx.pre),
            post=Moment.of(ctx.post),
            horizon=ctx.horizon,
            ledgers={name: ledger.numpy() for name, ledger in ctx.ledgers.items()},
            **{name: getattr(ctx, name).numpy() for name in _TENSORS},
        )

    def told(self, ledgers: Mapping[str, Tensor]) -> RewardContext:
        """Return it as tensors, with the ledgers of a function."""
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in _TENSORS}
        return RewardContext(self.pre.told, self.post.told, horizon=self.horizon, ledgers=ledgers, **tensors)

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
    if low != 0:  # of two zeros numpy may take either
        return np.maximum(x, low)
    found = x.copy()
    np.putmask(found, x < low, low)
    return found


def at_most(x: Array, high: float) -> Array:
    """Return ``x``, no more than ``high``; NaN stays, and so does the sign of 0."""
    if high != 0:  # of two zeros numpy may take either
        return np.minimum(x, high)
    found = x.copy()
    np.putmask(found, x > high, high)
    return found


def some(flags: Bools) -> bool:
    """Say whether any flag is set; a third of the price of ``any``."""
    return bool(np.count_nonzero(flags))
