"""The worker's own check of registered modes finds each kind of defect (training.md 2.14)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from worker.envs.morph.rewards import RewardConfig, RewardDefect, check_modes, describe_modes, make_reward
from worker.envs.morph.rewards.arrays import Transition
from worker.envs.morph.rewards.modes import MODES, Components, Ledgers
from worker.envs.morph.rewards.selfcheck import check_mode


def test_every_built_in_mode_passes() -> None:
    assert set(check_modes()) == set(MODES)


def _first_slot(ctx: Transition, _cfg: RewardConfig, _gamma: float) -> tuple[Components, Ledgers]:
    return {"x": ctx.post.alpha[:, 0]}, {}


def _infinite(ctx: Transition, _cfg: RewardConfig, _gamma: float) -> tuple[Components, Ledgers]:
    return {"x": 1.0 / np.zeros_like(ctx.post.cf)}, {}


def _writes(ctx: Transition, _cfg: RewardConfig, _gamma: float) -> tuple[Components, Ledgers]:
    ctx.post.accuracy += 1.0
    return {"x": ctx.post.accuracy.copy()}, {}


def _per_slot(ctx: Transition, _cfg: RewardConfig, _gamma: float) -> tuple[Components, Ledgers]:
    return {"x": ctx.post.params}, {}


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (_first_slot, "order of slots"),
        (_infinite, "the reward is inf in environment 0; it must be finite"),
        (_writes, "changes its input"),
        (_per_slot, "same shape"),
    ],
)
def test_a_defective_mode_is_named_with_its_defect(mode: object, words: str) -> None:
    built = make_reward("sparse", {}, gamma=0.99, task="digits_tiny")
    with pytest.raises((RewardDefect, ValueError), match=words):
        check_mode(replace(built, name="mine", mode=mode))  # type: ignore[arg-type]


def test_schema_lists_every_constant_as_a_flat_per_slot() -> None:
    described = describe_modes()["shaped"]
    names = set(described["schema"]["properties"])
    assert names == set(RewardConfig.defaults())
    assert described["schema"]["properties"]["rent_weight"] == {"type": "number", "default": 0.5, "minimum": 0}
