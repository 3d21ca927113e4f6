"""A run as the environment sees it: identity, world, reward functions, and what one step did.

Axes: E environments of a run, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.envs.base import EpisodeRecord, Masks
from worker.envs.family import RunEnv
from worker.envs.morph.episode.world import World
from worker.envs.morph.life.actions import Action, Legality
from worker.envs.morph.life.governor import Verdict
from worker.envs.morph.life.stages import Op
from worker.envs.morph.rewards.account import RewardAccount
from worker.envs.morph.rewards.arrays import Moment


@dataclass
class RunState:
    """One run in the making.

    Attributes:
        spec: identity.
        world: its environments.
        reward_account: its own reward function and what it has paid.
        xeval: other reward functions that score the same transitions.
        legal, moment: legality and measurements of s_t, as the policy saw them.
        placed: a legality and its masks as they were last placed on the device.
        episodes: finished and not yet fetched.
    """

    spec: RunEnv
    world: World
    reward_account: RewardAccount
    xeval: dict[str, RewardAccount]
    legal: Legality
    moment: Moment
    placed: tuple[Legality, Masks] | None = None
    episodes: list[EpisodeRecord] = field(default_factory=list)


@dataclass
class Turn:
    """What one run does and learns in one step.

    Attributes:
        ran: [E] environments that take part.
        chosen: decoded action per environment, None where idle.
        executed: op per environment after preflight.
        verdicts: governor's verdict per environment.
    """

    run: RunState
    ran: NDArray[np.bool_]
    chosen: list[Action | None]
    executed: list[Op]
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    @cached_property
    def envs(self) -> list[int]:
        """Return the environments that take part."""
        return [env for env, ran in enumerate(self.ran.tolist()) if ran]

    def panicked(self) -> NDArray[np.bool_]:
        """Return [E]: rolled back in this step."""
        found = np.zeros(len(self.chosen), dtype=bool)
        for env, verdict in self.verdicts.items():
            found[env] = verdict.panic is not None
        return found


@dataclass
class UnderWay:
    """A step between issue and collection.

    Attributes:
        turns: of every run; None where it has ended.
        places: run and environment of every job.
        issued: of the engine; None where no environment takes part any more.
    """

    turns: Sequence[Turn | None]
    places: Sequence[tuple[Turn, int]]
    issued: Any
