"""The family ``morphogenesis`` for the lockstep loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.envs.base import LockstepEnvs
from worker.envs.family import Control, EnvironmentFamily, Order
from worker.envs.morph.episode import controls
from worker.envs.morph.episode.build import make_envs, make_evaluation_envs, make_training_envs
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import rest
from worker.envs.morph.episode.trial import try_mode
from worker.envs.morph.life.stages import Op
from worker.envs.morph.rewards import BoundReward, check_mode, make_reward


def _keys(order: Order) -> dict[str, Any]:
    return {
        "replicate_seed": order.replicate_seed,
        "device": order.device,
        "num_envs": order.num_envs,
        "rewards": order.rewards,
        "data_dir": order.data_dir,
    }


def _train(order: Order, overlaps: bool) -> LockstepEnvs:
    if overlaps:
        return make_training_envs(order.config, order.runs, **_keys(order))
    return make_envs(order.config, order.runs, phase="train", **_keys(order))


def _evaluate(order: Order, xeval: Mapping[str, BoundReward]) -> LockstepEnvs:
    if order.beside is None:
        return make_envs(order.config, order.runs, phase="eval", xeval=xeval, **_keys(order))
    return make_evaluation_envs(order.config, order.runs, xeval=xeval, beside=order.beside, **_keys(order))


def _reward(mode: str, section: Mapping[str, Any], gamma: float, env: Mapping[str, Any]) -> BoundReward:
    return make_reward(mode, section, gamma=gamma, task=str(env["task"]))


def _control(policy: str, envs: MorphEnvs, position: int, seed: int, round_index: int) -> Control:
    del seed, round_index  # the environments know their keys
    return controls.make_control(policy, envs, position)


FAMILY = EnvironmentFamily(
    train=_train,
    evaluate=_evaluate,
    reward=_reward,
    check_reward=lambda function, _task: check_mode(function),
    try_reward=lambda function, section, seconds: try_mode(function, str(section["id"]), seconds),
    control=_control,
    never_floored={"op": (Op.FOSSILIZE, Op.PRUNE, Op.SET_ALPHA_TARGET)},
    op_names=lambda _num_ops: [op.name for op in Op],
    split="test",
    twin="noop",
    keeps_evaluation=True,
    rest=rest,
)
