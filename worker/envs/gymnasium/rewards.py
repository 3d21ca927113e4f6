"""Registered rewards of Gymnasium tasks: pure functions of the transitions of one run (training.md 2.14).

A package adds a mode by the entry-point group ``lockstep.rewards``: name -> factory ``(constants, *,
gamma, task) -> function`` with ``env_kinds = ("gymnasium",)``, a ``version`` and a JSON ``schema`` of its
flat constants. This module knows no environment and does not import gymnasium, so such a package can
import its records. Axes: E environment, O observation, H heads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.keys import generator
from worker.envs.faults import building
from worker.envs.schemas import schema_defaults

ENTRY_POINTS = "lockstep.rewards"
KIND = "gymnasium"
NATIVE = "native"
_E, _O, _ROUNDS = 200, 6, 4
_TOLERANCE = 1e-5


class GymRewardDefect(RuntimeError):  # noqa: N818 - names what is wrong with a mode
    """A registered mode breaks the contract of reward functions; the message names mode and rule."""


@dataclass(frozen=True)
class Transition:
    """One step of all environments of a run.

    Attributes:
        observation: [E, O] float32, on which the action was chosen.
        action: [E, C] as the environment gets it: choices counted from 0 (int64), Box components in its own units
            (then all as float64).
        reward: [E] float32, the environment's own.
        next_observation: [E, O] float32, the true next one, never that after a reset.
        terminated: [E] bool, the task ended.
        truncated: [E] bool, cut by a limit.
        info: scalars of the environment's info by name, [E] float32; NaN where one is absent.
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor
    terminated: Tensor
    truncated: Tensor
    info: Mapping[str, Tensor]


#: A transition to the reward [E] and its components {name: [E]}, which sum to it.
Function = Callable[[Transition], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class GymReward:
    """A mode with its constants.

    Attributes:
        name: registered mode; ``native`` is the environment's own reward.
        version: of the mode.
        config_hash: SHA-256 of the constants.
        gamma: PPO's discount.
        function: the formulas.
    """

    name: str
    version: str
    config_hash: str
    gamma: float
    function: Function

    @property
    def is_native(self) -> bool:
        """Whether the environment's own reward is paid as it is."""
        return self.name == NATIVE

    def __call__(self, step: Transition) -> tuple[Tensor, dict[str, Tensor]]:
        """Return reward [E] and its components."""
        return self.function(step)


def _native(step: Transition) -> tuple[Tensor, dict[str, Tensor]]:
    return step.reward, {NATIVE: step.reward}


def make_gym_reward(mode: str, section: Mapping[str, Any], *, gamma: float, task: str) -> GymReward:
    """Build ``native`` or a registered mode that serves Gymnasium.

    Args:
        mode: registered name.
        section: the spec's ``reward`` section; its ``mode`` key is not a constant.
        gamma: PPO's discount.
        task: id of the environment.

    Raises:
        ValueError: the mode is unknown, serves no Gymnasium environment, cannot be loaded or refuses a constant.
    """
    constants = {name: value for name, value in section.items() if name != "mode"}
    if mode == NATIVE:
        return GymReward(NATIVE, "environment", _digest(constants), gamma, _native)
    with building(f"reward.mode={mode!r}"):
        factory = installed(mode)
        serves = KIND in getattr(factory, "env_kinds", ())
    if not serves:
        names = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
        raise ValueError(f"reward.mode={mode!r} serves no gymnasium task; installed are {[NATIVE, *names]}")
    with building(f"reward.mode={mode!r}"):
        constants = {**schema_defaults(factory), **constants}
        function = factory(constants, gamma=gamma, task=task)
        return GymReward(mode, str(factory.version), _digest(constants), gamma, function)


def _digest(constants: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()


def installed(mode: str) -> Any:
    """Load the factory of an installed mode and no other package's; None when none has that name."""
    return next((point.load() for point in entry_points(group=ENTRY_POINTS, name=mode)), None)


def check_gym_mode(mode: GymReward) -> None:
    """Check one mode on 800 keyed random transitions; a defect raises ``GymRewardDefect``."""
    rng = generator(0, "control_policy", use="gymnasium reward self check")
    for _ in range(_ROUNDS):
        step = _random_transition(rng)
        before = _bits(step)
        (reward, components), (again, _) = mode(step), mode(step)
        _require(mode, _bits(step) == before, "changes its input")
        _require(mode, reward.shape == (_E,), f"gives shape {tuple(reward.shape)}")
        _require(mode, bool(torch.isfinite(reward).all()), "is not finite for finite input")
        _require(mode, torch.equal(reward, again), "gives other bits for the same input")
        gap = float((torch.stack(list(components.values())).sum(0) - reward).abs().max())
        _require(mode, gap <= _TOLERANCE, f"has components that miss the reward by {gap:.2g}")
        order = torch.arange(_E - 1, -1, -1)
        turned, _ = mode(_permuted(step, order))
        _require(mode, torch.equal(turned, reward[order]), "mixes environments")


def _require(mode: GymReward, holds: bool, defect: str) -> None:
    if not holds:
        raise GymRewardDefect(f"reward mode {mode.name!r} {defect}; correct the mode or remove it")


def _random_transition(rng: np.random.Generator) -> Transition:
    def floats(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    return Transition(
        observation=floats(_E, _O),
        action=torch.from_numpy(rng.integers(0, 2, (_E, 1))),
        reward=floats(_E),
        next_observation=floats(_E, _O),
        terminated=torch.from_numpy(rng.random(_E) < 0.2),
        truncated=torch.from_numpy(rng.random(_E) < 0.2),
        info={},
    )


def _bits(step: Transition) -> bytes:
    return b"".join(x.numpy().tobytes() for x in vars(step).values() if isinstance(x, Tensor))


def _permuted(step: Transition, order: Tensor) -> Transition:
    parts = {name: x[order] for name, x in vars(step).items() if isinstance(x, Tensor)}
    return Transition(**parts, info={name: x[order] for name, x in step.info.items()})
