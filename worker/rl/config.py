"""Settings of the learner, parsed from a resolved spec's plain dictionaries (training.md 5.1).

Every field is required here: defaults live in the spec, which resolves them before a worker sees
the configuration. Schedules are pure functions of the round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from lockstep.spec.algorithms import default_adv_norm
from lockstep.spec.arms import discount_of

T = TypeVar("T")


@dataclass(frozen=True)
class PPOConfig:
    """The ``ppo`` section; names as in the spec, but ``lambda`` is ``lambda_``."""

    lr: float
    lr_schedule: str
    lr_end_frac: float
    adam_eps: float
    gamma: float
    lambda_: float
    clip: float
    ratio: str
    epochs: int
    minibatches: int
    target_kl: float | None
    value_coef: float
    value_clip: float | None
    entropy_coef_start: float
    entropy_coef_end: float
    entropy_anneal_rounds: int
    entropy_normalised: bool
    entropy_head_weights: Mapping[str, float]
    prob_floor: Mapping[str, float]
    prob_floor_end_frac: float
    adv_norm: str
    adv_std_floor: float
    grad_clip: float
    aux_coef: float


@dataclass(frozen=True)
class NetConfig:
    """The ``net`` section: body ``mlp`` or ``lstm`` and its widths."""

    body: str
    hidden: int
    lstm_hidden: int
    lstm_layers: int


@dataclass(frozen=True)
class ObsNormConfig:
    """The ``obs_norm`` section."""

    enabled: bool
    sharing: str
    clip: float
    calibration_episodes: int


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
    """

    ppo: PPOConfig
    net: NetConfig
    obs_norm: ObsNormConfig
    return_norm: str
    reward_norm: str
    precision: str
    rounds: int
    gamma: float

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> LearnerConfig:
        """Read the learner's sections; a missing or unknown key raises ``ValueError`` with its path."""
        rounds = int(config["budget"]["rounds"])
        net = _section(NetConfig, "net", config["net"])
        ppo = dict(config["ppo"])
        ppo["lambda_"] = ppo.pop("lambda", ppo.get("lambda_"))
        if ppo.get("entropy_anneal_rounds") is None:
            ppo["entropy_anneal_rounds"] = rounds
        if ppo.get("adv_norm") is None:
            ppo["adv_norm"] = default_adv_norm(config["net"])
        parsed = cls(
            ppo=_section(PPOConfig, "ppo", ppo),
            net=net,
            obs_norm=_section(ObsNormConfig, "obs_norm", config["obs_norm"]),
            return_norm=str(config["return_norm"]),
            reward_norm=str(config["reward_norm"]),
            precision=str(config["precision"]["policy"]),
            rounds=rounds,
            gamma=discount_of(config),
        )
        _check(parsed, int(config["env"]["n_envs"]))
        return parsed


def learning_rate(cfg: PPOConfig, round_index: int, rounds: int) -> float:
    """Return the learning rate of a round: from ``lr`` towards ``lr * lr_end_frac``."""
    progress = min(1.0, round_index / rounds)
    if cfg.lr_schedule == "constant":
        return cfg.lr
    if cfg.lr_schedule == "cosine":
        progress = 0.5 * (1.0 - math.cos(math.pi * progress))
    return cfg.lr * (1.0 - progress * (1.0 - cfg.lr_end_frac))


def entropy_coefficient(cfg: PPOConfig, round_index: int) -> float:
    """Return c_H of a round, linear over ``entropy_anneal_rounds``."""
    progress = min(1.0, round_index / cfg.entropy_anneal_rounds)
    return cfg.entropy_coef_start + progress * (cfg.entropy_coef_end - cfg.entropy_coef_start)


def floor_scale(cfg: PPOConfig, round_index: int, rounds: int) -> float:
    """Return the share of the configured probability floors in force: 1 at round 0, then linearly to 0."""
    return max(0.0, 1.0 - round_index / (cfg.prob_floor_end_frac * rounds))


def _section(kind: type[T], name: str, given: Mapping[str, Any]) -> T:
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # T is always a dataclass
    unknown = sorted(set(given) - set(known))
    missing = sorted(set(known) - set(given))
    if unknown or missing:
        raise ValueError(f"{name}: unknown keys {unknown}, missing keys {missing}; known are {sorted(known)}")
    return kind(**given)


def _check(cfg: LearnerConfig, num_envs: int) -> None:
    if cfg.precision not in ("fp32", "bf16"):
        raise ValueError(f"precision.policy={cfg.precision}: use fp32 or bf16 (loss scaling is not offered)")
    if cfg.obs_norm.sharing not in ("per_arm", "shared_frozen"):
        raise ValueError(
            f"obs_norm.sharing={cfg.obs_norm.sharing}: statistics fed live by several arms let one arm "
            "change another's numbers; use per_arm or shared_frozen"
        )
    if cfg.ppo.aux_coef != 0:
        raise ValueError("ppo.aux_coef: the contribution predictor is not built; set it to 0")
    if cfg.net.body == "lstm" and cfg.ppo.minibatches > num_envs:
        raise ValueError(
            f"ppo.minibatches={cfg.ppo.minibatches} > env.n_envs={num_envs}: an LSTM minibatch is a set of "
            "whole environment rows; lower ppo.minibatches or raise env.n_envs"
        )
