"""One reward function, its ledgers, and everything it has paid in this episode.

Keeps what was paid step by step, so that a rollback can make an earlier transition terminal and take
back the rows after it. Axes: E environments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.envs.faults import EnvironmentFault
from worker.envs.morph.rewards.context import RewardContext, RewardResult
from worker.envs.paid import Episodes, judged, paying

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
    function: RewardFunction, ctx: RewardContext, who: str, episodes: Episodes, counts: NDArray[np.bool_]
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
        ledgers: state carried to the next step.
        paid: one [E] tensor per step, rollback pay excluded.
        penalties: [E], rollback pay; 0 where none.
        components: one {name: [E]} per step.
    """

    function: RewardFunction
    ledgers: dict[str, Tensor] = field(default_factory=dict)
    paid: list[Tensor] = field(default_factory=list)
    penalties: Tensor = field(default_factory=lambda: torch.zeros(0))
    components: list[dict[str, Tensor]] = field(default_factory=list)

    def open(self, num_envs: int) -> None:
        """Begin an episode."""
        self.ledgers, self.paid, self.components = {}, [], []
        self.penalties = torch.zeros(num_envs)

    def pay(self, ctx: RewardContext, earns: Tensor, who: str, episode: int) -> Tensor:
        """Return the reward [E] of a transition: the mode's own, death pay on rollback, 0 where idle.

        Args:
            ctx: the transition; its ledgers are this account's.
            earns: [E] bool, environments whose transition counts.
            who: the mode and its arm, in words.
            episode: number of the running episode.
        """
        counts, fatal = earns.numpy(), ctx.rolled_back.numpy()
        episodes = [episode] * len(counts)
        rows, names, self.ledgers = paid_by(self.function, ctx, who, episodes, counts)
        alive, died = counts & ~fatal, counts & fatal
        if not alive.all():
            rows = torch.where(torch.from_numpy(alive), rows, 0.0)
        own, *components = rows.unbind()
        self.paid.append(own)
        self.components.append(dict(zip(names, components, strict=True)))
        if not died.any():
            return own.clone()  # what was paid may be taken back, what was returned stays
        lost = torch.from_numpy(died)
        self.penalties = torch.where(lost, torch.tensor(self.function.death_pay), self.penalties)
        return torch.where(lost, self.penalties, own)

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
        sums = {name: torch.stack([step[name] for step in self.components]).sum(0) for name in names}
        return {**sums, ROLLBACK: self.penalties.clone()}
