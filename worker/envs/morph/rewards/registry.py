"""Reward modes by name: built-ins, and those that installed packages register (training.md 2.14).

A spec names a mode; it never selects code to load. User modes come from the entry-point group
``lockstep.rewards``: name -> factory ``(constants, *, gamma, task)`` of something with the attributes and
the call of ``RewardFunction``. A factory carries ``version``, ``env_kinds`` and a JSON ``schema``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
import torch

from worker.envs.faults import building
from worker.envs.morph.rewards.arrays import Transition, some
from worker.envs.morph.rewards.config import RewardConfig
from worker.envs.morph.rewards.context import RewardContext, RewardResult
from worker.envs.morph.rewards.modes import MODES, Mode
from worker.envs.schemas import schema_defaults

ENTRY_POINTS = "lockstep.rewards"
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
        with np.errstate(all="ignore"):  # what is not measured is NaN, and that pays nothing
            moved = Transition(ctx)
            components, ledgers = self.mode(moved, self.config, self.gamma)
        paid, dead = np.stack([*components.values(), moved.zero]), moved.rolled_back
        # a rollback pays the death pay alone, whatever the mode would have paid; earlier rewards stay
        if some(dead):
            paid[:, dead] = 0.0
            paid[-1, dead] = self.death_pay
        rows = torch.from_numpy(paid)
        names = [*components, "death"]
        kept = {name: torch.from_numpy(ledger) for name, ledger in ledgers.items()}
        return RewardResult(rows.sum(0), dict(zip(names, rows.unbind(), strict=True)), kept)


def make_reward(mode: str, cfg: Mapping[str, Any], *, gamma: float, task: str) -> RewardFunction:
    """Build a registered mode.

    Args:
        mode: registered name.
        cfg: the spec's ``reward`` section; its ``mode`` key is ignored.
        gamma: PPO's discount.
        task: name of the task, which supplies the constants of the loss family.

    Raises:
        ValueError: unknown mode, constant or value; the message names the field and what is known.
    """
    if mode not in MODES:
        factory = _external(mode)
        with building(f"reward.mode={mode!r}"):
            constants = schema_defaults(factory) | {name: value for name, value in cfg.items() if name != "mode"}
            return factory(constants, gamma=gamma, task=task)
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
    installed = {point.name: str(point.load().version) for point in _points()}
    return installed | dict.fromkeys(MODES, VERSION)


def version_of(mode: str) -> str | None:
    """Return the version of a built-in or installed mode; None when none has that name. Loads no other package."""
    if mode in MODES:
        return VERSION
    return next((str(point.load().version) for point in entry_points(group=ENTRY_POINTS, name=mode)), None)


def installed_modes() -> dict[str, EntryPoint]:
    """Return the installed, not built-in modes that serve this environment, by name."""
    points = {point.name: point for point in _points() if point.name not in MODES}
    return {name: point for name, point in points.items() if KIND in getattr(point.load(), "env_kinds", (KIND,))}


def _external(mode: str) -> Callable[..., RewardFunction]:
    """Load the factory of an installed mode, and no other package's: one that is broken is no concern of this spec."""
    with building(f"reward.mode={mode!r}"):
        factory: Callable[..., RewardFunction] | None = next(
            (point.load() for point in entry_points(group=ENTRY_POINTS, name=mode)), None
        )
        serves = factory is not None and KIND in getattr(factory, "env_kinds", (KIND,))
    if factory is None or not serves:
        names = sorted({*MODES, *(point.name for point in _points())})
        raise ValueError(f"reward.mode={mode!r} is not registered here; installed are {names}")
    return factory


def _points() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINTS))
