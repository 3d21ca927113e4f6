"""What a run of a Gymnasium task is paid: sums of its round and of its running episodes, under every function.

Apart from the environments, which step and reset; a ledger never touches them. Axes: E environment.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from worker.envs.faults import EnvironmentFault, playing
from worker.envs.gymnasium.rewards import GymReward, Transition


class Ledger:
    """What one run is paid: its reward function, sums of this round, and sums of the running episodes.

    Args:
        reward: the run's own function.
        others: functions under which episodes are scored too.
        num_envs: E.
    """

    def __init__(self, reward: GymReward, others: Mapping[str, GymReward], num_envs: int) -> None:
        self.reward = reward
        self._others = dict(others)
        self._scores = {name: np.zeros(num_envs) for name in others}
        self.is_native = reward.is_native and all(other.is_native for other in others.values())
        self.paid = np.zeros(num_envs)
        self.sums: dict[str, np.ndarray] = {"native": np.zeros(num_envs)} if reward.is_native else {}

    def begin_round(self) -> None:
        """Start the sums of a round."""
        self.sums = {name: np.zeros_like(total) for name, total in self.sums.items()}

    def begin_episode(self, index: int) -> None:
        """Forget what environment ``index`` was paid."""
        self.paid[index] = 0.0
        for scores in self._scores.values():
            scores[index] = 0.0

    def score(self, step: Transition, valid: np.ndarray) -> Tensor:
        """Return the reward [E] of a step, 0 where the environment idles, and add up what else it scores."""
        for name, other in self._others.items():
            self._scores[name] += np.where(valid, _paid(other, step, valid)[0].numpy(), 0.0)
        reward, components = _paid(self.reward, step, valid)
        for name, value in components.items():
            self._add(name, np.where(valid, value.numpy(), 0.0))
        return torch.where(torch.from_numpy(valid), reward, 0.0).to(torch.float32)

    def add(self, native: np.ndarray, reward: np.ndarray) -> None:
        """Add the rewards [E] of a step, both 0 where the environment idles."""
        self.paid += reward
        if self.is_native:
            self._add("native", native)

    def total(self, index: int, native: float) -> float:
        """Return what the episode of environment ``index`` was paid."""
        return native if self.reward.is_native else float(self.paid[index])

    def xeval(self, index: int, native: float) -> dict[str, dict[str, float]]:
        """Return {"xeval": {name: return}} of the episode, or nothing when it is scored under no other function."""
        if not self._others:
            return {}
        scores = {name: native if self._others[name].is_native else float(s[index]) for name, s in self._scores.items()}
        return {"xeval": scores}

    def _add(self, name: str, value: np.ndarray) -> None:
        total = self.sums.get(name)
        if total is None:
            self.sums[name] = value.astype(np.float64)
        else:
            total += value


def _paid(mode: GymReward, step: Transition, valid: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what a mode pays and its components; a package's own code may raise or break the contract."""
    if mode.is_native:
        return mode(step)
    with playing(f"reward mode {mode.name!r}"):
        reward, components = mode(step)
        parts = {"the reward": reward, **{f"component {name!r}": value for name, value in components.items()}}
        for name, value in parts.items():
            if value.shape != step.reward.shape:
                told = f"{name} has the shape {tuple(value.shape)}, not {tuple(step.reward.shape)}"
                raise EnvironmentFault(f"reward mode {mode.name!r}: {told}")
            if not np.isfinite(value.numpy()[valid]).all():
                raise EnvironmentFault(f"reward mode {mode.name!r}: {name} is not finite: {value.tolist()}")
    return reward, components
