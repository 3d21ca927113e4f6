"""A scripted task with every kind of space: an image, a choice, flags and numbers in; a choice and a Box out."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 7


class Kit(gymnasium.Env[Any, Any]):
    """A point that is moved to a goal; an episode is cut after seven steps and tells whether it came near."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (12, 10, 3), np.uint8),
                "flags": spaces.MultiBinary(2),
                "goal": spaces.Discrete(3, start=1),
                "pose": spaces.Tuple([spaces.Box(-5.0, 5.0, (2,), np.float64), spaces.MultiDiscrete([2, 3])]),
            }
        )
        self.action_space = spaces.Dict({"grip": spaces.Discrete(2), "move": spaces.Box(-1.0, 1.0, (2,))})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 - of the interface
        super().reset(seed=seed)
        self._steps, self._at = 0, self.np_random.uniform(-2, 2, 2)
        self._goal, self._grip = int(self.np_random.integers(3)), 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._grip = int(action["grip"])
        self._at = np.clip(self._at + action["move"], -5, 5)
        away = float(np.abs(self._at - self._goal).sum())
        info = {"is_success": np.bool_(away < 2.0)}
        return self._shown(), -away + 0.1 * self._grip, False, self._steps == LENGTH, info

    def _shown(self) -> dict[str, Any]:
        camera = self.np_random.integers(0, 256, (12, 10, 3), dtype=np.uint8)
        return {
            "camera": camera,
            "flags": np.array([self._grip, self._steps % 2], np.int8),
            "goal": np.int64(self._goal + 1),
            "pose": (self._at, np.array([self._grip, self._steps % 3])),
        }


gymnasium.register("Kit-v0", entry_point=lambda **_: Kit())


def unlimited() -> gymnasium.Env[Any, Any]:
    """A task of a package, which sets no limit of its own."""
    return gymnasium.make("CartPole-v1").unwrapped
