"""Games of the Arcade Learning Environment: how they are prepared in training and in evaluation, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker.train.cases import CPU, GYM, GYM_ARMS, block, digests
from worker.envs.gymnasium.build import build_one
from worker.train.block import BlockTrainer

GAME = {"id": "ALE/Breakout-v5", "wrappers": ["atari"], "kwargs": {"repeat_action_probability": 0.0}}


def played(*, training: bool) -> tuple[list[float], int, int]:
    """Return the rewards of an episode of pressing the button, its length, and the lives that were left."""
    env = build_one({**GAME, "id": "ALE/SpaceInvaders-v5"}, training=training)
    shown, _ = env.reset(seed=3)
    assert (shown.shape, shown.dtype) == ((4, 84, 84), np.uint8)
    rewards: list[float] = []
    for _ in range(2000):
        _, reward, ends, cut, info = env.step(1)
        rewards.append(float(reward))
        if ends or cut:
            break
    env.close()
    return rewards, len(rewards), int(info["lives"])


def test_training_ends_at_a_life_and_pays_signs_and_evaluation_plays_the_game() -> None:
    signs, first_life, lives = played(training=True)
    scores, whole, none = played(training=False)
    assert set(signs) == {0.0, 1.0}
    assert max(scores) > 1.0
    assert first_life < whole
    assert (lives, none) == (2, 0)
    assert [float(np.sign(score)) for score in scores[: len(signs)]] == signs


def test_a_limit_counts_the_steps_of_the_policy() -> None:
    env = build_one({**GAME, "max_episode_steps": 5})
    env.reset(seed=0)
    assert [bool(env.step(0)[3]) for _ in range(5)] == [False] * 4 + [True]
    with pytest.raises(ValueError, match="frame-skipping"):
        build_one({**GAME, "kwargs": {"frameskip": 4}})


def test_a_game_is_trained_and_resumed_by_replay(tmp_path: Path) -> None:
    short: dict[str, Any] = {"n_envs": 1, "rollout_steps": 4, **GAME}
    base = {**GYM, "preset": "gym_atari", "env": short, "net": {"hidden": 8}, "obs_norm": {"enabled": False}}
    base |= {"ppo": {"epochs": 1, "minibatches": 1}}
    plan = block(base, GYM_ARMS, only=(0,), eval={"max_steps": 2, "episodes": 1}, budget={"rounds": 2})
    whole = list(BlockTrainer(plan, CPU).rounds(0))
    first = BlockTrainer(plan, CPU)
    next(first.rounds(0))
    first.save_checkpoint(tmp_path, 1)
    second = BlockTrainer(plan, CPU)
    rest = list(second.rounds(second.load_checkpoint(tmp_path)))
    assert digests(rest, "run-A") == digests(whole, "run-A")[1:]
