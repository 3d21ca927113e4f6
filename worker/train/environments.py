"""Environments of a block share by kind; the environment packages are loaded by name, only when used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from lockstep.keys import generator
from worker.envs.base import LockstepEnvs, ObsSpec
from worker.envs.gymnasium.rewards import GymReward, make_gym_reward
from worker.envs.morph.life.stages import Op
from worker.envs.morph.rewards import RewardFunction, make_reward
from worker.rl.learner import ObsLayout
from worker.rl.nets import InputLayout
from worker.train.plan import BlockPlan, ConfigRefused, RunPlan

#: A reward function of either kind: with ``name``, ``config_hash`` and ``gamma``.
AnyReward = RewardFunction | GymReward
MORPH, GYM = "morphogenesis", "gymnasium"
_MODULES: Mapping[str, str] = {GYM: "worker.envs.gymnasium.env", MORPH: "worker.envs.morph.episode.build"}
_CONTROLS = "worker.envs.morph.episode.controls"
#: Choices that probability floors never touch (training.md 1.5).
_NEVER_FLOORED: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    MORPH: {"op": (Op.FOSSILIZE, Op.PRUNE, Op.SET_ALPHA_TARGET)},
    GYM: {},
}


class UniformControl:
    """The ``random`` control of environments without a control of their own: uniform over each head.

    Args:
        envs: environments; their masks must allow every choice.
        seed: replicate seed.
        round_index: key of the draws.
        prefix: ``eval/`` in evaluation.
    """

    def __init__(self, envs: LockstepEnvs, seed: int, round_index: int, prefix: str = "") -> None:
        self._sizes = [head.size for head in envs.heads]
        self._draws = [
            generator(seed, f"{prefix}control_policy", env=e, episode=round_index) for e in range(envs.num_envs)
        ]

    def act(self, step: int) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """Return actions [E, H]."""
        return torch.tensor([[int(g.integers(size)) for size in self._sizes] for g in self._draws])


def kind_of(plan: BlockPlan) -> str:
    """Return the environment kind of a block; an unknown one is a ``ConfigRefused``."""
    kind = str(plan.runs[0].config["env"]["kind"])
    if kind not in _MODULES:
        raise ConfigRefused("env.kind", f"unknown kind {kind!r}", f"use one of {sorted(_MODULES)}")
    return kind


def never_floored(plan: BlockPlan) -> Mapping[str, tuple[int, ...]]:
    """Return the choices per head that probability floors must not touch."""
    return _NEVER_FLOORED[kind_of(plan)]


def op_names(plan: BlockPlan, num_ops: int) -> list[str]:
    """Return names of the choices of head 0."""
    return [op.name for op in Op] if kind_of(plan) == MORPH else [str(i) for i in range(num_ops)]


def obs_layout(spec: ObsSpec) -> ObsLayout:
    """Return the learner's view of an observation layout."""
    inputs = InputLayout(spec.num_features, spec.num_ids, spec.id_vocab, spec.id_dim)
    return ObsLayout(inputs, spec.continuous, spec.sentinel)


def ordered_runs(plan: BlockPlan) -> list[int]:
    """Return indices into ``plan.runs`` in order of issue: arm k of replicate r stands at (k + r) mod K."""
    position = [(run.arm_index + plan.replicate) % plan.num_arms for run in plan.runs]
    return sorted(range(len(plan.runs)), key=position.__getitem__)


def reward_of(run: RunPlan) -> AnyReward:
    """Build the reward function of an arm; a bad constant is a ``ConfigRefused``."""
    section = run.config["reward"]
    return _reward(section["mode"], section, run.config, float(run.config["ppo"]["gamma"]))


def cross_rewards(plan: BlockPlan) -> dict[str, AnyReward]:
    """Return the functions of cross-evaluation by name: every arm's mode and ``eval.xeval_modes``.

    Equal functions are listed once; two of one mode with other constants are told apart by their hash.
    """
    config = plan.runs[0].config
    # nothing here may depend on which arms this device holds: a further mode has the first arm's discount
    wanted = list(plan.reward_modes)
    wanted += [(mode, {}, plan.reward_modes[0][2]) for mode in config["eval"]["xeval_modes"]]
    functions = {}
    for mode, section, gamma in wanted:
        function = _reward(mode, section, config, gamma)
        functions[(mode, function.config_hash, function.gamma)] = function
    names = [mode for mode, _, _ in functions]
    return {
        mode if names.count(mode) == 1 else f"{mode}_{digest[:6]}_{gamma:g}": function
        for (mode, digest, gamma), function in functions.items()
    }


def make_environments(
    plan: BlockPlan,
    device: torch.device,
    *,
    phase: str,
    num_envs: int,
    seed: int | None = None,
    data_dir: Path | None = None,
    runs: Sequence[RunPlan] | None = None,
    xeval: Mapping[str, AnyReward] | None = None,
    overlaps: bool = False,
    alive: Callable[[], None] = lambda: None,
) -> LockstepEnvs:
    """Build the environments of all runs held, in order of issue; refusals name field and remedy.

    Args:
        plan: block.
        device: where hosts train.
        phase: ``train`` or ``eval``.
        num_envs: environments per run.
        seed: replicate seed, if not the plan's (scratch environments).
        data_dir: where data sets lie.
        runs: other runs than the plan's.
        xeval: reward functions under which evaluation episodes are scored too.
        overlaps: whether the caller steps cohorts out of phase.
        alive: called after everything that may take long in the code of others.
    """
    chosen = [plan.runs[i] for i in ordered_runs(plan)] if runs is None else list(runs)
    keys: dict[str, Any] = {
        "replicate_seed": plan.replicate_seed if seed is None else seed,
        "device": device,
        "num_envs": num_envs,
        "data_dir": data_dir,
        "rewards": [reward_of(run) for run in chosen],
    }
    module, is_morph = _load(kind_of(plan)), kind_of(plan) == MORPH
    try:
        envs: list[Any] = chosen
        if is_morph:
            envs = [module.RunEnv(r.run_id, r.arm, r.policy, r.static_set, r.config["ppo"]["gamma"]) for r in chosen]
        if is_morph and overlaps:
            return cast(LockstepEnvs, module.make_training_envs(chosen[0].config, envs, **keys))
        own = {} if is_morph else {"alive": alive}
        scored = dict(xeval or {})
        return cast(LockstepEnvs, module.make_envs(chosen[0].config, envs, phase=phase, xeval=scored, **keys, **own))
    except ValueError as error:
        raise ConfigRefused("env", str(error), "correct the named field") from error


def make_control(plan: BlockPlan, run: RunPlan, envs: LockstepEnvs, position: int, round_index: int) -> Any:
    """Build the control policy of a run whose environments stand at ``position``."""
    if kind_of(plan) == MORPH:
        return importlib.import_module(_CONTROLS).make_control(run.policy, envs, position)
    if run.policy != "random":
        raise ConfigRefused(f"arms[{run.arm}].policy", f"{run.policy!r} needs slots", "use ppo or random")
    prefix = "eval/" if envs.resets_each_round else ""
    return UniformControl(envs, plan.replicate_seed, round_index, prefix)


def _reward(mode: str, section: Mapping[str, Any], config: Mapping[str, Any], *gamma: float) -> AnyReward:
    discount = gamma[0] if gamma else float(config["ppo"]["gamma"])
    env = config["env"]
    try:
        if env["kind"] == GYM:
            return make_gym_reward(mode, section, gamma=discount, task=str(env["id"]))
        return make_reward(mode, section, gamma=discount, task=str(env["task"]))
    except ValueError as error:
        raise ConfigRefused("reward", str(error), "correct the named field") from error


def _load(kind: str) -> Any:
    try:
        return importlib.import_module(_MODULES[kind])
    except ModuleNotFoundError as error:
        remedy = "install it on the worker: pip install 'lockstep[worker,gym]'"
        raise ConfigRefused("env.kind", f"{kind!r} needs the package {error.name!r}", remedy) from error
