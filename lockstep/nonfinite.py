"""NaN and Infinity on JSON surfaces and in SQL columns: carried, never lost, never bare.

JSON: the value is ``null`` and a list ``nf`` of ``[key, "nan"|"inf"|"-inf"]`` says what it was.
SQL: the column is NULL and ``kind`` says what it was, because databases disagree about NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

FINITE, NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY = 0, 1, 2, 3
_WORDS = {NAN: "nan", POSITIVE_INFINITY: "inf", NEGATIVE_INFINITY: "-inf"}
_VALUES = {NAN: math.nan, POSITIVE_INFINITY: math.inf, NEGATIVE_INFINITY: -math.inf}
_KINDS = {word: kind for kind, word in _WORDS.items()}


def kind_of(value: float) -> int:
    """Return 0 for a finite value, 1 NaN, 2 +Inf, 3 -Inf."""
    if math.isfinite(value):
        return FINITE
    if math.isnan(value):
        return NAN
    return POSITIVE_INFINITY if value > 0 else NEGATIVE_INFINITY


def to_column(value: float) -> tuple[float | None, int]:
    """Return (value or None, kind) for storage."""
    kind = kind_of(value)
    return (value if kind == FINITE else None), kind


def from_column(value: float | None, kind: int) -> float:
    """Return the float that ``to_column`` stored."""
    return _VALUES[kind] if kind else float(value if value is not None else math.nan)


def word(kind: int) -> str:
    """Return "nan", "inf" or "-inf"."""
    return _WORDS[kind]


def value_of(text: str) -> float:
    """Return the float that "nan", "inf" or "-inf" stands for."""
    return _VALUES[_KINDS[text]]


def encode_map(values: Mapping[str, float | None]) -> tuple[dict[str, float | None], list[tuple[str, str]]]:
    """Return (values with null for non-finite, nf list) of a mapping."""
    plain: dict[str, float | None] = {}
    marks: list[tuple[str, str]] = []
    for key, value in values.items():
        kind = FINITE if value is None else kind_of(value)
        plain[key] = None if kind else value
        if kind:
            marks.append((key, _WORDS[kind]))
    return plain, marks


def decode_map(values: Mapping[str, float | None], marks: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the floats that ``encode_map`` encoded; plain nulls are left out."""
    numbers = {key: float(value) for key, value in values.items() if value is not None}
    numbers.update({key: _VALUES[_KINDS[text]] for key, text in marks})
    return numbers


def jsonable(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose non-finite floats are null with an ``nf`` list; nested values too."""
    marks: list[list[str]] = []
    plain = {key: _plain(value, key, marks) for key, value in record.items()}
    if marks:
        plain["nf"] = marks
    return plain


def _plain(value: Any, path: str, marks: list[list[str]]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        marks.append([path, _WORDS[kind_of(value)]])
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{path}.{key}", marks) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}.{index}", marks) for index, item in enumerate(value)]
    return value
