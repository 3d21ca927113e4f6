"""Values judged by the flat JSON Schemas that workers announce for registered rewards and environments.

Only what such a schema may say is understood: ``properties`` of scalar ``type``, ``minimum``, ``maximum``,
``exclusiveMinimum``, ``exclusiveMaximum`` and ``enum``. An unknown name is always refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lockstep.quoting import quoted
from lockstep.spec.text.problems import Problem, nearest

_TYPES: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "string": (str,),
    "null": (type(None),),
}
_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least", lambda value, bound: value >= bound),
    "maximum": ("at most", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("above", lambda value, bound: value > bound),
    "exclusiveMaximum": ("below", lambda value, bound: value < bound),
}


def flat_problems(schema: Mapping[str, Any], values: Mapping[str, Any], at: Callable[[str], str]) -> Iterator[Problem]:
    """Yield what is wrong with ``values``; ``at`` gives the pointer of a name."""
    properties = schema.get("properties", {})
    for name, value in values.items():
        if name not in properties:
            remedy = nearest(name, properties) if properties else "remove it, none is taken"
            yield Problem(at(name), "unknown_key", f"unknown key {quoted(name)}", remedy)
        elif broken := _broken(properties[name], value):
            yield Problem(
                at(name), "out_of_range", f"{name} = {quoted(value)} is not {broken}", f"use a value that is {broken}"
            )


def schema_fault(schema: Any) -> str | None:
    """Return in a sentence why what a plug-in declares cannot judge values, None where it can."""
    properties = schema.get("properties", {}) if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return f"schema is {quoted(schema)}; write a mapping {{'properties': {{name: {{'type': 'number'}}}}}}"
    for name, rule in properties.items():
        fault = _rule_fault(rule)
        if fault is not None:
            return f"schema.properties[{quoted(name)}] {fault}"
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"schema is no JSON: {error}; write text, finite numbers, lists and mappings"
    return None


def _rule_fault(rule: Any) -> str | None:
    if not isinstance(rule, Mapping):
        return f"is {quoted(rule)}; write a mapping such as {{'type': 'number'}}"
    names = rule.get("type", "number")
    names = [names] if isinstance(names, str) else names
    if not names or not isinstance(names, list | tuple) or not all(name in [*_TYPES] for name in names):
        return f"has type {quoted(rule['type'])}; write {', '.join(_TYPES)} or a list of them"
    if not isinstance(rule.get("enum", []), list | tuple):
        return f"has enum {quoted(rule['enum'])}; write a list"
    for name in _BOUNDS:
        if not _is(rule.get(name, 0), "number"):
            return f"has {name} {quoted(rule[name])}; write a number"
    if "default" not in rule:
        return None
    if not any(_is(rule["default"], name) for name in _TYPES):
        return f"has default {quoted(rule['default'])}; write text, a number, true, false or null"
    broken = _broken(rule, rule["default"])
    return f"has default {quoted(rule['default'])}, which is not {broken}; correct one of them" if broken else None


def _broken(rule: Mapping[str, Any], value: Any) -> str | None:
    """Return the words of the first rule that ``value`` breaks, or None."""
    names = rule.get("type", list(_TYPES))
    names = [names] if isinstance(names, str) else names
    if not any(_is(value, name) for name in names):
        return f"of type {' or '.join(names)}"
    if "enum" in rule and value not in rule["enum"]:
        return f"one of {', '.join(map(str, rule['enum']))}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for name, (word, holds) in _BOUNDS.items():
            if name in rule and not holds(value, rule[name]):
                return f"{word} {rule[name]}"
    return None


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES.get(name, ()))
