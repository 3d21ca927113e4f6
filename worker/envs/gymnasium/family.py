"""The family ``gymnasium`` for the lockstep loop: simulators on the host, policies where the worker's device is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.envs.base import LockstepEnvs
from worker.envs.family import Control, EnvironmentFamily, Order, UniformControl
from worker.envs.gymnasium.catalog import OWN_TASKS, tasks
from worker.envs.gymnasium.checking.reward_check import check_gym_mode, try_gym_mode
from worker.envs.gymnasium.rewards import GymReward, make_gym_reward
from worker.envs.gymnasium.stepping.env import batched_factory, make_envs, simulated_envs
from worker.envs.gymnasium.stepping.vector import VectorEnvs, is_batched
from worker.envs.placed import Placed


def _envs(order: Order, phase: str, xeval: Mapping[str, GymReward]) -> LockstepEnvs:
    factory = batched_factory(str(order.config["env"]["id"]))
    if factory is not None:
        batched = VectorEnvs(order, xeval, factory=factory, phase=phase)
        return batched if batched.device == order.device else Placed(batched, order.device)
    host = simulated_envs(order, xeval, phase) or make_envs(
        order.config,
        order.runs,
        replicate_seed=order.replicate_seed,
        num_envs=order.num_envs,
        phase=phase,
        rewards=order.rewards,
        bounds=[run.action_bounds for run in order.runs],
        xeval=xeval,
        alive=order.alive,
    )
    return host if order.device.type == "cpu" else Placed(host, order.device)


def _reward(mode: str, section: Mapping[str, Any], gamma: float, env: Mapping[str, Any]) -> GymReward:
    return make_gym_reward(mode, section, gamma=gamma, task=str(env["id"]))


def _control(policy: str, envs: LockstepEnvs, position: int, seed: int, round_index: int) -> Control:
    del position  # every run of a block draws alike
    if policy != "random":
        raise ValueError(f"{policy!r} needs slots")
    return UniformControl(envs, seed, round_index)


FAMILY = EnvironmentFamily(
    train=lambda order, _overlaps: _envs(order, "train", {}),
    evaluate=lambda order, xeval: _envs(order, "eval", xeval),
    reward=_reward,
    check_reward=check_gym_mode,
    try_reward=try_gym_mode,
    control=_control,
    never_floored={},
    op_names=lambda num_ops: [str(op) for op in range(num_ops)],
    split=None,
    twin=None,
    keeps_evaluation=False,  # simulators are not kept open while the policies train
    tasks=tasks,
    own_tasks=lambda: OWN_TASKS,
    is_batched=is_batched,
)
