"""What tasks that step on the host have in common, however they step: their spaces, names of places, flags.

Axes: E environment, O observation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from lockstep.spec.environments.gymnasium import EVAL_MAX_STEPS, MASK_VELOCITY, VELOCITIES
from worker.envs.base import HeadSpec, Masks
from worker.envs.faults import EnvironmentFault, building
from worker.envs.gymnasium.actions import ActionDoor
from worker.envs.gymnasium.observations import ObservationDoor
from worker.envs.gymnasium.stepping.stepped import Stepped

DONE = "done"


class Hosted(Stepped):
    """Environments on the host, of the spaces of one sample."""

    _name: str
    _bounds: list[str]

    @abstractmethod
    def _at(self, run: int, index: int) -> tuple[int, int]:
        """Return the number of the running episode of an environment and of the step in it."""

    def _read(
        self, sample: gymnasium.Env[Any, Any], section: Mapping[str, Any], cap: int | None, limit: int | None
    ) -> None:
        """Take the layout of actions and observations from a sample.

        Args:
            sample: an environment of the task.
            section: ``env`` of the specification.
            cap: ``eval.max_steps``.
            limit: steps after which an episode is cut.
        """
        with building(f"env.id={self._name!r}"):
            seen, acted = sample.observation_space, sample.action_space
        self.entry = ObservationDoor(seen)
        self.obs_spec = self.entry.spec
        self._door = ActionDoor(acted)
        for mode in dict.fromkeys(self._bounds):
            self._door.check(mode)
        self.heads: Sequence[HeadSpec] = self._door.heads
        self.resets_each_round = self._phase == "eval"
        self.steps_per_round = int(section["rollout_steps"])
        if self.resets_each_round:
            self.steps_per_round = cap or limit or EVAL_MAX_STEPS
        self._keep = _velocity_mask(section, self.obs_spec.num_features)
        num_envs = self.num_envs
        self._masks: Masks = {head.name: torch.ones(num_envs, head.outputs, dtype=torch.bool) for head in self.heads}
        none_ended = torch.zeros(num_envs, dtype=torch.bool)
        self._plain_flags = none_ended, none_ended.clone(), ~none_ended

    def _flags(self, ended: Mapping[int, str], active: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        """Return terminated, truncated and valid [E]; in most steps those are the same, and made once."""
        if not ended and all(active):
            return self._plain_flags
        terminated, truncated = torch.zeros(2, self.num_envs, dtype=torch.bool)
        for index, outcome in ended.items():
            (terminated if outcome == DONE else truncated)[index] = True
        return terminated, truncated, torch.tensor(active)

    def _check_finite(self, run: int, seen: np.ndarray, first: int = 0) -> None:
        """Refuse observations [E, O], from environment ``first`` on, that are not finite: no statistic may see them."""
        finite = np.isfinite(seen)
        if not finite.all():
            index, at = (int(place) for place in np.argwhere(~finite)[0])
            fault = self.entry.fault_at(at, float(seen[index, at]))
            raise EnvironmentFault(f"{self._where(run, first + index)} returned {fault}")

    def _where(self, run: int, index: int) -> str:
        episode, step = self._at(run, index)
        place = f"in step {step}" if step else "in reset"
        return f"environment {self._name!r} (number {index}, episode {episode}) {place}"

    def _not_reproducible(self, run: int, index: int, difference: str) -> EnvironmentFault:
        told = f"{self._where(run, index)}: in the replay after a resume {difference}"
        return EnvironmentFault(f"{told}; it is not reproducible: an episode must depend on its reset seed alone")


def _velocity_mask(section: Mapping[str, Any], size: int) -> np.ndarray | None:
    if MASK_VELOCITY not in (section.get("wrappers") or ()):
        return None
    if section["id"] not in VELOCITIES:
        raise ValueError(f"env.wrappers: mask_velocity knows {sorted(VELOCITIES)}, not {section['id']!r}")
    keep = np.ones(size, dtype=np.float32)
    keep[list(VELOCITIES[section["id"]])] = 0.0
    return keep
