"""A batched simulator, ``carts``: the cart and pole of Barto, Sutton & Anderson (1983) as tensors on one device.

All carts step in one call, on a GPU where the worker has one. An episode that ends begins anew in the same step; the
true final observations are in ``infos["final_obs"]``. Its state can be read and set, so that a block is resumed bit for
bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

_GRAVITY, _CART, _POLE, _HALF_LENGTH, _FORCE, _SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_FAR, _TILTED = 2.4, 12 * 2 * math.pi / 360


class Carts(VectorEnv[Any, Any, Any]):
    """Push every cart left (0) or right (1) so that its pole stays up; each step pays 1.

    Args:
        num_envs: carts.
        device: where they are.
        steps: after so many an episode is truncated.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - read, never changed

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", steps: int = 500) -> None:
        self.num_envs, self.device, self.steps = num_envs, torch.device(device), steps
        high = np.array([2 * _FAR, np.inf, 2 * _TILTED, np.inf], dtype=np.float32)
        self.single_observation_space = spaces.Box(-high, high)
        self.single_action_space = spaces.Discrete(2)
        self._random = torch.Generator(self.device)
        self._state = torch.zeros(num_envs, 4, device=self.device)
        self._age = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002 - as declared
        """Stand every cart at a place drawn from the seed, one for all."""
        if isinstance(seed, list):
            raise TypeError("carts take one seed for all")
        if seed is not None:
            self._random.manual_seed(seed)
        self._state = self._drawn()
        self._age.zero_()
        return self._state.clone(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Move every cart by Euler's method."""
        place, speed, angle, turn = self._state.unbind(1)
        force = torch.where(actions == 1, _FORCE, -_FORCE)
        cosine, sine = angle.cos(), angle.sin()
        push = (force + _POLE * _HALF_LENGTH * turn.square() * sine) / (_CART + _POLE)
        spin = (_GRAVITY * sine - cosine * push) / (
            _HALF_LENGTH * (4.0 / 3.0 - _POLE * cosine.square() / (_CART + _POLE))
        )
        gain = push - _POLE * _HALF_LENGTH * spin * cosine / (_CART + _POLE)
        moved = [place + _SECONDS * speed, speed + _SECONDS * gain, angle + _SECONDS * turn, turn + _SECONDS * spin]
        final = torch.stack(moved, dim=1)
        self._age += 1
        fallen = (final[:, 0].abs() > _FAR) | (final[:, 2].abs() > _TILTED)
        late = (self._age >= self.steps) & ~fallen
        over = fallen | late
        self._state = torch.where(over.unsqueeze(1), self._drawn(), final)
        self._age = torch.where(over, 0, self._age)
        return self._state.clone(), torch.ones_like(place), fallen, late, {"final_obs": final}

    def get_state(self) -> dict[str, Tensor]:
        """Return everything that the next step hangs on."""
        return {"state": self._state.clone(), "age": self._age.clone(), "random": self._random.get_state()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from ``get_state``."""
        self._state = state["state"].to(self.device).clone()
        self._age = state["age"].to(self.device).clone()
        self._random.set_state(state["random"].cpu())

    def _drawn(self) -> Tensor:
        return 0.1 * torch.rand(self.num_envs, 4, device=self.device, generator=self._random) - 0.05
