"""Reward modes of the morphogenesis environment: pure functions of a transition (training.md 2)."""

from worker.envs.morph.rewards.config import RewardConfig
from worker.envs.morph.rewards.registry import RewardFunction, make_reward, registered_modes

__all__ = ["RewardConfig", "RewardFunction", "make_reward", "registered_modes"]
