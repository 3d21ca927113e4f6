"""Environments, rewards and controls of an assignment, built by its family; refusals name the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lockstep import plugins
from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.arms import action_bounds_of, discount_of
from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.homes import is_small
from lockstep.spec.sections import CLIP
from worker.envs import families
from worker.envs.base import LockstepEnvs, ObsSpec
from worker.envs.family import Control, EnvironmentFamily, Order, Reward, RunEnv
from worker.envs.faults import raised_in
from worker.envs.placed import Placed
from worker.rl.learner import ObsLayout
from worker.rl.nets import InputLayout
from worker.train.plan import BlockPlan, ConfigRefused, RunPlan


def family_of(plan: BlockPlan) -> EnvironmentFamily:
    """Return the environment family of a block; an unknown one, or a missing package, is a ``ConfigRefused``."""
    kind = str(plan.runs[0].config["env"]["kind"])
    if kind not in families.FAMILIES:
        raise ConfigRefused("env.kind", f"unknown kind {kind!r}", f"use one of {sorted(families.FAMILIES)}")
    try:
        return families.load(kind)
    except ModuleNotFoundError as error:
        remedy = "install it on the worker: pip install 'lockstep[worker,gym]'"
        raise ConfigRefused("env.kind", f"{kind!r} needs the package {error.name!r}", remedy) from error


def refuse_taken_names(plan: BlockPlan) -> None:
    """Refuse a block where a plug-in has the name of something built in, or of another plug-in, that the block uses.

    A worker does not start beside such a package; one that is installed under a running worker is found here.

    Raises:
        ConfigRefused: it does; the message names the package.
    """
    config = plan.runs[0].config
    kind = str(config["env"]["kind"])
    taken = dict.fromkeys(family_of(plan).own_tasks(), f"a task of {kind}")
    taken |= dict.fromkeys(FAMILIES, "a family of environments")
    rewards = plugins.clashes(plugins.REWARDS, plugins.builtin_rewards())
    environments = plugins.clashes(plugins.ENVIRONMENTS, taken)
    used = [("env.id", environments.get(str(config["env"].get("id"))))]
    modes = [*(mode for mode, _, _ in plan.reward_modes), *config["eval"]["xeval_modes"]]
    used += [("reward.mode", rewards.get(mode)) for mode in modes]
    for field, told in used:
        if told is not None:
            message, _, remedy = told.rpartition("; ")
            raise ConfigRefused(field, message, remedy)


def home_of(runs: Sequence[RunPlan], envs: LockstepEnvs) -> LockstepEnvs | None:
    """Return the environments as the host has them where all that learn, if any, are small policies of numbers.

    A step of such a policy takes less time on the host than its way to a GPU and back (docs/performance.md).
    """
    are_small = [is_small(run.config) and not envs.obs_spec.images for run in runs if run.policy in ALGORITHMS]
    return envs.host if isinstance(envs, Placed) and all(are_small) else None


def obs_layout(spec: ObsSpec) -> ObsLayout:
    """Return the learner's view of an observation layout."""
    inputs = InputLayout(spec.num_features, spec.num_ids, spec.id_vocab, spec.id_dim, spec.images)
    return ObsLayout(inputs, spec.continuous, spec.sentinel)


def ordered_runs(plan: BlockPlan) -> list[int]:
    """Return indices into ``plan.runs`` in order of issue: arm k of replicate r stands at (k + r) mod K."""
    position = [(run.arm_index + plan.replicate) % plan.num_arms for run in plan.runs]
    return sorted(range(len(plan.runs)), key=position.__getitem__)


def cross_rewards(plan: BlockPlan) -> dict[str, Reward]:
    """Return the functions of cross-evaluation by name: every arm's mode and ``eval.xeval_modes``.

    Equal functions are listed once; of several of one mode each is named after the first arm that has it.
    """
    config = plan.runs[0].config
    # nothing here may depend on which arms this device holds: a further mode has the first arm's discount
    wanted = [(f"arm{index}", *reward) for index, reward in enumerate(plan.reward_modes)]
    wanted += [("default", mode, {}, plan.reward_modes[0][2]) for mode in config["eval"]["xeval_modes"]]
    functions: dict[tuple[str, str, float], tuple[str, Reward]] = {}
    for whose, mode, section, gamma in wanted:
        function = _reward(plan, mode, section, gamma)
        functions.setdefault((mode, function.config_hash, function.gamma), (whose, function))
    names = [mode for mode, _, _ in functions]
    return {
        mode if names.count(mode) == 1 else f"{mode}_{whose}": function
        for (mode, _, _), (whose, function) in functions.items()
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
    xeval: Mapping[str, Reward] | None = None,
    overlaps: bool = False,
    alive: Callable[[], None] = lambda: None,
    beside: LockstepEnvs | None = None,
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
        alive: called before anything of others is built, so that what it takes is counted from there, and after
            everything that may take long in their code.
        beside: for evaluation, the training environments of the plan, which rest meanwhile; the caller steps cohorts
            out of phase.
    """
    alive()
    chosen = [plan.runs[i] for i in ordered_runs(plan)] if runs is None else list(runs)
    order = Order(
        config=chosen[0].config,
        runs=[
            RunEnv(r.run_id, r.arm, r.policy, r.static_set, discount_of(r.config), _action_bounds(r)) for r in chosen
        ],
        rewards=[reward_of(plan, run) for run in chosen],
        replicate_seed=plan.replicate_seed if seed is None else seed,
        device=device,
        num_envs=num_envs,
        data_dir=data_dir,
        alive=alive,
        beside=beside,
    )
    family = family_of(plan)
    try:
        if phase == "train":
            return family.train(order, overlaps)
        return family.evaluate(order, xeval or {})
    except ValueError as error:
        raise _refused("env", error) from error


def _action_bounds(run: RunPlan) -> str:
    """Return how real-numbered actions of a run are mapped; those of a control are the environment's own."""
    return action_bounds_of(run.config) if run.policy in ALGORITHMS else CLIP


def make_control(plan: BlockPlan, run: RunPlan, envs: LockstepEnvs, position: int, round_index: int) -> Control:
    """Build the control policy of a run whose environments stand at ``position``."""
    try:
        return family_of(plan).control(run.policy, envs, position, plan.replicate_seed, round_index)
    except ValueError as error:
        offered = (*ALGORITHMS, *FAMILIES[str(run.config["env"]["kind"])].controls)
        raise ConfigRefused(f"arms[{run.arm}].policy", str(error), f"use one of {', '.join(offered)}") from error


def reward_of(plan: BlockPlan, run: RunPlan) -> Reward:
    """Build the reward function of an arm; a bad constant is a ``ConfigRefused``."""
    section = run.config["reward"]
    return _reward(plan, section["mode"], section, discount_of(run.config))


def _reward(plan: BlockPlan, mode: str, section: Mapping[str, Any], gamma: float) -> Reward:
    env: Mapping[str, Any] = plan.runs[0].config["env"]
    try:
        function: Reward = family_of(plan).reward(mode, section, gamma, env)
    except ValueError as error:
        raise _refused("reward", error) from error
    return function


def _refused(field: str, error: ValueError) -> ConfigRefused:
    """Return the refusal of what cannot be built: whether the field is wrong or the code, and where that raised."""
    place = raised_in(error)
    if not place:
        return ConfigRefused(field, str(error), "correct the named field")
    again = " and install it again: this is an installed copy" if _INSTALLED.search(place) else ""
    is_code = isinstance(error.__cause__, SyntaxError | ImportError)
    remedy = "mend this code" if is_code else "correct the named field, or mend this code"
    return ConfigRefused(field, f"{error}{place}", f"{remedy}{again}")


_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
