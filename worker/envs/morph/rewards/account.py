"""One reward function, its ledgers, and everything it has paid in this episode.

Keeps what was paid step by step, so that a rollback can make an earlier transition terminal and take
back the rows after it. Axes: E environments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from worker.envs.faults import EnvironmentFault
from worker.envs.morph.rewards.arrays import Array, Bools, Transition, some
from worker.envs.morph.rewards.context import RewardContext, RewardResult
from worker.envs.morph.rewards.registry import RewardFunction as BuiltIn
from worker.envs.paid import Episodes, judged, paying, refuse_infinite

ROLLBACK = "rollback"


class RewardFunction(Protocol):
    """A reward mode: a pure function of one transition of all environments of a run.

    Attributes:
        name, version: identity of the mode.
        death_pay: reward of the transition that caused a rollback.
    """

    @property
    def name(self) -> str:
        """Name of the mode."""

    @property
    def version(self) -> str:
        """Version of its formulas."""

    @property
    def death_pay(self) -> float:
        """Reward of the transition that caused a rollback."""

    def __call__(self, ctx: RewardContext) -> RewardResult:
        """Return reward, components and ledgers."""
        ...


def paid_by(
    function: RewardFunction, ctx: RewardContext, who: str, episodes: Episodes, counts: Bools
) -> tuple[Tensor, list[str], dict[str, Tensor]]:
    """Return rows [1 + N, E], the reward and N components, their names, and the ledgers; a fault names ``who``.

    Args:
        function: the mode.
        ctx: the transition.
        who: the mode and its arm, in words.
        episodes: [E] numbers of the running episodes; None where none run.
        counts: [E], whose values must be finite.
    """
    with paying(who, function.name, episodes):
        result = function(ctx)
    if not isinstance(result, RewardResult):
        told = f"returned a {type(result).__name__}; return RewardResult(reward, components, ledgers)"
        raise EnvironmentFault(f"{who} {told}")
    return *judged(who, result.reward, result.components, episodes, counts), result.ledgers


@dataclass
class RewardAccount:
    """A reward function with its account of the present episode.

    Attributes:
        function: the mode.
        ledgers: state carried to the next step: arrays of a built-in mode, tensors of another.
        paid: one [E] array per step, rollback pay excluded.
        penalties: [E], rollback pay; 0 where none.
        components: one {name: [E]} per step.
    """

    function: RewardFunction
    ledgers: dict[str, Any] = field(default_factory=dict)
    paid: list[Array] = field(default_factory=list)
    penalties: Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    components: list[dict[str, Array]] = field(default_factory=list)

    def open(self, num_envs: int) -> None:
        """Begin an episode."""
        self.ledgers, self.paid, self.components = {}, [], []
        self.penalties = np.zeros(num_envs, dtype=np.float32)

    def pay(self, moved: Transition, counts: Bools, who: str, episode: int) -> Array:
        """Return the reward [E] of a transition: the mode's own, death pay on rollback, 0 where idle.

        Args:
            moved: the transition; this account's ledgers are put into it.
            counts: [E], environments whose transition counts.
            who: the mode and its arm, in words.
            episode: number of the running episode.
        """
        rows, names = self._rows(moved, counts, who, [episode] * len(counts))
        alive, died = counts & ~moved.rolled_back, counts & moved.rolled_back
        if not alive.all():
            rows = np.where(alive, rows, np.float32(0.0))
        own: Array = rows[0]
        self.paid.append(own)
        self.components.append(dict(zip(names, rows[1:], strict=True)))
        if not some(died):
            return own.copy()  # what was paid may be taken back, what was returned stays
        self.penalties = np.where(died, np.float32(self.function.death_pay), self.penalties)
        return np.where(died, self.penalties, own)

    def _rows(self, moved: Transition, counts: Bools, who: str, episodes: Episodes) -> tuple[Array, list[str]]:
        """Return rows [1 + N, E] float32, the reward and N components, and their names."""
        if not isinstance(self.function, BuiltIn):
            ctx = moved.told(self.ledgers)
            with torch.inference_mode():  # lighter than no_grad
                paid, names, self.ledgers = paid_by(self.function, ctx, who, episodes, counts)
            return paid.numpy(), names
        moved.ledgers = self.ledgers
        rows, names, self.ledgers = self.function.pays(moved)
        refuse_infinite(who, rows, rows, names, episodes, counts)
        return rows, names

    def take_back(self, env: int, first_step: int) -> None:
        """Make the transition ``first_step`` the fatal one: it pays death pay, later ones nothing."""
        for step in range(first_step, len(self.paid)):
            self.paid[step][env] = 0.0
            for value in self.components[step].values():
                value[env] = 0.0
        self.penalties[env] = self.function.death_pay

    def earned(self, env: int) -> float:
        """Return the episode's undiscounted sum without rollback pay."""
        return float(sum(float(step[env]) for step in self.paid))

    def total(self, env: int) -> float:
        """Return the episode's undiscounted sum with rollback pay."""
        return self.earned(env) + float(self.penalties[env])

    def sums(self) -> dict[str, Tensor]:
        """Return the sum of each component over the steps so far, {component: [E]}."""
        names = self.components[0] if self.components else {}
        steps = {name: np.stack([step[name] for step in self.components]) for name in names}
        sums = {name: torch.from_numpy(paid).sum(0) for name, paid in steps.items()}
        return {**sums, ROLLBACK: torch.from_numpy(self.penalties.copy())}
