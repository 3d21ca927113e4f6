"""The plain record on which morphogenesis rewards are computed (training.md 2.1).

Axes: E environments, S slots in action order. ``pre`` is s_t, ``post`` is s_{t+1}. Unmeasured
values are NaN and pay nothing. A reward function reads this and returns a ``RewardResult``; it
keeps no state but the ledgers passed in and returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass
class SlotState:
    """Lifecycle and measurements at one instant.

    Attributes:
        stage: [E, S] int64, Stage values.
        epochs_in_stage: [E, S] int64.
        age: [E, S] int64, steps since germination (0 when empty).
        alpha: [E, S] float32 in [0, 1].
        params: [E, S] float32, parameters of the graft with gate (0 when empty).
        germinated_at: [E, S] int64, step index of germination, -1 when empty.
        contribution: [E, S] float32 pp, accuracy(all on) - accuracy(slot off); NaN unmeasured.
        cf: [E] float32 pp, accuracy(all on) - accuracy(all off); NaN unmeasured.
        interactions: [E, S, S] float32 pp, I_ij (diagonal and unmeasured pairs NaN).
        accuracy: [E] float32 pp, all on.
        committed_accuracy: [E] float32 pp, only fossilised grafts on.
        loss: [E] float32 nats, all on.
    """

    stage: Tensor
    epochs_in_stage: Tensor
    age: Tensor
    alpha: Tensor
    params: Tensor
    germinated_at: Tensor
    contribution: Tensor
    cf: Tensor
    interactions: Tensor
    accuracy: Tensor
    committed_accuracy: Tensor
    loss: Tensor


@dataclass
class RewardContext:
    """One transition of all environments of a run.

    Attributes:
        pre: s_t.
        post: s_{t+1}.
        op: [E] int64, op chosen.
        target_slot: [E] int64 slot index in action order, -1 for WAIT.
        executed_op: [E] int64, after a governor veto.
        rolled_back: [E] bool, the governor rolled back in this step.
        terminated: [E] bool, a real end (horizon with horizon_end=terminated, or rollback).
        is_last: [E] bool, t + 1 == horizon.
        t: [E] int64, index of this step, 0..T-1.
        horizon: T.
        host_params: [E] float32.
        initial_accuracy: [E] float32 pp, of the untrained host (a_0).
        initial_loss: [E] float32 nats (loss_0).
        ledgers: reward state carried over steps, {name: tensor}; empty at t = 0.
    """

    pre: SlotState
    post: SlotState
    op: Tensor
    target_slot: Tensor
    executed_op: Tensor
    rolled_back: Tensor
    terminated: Tensor
    is_last: Tensor
    t: Tensor
    horizon: int
    host_params: Tensor
    initial_accuracy: Tensor
    initial_loss: Tensor
    ledgers: Mapping[str, Tensor]

    @cached_property
    def addressed(self) -> Tensor:
        """Return [E, S] bool: the slot that the op addresses."""
        slots = torch.arange(self.pre.stage.shape[1], device=self.target_slot.device)
        return slots == self.target_slot.unsqueeze(1)


@dataclass
class RewardResult:
    """Reward [E], components {name: [E]} that sum to it within 1e-5, and the ledgers for t + 1."""

    reward: Tensor
    components: dict[str, Tensor]
    ledgers: dict[str, Tensor]
