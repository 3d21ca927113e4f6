"""The plain record on which morphogenesis rewards are computed (training.md 2.1).

Axes: E environments, S slots in action order. ``pre`` is s_t, ``post`` is s_{t+1}. Unmeasured
values are NaN and pay nothing. A reward function reads this and returns a ``RewardResult``; it
keeps no state but the ledgers passed in and returned. docs/rewards.md is made of the attributes told here: type and
shape; unit; meaning.
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
        stage: [E, S] int64; ``Stage``; what stands in the slot; always there.
        epochs_in_stage: [E, S] int64; env steps; how long it has been in that stage; always there.
        age: [E, S] int64; env steps; since germination, 0 in an empty slot; always there.
        alpha: [E, S] float32; share from 0 to 1; how far the graft is blended in; always there.
        params: [E, S] float32; parameters; of the graft with its gate, 0 in an empty slot; always there.
        germinated_at: [E, S] int64; env steps; index t of its germination, -1 in an empty slot; always there.
        contribution: [E, S] float32; pp; validation accuracy with all grafts on, minus that with this one off; NaN but
            for BLENDING, HOLDING and FOSSILIZED grafts that the last validation measured (``env.ablate_fossils``).
        cf: [E] float32; pp; accuracy with all grafts on, minus that with all off; NaN where no graft was measured.
        interactions: [E, S, S] float32; pp; I_ij = accuracy gained by i and j together beyond what each gains alone;
            NaN on the diagonal and for pairs that were not measured.
        accuracy: [E] float32; pp; of the whole network on the validation split; after a rollback that of the restored
            network; always there.
        committed_accuracy: [E] float32; pp; with only FOSSILIZED grafts on; always there.
        loss: [E] float32; nats; of the whole network on the validation split; always there.
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
        pre: SlotState; see below; s_t, on which the op was chosen; always there.
        post: SlotState; see below; s_{t+1}, after op, training and validation; always there.
        op: [E] int64; ``Op``; what the policy chose, WAIT in an environment whose episode is over; always there.
        target_slot: [E] int64; index of a slot; that the op addresses, -1 for WAIT; always there.
        executed_op: [E] int64; ``Op``; what was executed: WAIT where the governor vetoed ``op``; always there.
        rolled_back: [E] bool; truth; the host diverged and the governor restored it: the step pays ``death_pay``
            whatever the function returns; always there.
        terminated: [E] bool; truth; a real end: a rollback, or the horizon under ``env.horizon_end`` terminated; always
            there.
        is_last: [E] bool; truth; t + 1 == horizon; always there.
        t: [E] int64; env steps; index of this step, from 0; always there.
        horizon: int; env steps; T; always there.
        host_params: [E] float32; parameters; of the host without grafts; always there.
        initial_accuracy: [E] float32; pp; of the untrained host (a_0); always there.
        initial_loss: [E] float32; nats; of the untrained host (loss_0); always there.
        ledgers: {name: tensor}; the function's own; what it returned in the step before; empty at t = 0.
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
    """What a step pays.

    Attributes:
        reward: [E] numbers, paid as float32; reward units; finite wherever the input is.
        components: {name: [E]}; reward units; sum to the reward within 1e-5; each is shown as ``reward/<name>_mean``.
        ledgers: {name: tensor}; the function's own; what it wants to be handed in the next step, {} for nothing.
    """

    reward: Tensor
    components: dict[str, Tensor]
    ledgers: dict[str, Tensor]
