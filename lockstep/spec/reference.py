"""What a specification may hold, read off the models themselves: every field, preset, task, metric and reward mode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from lockstep.quoting import quoted
from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.environments.gymnasium import FIELDS, FOREIGN_SECTIONS
from lockstep.spec.metrics import registered
from lockstep.spec.presets import PRESETS
from lockstep.spec.resolve import Spec
from lockstep.spec.sections import Env
from lockstep.spec.tasks import TASKS
from lockstep.spec.text.problems import nearest

_NUMBERS = {"number": "number", "integer": "whole number"}
_WORDS = {"string": "text", "boolean": "true or false", "null": "null", "object": "mapping", **_NUMBERS}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


@dataclass(frozen=True)
class Field:
    """A field of a specification.

    Attributes:
        path: names from the top, joined by dots; ``[]`` after the name of a list.
        form: what it takes, in words.
        default: as it is written in JSON; ``required`` without one.
        description: a phrase.
    """

    path: str
    form: str
    default: str
    description: str

    @property
    def section(self) -> str:
        """Return the first name of the path."""
        return self.path.split(".")[0].removesuffix("[]")

    def __str__(self) -> str:
        """Return the field in a few lines, for a terminal."""
        default = "required" if self.default == "required" else f"default {self.default}"
        return f"{self.path}\n  {self.form}; {default}\n  {self.description}"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a specification, with the names that a spec uses."""
    return Spec.model_json_schema(by_alias=True)


@cache
def fields() -> tuple[Field, ...]:
    """Return every field, in the order of the sections."""
    document = schema()
    return tuple(_fields(document, document["$defs"], ""))


def explain(name: str) -> tuple[Field, ...]:
    """Return the field of that path, all fields of a section, or every field whose last name it is.

    Raises:
        KeyError: there is none; the message says which ones are near.
    """
    plain = name.replace("[]", "")
    known = {field.path.replace("[]", ""): field for field in fields()}
    found = tuple(field for path, field in known.items() if path == plain or path.startswith(plain + "."))
    found = found or tuple(field for path, field in known.items() if path.rpartition(".")[2] == plain)
    if not found:
        raise KeyError(f"no field {quoted(name)} in a specification; {nearest(plain, known)}")
    return found


def _fields(node: Mapping[str, Any], models: Mapping[str, Any], prefix: str) -> Iterator[Field]:
    required = node.get("required", ())
    for name, own in node["properties"].items():
        path = f"{prefix}{name}"
        model, is_list = _model(own, models)
        if model is not None:
            yield from _fields(model, models, f"{path}[]." if is_list else f"{path}.")
            continue
        default = json.dumps(own["default"]) if "default" in own else "required" if name in required else "null"
        yield Field(path, _form(own, models), default, str(own.get("description", "")))


def _model(node: Mapping[str, Any], models: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the model that a field holds, None for a plain value, and whether it holds a list of them."""
    held, is_list = node, False
    if node.get("type") == "array" and "items" in node:
        held, is_list = node["items"], True
    choices = [choice for choice in held.get("anyOf", [held]) if choice.get("type") != "null"]
    if len(choices) == 1 and "$ref" in choices[0]:
        model = models[choices[0]["$ref"].rpartition("/")[2]]
        return (model, is_list) if "properties" in model else (None, False)
    return None, False


def _form(node: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Return in words what a value may be."""
    if "$ref" in node:
        model = models[node["$ref"].rpartition("/")[2]]
        return f"mapping of {', '.join(model['properties'])}" if "properties" in model else _form(model, models)
    for word in ("anyOf", "oneOf"):
        if word in node:
            return " or ".join(dict.fromkeys(_form(choice, models) for choice in node[word]))
    if "enum" in node:
        return f"one of {', '.join(map(str, node['enum']))}"
    if "const" in node:
        return str(node["const"])
    kind = str(node.get("type", "anything"))
    if kind == "array":
        return _list_form(node, models)
    if kind == "object" and isinstance(node.get("additionalProperties"), Mapping):
        return f"mapping of names to {_form(node['additionalProperties'], models)}"
    bounds = [f"{sign} {node[word]:g}" for word, sign in _BOUNDS.items() if word in node and node[word] < 2**60]
    longest = [f"at most {node['maxLength']} characters"] if "maxLength" in node else []
    return " ".join([_WORDS.get(kind, kind), ", ".join(bounds + longest)]).strip()


def _list_form(node: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    items = _form(node["items"], models) if "items" in node else "anything"
    sizes = [f"{word} {node[key]}" for key, word in (("minItems", "at least"), ("maxItems", "at most")) if key in node]
    return f"list of {items}" + (f", {' and '.join(sizes)}" if sizes else "")


def markdown() -> str:
    """Return the reference as a page of the documentation."""
    shared = [field for field in fields() if not _is_of_morphogenesis(field)]
    parts = [_HEAD, *_sections(shared, "")]
    parts += ["## Families, controls and reward modes", _FAMILIES_NOTE, _table(_FAMILY_HEAD, _family_rows())]
    parts += ["## Metrics", _METRICS_NOTE, _table(_METRIC_HEAD, _metric_rows())]
    parts += ["## Presets", "A preset's values lie under the submitted ones: `preset: NAME`.", *_presets("gymnasium")]
    parts += ["## Fields of morphogenesis", _MORPHOGENESIS_NOTE]
    parts += _sections([field for field in fields() if _is_of_morphogenesis(field)], " of morphogenesis")
    parts += ["## Tasks of morphogenesis", _table(("env.task", "data", "host", "env steps", "slots"), _task_rows())]
    parts += ["## Presets of morphogenesis", *_presets("morphogenesis")]
    return "\n\n".join(parts) + "\n"


def _is_of_morphogenesis(field: Field) -> bool:
    """Return whether a field means nothing in other tasks than those of morphogenesis."""
    if field.section == "env":
        return field.path.split(".")[1] not in FIELDS
    return field.section in FOREIGN_SECTIONS or (field.section == "reward" and field.path != "reward.mode")


def _sections(chosen: Sequence[Field], of: str) -> Iterator[str]:
    """Yield a heading and a table for each section: what every specification says, then the others in their order."""
    names = [*_FIRST, *(field.section for field in chosen)]
    for name in dict.fromkeys(names):
        rows = [(f"`{f.path}`", f.form, f"`{f.default}`", f.description) for f in chosen if f.section == name]
        if rows:
            yield from (f"### {name}{of}", _table(("field", "takes", "default", "meaning"), rows))


def _presets(kind: str) -> Iterator[str]:
    for name, values in PRESETS.items():
        if values.get("env", {}).get("kind", Env().kind) == kind:
            yield from (f"### {name}", f"```yaml\n{yaml.safe_dump(dict(values), sort_keys=False).rstrip()}\n```")


#: Sections that come first.
_FIRST = ("experiment", "preset", "arms", "analysis", "budget", "env", "reward")
_HEAD = """# What a specification may hold

Written by `lockstep spec reference` from the code, and tested to be current. In a terminal:
`lockstep spec explain FIELD`, `spec schema`, `spec presets`, `spec metrics`; `spec init` writes a first
specification.

## Fields

`[]` stands for each entry of a list. A default of `null` is filled in from the task, the family or another field.
Numbers of training are 0 or of a magnitude from 1e-18 to 1e18: float32 holds those and their squares.
What only tasks of `env.kind: morphogenesis` have (hosts that grow grafts) comes after all that is general."""
_MORPHOGENESIS_NOTE = "Gymnasium tasks have none of these. The constants of `reward` are those of its built-in modes."
_FAMILIES_NOTE = "Registered environments and reward modes of plug-ins come on top: docs/extending.md."
_METRICS_NOTE = (
    "Scores of the frozen evaluator. Only those into which no reward enters may judge arms that differ in reward. "
    "`train/`, `reward/` and `xeval/` metrics are recorded for the curves and never judge."
)
_FAMILY_HEAD = ("env.kind", "reward modes", "policies beside `ppo`", "primary metric by default")
_METRIC_HEAD = ("metric", "unit", "better", "bounds", "families", "reward enters", "meaning")


def _family_rows() -> list[tuple[str, ...]]:
    return [
        (f"`{name}`", ", ".join(family.reward_modes), ", ".join(family.controls), f"`{family.primary}`")
        for name, family in FAMILIES.items()
    ]


def _task_rows() -> list[tuple[str, ...]]:
    return [
        (f"`{name}`", task.dataset, task.topology, str(task.horizon), ", ".join(task.slots))
        for name, task in TASKS.items()
    ]


def _metric_rows() -> list[tuple[str, ...]]:
    return [
        (
            f"`{name}`",
            metric.unit,
            {"max": "larger", "min": "smaller"}[metric.direction],
            f"{_bound(metric.lower)} to {_bound(metric.upper)}",
            ", ".join(metric.env_kinds),
            "yes" if metric.reward_dependent else "no",
            metric.description,
        )
        for name, metric in registered().items()
    ]


def _bound(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:g}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
