"""Reward mode ``thrifty`` of the morphogenesis environment: accuracy gained, minus a price per parameter.

Both components are differences of a potential over one step, so no loop of ops can earn anything.
Axes: E environment, S slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from worker.envs.morph.rewards.context import RewardContext, RewardResult, SlotState


def thrifty(constants: Mapping[str, Any], *, gamma: float, task: str) -> Callable[[RewardContext], RewardResult]:  # noqa: ARG001 - same for all tasks
    """Build the mode from the ``reward`` section of an arm, in which each constant has a value by the schema."""
    price = float(constants["price"])

    def function(ctx: RewardContext) -> RewardResult:
        """Return reward [E], its components and no ledgers."""
        components = {
            "gain": (ctx.post.accuracy - ctx.pre.accuracy) / 10.0,
            "spent": -price * (_params(ctx.post) - _params(ctx.pre)) / 1000.0,
        }
        return RewardResult(components["gain"] + components["spent"], components, {})

    return function


thrifty.version = "1"  # type: ignore[attr-defined]
thrifty.env_kinds = ("morphogenesis",)  # type: ignore[attr-defined]
thrifty.death_pay = -5.0  # type: ignore[attr-defined] # of the step in which the host diverged
thrifty.schema = {  # type: ignore[attr-defined]
    "type": "object",
    "additionalProperties": False,
    "properties": {"price": {"type": "number", "minimum": 0, "default": 0.5}},
}


def _params(state: SlotState) -> torch.Tensor:
    return state.params.sum(1)
