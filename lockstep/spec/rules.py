"""Cross-field rules of a specification: each finding names the fields and the remedy.

``check`` returns problems (refusals) and warnings. The rules of the analysis are in
``lockstep.spec.inference.analysis_rules``; this module hands them the facts they need.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.quoting import quoted
from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.arms import ResolvedArm
from lockstep.spec.environments.families import FAMILIES, family_of
from lockstep.spec.inference.analysis_rules import validate_analysis
from lockstep.spec.plan import env_steps_per_run
from lockstep.spec.presets import PRESETS, PUBLISHED_STEPS
from lockstep.spec.resolve import ResolvedSpec, parse
from lockstep.spec.rewards import Reward
from lockstep.spec.sections import Arm, Budget, Env
from lockstep.spec.text.problems import InvalidSpecError, Problem, meant, nearest, pointer
from lockstep.spec.text.schemas import flat_problems

#: A budget below this share of what its preset is used with is called little.
_LITTLE = 0.05

#: Registered modes that a refusal lists, and those of which it quotes why they cannot be used.
_LISTED, _DEFECTS = 12, 3


@dataclass(frozen=True)
class Registered:
    """Names that workers have announced, beside the built-in ones.

    Attributes:
        rewards: mode -> facts: "env_kinds" and "tasks" that it serves (absent or empty: all), "schema" (JSON Schema of
            its flat constants), "workers" (names of those that offer it) and, where the check of every worker that has
            it failed, "defect".
        environments: environment id -> JSON Schema of its keyword arguments, or "defect"; "workers" as for rewards;
            "is_batched" where it is a batched simulator.
        tasks: environment family -> tasks in the registries of its package: "arguments" (None or absent: any) or
            "defect". A family that nobody announced is absent.
        is_known: whether a server told them; without one a name that is not built in may be registered.
        rewards_here, tasks_here: where no server was asked, registered rewards and environments, with tasks of
            Gymnasium, that are installed beside whoever asks; empty where nobody looked.
    """

    rewards: Mapping[str, Mapping[str, Any]]
    environments: Mapping[str, Mapping[str, Any]]
    tasks: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    is_known: bool = True
    rewards_here: Collection[str] = ()
    tasks_here: Collection[str] = ()

    def is_batched(self, env: Env) -> bool:
        """Return whether ``env.id`` names a registered batched simulator."""
        return bool(self.environments.get(env.id or "", {}).get("is_batched", False))

    def is_task(self, env: Env) -> bool:
        """Return whether ``env.id`` names a task in the registry of its family's package, and no plug-in."""
        is_plugin = env.id in self.environments and env.id not in FAMILIES
        return env.id is not None and family_of(env.kind).is_package and not is_plugin

    def tasks_of(self, env: Env) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the tasks among which ``env.id`` must be; None where it names none, or no worker told."""
        return self.tasks.get(env.kind) if self.is_task(env) else None


NOT_ASKED = Registered({}, {}, is_known=False)


def check(resolved: ResolvedSpec, registered: Registered = NOT_ASKED) -> tuple[list[Problem], list[str]]:
    """Return the problems and the warnings of a resolved specification."""
    problems = [
        *_arm_rules(resolved),
        *family_of(resolved.spec.env.kind).rules(resolved.spec.env, resolved.arms),
        *_lockstep_rules(resolved),
        *_evaluation_rules(resolved),
        *_reward_rules(resolved, registered),
    ]
    problems.extend(_environment_rules(resolved, registered))
    for index, arm in enumerate(resolved.arms):
        problems.extend(_training_rules(index, arm, resolved))
    found, warnings = _analysis_rules(resolved)
    return _unique([*problems, *found]), [*warnings, *_warnings(resolved, registered)]


#: Sections on which rules of every other one rest: beside a fault in them nothing more is known for sure.
_BASIC = frozenset({"", "experiment", "env", "preset"})


def all_problems(raw: Mapping[str, Any], found: Sequence[Problem], registered: Registered = NOT_ASKED) -> list[Problem]:
    """Return the faults of a specification's schema, and what rules find in sections that neither have nor rest on one.

    Args:
        raw: the specification, which ``parse`` has refused.
        found: why.
        registered: what workers have announced.
    """
    faulty = {problem.pointer.split("/")[1] if problem.pointer else "" for problem in found}
    if faulty & _BASIC:
        return list(found)
    sound = {name: value for name, value in raw.items() if name not in faulty - {"arms"}}
    if "arms" in faulty & raw.keys():
        sound["arms"] = _without_overrides(raw["arms"])
    try:
        further = check(parse(sound), registered)[0]
    except InvalidSpecError as error:
        further = list(error.problems)
    return _unique([*found, *(problem for problem in further if not _rests_on(problem, faulty))])


def _without_overrides(arms: Any) -> Any:
    """Return arms without what they override, for the rules of other sections."""
    if not isinstance(arms, Sequence) or not all(isinstance(arm, Mapping) for arm in arms):
        return arms
    return [{name: value for name, value in arm.items() if name != "overrides"} for arm in arms]


def _rests_on(problem: Problem, faulty: Collection[str]) -> bool:
    """Return whether a problem may follow from a fault: it is of that section, or of an override of it."""
    section, _, rest = problem.pointer.removeprefix("/").partition("/")
    is_reward = section == "analysis" and problem.code == "E_REWARD_DEPENDENT" and {"arms", "reward"} & {*faulty}
    return section in faulty or bool(is_reward) or any(f"/overrides/{name}." in f"/{rest}" for name in faulty)


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _arm_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    labels = [arm.label for arm in resolved.arms]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            yield Problem(pointer("arms", index, "label"), "duplicate", f"label {label!r} is used twice", "rename one")
    same = _same_arms(resolved.arms)
    if resolved.spec.experiment.kind == "aa" and not all(_same(resolved.arms[0], arm) for arm in resolved.arms):
        message = "experiment.kind aa needs arms that do not differ"
        remedy = "make the arms equal, or set experiment.kind to ab"
        yield Problem("/experiment/kind", "aa_arms_differ", message, remedy)
    if resolved.spec.experiment.kind == "ab" and same is not None:
        message = f"arms {labels[same[0]]!r} and {labels[same[1]]!r} are the same configuration"
        remedy = "change one of them, or set experiment.kind to aa to check the machinery"
        yield Problem(pointer("arms", same[1]), "identical_arms", message, remedy)
    yield from _policy_rules(resolved)


def _policy_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    kind = resolved.spec.env.kind
    offered = (*ALGORITHMS, *family_of(kind).controls)
    elsewhere = {name: family.name for family in FAMILIES.values() for name in family.controls}
    for index, arm in enumerate(resolved.arms):
        if arm.policy in offered:
            continue
        at = pointer("arms", index, "policy")
        if arm.policy in elsewhere:
            message = f"policy {quoted(arm.policy)} belongs to env.kind {elsewhere[arm.policy]}"
            yield Problem(at, "not_applicable", message, f"use one of {', '.join(offered)}")
        else:
            yield Problem(at, "unknown_policy", f"unknown policy {quoted(arm.policy)}", nearest(arm.policy, offered))


def _same_arms(arms: tuple[ResolvedArm, ...]) -> tuple[int, int] | None:
    for second, arm in enumerate(arms):
        for first in range(second):
            if _same(arms[first], arm):
                return first, second
    return None


def _same(one: ResolvedArm, other: ResolvedArm) -> bool:
    facts = [(arm.config, arm.policy, arm.static_set, arm.copied) for arm in (one, other)]
    return facts[0] == facts[1]


def _task_rules(env: Env, known: Mapping[str, Mapping[str, Any]], own: Set[str]) -> Iterator[Problem]:
    """A task must be in the registry of some worker, and take the keyword arguments that it is given, once.

    ``own`` are the environments of packages, one of which may have been meant.
    """
    if env.max_episode_steps is not None and "max_episode_steps" in env.kwargs:
        message = "env.max_episode_steps and max_episode_steps of env.kwargs are the same limit"
        yield Problem("/env/kwargs/max_episode_steps", "contradiction", message, "keep one of them")
    facts = known.get(_with_version(str(env.id), known))
    if facts is None:
        close = meant(str(env.id).rpartition(":")[2], {*known, *own})
        remedy = "" if close is None else f"did you mean {close!r}? "
        if close is None and own:
            remedy = f"Packages of workers register {', '.join(sorted(own)[:_LISTED])}. "
        if ":" in str(env.id):
            remedy += "Write the name behind the colon: a specification imports no module. "
        remedy += "Install the package that has it where a worker runs, and start that worker anew"
        yield Problem("/env/id", "unknown_environment", f"no registered worker knows env.id {quoted(env.id)}", remedy)
    elif "defect" in facts:
        message = f"env.id {quoted(env.id)} cannot be built where workers run: {facts['defect']}"
        yield Problem("/env/id", "defective_environment", message, "install what is missing, and start the worker anew")
    elif facts.get("arguments") is not None:
        limit: dict[str, Any] = {"max_episode_steps": {"type": "integer"}}  # -1: no limit
        schema = {"properties": {name: limit.get(name, {}) for name in facts["arguments"]}}
        yield from flat_problems(schema, env.kwargs, lambda name: pointer("env", "kwargs", name))


def _with_version(name: str, known: Iterable[str]) -> str:
    """Return a name without a version with that of the newest task of that name, as Gymnasium reads it."""
    versions = [task.rpartition("-v")[2] for task in known if task.rpartition("-v")[0] == name]
    newest = max((int(version) for version in versions if version.isdecimal()), default=None)
    return name if newest is None else f"{name}-v{newest}"


def _environment_rules(resolved: ResolvedSpec, registered: Registered) -> Iterator[Problem]:
    """Keyword arguments of a registered environment are judged by the schema that was announced."""
    env = resolved.spec.env
    known = registered.tasks_of(env)
    if known is not None:
        yield from _task_rules(env, known, {*registered.environments} - {*FAMILIES})
    facts = registered.environments.get(env.id or "", {})
    schema = {name: value for name, value in facts.items() if name not in ("is_batched", "workers")}
    if registered.is_batched(env):
        yield from _batched_rules(env)
    if "defect" in schema:
        message = f"environment {quoted(env.id)} cannot be loaded{_on(facts)}: {schema['defect']}"
        yield Problem("/env/id", "defective_environment", message, "correct the package and restart the worker")
    elif schema:
        for problem in flat_problems(schema, env.kwargs, lambda name: pointer("env", "kwargs", name)):
            yield _as_registered(problem, facts)


def _as_registered(problem: Problem, facts: Mapping[str, Any]) -> Problem:
    """Say of an unknown key that what a worker registered decides, which a later install does not change."""
    if problem.code != "unknown_key":
        return problem
    worker = next((f"worker {name}" for name in facts.get("workers", ())), "its worker")
    joined = " " if problem.remedy.endswith("?") else "; "
    told = f"{worker} registered no such key: restart it after an install"
    told = told[0].upper() + told[1:] if joined == " " else told
    return replace(problem, remedy=f"{problem.remedy}{joined}{told}")


def _batched_rules(env: Env) -> Iterator[Problem]:
    """A batched simulator steps all its environments itself; wrappers are refused by name, for they know none."""
    told = f"env.id {quoted(env.id)} is a batched simulator, which steps all its environments itself"
    if env.processes > 1:
        message = f"env.processes {env.processes}: {told}"
        yield Problem("/env/processes", "not_applicable", message, "remove env.processes")
    if env.max_episode_steps is not None:
        message = f"env.max_episode_steps {env.max_episode_steps}: {told}"
        remedy = "remove it, and give the limit through env.kwargs where the simulator takes one"
        yield Problem("/env/max_episode_steps", "not_applicable", message, remedy)


def _lockstep_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    spec = resolved.spec
    if spec.lockstep.barrier == "none" and spec.lockstep.placement != "one_per_device":
        message = "lockstep.barrier none needs lockstep.placement one_per_device"
        yield Problem("/lockstep/barrier", "contradiction", message, "set that placement, or lockstep.barrier to round")
    if spec.lockstep.pack != "auto" and spec.lockstep.pack > 1:
        yield from _pack_rules(spec.lockstep.pack, spec.lockstep.placement, spec.env.kind)
    if spec.obs_norm.sharing == "shared_frozen" and not spec.obs_norm.enabled:
        message = "obs_norm.sharing shared_frozen needs obs_norm.enabled"
        yield Problem(
            "/obs_norm/sharing",
            "contradiction",
            message,
            "set obs_norm.enabled to true, or obs_norm.sharing to per_arm",
        )


def _pack_rules(pack: int, placement: str, kind: str) -> Iterator[Problem]:
    if not family_of(kind).packs:
        message = f"lockstep.pack {pack}: replicates of env.kind {kind} are trained one to a process"
        yield Problem("/lockstep/pack", "not_applicable", message, "remove lockstep.pack")
    elif placement == "one_per_device":
        message = f"lockstep.pack {pack} packs replicates on one device; lockstep.placement one_per_device spreads each"
        yield Problem("/lockstep/pack", "contradiction", message, "set that placement to shared_device, or pack to 1")


def _evaluation_rules(resolved: ResolvedSpec) -> Iterator[Problem]:
    kind, cap = resolved.spec.env.kind, resolved.spec.eval.max_steps
    if cap is not None and family_of(kind).eval_max_steps is None:
        message = f"eval.max_steps {cap}: episodes of env.kind {kind} have a fixed length and are never cut"
        yield Problem("/eval/max_steps", "not_applicable", message, "remove eval.max_steps")


def _training_rules(index: int, arm: ResolvedArm, resolved: ResolvedSpec) -> Iterator[Problem]:
    algorithm = ALGORITHMS.get(arm.policy)
    if algorithm is None:
        return
    yield from algorithm.rules(index, arm, resolved.spec.env)


def _reward_rules(resolved: ResolvedSpec, registered: Registered) -> Iterator[Problem]:
    spec = resolved.spec
    builtin = family_of(spec.env.kind).reward_modes
    announced = [name for name, schema in registered.rewards.items() if _serves(schema, spec.env.kind)]
    unheard = _unheard_modes(resolved, registered)
    known = {*builtin, *announced, *unheard}
    for index, arm in enumerate(resolved.arms):
        at = _at_mode(index, arm, spec.arms[index])
        problem = _mode_problem(arm.reward_mode, at, known, resolved, registered)
        if problem is not None:
            yield problem
        elif arm.reward_mode not in unheard:
            yield from _reward_keys(index, arm, registered)
    for index, name in enumerate(spec.eval.xeval_modes):
        problem = _mode_problem(name, pointer("eval", "xeval_modes", index), known, resolved, registered)
        if problem is not None:
            yield problem


def _mode_problem(
    mode: str, at: str, known: Set[str], resolved: ResolvedSpec, registered: Registered
) -> Problem | None:
    """Return what keeps a mode from being paid, or from scoring, in the task of a specification."""
    facts, env = registered.rewards.get(mode, {}), resolved.spec.env
    if mode not in known:
        why = f"unknown reward mode {quoted(mode)} for env.kind {env.kind}"
        if facts:
            why = f"reward mode {quoted(mode)} serves env.kind {' and '.join(facts['env_kinds'])}, not {env.kind}"
        serving = [family.name for family in FAMILIES.values() if mode in family.reward_modes]
        if serving:
            why = f"reward mode {quoted(mode)} is built in for env.kind {' and '.join(serving)}, not {env.kind}"
            remedy = f"set env.kind to {serving[0]}, or use one of {', '.join(sorted(known))}"
            return Problem(at, "unknown_reward", why, remedy)
        return Problem(at, "unknown_reward", why, _modes_offered(mode, known, env.kind, registered))
    if "defect" in facts:
        message = f"reward mode {quoted(mode)} failed its check{_on(facts)}: {facts['defect']}"
        return Problem(at, "defective_reward", message, "correct the package and restart the worker")
    tasks, task = facts.get("tasks") or (), env.id or env.task
    if tasks and task not in tasks:
        message = other_task(mode, tasks, task)
        return Problem(at, "reward_of_other_task", message, f"train in {tasks[0]!r}, or take another reward")
    return None


def other_task(mode: str, tasks: Sequence[str], task: str) -> str:
    """Return in words that a mode cannot score a task."""
    return f"reward mode {quoted(mode)} scores {' and '.join(map(repr, tasks))}, not {quoted(task)}"


def _modes_offered(mode: str, known: Set[str], kind: str, registered: Registered) -> str:
    """Return what may have been meant, and which modes there are: built in, offered by workers, and defective."""
    if not registered.is_known:
        return nearest(mode, known, "built in:")
    close = meant(mode, known)
    served = sorted({*registered.rewards} & {*known}, key=lambda name: (name != close, name))
    defects = [name for name in served if "defect" in registered.rewards[name]]
    offered = [name for name in served if name not in defects]
    guess = "" if close is None else f"did you mean {close!r}? "
    told = [f"{'Built' if guess else 'built'} in: {', '.join(family_of(kind).reward_modes)}"]
    shown = [f"{name}{_on(registered.rewards[name])}" for name in offered[:_LISTED]]
    more = f" and {len(offered) - _LISTED} more" if len(offered) > _LISTED else ""
    told.append(f"workers offer: {', '.join(shown) + more or 'none so far'}")
    told += [f"{name} cannot be used: {registered.rewards[name]['defect']}" for name in defects[:_DEFECTS]]
    told.append("install the package that has it where a worker runs and restart that worker")
    return f"{guess}{'; '.join(told)}"


def _on(facts: Mapping[str, Any]) -> str:
    """Return the workers that announced a mode, in words."""
    workers = sorted(facts.get("workers", ()))
    more = f" and {len(workers) - 2} more" if len(workers) > 2 else ""
    return f" on {', '.join(workers[:2])}{more}" if workers else ""


def _unheard_modes(resolved: ResolvedSpec, registered: Registered) -> set[str]:
    """Return the modes that may be registered where no server was asked."""
    if registered.is_known:
        return set()
    builtin = {mode for family in FAMILIES.values() for mode in family.reward_modes}
    return {*(arm.reward_mode for arm in resolved.arms), *resolved.spec.eval.xeval_modes} - builtin


def _at_mode(index: int, arm: ResolvedArm, written: Arm) -> str:
    """Return the pointer to what gives an arm its reward mode."""
    if written.reward is not None:
        return pointer("arms", index, "reward")
    return arm.at(index, "reward", "mode")


def _reward_keys(index: int, arm: ResolvedArm, registered: Registered) -> Iterator[Problem]:
    """Keys beyond the built-in constants must be in the schema of the registered mode, and fit it."""
    builtin: dict[str, Any] = {"schema": {"properties": {key: {} for key in Reward.model_fields}}}
    facts = registered.rewards.get(arm.reward_mode, builtin)
    constants = {k: v for k, v in arm.config["reward"].items() if k != "mode"}
    for problem in flat_problems(facts.get("schema", {}), constants, lambda key: arm.at(index, "reward", key)):
        yield problem if facts is builtin else _as_registered(problem, facts)


def _serves(schema: Mapping[str, Any], kind: str) -> bool:
    return kind in schema.get("env_kinds", FAMILIES)  # of one that cannot be imported nobody knows whom it serves


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
    return list(found), list(warnings)


def _reward_key(arm: ResolvedArm) -> str:
    return repr(sorted(arm.config["reward"].items()))


def _budget_warning(resolved: ResolvedSpec) -> Iterator[str]:
    """Say where a run is so short beside what its preset is used with that policies may hardly learn."""
    spec = resolved.spec
    if spec.experiment.mode == "smoke" or not any(arm.policy in ALGORITHMS for arm in resolved.arms):
        return
    name = spec.preset or family_of(spec.env.kind).usual_preset
    usual, steps = PUBLISHED_STEPS.get(name), env_steps_per_run(resolved)
    default = PRESETS.get(name, {}).get("budget", {}).get("rounds", Budget().rounds)
    if usual is not None and steps < _LITTLE * usual:
        told = f"{steps:,} env steps a run, where settings such as those of preset {name} are published for {usual:,}"
    elif usual is None and spec.budget.rounds < _LITTLE * default:
        told = f"{spec.budget.rounds} rounds a run, where {default} are usual"
    else:
        return
    yield f"budget.rounds: {told}; arms that have hardly learned look alike"


def _limit_warning(resolved: ResolvedSpec, registered: Registered) -> Iterator[str]:
    """Say what an environment of a package may cost where nothing that is known here ends its episodes."""
    spec = resolved.spec
    last, facts = family_of(spec.env.kind).eval_max_steps, registered.environments.get(spec.env.id or "", {})
    is_own = spec.env.id in registered.environments and spec.env.id not in FAMILIES and "is_batched" not in facts
    if is_own and last is not None and spec.env.max_episode_steps is None and spec.eval.max_steps is None:
        yield (
            f"env.id {quoted(spec.env.id)} comes from a package of yours and no env.max_episode_steps is set: "
            f"unless it ends every episode itself, one of evaluation lasts {last:,} steps"
        )


def not_here(name: str, here: Collection[str]) -> str:
    """Return that no package here has an environment, and which may have been meant; empty where one has it."""
    if not here or name in here or _with_version(name, here) in here:
        return ""
    close = meant(name, here)
    return "no package that is installed here has it" + ("" if close is None else f", did you mean {close!r}?")


def _reward_here(mode: str, builtin: Collection[str], here: Collection[str]) -> str:
    if mode in here:
        return "a package that is installed here has it"
    return nearest(mode, {*builtin, *here}, "built in or installed here:" if here else "built in:")


#: Words of a label that say which side of a comparison an arm is.
_BASELINES = frozenset(
    (
        "base",
        "baseline",
        "before",
        "control",
        "ctrl",
        "current",
        "default",
        "old",
        "original",
        "ref",
        "reference",
        "vanilla",
    )
)
_TREATMENTS = frozenset(
    ("after", "candidate", "experimental", "modified", "new", "proposed", "treated", "treatment", "variant")
)


def _role_warning(resolved: ResolvedSpec) -> Iterator[str]:
    """Say where labels name another arm as the baseline than the one that is: the control, or what comes first."""
    analysis = resolved.spec.analysis
    labels = [arm.label for arm in resolved.arms]
    first = analysis.control if analysis is not None and analysis.control in labels else labels[0]
    sides = {label: {*re.split(r"[^a-z]+", label.lower())} for label in labels}
    named = [label for label in labels if sides[label] & _BASELINES and not sides[label] & _TREATMENTS]
    if first in named:
        return
    others = [label for label in labels if label != first]
    meant_one = named[0] if named else others[0] if len(others) == 1 and sides[first] & _TREATMENTS else None
    if meant_one is not None:
        is_control = analysis is not None and analysis.control == first
        why = "is analysis.control" if is_control else "comes first"
        remedy = f"set analysis.control: {meant_one}" if is_control else "name it first"
        yield (
            f"arms: {first!r} is the baseline, for it {why}, and differences are {meant_one!r} minus {first!r}; "
            f"if {meant_one!r} is the baseline, {remedy}"
        )


def _warnings(resolved: ResolvedSpec, registered: Registered) -> Iterator[str]:
    spec = resolved.spec
    yield from _budget_warning(resolved)
    if registered.is_task(spec.env) and registered.tasks_of(spec.env) is None:
        why = "no worker that could is registered" if registered.is_known else "that is done when they are submitted"
        told = not_here(str(spec.env.id), registered.tasks_here)
        yield f"env.id {quoted(spec.env.id)} and env.kwargs are not checked: {why}{told and '; '}{told}"
    yield from _limit_warning(resolved, registered)
    for mode in sorted(_unheard_modes(resolved, registered)):
        told = _reward_here(mode, family_of(spec.env.kind).reward_modes, registered.rewards_here)
        yield f"reward mode {quoted(mode)} is not known here and is checked when it is submitted ({told})"
    yield from _role_warning(resolved)
    if spec.experiment.replicates == 1:
        yield "experiment.replicates is 1: no inference is possible"
    for arm in resolved.arms:
        if any(difference.path.startswith("net.") for difference in arm.diff):
            yield f"arm {arm.label!r} changes net.*: the arms no longer share the initial policy"
        if arm.copied is not None:
            yield f"arm {arm.label!r}: the grafts of run {arm.copied.run} are looked up by the server at submission"
