"""The family ``morphogenesis``: inside each episode a small host is trained, and the policy grows grafts in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.quoting import quoted
from lockstep.spec import tasks
from lockstep.spec.arms import ResolvedArm
from lockstep.spec.environments.family import Family, Score
from lockstep.spec.sections import Env
from lockstep.spec.text.problems import InvalidSpecError, Problem, nearest, pointer

#: Seconds of one env step of one environment on one CPU thread, by task; only for estimates.
_CPU_STEP_SECONDS = {"digits_tiny": 0.006, "digits_small": 0.008, "synth_small": 0.05, "lm_tiny": 1.0}
_PER_HOST_BYTES = 160 * 2**20

#: name, column, unit, direction, lower, upper, reward dependent, description; training counterpart, field, label
SCORES = (
    Score(
        "accuracy",
        "test_accuracy",
        "%",
        "max",
        0.0,
        100.0,
        False,
        "test accuracy of the network as it stands",
        "train/accuracy_mean",
        "accuracy",
        "accuracy",
    ),
    Score(
        "committed_accuracy",
        "committed_accuracy",
        "%",
        "max",
        0.0,
        100.0,
        False,
        "test accuracy with committed grafts only",
        "train/committed_accuracy_mean",
        "committed_accuracy",
        "committed accuracy",
    ),
    Score(
        "gain_over_twin",
        None,
        "pp",
        "max",
        -100.0,
        100.0,
        False,
        "accuracy minus that of an ungrafted host",
        "train/accuracy_mean",
        "accuracy",
        "accuracy",
    ),
    Score(
        "loss",
        "test_loss",
        "nats",
        "min",
        0.0,
        None,
        False,
        "test loss of the network as it stands",
        "train/loss_mean",
        "loss",
        "loss",
    ),
    Score(
        "fossils",
        "grafts_fossilized",
        "count",
        "max",
        0.0,
        None,
        False,
        "grafts committed at the end of an episode",
        "train/grafts_fossilized_mean",
        "grafts_fossilized",
        "grafts committed",
    ),
    Score(
        "param_ratio",
        "param_ratio",
        "ratio",
        "min",
        1.0,
        None,
        False,
        "total parameters per host parameter",
        "train/param_ratio_mean",
        "param_ratio",
        "parameters per host parameter",
    ),
    Score(
        "return_mean",
        "episode_reward",
        "reward",
        "max",
        None,
        None,
        True,
        "return in the arm's own reward",
        "train/return_mean",
        "reward",
        "reward",
    ),
)


def _fill(data: dict[str, Any]) -> None:
    name = data["env"]["task"]
    if name not in tasks.TASKS:
        problem = Problem("/env/task", "unknown_task", f"unknown env.task {quoted(name)}", nearest(name, tasks.TASKS))
        raise InvalidSpecError([problem])
    _fill_task(data, tasks.TASKS[name])


def _fill_task(data: dict[str, Any], task: tasks.TaskSpec) -> None:
    for name in ("slots", "horizon", "batch_size", "batches_per_step", "augment", "pace"):
        if data["env"][name] is None:
            value = getattr(task, name)
            data["env"][name] = list(value) if isinstance(value, tuple) else value
    for part, defaults in (("host", task.host_optim), ("graft", task.graft_optim)):
        for name in ("lr", "momentum", "weight_decay"):
            if data[part][name] is None:
                data[part][name] = getattr(defaults, name)


def _of_gymnasium(env: Env) -> Iterator[Problem]:
    """Yield what only the other family of environments has."""
    for name in ("wrappers", "kwargs"):
        if getattr(env, name):
            yield Problem(f"/env/{name}", "not_applicable", f"env.{name} belongs to env.kind gymnasium", "leave it out")
    if env.processes != 1:
        yield Problem("/env/processes", "not_applicable", "env.processes belongs to env.kind gymnasium", "leave it out")
    if env.max_episode_steps is not None:
        message = "env.max_episode_steps belongs to env.kind gymnasium"
        yield Problem("/env/max_episode_steps", "not_applicable", message, "use env.horizon")
    if env.id is not None:
        remedy = "remove env.id, or set env.kind to gymnasium"
        yield Problem("/env/id", "not_applicable", "env.id belongs to env.kind gymnasium", remedy)


def _rules(env: Env, arms: Sequence[ResolvedArm]) -> Iterator[Problem]:
    task = tasks.TASKS[env.task]
    for index, arm in enumerate(arms):
        yield from _static_rules(index, arm, env)
        if "action" in arm.config:
            message = "env.kind morphogenesis has no real-numbered actions"
            yield Problem(arm.at(index, "action", "bounds"), "not_applicable", message, "remove action.bounds")
    yield from _of_gymnasium(env)
    for index, slot in enumerate(env.slots or ()):
        if slot not in task.all_slots:
            remedy = nearest(slot, task.all_slots)
            message = f"env.slots names {quoted(slot)}, which env.task {env.task} does not have"
            yield Problem(pointer("env", "slots", index), "unknown_slot", message, remedy)
    if len(set(env.slots or ())) != len(env.slots or ()):
        yield Problem("/env/slots", "duplicate", "env.slots names a slot twice", "name each slot once")
    yield from _batch_rules(env, task)
    yield from _life_rules(env)
    yield from _mode_rules(env, arms)


def _static_rules(index: int, arm: ResolvedArm, env: Env) -> Iterator[Problem]:
    at = pointer("arms", index, "static_set")
    static = arm.policy in ("static_matched", "static_wide")
    if static and not arm.static_set and arm.copied is None:
        remedy = "give {slot: blueprint}, or {run, episode} of a finished run"
        yield Problem(at, "missing", f"policy {arm.policy} needs static_set", remedy)
    if (arm.static_set or arm.copied) and not static:
        yield Problem(at, "not_applicable", "static_set belongs to a static policy", "remove it")
    task = tasks.TASKS.get(env.task)
    if not static or not arm.static_set or task is None:
        return
    for slot, blueprint in arm.static_set.items():
        if slot not in task.all_slots:
            yield Problem(at, "unknown_slot", f"no slot {quoted(slot)} in this host", nearest(slot, task.all_slots))
        elif arm.policy == "static_matched" and slot not in (enabled := env.slots or task.slots):
            message = f"slot {quoted(slot)} is not enabled, so nothing can stand in it"
            yield Problem(at, "slot_not_enabled", message, f"enable it in env.slots, or use {', '.join(enabled)}")
        known = tasks.BLUEPRINTS[task.topology]
        if blueprint not in known:
            yield Problem(at, "unknown_blueprint", f"no blueprint {quoted(blueprint)} here", nearest(blueprint, known))


def _batch_rules(env: Env, task: tasks.TaskSpec) -> Iterator[Problem]:
    batch, wanted = int(env.batch_size or 0), int(env.batches_per_step or 0)
    if task.train_size:
        batches = task.train_size // batch
        if batches == 0:
            message = f"env.batch_size {batch} leaves 0 training batches in {task.train_size} examples"
            remedy = f"use at most {task.train_size}"
            yield Problem("/env/batch_size", "zero_batches", message, remedy)
        elif wanted > batches:
            message = (
                f"env.batches_per_step {wanted} exceeds the {batches} batches of {batch} in {task.train_size} examples"
            )
            smaller = task.train_size // wanted
            remedy = f"use at most {batches}" + (f", or an env.batch_size of at most {smaller}" if smaller else "")
            yield Problem("/env/batches_per_step", "too_many_batches", message, remedy)
    if env.val_images is not None and env.val_images > task.val_size:
        message = f"env.val_images {env.val_images} exceeds the {task.val_size} validation examples"
        yield Problem("/env/val_images", "out_of_range", message, f"use at most {task.val_size}, or null")


def _life_rules(env: Env) -> Iterator[Problem]:
    pace = tasks.PACES[str(env.pace)]
    dwell = pace.dwell if env.min_training_epochs is None else env.min_training_epochs
    shortest = dwell + min(pace.tempos) + 3
    if env.horizon is not None and shortest > env.horizon:
        message = f"env.horizon {env.horizon} is shorter than the shortest legal life of a graft, {shortest} steps"
        dwell_left = dwell - (shortest - env.horizon)
        remedy = f"use at least {shortest}"
        remedy += f", or an env.min_training_epochs of at most {dwell_left}" if dwell_left >= 0 else ""
        yield Problem("/env/horizon", "too_short", message, remedy)


def _mode_rules(env: Env, arms: Sequence[ResolvedArm]) -> Iterator[Problem]:
    readers = [arm.reward_mode for arm in arms if arm.reward_mode in tasks.CONTRIBUTION_MODES]
    if env.ablate_fossils == "final" and readers:
        message = f"env.ablate_fossils final hides contributions that reward mode {readers[0]} reads"
        yield Problem("/env/ablate_fossils", "contradiction", message, "set env.ablate_fossils to always")


def _memory_bytes(env: Env, num_arms: int) -> int:
    return 2**30 + num_arms * env.n_envs * _PER_HOST_BYTES


def _seconds(env: Env, env_steps: int) -> float | None:
    unit = _CPU_STEP_SECONDS.get(env.task)
    if unit is None:
        return None
    share = int(env.batches_per_step or 1) / tasks.TASKS[env.task].batches_per_step
    return round(env_steps * unit * max(0.3, share) + 6, 1)


FAMILY = Family(
    name="morphogenesis",
    scores=SCORES,
    controls=tasks.CONTROLS,
    reward_modes=tasks.REWARD_MODES,
    default_reward="shaped",
    heads=tasks.HEADS,
    eval_episodes=16,
    eval_max_steps=None,
    return_norm="popart",
    keyed_by="host_init",
    fill=_fill,
    rules=_rules,
    steps_per_round=lambda env: int(env.horizon or 0),
    memory_bytes=_memory_bytes,
    seconds=_seconds,
    dataset=lambda env: tasks.TASKS[env.task].dataset,
    packs=False,
    is_package=False,
)
