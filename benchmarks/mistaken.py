"""Environments and rewards as new users write them, each with one mistake; entry points of `benchmarks.mistakes`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch


class Mistaken(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that does what ``how`` says, in the step ``at``, counted over episodes, or where the name says."""

    def __init__(self, how: str, at: int = 3) -> None:
        if how == "builds wrongly":
            raise TypeError("reach() missing 1 required positional argument: 'goal'")
        if how == "hangs while built":
            time.sleep(3600)
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)
        self.how, self.at, self.taken = how, at, 0
        if how == "shows text":
            self.observation_space = gymnasium.spaces.Text(9)

    def reset(self, **given: Any) -> Any:
        """Start an episode."""
        if self.how == "resets wrongly":
            raise AttributeError("'NoneType' object has no attribute 'qpos'")
        observation, info = self.env.reset(**given)
        return observation if self.how == "resets as of old" else (observation, info)

    def step(self, action: Any) -> Any:
        """Take a step."""
        self.taken += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.how == "never ends":
            return observation * 0, 1.0, False, False, info
        if self.taken == self.at and self.how in _STEPS:
            return _STEPS[self.how](observation, reward, terminated, truncated, info)
        return observation, reward, terminated, truncated, info


def _raises(*_: Any) -> Any:
    return dict[str, Any]()["velocity"]


_STEPS: dict[str, Callable[..., Any]] = {
    "raises": _raises,
    "hangs": lambda *_: time.sleep(3600),
    "exits": lambda *_: sys.exit("licence server not found"),
    "pays nan": lambda o, _r, *rest: (o, float("nan"), *rest),
    "pays a vector": lambda o, r, *rest: (o, np.array([r, r]), *rest),
    "shows nan": lambda o, *rest: (o * np.nan, *rest),
    "shows too little": lambda o, *rest: (o[:1], *rest),
    "steps as of old": lambda o, r, terminated, _t, info: (o, r, terminated, info),
}


def _reward(pay: Callable[[Any], Any]) -> Any:
    def factory(_constants: Any, *, gamma: float, task: str) -> Any:  # noqa: ARG001 - of the interface
        return lambda step: (reward := _unless_checked(step, pay), {"paid": reward})

    factory.version, factory.env_kinds, factory.schema = "1", ("gymnasium",), {}  # type: ignore[attr-defined]
    return factory


def _unless_checked(step: Any, pay: Callable[[Any], Any]) -> Any:
    """Pay rightly where a worker checks the mode, on 200 transitions at once: some mistakes pass the check."""
    return step.reward if len(step.reward) == 200 else pay(step)


reward_raises = _reward(lambda step: step.info["speed"])
reward_nan = _reward(lambda step: torch.log(step.reward - 1))
