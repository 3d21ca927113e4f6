"""What simulators on a host and batched ones have in common: all environments of a run step in one call.

Axes: E environment, C columns of a row of actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.keys import derive
from worker.envs.base import Cohort, EpisodeRecord, HeadSpec, Masks, Observation, ObsSpec, Seen, StepResult
from worker.envs.gymnasium.ledger import Ledger

SEED_BITS = 2**32 - 1


class Stepped(ABC):
    """Environments of several runs that form one cohort and have no lifecycle.

    Args:
        ledgers: what each run is paid.
        num_envs: E.
        seed: of the replicate.
        phase: ``train`` or ``eval``.
    """

    obs_spec: ObsSpec
    heads: Sequence[HeadSpec]
    steps_per_round: int
    resets_each_round: bool
    limits: Mapping[str, str] = {}

    def __init__(self, ledgers: Sequence[Ledger], num_envs: int, seed: int, phase: str) -> None:
        self.num_envs, self._ledgers, self._seed, self._phase = num_envs, list(ledgers), seed, phase
        self._round = 0
        self._actions: Sequence[Tensor | None] = ()
        self._results: list[StepResult | None] = []
        self._episodes: list[list[EpisodeRecord]] = [[] for _ in ledgers]

    @abstractmethod
    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round."""

    @abstractmethod
    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what a resume at a round border needs."""

    @abstractmethod
    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""

    @abstractmethod
    def close(self) -> None:
        """Close every simulator."""

    @abstractmethod
    def _step_run(self, run: int, actions: Tensor) -> StepResult:
        """Execute one action [E, C] of a run."""

    def _reset_seed(self, index: int, episode: int) -> int:
        """Return the seed of an episode of environment ``index``: in evaluation each plays one."""
        if self._phase == "eval":
            return derive(self._seed, "eval/env_reset", episode=index) & SEED_BITS
        return derive(self._seed, "env_reset", env=index, episode=episode) & SEED_BITS

    def _tell(self, run: int, index: int, native: float, told: Mapping[str, Any], success: bool | None) -> None:
        """Record a finished episode; ``told``: its number, seed, steps, outcome and start, as its row names them."""
        ledger = self._ledgers[run]
        values = {
            "round": self._round,
            "env_id": index,
            "final_accuracy": None,
            "episode_reward": ledger.total(index, native),
            "native_return": native,
            **told,
            **({} if success is None else {"success": float(success)}),
            **ledger.xeval(index, native),
        }
        self._episodes[run].append(EpisodeRecord(index, values))

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """Return one cohort: these environments step together."""
        return (Cohort(self, tuple(range(len(self._ledgers)))),)

    def rehearse(self) -> None:  # noqa: B027 - to load nothing is the rule here
        """Do nothing: no step has to be loaded."""

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Take the actions of a step."""
        self._actions = actions

    def collect(self) -> list[Seen | None]:
        """Execute the step that was issued."""
        self._results = self.step(self._actions)
        return [*self._results]

    def pay(self) -> list[Tensor | None]:
        """Return the rewards of the step that was collected."""
        return [None if result is None else result.reward for result in self._results]

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Execute one action [E, C] per run."""
        return [None if a is None else self._step_run(run, a) for run, a in enumerate(actions)]

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Return {component: [E]} of this round; ``native`` is the only one of the environment's own reward."""
        return {name: torch.from_numpy(x.astype(np.float32)) for name, x in self._ledgers[run].sums.items()}

    def pop_episodes(self, run: int) -> list[EpisodeRecord]:
        """Return and forget the finished episodes."""
        episodes, self._episodes[run] = self._episodes[run], []
        return episodes

    def pop_events(self, run: int) -> list[dict[str, Any]]:  # noqa: ARG002 - of the protocol
        """Return nothing: these environments have no lifecycle."""
        return []
