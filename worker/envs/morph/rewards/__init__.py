"""Reward modes of the morphogenesis environment: pure functions of a transition (training.md 2)."""

from worker.envs.morph.rewards.config import RewardConfig
from worker.envs.morph.rewards.registry import (
    BoundReward,
    RewardFunction,
    installed_modes,
    make_builtin,
    make_reward,
    registered_modes,
    version_of,
)
from worker.envs.morph.rewards.selfcheck import check_mode, check_modes, describe_modes
from worker.envs.paid import RewardDefect

__all__ = [
    "BoundReward",
    "RewardConfig",
    "RewardDefect",
    "RewardFunction",
    "check_mode",
    "check_modes",
    "describe_modes",
    "installed_modes",
    "make_builtin",
    "make_reward",
    "registered_modes",
    "version_of",
]
