"""Cross-field rules of a specification: each finding names the fields and the remedy.

``check`` returns problems (refusals) and warnings. The rules of the analysis are in
``lockstep.spec.analysis_rules``; this module hands them the facts they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.spec import tasks
from lockstep.spec.analysis_rules import validate_analysis
from lockstep.spec.problems import Problem, nearest, pointer
from lockstep.spec.resolve import ResolvedArm, ResolvedSpec
from lockstep.spec.rewards import Reward
from lockstep.spec.schemas import flat_problems


@dataclass(frozen=True)
class Registered:
    """Names that workers have announced, beside the built-in ones.

    Attributes:
        rewards: mode -> facts: "env_kinds", "schema" (JSON Schema of its flat constants) and, where the
            worker's check failed, "defect".
        environments: environment id -> JSON Schema of its keyword arguments, or "defect".
    """

    rewards: Mapping[str, Mapping[str, Any]]
    environments: Mapping[str, Mapping[str, Any]]


NONE_REGISTERED = Registered({}, {})


def check(resolved: ResolvedSpec, registered: Registered = NONE_REGISTERED) -> tuple[list[Problem], list[str]]:
    """Return the problems and the warnings of a resolved specification."""
    problems = [
        *_arm_rules(resolved),
        *_task_rules(resolved),
        *_lockstep_rules(resolved),
        *_reward_rules(resolved, registered),
    ]
    problems.extend(_environment_rules(resolved, registered))
    for index, arm in enumerate(resolved.arms):
        problems.extend(_training_rules(index, arm, resolved))
    found, warnings = _analysis_rules(resolved)
    return _unique([*problems, *found]), [*warnings, *_warnings(resolved)]


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _arm_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    labels = [arm.label for arm in resolved.arms]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            yield Problem(pointer("arms", index, "label"), "duplicate", f"label {label!r} is used twice", "rename one")
    same = _same_arms(resolved.arms)
    if resolved.spec.experiment.kind == "aa" and not all(_same(resolved.arms[0], arm) for arm in resolved.arms):
        remedy = "make the arms equal, or use kind: ab"
        yield Problem("/experiment/kind", "aa_arms_differ", "kind aa needs arms that do not differ", remedy)
    if resolved.spec.experiment.kind == "ab" and same is not None:
        message = f"arms {labels[same[0]]!r} and {labels[same[1]]!r} are the same configuration"
        remedy = "change one of them, or use experiment.kind: aa to check the machinery"
        yield Problem(pointer("arms", same[1]), "identical_arms", message, remedy)
    for index, arm in enumerate(resolved.arms):
        yield from _static_rules(index, arm, resolved)


def _same_arms(arms: tuple[ResolvedArm, ...]) -> tuple[int, int] | None:
    for second, arm in enumerate(arms):
        for first in range(second):
            if _same(arms[first], arm):
                return first, second
    return None


def _same(one: ResolvedArm, other: ResolvedArm) -> bool:
    facts = [(arm.config, arm.policy, arm.static_set, arm.copied) for arm in (one, other)]
    return facts[0] == facts[1]


def _static_rules(index: int, arm: ResolvedArm, resolved: ResolvedSpec) -> Iterator[Problem]:
    at = pointer("arms", index, "static_set")
    static = arm.policy in ("static_matched", "static_wide")
    if static and not arm.static_set and arm.copied is None:
        remedy = "give {slot: blueprint}, or {run, episode} of a finished run"
        yield Problem(at, "missing", f"policy {arm.policy} needs static_set", remedy)
    if (arm.static_set or arm.copied) and not static:
        yield Problem(at, "not_applicable", "static_set belongs to a static policy", "remove it")
    task = tasks.TASKS.get(resolved.spec.env.task)
    if not static or not arm.static_set or task is None:
        return
    for slot, blueprint in arm.static_set.items():
        if slot not in task.all_slots:
            yield Problem(at, "unknown_slot", f"no slot {slot!r} in this host", nearest(slot, task.all_slots))
        elif arm.policy == "static_matched" and slot not in (enabled := resolved.spec.env.slots or task.slots):
            message = f"slot {slot!r} is not enabled, so nothing can stand in it"
            yield Problem(at, "slot_not_enabled", message, f"enable it in env.slots, or use {', '.join(enabled)}")
        known = tasks.BLUEPRINTS[task.topology]
        if blueprint not in known:
            yield Problem(at, "unknown_blueprint", f"no blueprint {blueprint!r} here", nearest(blueprint, known))


def _task_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    spec = resolved.spec
    if spec.env.kind == "gymnasium":
        yield from _gymnasium_rules(resolved)
        return
    task = tasks.TASKS[spec.env.task]
    if spec.env.id is not None:
        yield Problem("/env/id", "not_applicable", "env.id belongs to env.kind gymnasium", "remove it")
    for index, slot in enumerate(spec.env.slots or ()):
        if slot not in task.all_slots:
            remedy = nearest(slot, task.all_slots)
            message = f"env.slots names {slot!r}, which env.task {spec.env.task} does not have"
            yield Problem(pointer("env", "slots", index), "unknown_slot", message, remedy)
    if len(set(spec.env.slots or ())) != len(spec.env.slots or ()):
        yield Problem("/env/slots", "duplicate", "a slot is named twice", "name each slot once")
    yield from _batch_rules(resolved, task)
    yield from _life_rules(resolved)


def _batch_rules(resolved: ResolvedSpec, task: tasks.Task) -> Iterator[Problem]:
    env = resolved.spec.env
    batch, wanted = int(env.batch_size or 0), int(env.batches_per_step or 0)
    if task.train_size:
        batches = task.train_size // batch
        if batches == 0:
            message = f"batch_size {batch} leaves 0 training batches in {task.train_size} examples"
            remedy = f"use at most {task.train_size}"
            yield Problem("/env/batch_size", "zero_batches", message, remedy)
        elif wanted > batches:
            message = (
                f"batches_per_step {wanted} exceeds the {batches} batches of {batch} in {task.train_size} examples"
            )
            remedy = f"use at most {batches}, or a batch_size of at most {task.train_size // wanted}"
            yield Problem("/env/batches_per_step", "too_many_batches", message, remedy)
    if env.val_images is not None and env.val_images > task.val_size:
        message = f"val_images {env.val_images} exceeds the {task.val_size} validation examples"
        yield Problem("/env/val_images", "out_of_range", message, f"use at most {task.val_size}, or null")


def _life_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    env = resolved.spec.env
    pace = tasks.PACES[str(env.pace)]
    dwell = pace["min_training_epochs"] if env.min_training_epochs is None else env.min_training_epochs
    shortest = dwell + pace["shortest_tempo"] + 3
    if env.horizon is not None and shortest > env.horizon:
        message = f"env.horizon {env.horizon} is shorter than the shortest legal life of a graft, {shortest} steps"
        yield Problem("/env/horizon", "too_short", message, f"use at least {shortest}, or a smaller dwell")


def _gymnasium_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    env = resolved.spec.env
    if env.id is None:
        yield Problem("/env/id", "missing", "env.kind gymnasium needs env.id", "for example id: CartPole-v1")
    if env.slots is not None:
        yield Problem("/env/slots", "not_applicable", "env.kind gymnasium has no slots", "remove env.slots")
    for index, name in enumerate(env.wrappers):
        if name not in tasks.GYM_WRAPPERS:
            at = pointer("env", "wrappers", index)
            yield Problem(at, "unknown_wrapper", f"unknown wrapper {name!r}", nearest(name, tasks.GYM_WRAPPERS))
    for index, arm in enumerate(resolved.arms):
        if arm.policy not in tasks.GYM_POLICIES:
            at = pointer("arms", index, "policy")
            message = f"policy {arm.policy!r} belongs to env.kind morphogenesis"
            yield Problem(at, "not_applicable", message, f"use one of {', '.join(tasks.GYM_POLICIES)}")


def _environment_rules(resolved: ResolvedSpec, registered: Registered) -> Iterator[Problem]:
    """Keyword arguments of a registered environment are judged by the schema that was announced."""
    env = resolved.spec.env
    schema = registered.environments.get(env.id or "", {})
    if "defect" in schema:
        message = f"environment {env.id!r} cannot be loaded by its worker: {schema['defect']}"
        yield Problem("/env/id", "defective_environment", message, "correct the package and restart the worker")
    if schema:
        yield from flat_problems(schema, env.kwargs, lambda name: pointer("env", "kwargs", name))


def _lockstep_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    spec = resolved.spec
    if spec.lockstep.barrier == "none" and spec.lockstep.placement != "one_per_device":
        message = "lockstep.barrier none needs lockstep.placement one_per_device"
        yield Problem("/lockstep/barrier", "contradiction", message, "set the placement, or use barrier: round")
    if spec.obs_norm.sharing == "shared_frozen" and not spec.obs_norm.enabled:
        message = "obs_norm.sharing shared_frozen needs obs_norm.enabled"
        yield Problem("/obs_norm/sharing", "contradiction", message, "enable obs_norm, or use per_arm")


def _training_rules(index: int, arm: ResolvedArm, resolved: ResolvedSpec) -> Iterator[Problem]:
    if arm.policy != "ppo":
        return
    ppo, env = arm.config["ppo"], resolved.spec.env
    own = {difference.path for difference in arm.diff}

    def at(section: str, name: str) -> str:
        path = f"{section}.{name}"
        return pointer("arms", index, "overrides", path) if path in own else pointer(section, name)

    if arm.config["net"]["body"] == "lstm" and ppo["minibatches"] > env.n_envs:
        message = f"ppo.minibatches {ppo['minibatches']} exceeds env.n_envs {env.n_envs} (LSTM: whole rows)"
        yield Problem(at("ppo", "minibatches"), "too_many_minibatches", message, f"use at most {env.n_envs}")
    if ppo["entropy_coef_end"] > ppo["entropy_coef_start"]:
        message = "ppo.entropy_coef_end exceeds ppo.entropy_coef_start"
        yield Problem(at("ppo", "entropy_coef_end"), "contradiction", message, "lower the end, or raise the start")
    if ppo["value_clip"] is not None and arm.config["return_norm"] not in ("none", "popart"):
        yield Problem(at("ppo", "value_clip"), "contradiction", "value_clip needs return_norm none", "unset it")
    if ppo["aux_coef"] != 0:
        message = "ppo.aux_coef weighs a contribution predictor, which is not built"
        yield Problem(at("ppo", "aux_coef"), "not_built", message, "set it to 0")
    for head in (*ppo["prob_floor"], *ppo["entropy_head_weights"]):
        if env.kind == "morphogenesis" and head not in tasks.HEADS:
            yield Problem(at("ppo", "prob_floor"), "unknown_head", f"no head {head!r}", nearest(head, tasks.HEADS))


def _reward_rules(resolved: ResolvedSpec, registered: Registered) -> Iterator[Problem]:
    spec = resolved.spec
    gymnasium = spec.env.kind == "gymnasium"
    builtin = tasks.GYM_REWARD_MODES if gymnasium else tasks.REWARD_MODES
    announced = [name for name, schema in registered.rewards.items() if _serves(schema, spec.env.kind)]
    known = {*builtin, *announced}
    for index, arm in enumerate(resolved.arms):
        if arm.reward_mode not in known:
            own = any(difference.path == "reward.mode" for difference in arm.diff)
            at = pointer("arms", index, "reward") if own else "/reward/mode"
            message = f"unknown reward mode {arm.reward_mode!r} for env.kind {spec.env.kind}"
            yield Problem(at, "unknown_reward", message, nearest(arm.reward_mode, known))
        elif arm.reward_mode in registered.rewards and "defect" in registered.rewards[arm.reward_mode]:
            message = (
                f"reward mode {arm.reward_mode!r} failed its check: {registered.rewards[arm.reward_mode]['defect']}"
            )
            yield Problem("/reward/mode", "defective_reward", message, "correct the package and restart the worker")
        elif not gymnasium and arm.reward_mode in builtin:
            yield from _mode_rules(index, arm, resolved)
        yield from _reward_keys(index, arm, registered)
    for index, name in enumerate(spec.eval.xeval_modes):
        if name not in known:
            at = pointer("eval", "xeval_modes", index)
            yield Problem(at, "unknown_reward", f"unknown reward mode {name!r}", nearest(name, known))


def _reward_keys(index: int, arm: ResolvedArm, registered: Registered) -> Iterator[Problem]:
    """Keys beyond the built-in constants must be in the schema of the registered mode, and fit it."""
    builtin: dict[str, Any] = {"schema": {"properties": {key: {} for key in Reward.model_fields}}}
    schema = registered.rewards.get(arm.reward_mode, builtin).get("schema", {})
    own = {difference.path for difference in arm.diff}

    def at(key: str) -> str:
        path = f"reward.{key}"
        return pointer("arms", index, "overrides", path) if path in own else pointer("reward", key)

    yield from flat_problems(schema, {k: v for k, v in arm.config["reward"].items() if k != "mode"}, at)


def _serves(schema: Mapping[str, Any], kind: str) -> bool:
    return kind in schema.get("env_kinds", ("morphogenesis", "gymnasium"))


def _mode_rules(index: int, arm: ResolvedArm, resolved: ResolvedSpec) -> Iterator[Problem]:
    env = resolved.spec.env
    if arm.reward_mode == "loss" and tasks.TASKS[env.task].loss is None:
        message = f"reward mode loss needs baseline, target and sigma, which env.task {env.task} has not"
        yield Problem(pointer("arms", index, "reward"), "no_loss_constants", message, "use another mode or task")
    if env.ablate_fossils == "final" and arm.reward_mode in tasks.CONTRIBUTION_MODES:
        message = f"env.ablate_fossils final hides contributions that reward mode {arm.reward_mode} reads"
        yield Problem("/env/ablate_fossils", "contradiction", message, "use always")


def _analysis_rules(resolved: ResolvedSpec) -> tuple[list[Problem], list[str]]:
    spec = resolved.spec
    if spec.analysis is None:
        remedy = "add analysis: {primary, sesoi, failure}"
        return [Problem("/analysis", "missing", "an A/B experiment must register its analysis", remedy)], []
    rewards = {_reward_key(arm) for arm in resolved.arms}
    found, warnings = validate_analysis(
        spec.analysis,
        labels=[arm.label for arm in resolved.arms],
        replicates=spec.experiment.replicates,
        kind=spec.experiment.kind,
        arms_differ_in_reward=len(rewards) > 1,
        env_kind=spec.env.kind,
    )
    return [Problem(p.pointer, p.code, p.message, p.remedy) for p in found], list(warnings)


def _reward_key(arm: ResolvedArm) -> str:
    return repr(sorted(arm.config["reward"].items()))


def _warnings(resolved: ResolvedSpec) -> Iterator[str]:
    spec = resolved.spec
    if spec.experiment.replicates == 1:
        yield "experiment.replicates is 1: no inference is possible"
    for arm in resolved.arms:
        if any(difference.path.startswith("net.") for difference in arm.diff):
            yield f"arm {arm.label!r} changes net.*: the arms no longer share the initial policy"
        if arm.copied is not None:
            yield f"arm {arm.label!r}: the grafts of run {arm.copied.run} are looked up by the server at submission"
