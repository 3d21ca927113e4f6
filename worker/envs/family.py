"""What the lockstep loop asks of an environment family: the record each family fills, and what it is asked to build.

The control plane's half, which needs no environment, has the same name in ``lockstep.spec.environments.families``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.keys import generator
from lockstep.spec.sections import CLIP
from worker.envs.base import HeadSpec, LockstepEnvs


class Reward(Protocol):
    """A reward function of any family, with its constants bound."""

    @property
    def name(self) -> str:
        """Return the registered mode."""
        ...

    @property
    def config_hash(self) -> str:
        """Return SHA-256 of its constants."""
        ...

    @property
    def gamma(self) -> float:
        """Return the discount under which it shapes."""
        ...


class Control(Protocol):
    """A policy that does not learn."""

    def act(self, step: int) -> Tensor:
        """Return the actions [E, C] of a step of the current round."""
        ...


@dataclass(frozen=True)
class RunEnv:
    """What an environment needs to know of a run.

    Attributes:
        run_id, label: identity.
        policy: an algorithm or a control of the family.
        static_set: {slot: blueprint} of the static controls.
        gamma: discount of the run's reward.
        action_bounds: ``action.bounds`` of the run, for Gaussian heads.
    """

    run_id: str
    label: str
    policy: str
    static_set: Mapping[str, str] | None
    gamma: float
    action_bounds: str = CLIP


@dataclass(frozen=True)
class Order:
    """Environments to build: those of several runs, stepped together.

    Attributes:
        config: resolved spec of an arm; what is not overridable is the same for all.
        runs: in order of issue.
        rewards: one function per run.
        replicate_seed: root of every key.
        device: where environments may compute.
        num_envs: E of every run; in evaluation the number of episodes.
        data_dir: where data sets lie.
        alive: called after everything that may take long in the code of others.
        beside: for evaluation, the training environments of the same block. They rest meanwhile, so they
            may lend what they step, and where they are cohorts, these may be.
    """

    config: Mapping[str, Any]
    runs: Sequence[RunEnv]
    rewards: Sequence[Any]
    replicate_seed: int
    device: torch.device
    num_envs: int
    data_dir: Path | None
    alive: Callable[[], None]
    beside: LockstepEnvs | None = None


@dataclass(frozen=True)
class Trial:
    """What a reward function paid for some steps of a task under random actions.

    Attributes:
        names: of its components.
        rows: [1 + N, steps, E] the reward and N components.
        scoring, stepping: seconds of the function and of the environments for all steps.
        episodes: that ended, over all environments.
    """

    names: Sequence[str]
    rows: Tensor
    scoring: float
    stepping: float
    episodes: int


@dataclass(frozen=True)
class EnvironmentFamily:
    """One family, the worker's half. Every function raises ``ValueError`` for what it cannot build.

    Attributes:
        train: build environments that carry on over rounds; the flag says whether the caller steps cohorts out of
            phase.
        evaluate: build environments of one episode each; further reward functions score it too, and its row holds
            their returns by name under ``xeval``.
        reward: bind a mode's section of constants: ``(mode, section, discount, env section)``.
        check_reward: raise a defect when a mode breaks the contract of reward functions, on steps of a task where one
            is named.
        try_reward: play whole episodes of a task at random, given its ``env`` section and the seconds that it may
            take, and hold a mode to its contract there; a defect raises.
        control: build the control of a run: ``(policy, environments, position of the run, replicate seed, round)``.
        never_floored: choices per head that probability floors never touch.
        op_names: names of the choices of head 0, given their number.
        split: the data split that evaluation measures on, for its rows; None where there is none.
        twin: a control that evaluation also plays as the ungrafted twin of every arm; None = no such thing.
        keeps_evaluation: whether evaluation environments stay open while policies train.
        tasks: list the registry of its package in groups (``lockstep.protocol.TaskGroup``); None where it has none.
        own_tasks: names of the tasks that the package itself comes with, before any other registers more.
        rest: let what was built for one block wait for the next, which the same process may train; None where others
            wrote what steps these environments: it may keep something from one replicate to the next.
        is_batched: whether a registered factory makes simulators of many environments; None where there are none.
    """

    train: Callable[[Order, bool], LockstepEnvs]
    evaluate: Callable[[Order, Mapping[str, Any]], LockstepEnvs]
    reward: Callable[[str, Mapping[str, Any], float, Mapping[str, Any]], Any]
    check_reward: Callable[[Any, str | None], None]
    try_reward: Callable[[Any, Mapping[str, Any], float], Trial]
    control: Callable[[str, Any, int, int, int], Control]
    never_floored: Mapping[str, tuple[int, ...]]
    op_names: Callable[[int], list[str]]
    split: str | None
    twin: str | None
    keeps_evaluation: bool
    rest: Callable[[], None] | None = None
    tasks: Callable[[], list[dict[str, Any]]] | None = None
    own_tasks: Callable[[], frozenset[str]] = frozenset
    is_batched: Callable[[Any], bool] | None = None


class UniformControl:
    """The ``random`` control of environments without a control of their own: uniform over each head or its bounds.

    Args:
        envs: environments; their masks must allow every choice.
        seed: replicate seed.
        round_index: key of the draws.
    """

    def __init__(self, envs: LockstepEnvs, seed: int, round_index: int) -> None:
        self._heads = list(envs.heads)
        prefix = "eval/" if envs.resets_each_round else ""
        self._draws = [
            generator(seed, f"{prefix}control_policy", env=e, episode=round_index) for e in range(envs.num_envs)
        ]

    def act(self, step: int) -> Tensor:  # noqa: ARG002 - of the protocol
        """Return actions [E, C]."""
        return torch.tensor([[x for head in self._heads for x in _uniform(head, g)] for g in self._draws])


def _uniform(head: HeadSpec, draw: np.random.Generator) -> list[float]:
    if head.bounds is None:
        return [int(draw.integers(head.size))]
    return [float(draw.uniform(low, high)) for low, high in head.bounds]
