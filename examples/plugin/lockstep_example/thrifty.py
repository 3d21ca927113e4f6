"""Reward mode ``thrifty`` of the morphogenesis environment: accuracy gained, minus a price per parameter.

Both components are differences of a potential over one step, so no loop of ops can earn anything.
Axes: E environment, S slot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from worker.envs.morph.rewards.context import RewardContext, RewardResult, SlotState


@dataclass(frozen=True)
class Thrifty:
    """The mode with its constants.

    Attributes:
        gamma: PPO's discount.
        price: reward units per thousand graft parameters.
        death_pay: reward of the step in which the governor rolled back.
        config_hash: SHA-256 of the constants.
        name: registered name.
        version: raised whenever a number changes.
    """

    gamma: float
    price: float
    death_pay: float
    config_hash: str
    name: str = "thrifty"
    version: str = "1"

    def __call__(self, ctx: RewardContext) -> RewardResult:
        """Return reward [E], its components and no ledgers."""
        gain = (ctx.post.accuracy - ctx.pre.accuracy) / 10.0
        spent = -self.price * (_params(ctx.post) - _params(ctx.pre)) / 1000.0
        alive = ~ctx.rolled_back
        components = {
            "gain": gain * alive,
            "spent": spent * alive,
            "death": torch.where(alive, 0.0, self.death_pay),
        }
        return RewardResult(torch.stack(list(components.values())).sum(0), components, {})


def thrifty(constants: Mapping[str, Any], *, gamma: float, task: str) -> Thrifty:  # noqa: ARG001 - same for all tasks
    """Build the mode from the ``reward`` section of an arm; keys that are not given have their default."""
    values = {"price": 0.5, **constants}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return Thrifty(gamma, float(values["price"]), -5.0, digest)


thrifty.version = "1"  # type: ignore[attr-defined]
thrifty.env_kinds = ("morphogenesis",)  # type: ignore[attr-defined]
thrifty.schema = {  # type: ignore[attr-defined]
    "type": "object",
    "additionalProperties": False,
    "properties": {"price": {"type": "number", "minimum": 0, "default": 0.5}},
}


def _params(state: SlotState) -> torch.Tensor:
    return state.params.sum(1)
