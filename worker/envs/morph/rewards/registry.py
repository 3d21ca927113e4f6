"""Reward modes by name: built-ins, and those that installed packages register (training.md 2.14).

A spec names a mode; it never selects code to load. Modes of packages are found by ``worker.envs.reward_plugins``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lockstep.spec.text.problems import nearest
from worker.envs.faults import building
from worker.envs.morph.rewards.arrays import Array, Transition, some
from worker.envs.morph.rewards.config import RewardConfig
from worker.envs.morph.rewards.context import RewardContext, RewardResult
from worker.envs.morph.rewards.modes import MODES, Mode
from worker.envs.reward_plugins import digest, installed, points

KIND = "morphogenesis"
#: Version of the built-in formulas; raised whenever a number they give changes.
VERSION = "1"
_TERMINAL_ONLY = frozenset({"sparse", "minimal"})


@dataclass(frozen=True)
class RewardFunction:
    """A mode with its constants, callable on a transition.

    Attributes:
        name: registered mode.
        version: version of the formulas.
        config_hash: SHA-256 of the resolved constants.
        death_pay: reward of the step in which the governor rolled back (negative).
        gamma: discount of the shaping, equal to PPO's.
        config: the constants.
        mode: the formulas.
    """

    name: str
    version: str
    config_hash: str
    death_pay: float
    gamma: float
    config: RewardConfig
    mode: Mode

    def __call__(self, ctx: RewardContext) -> RewardResult:
        """Return reward [E], components that sum to it, and ledgers; pure."""
        rows, names, ledgers = self.pays(Transition.of(ctx))
        reward, *components = torch.from_numpy(rows).unbind()
        kept = {name: torch.from_numpy(ledger) for name, ledger in ledgers.items()}
        return RewardResult(reward, dict(zip(names, components, strict=True)), kept)

    def pays(self, moved: Transition) -> tuple[Array, list[str], dict[str, Array]]:
        """Return rows [1 + N, E], the reward and N components that sum to it, their names, and ledgers; pure."""
        with np.errstate(all="ignore"):  # what is not measured is NaN, and that pays nothing
            components, ledgers = self.mode(moved, self.config, self.gamma)
        rows, dead = np.stack([moved.zero, *components.values(), moved.zero]), moved.rolled_back
        # a rollback pays the death pay alone, whatever the mode would have paid; earlier rewards stay
        if some(dead):
            rows[:, dead] = 0.0
            rows[-1, dead] = self.death_pay
        rows[0] = torch.from_numpy(rows[1:]).sum(0).numpy()
        return rows, [*components, "death"], ledgers


@dataclass(frozen=True)
class PackageReward:
    """A mode of a package with its constants; called as ``RewardFunction`` is.

    Attributes:
        name: registered mode.
        version: of its formulas, as its factory says.
        config_hash: SHA-256 of the constants.
        death_pay: reward of the step in which the governor rolled back.
        gamma: discount, equal to PPO's.
        function: what the factory returned.
    """

    name: str
    version: str
    config_hash: str
    death_pay: float
    gamma: float
    function: Callable[[RewardContext], RewardResult]

    def __call__(self, ctx: RewardContext) -> RewardResult:
        """Return reward [E], components that sum to it, and ledgers."""
        return self.function(ctx)


BoundReward = RewardFunction | PackageReward


def make_reward(mode: str, cfg: Mapping[str, Any], *, gamma: float, task: str) -> BoundReward:
    """Build a registered mode.

    Args:
        mode: registered name.
        cfg: the spec's ``reward`` section; its ``mode`` key is ignored.
        gamma: PPO's discount.
        task: name of the task, which supplies the constants of the loss family.

    Raises:
        ValueError: unknown mode, constant or value; the message names the field and what is known.
    """
    return make_builtin(mode, cfg, gamma=gamma, task=task) if mode in MODES else _of_package(mode, cfg, gamma, task)


def make_builtin(mode: str, cfg: Mapping[str, Any], *, gamma: float, task: str) -> RewardFunction:
    """Build a built-in mode; the rest as ``make_reward``."""
    config = RewardConfig.parse(cfg, task)
    if mode in _TERMINAL_ONLY and config.disable_terminal:
        raise ValueError(f"reward.disable_terminal: mode {mode!r} has no other pay; use another mode")
    if mode == "loss" and None in (config.loss_baseline, config.loss_target, config.loss_sigma):
        raise ValueError(
            f"reward.mode loss: task {task!r} has no baseline, target and sigma; give reward.loss_baseline, "
            "reward.loss_target, reward.loss_sigma and reward.loss_rent_weight"
        )
    death = config.sparse_scale if mode in _TERMINAL_ONLY else config.death_pay
    return RewardFunction(mode, VERSION, config.hash(), -death, gamma, config, MODES[mode])


def registered_modes() -> dict[str, str]:
    """Return {mode: version} of every built-in and installed mode, of every environment kind."""
    own = {point.name: plugin.version for point in points() if (plugin := installed(point.name)) is not None}
    return own | dict.fromkeys(MODES, VERSION)


def version_of(mode: str) -> str | None:
    """Return the version of a built-in or installed mode; None when none has that name. Loads no other package."""
    if mode in MODES:
        return VERSION
    plugin = installed(mode)
    return None if plugin is None else plugin.version


def installed_modes() -> list[str]:
    """Return the names of the installed, not built-in modes that serve this environment."""
    names = sorted({point.name for point in points()} - {*MODES})
    return [name for name in names if (plugin := installed(name)) is not None and KIND in plugin.env_kinds]


def _of_package(mode: str, cfg: Mapping[str, Any], gamma: float, task: str) -> PackageReward:
    """Build the mode of a package, and load no other: one that is broken is no concern of this spec."""
    with building(f"reward.mode={mode!r}"):
        plugin = installed(mode)
    if plugin is None or KIND not in plugin.env_kinds:
        why = "is not installed here" if plugin is None else f"serves {' and '.join(plugin.env_kinds)}, not {KIND}"
        known = nearest(mode, {*MODES, *(point.name for point in points() if point.name != mode)}, "installed here:")
        raise ValueError(f"reward.mode={mode!r} {why}; {known}")
    with building(f"reward.mode={mode!r}"):
        constants = plugin.constants(cfg)
        function = plugin.factory(constants, gamma=gamma, task=task)
        pay = float(getattr(function, "death_pay", plugin.death_pay))
        return PackageReward(mode, plugin.version, digest(constants), pay, gamma, function)
