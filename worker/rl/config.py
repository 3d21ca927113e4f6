"""Settings of the learner: the spec's own sections, read from the plain dictionaries that an assignment brings.

Defaults and ranges stand in ``lockstep.spec.sections`` alone. Schedules are pure functions of the round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.arms import action_bounds_of, discount_of
from lockstep.spec.sections import CLIP, Budget, Net, ObsNorm, Ppo, Precision, Section
from lockstep.spec.text.faults import problems_of

SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True)
class LearnerConfig:
    """Everything that shapes one run's policy and its update.

    Attributes:
        ppo: section ``ppo``.
        net: section ``net``.
        obs_norm: section ``obs_norm``.
        return_norm: ``popart`` or ``none``.
        reward_norm: ``return_std`` or ``none``.
        precision: ``fp32`` or ``bf16``.
        rounds: planned rounds, the length of every schedule.
        gamma: discount of the task, whatever the algorithm.
        reward_scale: what rewards are multiplied by before anything else.
        action_bounds: how real-numbered actions are brought between the bounds of their space.
    """

    ppo: Ppo
    net: Net
    obs_norm: ObsNorm
    return_norm: str
    reward_norm: str
    precision: str
    rounds: int
    gamma: float
    reward_scale: float = 1.0
    action_bounds: str = CLIP

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> LearnerConfig:
        """Read the learner's sections; a missing or unknown key raises ``ValueError`` with its path."""
        data: dict[str, Any] = {name: dict(config[name]) for name in ("ppo", "net", "obs_norm", "precision", "budget")}
        ALGORITHMS["ppo"].fill(data, ())
        parsed = cls(
            ppo=_section(Ppo, "ppo", data),
            net=_section(Net, "net", data),
            obs_norm=_section(ObsNorm, "obs_norm", data),
            return_norm=str(config["return_norm"]),
            reward_norm=str(config["reward_norm"]),
            precision=_section(Precision, "precision", data).policy,
            rounds=_section(Budget, "budget", data).rounds,
            gamma=discount_of(config),
            reward_scale=float(config["env"].get("reward_scale") or 1.0),
            action_bounds=action_bounds_of(config),
        )
        _check(parsed, int(config["env"]["n_envs"]))
        return parsed


def learning_rate(cfg: Ppo, round_index: int, rounds: int) -> float:
    """Return the learning rate of a round: from ``lr`` towards ``lr * lr_end_frac``."""
    progress = min(1.0, round_index / rounds)
    if cfg.lr_schedule == "constant":
        return cfg.lr
    if cfg.lr_schedule == "cosine":
        progress = 0.5 * (1.0 - math.cos(math.pi * progress))
    return cfg.lr * (1.0 - progress * (1.0 - cfg.lr_end_frac))


def entropy_coefficient(cfg: Ppo, round_index: int) -> float:
    """Return c_H of a round, linear over ``entropy_anneal_rounds``."""
    if cfg.entropy_anneal_rounds is None:
        raise ValueError("ppo.entropy_anneal_rounds is filled in before a policy is trained")
    progress = min(1.0, round_index / cfg.entropy_anneal_rounds)
    return cfg.entropy_coef_start + progress * (cfg.entropy_coef_end - cfg.entropy_coef_start)


def floor_scale(cfg: Ppo, round_index: int, rounds: int) -> float:
    """Return the share of the configured probability floors in force: 1 at round 0, then linearly to 0."""
    return max(0.0, 1.0 - round_index / (cfg.prob_floor_end_frac * rounds))


def _section(kind: type[SectionT], name: str, data: Mapping[str, Any]) -> SectionT:
    try:
        return kind.model_validate(data[name])
    except ValidationError as error:
        found = problems_of(kind, data[name], error, root=(name,))
        raise ValueError("; ".join(map(str, found))) from error


def _check(cfg: LearnerConfig, num_envs: int) -> None:
    if cfg.net.body == "lstm" and cfg.ppo.minibatches > num_envs:
        raise ValueError(
            f"ppo.minibatches={cfg.ppo.minibatches} > env.n_envs={num_envs}: an LSTM minibatch is a set of "
            "whole environment rows; lower ppo.minibatches or raise env.n_envs"
        )
