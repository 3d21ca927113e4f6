"""What may be submitted: presets, resolution against the task, arms and hashes.

``parse`` turns plain data into a ``ResolvedSpec`` in which every field has its value, or
raises ``InvalidSpecError`` with all problems found. Nothing here loads an environment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from lockstep.quoting import quoted
from lockstep.spec import sections, tasks
from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.arms import Difference, ResolvedArm
from lockstep.spec.environments.families import family_of
from lockstep.spec.inference.analysis_rules import (
    AnalysisSpec,
    complete_analysis,
    default_analysis,
    problems_from_validation_error,
)
from lockstep.spec.presets import PRESETS, merge
from lockstep.spec.rewards import Reward
from lockstep.spec.text.canonical import canonical_hash
from lockstep.spec.text.faults import Location, paths_of, problems_of, remedy_for_key
from lockstep.spec.text.problems import InvalidSpecError, Problem, nearest, pointer
from lockstep.spec.text.reading import MAX_DEPTH, MAX_ENTRIES, depth, entries, too_deep, too_many
from lockstep.text import control_at

ModelT = TypeVar("ModelT", bound=BaseModel)

#: What an arm may change (training.md 5.4); anything else would change the task.
OVERRIDABLE = ("reward", *ALGORITHMS, "action", "net", "obs_norm", "return_norm", "reward_norm")
_META = ("experiment", "arms", "preset", "analysis")
#: Why what is not overridable is one value for all arms; where nothing stands here, they would face another task.
_WHY_SHARED = {
    **dict.fromkeys(_META, "it belongs to the whole experiment"),
    "budget": "they would not train equally long",
    "eval": "their scores would not be measured alike",
    **dict.fromkeys(
        ("precision", "engine", "lockstep", "checkpoint", "telemetry", "env.processes"),
        "it says how the arms of a replicate are run side by side",
    ),
}


class Config(sections.Section):
    """Everything that configures training; an arm's overrides are laid over it."""

    budget: sections.Budget = Field(default_factory=sections.Budget, description="How long every run trains")
    env: sections.Env = Field(default_factory=sections.Env, description="What is learnt, and on how many environments")
    host: sections.Optimiser = Field(default_factory=sections.Optimiser, description="Optimiser of host networks")
    graft: sections.Optimiser = Field(default_factory=sections.Optimiser, description="Optimiser of grafts")
    reward: Reward = Field(default_factory=Reward, description="Reward mode and its constants")
    ppo: sections.Ppo = Field(default_factory=sections.Ppo, description="Proximal policy optimisation")
    action: sections.Action = Field(
        default_factory=sections.Action,
        # left out of the resolved spec while nothing is said, so that specs from before it keep their hash
        exclude_if=lambda value: value.bounds is None,
        description="Bounds of real-numbered actions",
    )
    net: sections.Net = Field(default_factory=sections.Net, description="Network of the policy")
    obs_norm: sections.ObsNorm = Field(
        default_factory=sections.ObsNorm, description="Running statistics of observations"
    )
    return_norm: Literal["popart", "none"] | None = Field(None, description="Default: popart; gymnasium none")
    reward_norm: Literal["none", "return_std"] = Field(
        "none", description="Reward divided by the running std of returns, or as it is"
    )
    precision: sections.Precision = Field(
        default_factory=sections.Precision, description="Number formats, equal for all arms"
    )
    engine: sections.Engine = Field(
        default_factory=sections.Engine, description="How hosts are computed, equal for all arms"
    )
    lockstep: sections.Lockstep = Field(
        default_factory=sections.Lockstep, description="How the arms of a block share devices, time and random numbers"
    )
    eval: sections.Eval = Field(default_factory=sections.Eval, description="Evaluation of frozen policies")
    checkpoint: sections.Checkpoint = Field(
        default_factory=sections.Checkpoint, description="How often a block can be resumed from"
    )
    telemetry: sections.Telemetry = Field(default_factory=sections.Telemetry, description="How much is recorded")


class Spec(Config):
    """An experiment as submitted, presets applied."""

    experiment: sections.Experiment = Field(description="Name, kind, seed and replicates")
    arms: tuple[sections.Arm, ...] = Field(min_length=2, max_length=8, description="What is compared")
    preset: str | None = Field(None, description="Named values under the submitted ones")
    analysis: AnalysisSpec | None = Field(
        None, description="How the arms will be compared; null only without inference"
    )


@dataclass(frozen=True)
class ResolvedSpec:
    """A valid specification in which every field has a value."""

    spec: Spec
    document: Mapping[str, Any]
    arms: tuple[ResolvedArm, ...]
    hash: str


def parse(raw: Mapping[str, Any]) -> ResolvedSpec:
    """Validate plain data against the schema and fill every default.

    Raises:
        InvalidSpecError: with every problem of the schema. Cross-field rules are in
            ``lockstep.spec.rules``.
    """
    _check_plain(raw)
    document = _with_discount(raw, _with_preset(raw))
    checked = _validate_spec(document)
    _check_kind(document)
    spec = _fill(checked)
    base = _config_data(spec)
    given = raw.get("reward")
    named = frozenset(given) if isinstance(given, Mapping) else frozenset()
    arms = _resolve_arms(spec.arms, base, named)
    full = spec.model_dump(mode="json", by_alias=True)
    return ResolvedSpec(spec=spec, document=full, arms=arms, hash=canonical_hash(full))


def diff_paths(base: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[Difference]:
    """Return the leaves in which two nested dictionaries differ, in path order."""
    differences: list[Difference] = []
    for key in sorted({*base, *other}):
        path = f"{prefix}{key}"
        left, right = base.get(key), other.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            differences.extend(diff_paths(left, right, path + "."))
        elif isinstance(right, Mapping) and key not in base:
            differences.extend(diff_paths({}, right, path + "."))
        elif left != right:
            differences.append(Difference(path, left, right))
    return differences


def _problem(at: str, code: str, message: str, remedy: str) -> InvalidSpecError:
    return InvalidSpecError([Problem(at, code, message, remedy)])


def _check_plain(raw: Mapping[str, Any]) -> None:
    try:
        json.dumps(raw, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        found = _not_finite(raw) if isinstance(error, ValueError) else None
        if found is not None:
            where, value = found
            raise _problem(where, "malformed", f"{value} is no finite number", "give a finite one") from error
        message = f"not plain JSON data: {error}"
        raise _problem("", "malformed", message, "use text, finite numbers, lists and mappings") from error
    if depth(raw) > MAX_DEPTH:
        raise too_deep()
    number = entries(raw)
    if number > MAX_ENTRIES:
        raise too_many(number)
    place = control_at(raw)
    if place is not None:
        raise _problem(place, "control_character", "control characters are not allowed", "remove them")


def _not_finite(value: Any, at: str = "") -> tuple[str, float] | None:
    """Return the JSON pointer of the first number in plain data that is not finite, and the number."""
    if isinstance(value, float) and not math.isfinite(value):
        return at, value
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    found = (_not_finite(item, at + pointer(key)) for key, item in items)
    return next((place for place in found if place is not None), None)


def _with_preset(raw: Mapping[str, Any]) -> dict[str, Any]:
    name = raw.get("preset")
    if name is None:
        return dict(raw)
    if not isinstance(name, str) or name not in PRESETS:
        raise _problem("/preset", "unknown_preset", f"unknown preset {quoted(name)}", nearest(str(name), PRESETS))
    return merge(PRESETS[name], raw)


def _with_discount(raw: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Move ``env.gamma`` to ``ppo.gamma``, where every older spec has the discount; a preset's value gives way."""
    env, ppo = document.get("env"), document.get("ppo", {})
    if not isinstance(env, Mapping) or not isinstance(ppo, Mapping):
        return document
    gamma = env.get("gamma")
    if not isinstance(gamma, int | float) or not 0 < gamma <= 1:
        return document  # absent, or the schema refuses it where it stands
    own = raw.get("ppo")
    if isinstance(own, Mapping) and own.get("gamma", gamma) != gamma:
        raise _problem("/ppo/gamma", "contradiction", "env.gamma and ppo.gamma differ", "keep one of them")
    return {**document, "ppo": {**ppo, "gamma": gamma}}


def _check_kind(document: Mapping[str, Any]) -> None:
    """Refuse an environment without its kind here: every later rule would take it for a task of morphogenesis."""
    env = document.get("env", {})
    if env.get("id") is None or "kind" in env:
        return
    if "task" in env:
        remedy = "remove env.id, or set env.kind to gymnasium"
        raise _problem("/env/id", "not_applicable", "env.id belongs to env.kind gymnasium", remedy)
    remedy = "add preset: gym_classic or env.kind: gymnasium"
    raise _problem("/env/kind", "missing", f"env.id {quoted(env['id'])} is set without env.kind", remedy)


def _validate_spec(document: Mapping[str, Any]) -> Spec:
    """Validate the whole; the analysis has codes of its own (statistics.md 2.1)."""
    analysis = _analysis_problems(document.get("analysis"))
    try:
        spec = _validate(Spec, document)
    except InvalidSpecError as error:
        rest = [problem for problem in error.problems if not problem.pointer.startswith("/analysis")]
        raise InvalidSpecError([*rest, *analysis]) from error
    return spec


def _analysis_problems(data: Any) -> list[Problem]:
    if data is None:
        return []
    try:
        AnalysisSpec.model_validate_json(json.dumps(data))
    except ValidationError as error:
        return list(problems_from_validation_error(error, data))
    return []


def _validate(model: type[ModelT], data: Mapping[str, Any], place: Callable[[Location], str] | None = None) -> ModelT:
    try:
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise InvalidSpecError(problems_of(model, data, error, place=place)) from error


def _fill(spec: Spec) -> Spec:
    """Give every task-dependent field its value."""
    data = spec.model_dump(mode="json", by_alias=True)
    family = family_of(spec.env.kind)
    data["return_norm"] = data["return_norm"] or family.return_norm
    data["eval"]["episodes"] = data["eval"]["episodes"] or family.eval_episodes
    if "reward" not in spec.model_fields_set:
        data["reward"]["mode"] = family.default_reward
    family.fill(data)
    _fill_smoke(data)
    for algorithm in ALGORITHMS.values():
        algorithm.fill(data, ())
    _fill_analysis(data, spec.analysis)
    return _validate(Spec, data)


def _fill_smoke(data: dict[str, Any]) -> None:
    if data["experiment"]["mode"] == "smoke":
        data["experiment"]["replicates"] = 1
        data["budget"]["rounds"] = min(2, data["budget"]["rounds"])
        data["analysis"] = None


def _fill_analysis(data: dict[str, Any], analysis: AnalysisSpec | None) -> None:
    """Complete the analysis as given (which knows what was left out), or the default of a demonstration."""
    facts = {
        "kind": data["experiment"]["kind"],
        "replicates": data["experiment"]["replicates"],
        "env_kind": data["env"]["kind"],
    }
    demonstration = facts["kind"] == "aa" or facts["replicates"] == 1
    if analysis is not None and data["experiment"]["mode"] != "smoke":
        data["analysis"] = complete_analysis(analysis, **facts).model_dump(mode="json")
    elif demonstration:
        data["analysis"] = default_analysis(**facts).model_dump(mode="json")


def _config_data(spec: Spec) -> dict[str, Any]:
    data = spec.model_dump(mode="json", by_alias=True)
    return {name: value for name, value in data.items() if name not in _META}


def _resolve_arms(
    arms: Sequence[sections.Arm], base: Mapping[str, Any], named: frozenset[str]
) -> tuple[ResolvedArm, ...]:
    """Return every arm; the problems of all of them are told at once."""
    resolved: list[ResolvedArm] = []
    problems: list[Problem] = []
    for index, arm in enumerate(arms):
        try:
            resolved.append(_resolve_arm(index, arm, base, named))
        except InvalidSpecError as error:
            problems += error.problems
    if problems:
        raise InvalidSpecError(problems)
    return tuple(resolved)


def _resolve_arm(index: int, arm: sections.Arm, base: Mapping[str, Any], named: frozenset[str]) -> ResolvedArm:
    """Return one arm; ``named`` are the fields of the experiment's own reward section, presets left out."""
    overrides = _overrides(index, arm)
    merged = {"action": {}, **json.loads(json.dumps(base))}
    for path, value in overrides.items():
        _set_path(merged, path, value, pointer("arms", index, "overrides", path))
    for algorithm in ALGORITHMS.values():
        algorithm.fill(merged, overrides)

    def place(location: Location) -> str:
        return _place_in_arm(index, arm, location)

    config = _validate(Config, merged, place).model_dump(mode="json", by_alias=True)
    mode = str(config["reward"]["mode"])
    diff = tuple(diff_paths(base, config))
    own = {path.removeprefix("reward.") for path in overrides if path.startswith("reward.")}
    config["reward"] = _reward_of(mode, config["reward"], own | (named if mode == base["reward"]["mode"] else set()))
    copied = arm.static_set if isinstance(arm.static_set, sections.FinishedEpisode) else None
    static_set = None if isinstance(arm.static_set, sections.FinishedEpisode) else arm.static_set
    return ResolvedArm(arm.label, arm.policy, mode, static_set, config, diff, copied)


def _reward_of(mode: str, section: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """A registered or native mode gets what was written for it, not the defaults of the built-in constants.

    A constant of its own may bear the name of a built-in one: it is kept where the arm sets it, or where the
    experiment's reward section names both the mode and the constant.
    """
    if mode in tasks.REWARD_MODES:
        return dict(section)
    constants = set(Reward.model_fields) - {"mode"}
    return {name: value for name, value in section.items() if name not in constants or name in own}


def _overrides(index: int, arm: sections.Arm) -> dict[str, Any]:
    overrides = dict(arm.overrides)
    if arm.reward is not None:
        if overrides.get("reward.mode", arm.reward) != arm.reward:
            at = pointer("arms", index, "reward")
            raise _problem(at, "contradiction", "reward and overrides['reward.mode'] differ", "keep one of them")
        overrides["reward.mode"] = arm.reward
    if "env.gamma" in overrides:
        gamma = overrides.pop("env.gamma")
        if overrides.setdefault("ppo.gamma", gamma) != gamma:
            at = pointer("arms", index, "overrides", "env.gamma")
            raise _problem(at, "contradiction", "env.gamma and ppo.gamma differ", "keep one of them")
    problems = [problem for path in overrides if (problem := _override_problem(index, path)) is not None]
    if problems:
        raise InvalidSpecError(problems)
    return overrides


def _override_problem(index: int, path: str) -> Problem | None:
    first, at = path.split(".")[0], pointer("arms", index, "overrides", path)
    fields = paths_of(Config)
    if first not in Spec.model_fields:
        own = [field for field in fields if field.split(".")[0] in OVERRIDABLE]
        return Problem(at, "unknown_key", f"no field {quoted(path)}", remedy_for_key(first, OVERRIDABLE, own))
    if first in OVERRIDABLE:
        return None
    within = [field for field in fields if field.startswith(f"{first}.")]
    if "." in path and within and not any(f"{path}.".startswith(f"{field}.") for field in within):
        return Problem(at, "unknown_key", f"no field {quoted(path)}", nearest(path, within))
    why = _WHY_SHARED.get(path) or _WHY_SHARED.get(first) or "they would no longer face the same task"
    message = f"{quoted(path)} may not differ between arms: {why}"
    return Problem(at, "not_overridable", message, f"override only {', '.join(OVERRIDABLE)}")


def _place_in_arm(index: int, arm: sections.Arm, location: Location) -> str:
    """Return the pointer to what an arm says of a field: its short ``reward``, or the override that holds the field."""
    path = ".".join(map(str, location))
    if arm.reward is not None and path == "reward.mode":
        return pointer("arms", index, "reward")
    for own in arm.overrides:
        if path == own or path.startswith(f"{own}."):
            rest = path.removeprefix(own).removeprefix(".")
            return pointer("arms", index, "overrides", own, *([rest] if rest else []))
    return pointer(*location)


def _set_path(target: dict[str, Any], path: str, value: Any, at: str) -> None:
    *sections_, name = path.split(".")
    for part in sections_:
        below = target.get(part)
        if not isinstance(below, dict):
            remedy = f"override {quoted(part)} itself" if part in target else nearest(part, target)
            raise _problem(at, "unknown_key", f"no section {quoted(part)}", remedy)
        target = below
    if not sections_ and isinstance(target.get(name), dict):
        remedy = f"override single fields of it, as {name}.{next(iter(target[name]))}"
        raise _problem(at, "not_a_field", f"{quoted(name)} is a section", remedy)
    target[name] = value
