"""Registered rewards of Gymnasium tasks: pure functions of the transitions of one run (training.md 2.14).

A package adds a mode by an entry point (``worker.envs.reward_plugins``). This module knows no environment and does not
import gymnasium, so such a package can import its records. docs/rewards.md is made of the attributes told here: type
and shape; unit; meaning. Axes: E environment, O observation, C columns of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lockstep.spec.text.problems import nearest
from worker.envs.faults import building
from worker.envs.reward_plugins import digest, installed, points

KIND = "gymnasium"
NATIVE = "native"


@dataclass(frozen=True)
class Transition:
    """One step of all environments of a run.

    Attributes:
        observation: [E, O] float32; the environment's; on which the action was chosen, before ``obs_norm``:
            flattened and one-hot, in the order that ``lockstep env check ID`` lists as parts; images are not among
            them; always there.
        action: [E, C] int64 where all are choices, else float64; choices count from 0, components of a ``Box`` are in
            its own units; what is executed, so after clipping or mapping by ``action.bounds``, before it is cast to
            the dtype of the space and before ``start`` is added; one column for each choice and each component, in the
            order of the space; always there.
        reward: [E] float32; the environment's; its own reward of this step, before ``env.reward_scale`` and
            ``reward_norm``, which act on what the mode pays; always there.
        next_observation: [E, O] float32; the environment's; what the action led to, as ``observation``: of an episode
            that ends its true last one, never that after the reset; always there.
        terminated: [E] bool; truth; the task ended with this step; always there.
        truncated: [E] bool; truth; a limit of steps cut the episode here (in evaluation ``eval.max_steps`` too), and
            the task did not end; always there.
        info: {name: [E] float32}; the environment's; numbers and truth values of its info after this step, no texts or
            arrays; NaN for an environment that does not tell it, infinite where float32 cannot hold it, and a name that
            none tells is absent: ask with ``step.info.get(name)``.
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
    if mode == NATIVE:
        constants = {name: value for name, value in section.items() if name != "mode"}
        return GymReward(NATIVE, "environment", digest(constants), gamma, _native)
    with building(f"reward.mode={mode!r}"):
        plugin = installed(mode)
    if plugin is None or KIND not in plugin.env_kinds:
        why = "is not installed here" if plugin is None else f"serves {' and '.join(plugin.env_kinds)}, not {KIND}"
        known = nearest(mode, [NATIVE, *(point.name for point in points() if point.name != mode)], "installed here:")
        raise ValueError(f"reward.mode={mode!r} {why}; {known}")
    with building(f"reward.mode={mode!r}"):
        constants = plugin.constants(section)
        function = plugin.factory(constants, gamma=gamma, task=task)
        return GymReward(mode, plugin.version, digest(constants), gamma, function)
