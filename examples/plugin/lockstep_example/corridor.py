"""A Gymnasium environment, ``corridor``, and a reward mode for it, ``centred``.

The environment pays 1 at the right end of a corridor and truncates after four times its length. The
reward adds a price for the distance from the end that the environment tells in its info.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from worker.envs.gymnasium.rewards import Transition


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Walk to the right end: actions left and right, observation the place in [0, 1] and the time left.

    Args:
        length: cells.
    """

    schema = {  # noqa: RUF012 - read by the worker, never changed
        "type": "object",
        "additionalProperties": False,
        "properties": {"length": {"type": "integer", "minimum": 2, "maximum": 100, "default": 6}},
    }

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start in the left half, at a place drawn from the seed."""
        super().reset(seed=seed, options=options)
        self._place = int(self.np_random.integers(0, self.length // 2))
        self._left = 4 * self.length
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move one cell."""
        self._place = min(max(self._place + (1 if action == 1 else -1), 0), self.length - 1)
        self._left -= 1
        done = self._place == self.length - 1
        distance = (self.length - 1 - self._place) / (self.length - 1)
        return self._observation(), float(done), done, self._left == 0, {"distance": distance}

    def _observation(self) -> np.ndarray:
        return np.array([self._place / (self.length - 1), self._left / (4 * self.length)], dtype=np.float32)


Function = Callable[[Transition], tuple[torch.Tensor, dict[str, torch.Tensor]]]


def centred(constants: Mapping[str, Any], *, gamma: float, task: str) -> Function:  # noqa: ARG001 - same for all tasks
    """Build the mode: the environment's own reward, minus ``price`` times the distance from the end."""
    price = float(constants.get("price", 0.05))

    def function(step: Transition) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        distance = step.info.get("distance", torch.zeros_like(step.reward))
        components = {"own": step.reward, "walk": -price * distance.nan_to_num()}
        return components["own"] + components["walk"], components

    return function


centred.version = "1"  # type: ignore[attr-defined]
centred.env_kinds = ("gymnasium",)  # type: ignore[attr-defined]
centred.schema = {  # type: ignore[attr-defined]
    "type": "object",
    "additionalProperties": False,
    "properties": {"price": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.05}},
}
