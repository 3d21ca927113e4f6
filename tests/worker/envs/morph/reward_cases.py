"""Rows for reward tests: transitions built in the open, and random legal trajectories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.rewards import RewardConfig, terms
from worker.envs.morph.rewards.arrays import Array, Moment, Transition
from worker.envs.morph.rewards.context import RewardContext, SlotState

NAN = float("nan")


def slots(stages: list[int], *, dtype: torch.dtype = torch.float64, **values: Any) -> SlotState:
    """One environment's slots; ``values`` are lists per slot, or scalars for cf, accuracy, loss."""
    n = len(stages)

    def row(name: str, default: float, kind: torch.dtype) -> Tensor:
        given = values.get(name, [default] * n)
        return torch.tensor([given], dtype=kind)

    def scalar(name: str, default: float) -> Tensor:
        return torch.tensor([values.get(name, default)], dtype=dtype)

    pairs = values.get("interactions")
    return SlotState(
        stage=torch.tensor([stages]),
        epochs_in_stage=row("e", 0, torch.int64),
        age=row("age", 0, torch.int64),
        alpha=row("alpha", 0.0, dtype),
        params=row("params", 0.0, dtype),
        germinated_at=row("germinated_at", 10, torch.int64),
        contribution=row("c", NAN, dtype),
        cf=scalar("cf", NAN),
        interactions=torch.full((1, n, n), NAN, dtype=dtype) if pairs is None else torch.tensor([pairs], dtype=dtype),
        accuracy=scalar("accuracy", 50.0),
        committed_accuracy=scalar("committed", 40.0),
        loss=scalar("loss", 2.0),
    )


def transition(pre: SlotState, post: SlotState, op: int = Op.WAIT, slot: int = -1, **values: Any) -> RewardContext:
    """One transition of one environment."""
    dtype = post.accuracy.dtype

    def flag(name: str) -> Tensor:
        return torch.tensor([bool(values.get(name, False))])

    return RewardContext(
        pre=pre,
        post=post,
        op=torch.tensor([int(op)]),
        target_slot=torch.tensor([slot]),
        executed_op=torch.tensor([int(values.get("executed_op", op))]),
        rolled_back=flag("rolled_back"),
        terminated=flag("terminated"),
        is_last=flag("is_last"),
        t=torch.tensor([values.get("t", 5)]),
        horizon=values.get("horizon", 30),
        host_params=torch.tensor([values.get("host", 6418.0)], dtype=dtype),
        initial_accuracy=torch.tensor([values.get("a0", 10.0)], dtype=dtype),
        initial_loss=torch.tensor([values.get("loss0", 2.3)], dtype=dtype),
        ledgers=values.get("ledgers", {}),
    )


def cat_states(states: list[SlotState]) -> SlotState:
    """Stack environments."""
    return SlotState(**{name: torch.cat([getattr(s, name) for s in states]) for name in states[0].__dict__})


def cast_state(state: SlotState, dtype: torch.dtype) -> SlotState:
    """Return the state in another float type."""
    return replace(
        state,
        **{k: v.to(dtype) for k, v in state.__dict__.items() if v.dtype in (torch.float32, torch.float64)},
    )


LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)


def term(formula: Callable[..., Array], ctx: RewardContext, *constants: Any) -> Tensor:
    """Return what one term of the built-in modes pays, [E]."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(formula(Transition.of(ctx), *constants))


def level(state: SlotState, cfg: RewardConfig) -> Tensor:
    """Return the potential of a state, [E]."""
    return torch.from_numpy(terms.potential(Moment.of(state), cfg))
