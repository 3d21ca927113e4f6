"""A Gymnasium environment with a dictionary of observations, ``reach``, and a reward mode for it, ``nearer``.

A puck slides over a table to a goal. The environment says in its info whether it lies there and how far it is; it pays
1 for each step in which it does, and nothing on the way. The reward adds what the last step brought it nearer, as a
potential (Ng, Harada & Russell 1999), so that it changes what is learnt from, not what is best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from worker.envs.gymnasium.rewards import Transition

_NEAR, _PUSH, _SLIDE = 0.1, 0.05, 0.9


class Reach(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """Push a puck in two dimensions; actions are forces in [-1, 1], ``goal`` and ``puck`` are observed apart.

    Args:
        steps: of an episode.
    """

    schema = {  # noqa: RUF012 - read by the worker, never changed
        "type": "object",
        "additionalProperties": False,
        "properties": {"steps": {"type": "integer", "minimum": 5, "maximum": 1000, "default": 50}},
    }

    def __init__(self, steps: int = 50) -> None:
        self.steps = steps
        table = spaces.Box(-1.0, 1.0, (2,), np.float32)
        puck = spaces.Dict({"place": table, "speed": spaces.Box(-0.5, 0.5, (2,), np.float32)})
        self.observation_space = spaces.Dict({"goal": table, "puck": puck})
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Lay puck and goal on the table, at places drawn from the seed."""
        super().reset(seed=seed, options=options)
        self._goal, self._place = self.np_random.uniform(-1.0, 1.0, (2, 2))
        self._speed, self._left = np.zeros(2), self.steps
        return self._observation(), self._told()

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Push, and slide by what speed there is."""
        self._speed = np.clip(_SLIDE * self._speed + _PUSH * np.clip(action, -1.0, 1.0), -0.5, 0.5)
        self._place = np.clip(self._place + self._speed, -1.0, 1.0)
        self._left -= 1
        told = self._told()
        return self._observation(), float(told["is_success"]), False, self._left == 0, told

    def _told(self) -> dict[str, Any]:
        distance = float(np.linalg.norm(self._goal - self._place))
        return {"is_success": distance < _NEAR, "distance": distance}

    def _observation(self) -> dict[str, Any]:
        puck = {"place": self._place.astype(np.float32), "speed": self._speed.astype(np.float32)}
        return {"goal": self._goal.astype(np.float32), "puck": puck}


Function = Callable[[Transition], tuple[torch.Tensor, dict[str, torch.Tensor]]]


def nearer(constants: Mapping[str, Any], *, gamma: float, task: str) -> Function:  # noqa: ARG001 - named in tasks
    """Build the mode for ``reach``: its own reward, plus ``weight`` times the change of the potential -distance.

    Both distances are seen in the observation: columns 0 and 1 hold the goal, 2 and 3 the place of the puck.
    """
    weight = float(constants.get("weight", 1.0))

    def potential(observation: torch.Tensor) -> torch.Tensor:
        return -weight * (observation[:, 0:2] - observation[:, 2:4]).norm(dim=1)

    def function(step: Transition) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        components = {
            "own": step.reward,
            "nearer": gamma * potential(step.next_observation) - potential(step.observation),
        }
        return components["own"] + components["nearer"], components

    return function


nearer.version = "1"  # type: ignore[attr-defined]
nearer.env_kinds = ("gymnasium",)  # type: ignore[attr-defined]
nearer.tasks = ("reach",)  # type: ignore[attr-defined]
nearer.schema = {  # type: ignore[attr-defined]
    "type": "object",
    "additionalProperties": False,
    "properties": {"weight": {"type": "number", "exclusiveMinimum": 0, "maximum": 100, "default": 1.0}},
}
