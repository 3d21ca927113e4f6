"""What pydantic finds wrong with submitted data, as problems in plain sentences: one for each place.

A union is tried form by form and each failure told apart; here the forms that a place may have stand in one sentence.
The field's full name stands in every sentence, as ``env.n_envs`` or ``arms[0].label``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from lockstep.quoting import QUOTED, quoted, shortened
from lockstep.spec.text.problems import Problem, nearest, pointer

Location = tuple[int | str, ...]
#: What a pattern of the schemas lets pass, in words.
FORMS = {
    r"^[A-Za-z0-9_-]{1,32}$": "1 to 32 letters, digits, _ or -",
    r"^[\w./:-]+$": "letters, digits and the signs _ . / : -",
    r"^[0-9a-f]{64}$": "a SHA-256 in hex",
    r"^(checkpoint|policy|artifact)$": "checkpoint, policy or artifact",
    **{
        rf"^{kind}_[0-9a-z]{{4,40}}$": f"an id that begins with {kind}_"
        for kind in ("exp", "run", "art", "wrk", "asg", "blk", "tok", "whk")
    },
}
_KINDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "finite_number": "a finite number",
    "string_type": "text",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
#: Faults of one body that are told: what is most like a wrong key takes milliseconds to find.
_MOST_TOLD = 1_000
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def problems_of(
    model: type[BaseModel],
    data: Any,
    error: ValidationError,
    *,
    root: Location = (),
    place: Callable[[Location], str] | None = None,
) -> list[Problem]:
    """Return what is wrong with ``data``, a document of ``model``: one problem for each place.

    Args:
        model: the schema that refused it.
        data: plain data.
        error: what it raised.
        root: where the document stands in the specification.
        place: returns the JSON pointer of a location in the data, where that is not the location itself.
    """
    grouped: dict[Location, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            continue  # pydantic counts the entries that are right; the wrong ones are told by themselves
        grouped.setdefault(_in_data(detail, data), []).append(detail)
    faults = []
    elsewhere = list(paths_of(model, dotted((*root, ""))))
    for location, details in islice(grouped.items(), _MOST_TOLD):
        at = pointer(*root, *location) if place is None else place(location)
        if details[0]["type"] == "extra_forbidden":
            key = str(location[-1])
            known = sorted(_names(_annotation(model, location[:-1])))
            remedy = remedy_for_key(key, known, elsewhere)
            faults.append(Problem(at, "unknown_key", f"unknown key {quoted(key)}", remedy))
        else:
            wanted = _forms(_annotation(model, location)) if len(details) > 1 else ""
            message, remedy = sentence(dotted((*root, *location)), details, wanted)
            names = _names(_annotation(model, location))
            if remedy == "give a mapping" and names:
                remedy += f", for example {{{next(iter(names))}: ..}}"
            faults.append(Problem(at, details[0]["type"], message, remedy))
    return faults


def sentence(field: str, details: Sequence[ErrorDetails], wanted: str = "") -> tuple[str, str]:
    """Return what is wrong with a field and what to do about it.

    Args:
        field: its full name.
        details: what pydantic says of this one field; several where it may have several forms.
        wanted: these forms in words, where one of them is a choice of words.
    """
    kinds = list(dict.fromkeys(_KINDS[item["type"]] for item in details if item["type"] in _KINDS))
    first = next((item for item in details if item["type"] not in _KINDS), None)
    if first is not None and not wanted:
        return _told(field, first)
    wanted = wanted or _either([kind for kind in kinds if kind != "a whole number" or "a number" not in kinds])
    value = details[0]["input"]
    wants_number = any(item["type"] in ("int_type", "float_type") for item in details)
    is_quoted = wants_number and isinstance(value, str) and _NUMBER.fullmatch(value)
    is_bare = kinds == ["text"] and isinstance(value, bool | int | float)
    remedy = "write it without quotes" if is_quoted else "write it in quotes" if is_bare else f"give {wanted}"
    return f"{field} must be {wanted}, not {_shown(value)}", remedy


def dotted(location: Sequence[int | str]) -> str:
    """Return the name of a field as people write it: ``arms[0].label``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{shortened(part)}" for part in location)
    return text.removeprefix(".")


def paths_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the path of every field of a model and of the models in it; those of a list by the list's own name."""
    for name, annotation in _names(model).items():
        yield f"{prefix}{name}"
        inner = _model_within(annotation)
        if inner is not None:
            yield from paths_of(inner, f"{prefix}{name}.")


#: Fields of ours by the names that other libraries have for them.
FOREIGN = {
    "learning_rate": "ppo.lr",
    "n_steps": "env.rollout_steps",
    "num_steps": "env.rollout_steps",
    "num_envs": "env.n_envs",
    "n_epochs": "ppo.epochs",
    "update_epochs": "ppo.epochs",
    "num_minibatches": "ppo.minibatches",
    "clip_range": "ppo.clip",
    "clip_coef": "ppo.clip",
    "gae_lambda": "ppo.lambda",
    "ent_coef": "ppo.entropy_coef_start",
    "vf_coef": "ppo.value_coef",
    "max_grad_norm": "ppo.grad_clip",
    "env_id": "env.id",
    "time_limit": "env.max_episode_steps",
    "num_workers": "env.processes",
    "num_cpus": "env.processes",
    "num_seeds": "experiment.replicates",
    "seeds": "experiment.replicates",
    "net_arch": "net.hidden",
    "normalize_advantage": "ppo.adv_norm",
}
#: Names of how long to train: rounds are counted here.
_LENGTHS = ("total_timesteps", "timesteps", "num_timesteps", "max_steps", "total_steps")


def remedy_for_key(key: str, known: Sequence[str], elsewhere: Sequence[str] = ()) -> str:
    """Return what may have been meant by an unknown key: a field of that name elsewhere or in other libraries, or like.

    Args:
        key: the unknown key.
        known: keys that may stand in its place.
        elsewhere: paths of fields that stand in other places.
    """
    if "overrides" in known:
        return _remedy_in_arm(key, known, elsewhere)
    if key == "batch_size" and "minibatches" in known:
        return "give ppo.minibatches: the transitions of a round divided by the batch size"
    same = _named(key, elsewhere)
    if key in same:
        return f"{key} stands at the outermost level"
    if 0 < len(same) <= 3:
        return f"did you mean {_either(same)}?"
    if key in _LENGTHS:
        return "give budget.rounds: the steps divided by env.n_envs x env.rollout_steps"
    if key in FOREIGN:
        return f"did you mean {FOREIGN[key]}?"
    names = {*known, *(path.rpartition(".")[2] for path in elsewhere if "." in path)}
    close = difflib.get_close_matches(key[:QUOTED], sorted(names), n=1, cutoff=0.8)
    if close and close[0] not in known:
        return f"did you mean {_either(_named(close[0], elsewhere)[:3])}?"
    return nearest(key, known)


def _remedy_in_arm(key: str, known: Sequence[str], elsewhere: Sequence[str]) -> str:
    """The same for an arm, which holds no sections: values of its own have paths."""
    where = "under overrides of the arm"
    if key in elsewhere and "." in key:
        return f"write it {where}"
    if any(path.startswith(f"{key}.") for path in elsewhere):
        return f"write its fields {where}, as {key}.NAME"
    paths = _named(key, elsewhere)[:3] or ([FOREIGN[key]] if key in FOREIGN else [])
    return f"write it {where}, as {_either(paths)}" if paths else nearest(key, known)


def _named(key: str, paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path.rpartition(".")[2] == key]


def _in_data(detail: ErrorDetails, data: Any) -> Location:
    """Return the parts of a location that lead through the data; pydantic names the forms of a union among them."""
    path: list[int | str] = []
    for part in detail["loc"]:
        is_there = part in data if isinstance(data, Mapping) else isinstance(data, list) and part in range(len(data))
        if is_there:
            data = data[part]
            path.append(part)
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else tuple(path)


def _told(field: str, detail: ErrorDetails) -> tuple[str, str]:
    kind, given, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "missing":
        return f"{field} is required", "add it"
    if kind == "extra_forbidden":
        return f"{field} is no field here", "remove it"
    if kind in _BOUNDS:
        name, word = _BOUNDS[kind]
        bound = given[name] if isinstance(given[name], int) else f"{given[name]:g}"
        return f"{field} must be {word} {bound}, not {_shown(value)}", f"use a number {word} {bound}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", given["expected"])
        remedy = nearest(value, choices, "use one of") if isinstance(value, str) else f"use {given['expected']}"
        return f"{field} must be {given['expected']}, not {_shown(value)}", remedy
    if kind == "string_pattern_mismatch":
        form = FORMS[given["pattern"]]
        return f"{field} must be {form}, not {_shown(value)}", f"give {form}"
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        return _length(field, kind, given, value)
    message, _, remedy = detail["msg"].removeprefix("Value error, ").partition("; ")
    return f"{field}: {message}", remedy or "correct it"


def _length(field: str, kind: str, context: Mapping[str, Any], value: Any) -> tuple[str, str]:
    singular, plural = ("character", "characters") if isinstance(value, str) else ("entry", "entries")
    size = f"{field} has {len(value)} {singular if len(value) == 1 else plural}"
    if kind.endswith("short"):
        return f"{size}, at least {context['min_length']} must be given", f"give {context['min_length']} or more"
    return f"{size}, at most {context['max_length']} may be given", f"use at most {context['max_length']}"


def _shown(value: Any) -> str:
    """Return a value for a sentence, a long one cut; a list or a mapping by that word."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return quoted(value) if isinstance(value, str) else shortened(json.dumps(value, default=str))


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _annotation(model: type[BaseModel], location: Sequence[int | str]) -> Any:
    """Return what a place of a document takes: a model where it, or each entry of its list, is one."""
    current: Any = model
    for part in location:
        if isinstance(part, str) and part in _names(current):
            current = _names(current)[part]
        current = _model_within(current) or current
    return current


def _forms(annotation: Any) -> str:
    """Return in words what a place takes: words of a choice, or whole numbers; empty where there is no such choice."""
    forms = TypeAdapter(annotation).json_schema().get("anyOf", [])
    if not any("const" in form for form in forms):
        return ""
    return _either([_form(form) for form in forms])


def _form(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return repr(schema["const"])
    return f"a whole number from {schema['minimum']} to {schema['maximum']}"


def _names(model: Any) -> dict[str, Any]:
    fields = getattr(model, "model_fields", {})
    return {info.alias or name: info.annotation for name, info in fields.items()}


def _model_within(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_within(arg))), None)
