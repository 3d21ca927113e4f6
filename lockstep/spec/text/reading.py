"""A specification's text, read as plain data: JSON as JSON, everything else as YAML.

YAML's plain words mean what the core schema of YAML 1.2 says, which is a superset of JSON: ``3e-4`` is a number,
``0o17`` and ``0xff`` are integers, and ``yes``, ``no``, ``on``, ``off``, ``1_000`` and dates are text (PyYAML reads
YAML 1.1).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from lockstep.quoting import quoted
from lockstep.spec.text.problems import InvalidSpecError, Problem, pointer

MAX_DEPTH = 12
#: Keys and list entries; a specification that says everything has a few hundred. Each one at fault is told with what is
#: most like it, which takes milliseconds.
MAX_ENTRIES = 2_000
_MAX_DIGITS = 300
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_TRUE, _FALSE, _NULL = ("true", "True", "TRUE"), ("false", "False", "FALSE"), ("~", "null", "Null", "NULL", "")


@dataclass(frozen=True)
class _Unusable:
    """Stands for a number that cannot be used until its field is known: what is wrong and the remedy."""

    message: str
    remedy: str


def load_file(path: Path) -> dict[str, Any]:
    """Read a file: ``.json`` is JSON, anything else what ``load_text`` makes of it."""
    return load_bytes(path.read_bytes(), as_json=path.suffix.lower() == ".json")


def load_bytes(data: bytes, *, as_json: bool = False) -> dict[str, Any]:
    """Read UTF-8 text, with or without a byte order mark; ``as_json`` where its sender calls it JSON."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: byte {data[error.start]:#04x} at position {error.start}"
        raise refusal("malformed", message, "save it as UTF-8") from error
    return load_json(text) if as_json else load_text(text)


def load_text(text: str) -> dict[str, Any]:
    """Read YAML or JSON text into plain data; aliases, tags of its own and depth bombs are refused.

    Raises:
        InvalidSpecError: with one sentence that names the place.
    """
    return _mapping(_json(text) if looks_like_json(text) else _yaml(text))


def load_json(text: str) -> dict[str, Any]:
    """Read JSON text into plain data.

    Raises:
        InvalidSpecError: with one sentence that names the place.
    """
    return _mapping(_json(text))


def looks_like_json(text: str) -> bool:
    """Return whether text begins with a brace and its syntax is JSON's."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text, parse_int=str)
    except json.JSONDecodeError:
        return False
    except RecursionError:
        return True
    return True


def depth(value: Any) -> int:
    """Return how many mappings and lists lie in one another; in a loop, as data may be deeper than the stack."""
    found, layer = 0, [value]
    while layer := [item for item in layer if isinstance(item, dict | list)]:
        found += 1
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
    return found


def entries(value: Any) -> int:
    """Return how many keys and list entries there are in all; in a loop, as ``depth``."""
    found, layer = 0, [value]
    while layer := [item for item in layer if isinstance(item, dict | list)]:
        found += sum(len(item) for item in layer)
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
    return found


def too_many(number: int) -> InvalidSpecError:
    """Return the refusal of what has so many keys and list entries."""
    remedy = f"use at most {MAX_ENTRIES:,}; is it a specification?"
    return refusal("too_many", f"{number:,} keys and list entries are too many", remedy)


def too_deep() -> InvalidSpecError:
    """Return the refusal of what is nested too deeply."""
    return refusal("too_deep", "nested too deeply", f"use at most {MAX_DEPTH} levels")


def refusal(code: str, message: str, remedy: str) -> InvalidSpecError:
    """Return the refusal of a whole text."""
    return InvalidSpecError([Problem("", code, message, remedy)])


def _mapping(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise refusal("malformed", "the specification must be a mapping", "begin with 'experiment:'")
    if depth(data) > MAX_DEPTH + 1:
        raise too_deep()
    _refuse_unusable(data)
    return data


def _refuse_unusable(value: Any, *place: str | int) -> None:
    if isinstance(value, _Unusable):
        raise InvalidSpecError([Problem(pointer(*place), "malformed", value.message, value.remedy)])
    for part, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _refuse_unusable(item, *place, part)


def _json(text: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        raise refusal("malformed", message, "check the syntax, or send YAML as application/yaml") from error
    except RecursionError as error:
        raise too_deep() from error


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise _twice(key, "")
        made[key] = value
    return made


def _twice(key: str, where: str) -> InvalidSpecError:
    return refusal("duplicate_key", f"the key {quoted(key)} is given twice{where}", "keep one of them")


def _no_constant(token: str) -> _Unusable:
    return _Unusable(f"{token} is not JSON", "use a finite number, or null")


def _finite(text: str, where: str = "") -> float | _Unusable:
    value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(value):
        return _Unusable(f"{quoted(text)} is not a finite number{where}", "use a finite number, or null")
    return value


def _integer(text: str, where: str = "") -> int | _Unusable:
    if len(text) > _MAX_DIGITS:
        return _Unusable(f"the number {text[:20]}... is too long{where}", "use a shorter number")
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


def _yaml(text: str) -> Any:
    try:
        _check_events(text)
        return yaml.load(text, Loader=_CoreLoader)  # noqa: S506 - a safe loader with fewer tags
    except yaml.YAMLError as error:
        told = _sentence(error)
        remedy = "indent with spaces, not with tabs" if r"'\t'" in told else "check the syntax"
        raise refusal("malformed", f"not valid YAML: {told}", remedy) from error


def _sentence(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{' '.join(str(error.problem).split())}{_place(error.problem_mark)}"
    return " ".join(str(error).split())


def _place(mark: Any) -> str:
    return f" in line {mark.line + 1}, column {mark.column + 1}"


def _check_events(text: str) -> None:
    """Refuse aliases, and nesting before it costs: the scanner's time grows with the square of the depth."""
    levels = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise refusal("yaml_alias", "YAML aliases are not allowed", "write the value out")
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if levels > MAX_DEPTH + 1:
            raise too_deep()


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the words and the tags of YAML 1.2's core schema, and unique keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the base class has it
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}  # as the base class has it

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: ARG002 - its base has it
        """Return a mapping whose keys are the text that stands there, as in JSON; none may come twice."""
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "expected a mapping", node.start_mark)
        made: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            if key_node.value == "<<" and not key_node.style:
                where = _place(key_node.start_mark)
                raise refusal("yaml_alias", f"YAML merge keys (<<) are not allowed{where}", "write the values out")
            self.construct_object(key_node)  # refuses tags
            if key_node.value in made:
                raise _twice(key_node.value, f", the second time{_place(key_node.start_mark)}")
            made[key_node.value] = self.construct_object(value_node, deep=True)
        return made

    def scalar(self, node: Any) -> Any:
        """Return null, a truth value or a number, after its tag."""
        text, where = str(self.construct_scalar(node)), _place(node.start_mark)
        kind = node.tag.removeprefix(_TAG)
        if kind == "null" and text in _NULL:
            return None
        if kind == "bool" and text in (*_TRUE, *_FALSE):
            return text in _TRUE
        if kind == "int" and _INT.match(text):
            return _integer(text, where)
        if kind == "float" and _FLOAT.match(text):
            return _finite(text, where)
        raise yaml.constructor.ConstructorError(None, None, f"{quoted(text)} is not of type {kind}", node.start_mark)


def _words(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(f"^(?:{'|'.join(words)})$")


_CoreLoader.add_implicit_resolver(_TAG + "null", _words(_NULL), ["~", "n", "N", ""])
_CoreLoader.add_implicit_resolver(_TAG + "bool", _words((*_TRUE, *_FALSE)), list("tTfF"))
_CoreLoader.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))
_CoreLoader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
_CoreLoader.yaml_constructors = {
    **{_TAG + kind: _CoreLoader.scalar for kind in ("null", "bool", "int", "float")},
    _TAG + "str": yaml.SafeLoader.construct_yaml_str,
    _TAG + "seq": yaml.SafeLoader.construct_yaml_seq,
    _TAG + "map": yaml.SafeLoader.construct_yaml_map,
    None: yaml.SafeLoader.construct_undefined,
}
