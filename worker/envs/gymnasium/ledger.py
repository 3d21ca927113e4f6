"""What a run of a Gymnasium task is paid: sums of its round and of its running episodes, under every function.

Apart from the environments, which step and reset; a ledger never touches them. Axes: E environment.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from worker.envs.gymnasium.rewards import NATIVE, GymReward, Transition
from worker.envs.paid import judged, pair_of, payer, paying

#: A reward that has cost so many seconds, and so many times what its environments did, is told in the log.
_SLOW_SECONDS, _SLOW_TIMES = 1.0, 5.0


class Ledger:
    """What one run is paid: its reward function, sums of this round, and sums of the running episodes.

    Args:
        reward: the run's own function.
        others: functions under which episodes are scored too.
        num_envs: E.
        arm: label of the run; "" outside an experiment, where the log is told nothing.
    """

    def __init__(self, reward: GymReward, others: Mapping[str, GymReward], num_envs: int, arm: str = "") -> None:
        self.reward, self._arm = reward, arm
        self._seconds, self._is_slow = {"scoring": 0.0, "stepping": 0.0}, False
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

    def score(self, step: Transition, valid: np.ndarray, episodes: np.ndarray, stepping: float) -> Tensor:
        """Return the reward [E] of a step, 0 where the environment idles, and add up what else it scores.

        Args:
            step: the transition.
            valid: [E], false where the environment idles.
            episodes: [E] numbers of the running episodes.
            stepping: seconds that the environments took for it.
        """
        began = time.perf_counter()
        for name, other in self._others.items():
            self._scores[name] += np.where(valid, self._paid(other, step, valid, episodes)[0][0].numpy(), 0.0)
        (reward, *components), names = self._paid(self.reward, step, valid, episodes)
        for name, value in zip(names, components, strict=True):
            self._add(name, np.where(valid, value.numpy(), 0.0))
        self._seconds["scoring"] += time.perf_counter() - began
        self._seconds["stepping"] += stepping
        self._tell_if_slow()
        return torch.where(torch.from_numpy(valid), reward, 0.0)

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

    def _paid(
        self, mode: GymReward, step: Transition, valid: np.ndarray, episodes: np.ndarray
    ) -> tuple[Tensor, list[str]]:
        """Return reward and components of a mode as rows, and their names; a package's own code may raise."""
        if mode.is_native:
            return torch.stack([step.reward, step.reward]), [mode.name]
        who = payer(mode.name, self._arm, scores_only=mode.name != self.reward.name)
        with paying(who, mode.name, episodes):
            returned = mode(step)
        return judged(who, *pair_of(who, returned), episodes, valid)

    def _tell_if_slow(self) -> None:
        """Say once in the log that rewards take far longer than the environments: nothing else would show it."""
        scoring, stepping = self._seconds["scoring"], self._seconds["stepping"]
        if not self._arm or self._is_slow or scoring < _SLOW_SECONDS or scoring < _SLOW_TIMES * stepping:
            return
        self._is_slow = True
        modes = sorted({self.reward.name, *(mode.name for mode in self._others.values())} - {NATIVE})
        sys.stderr.write(
            f"arm {self._arm!r} has spent {scoring:.1f} s in reward {' and '.join(modes)} and {stepping:.1f} s in its "
            "environments: compute on whole tensors [E], not on one environment after the other; "
            f"`lockstep reward check {modes[0]}` times it\n"
        )
