"""Differences as people read them: treatment minus baseline, everywhere in a rendered report.

``report.json`` holds each comparison in the order of the specification (first arm minus second), which the counting of
``recompute.py`` follows. The baseline is named first by custom, or is the registered control; so a rendered difference
is turned unless its second arm is the control.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NEGATED = ("estimate", "median_unbiased", "pooled", "g", "cliffs_delta", "rmst_difference", "difference")
_NEGATED_LISTS = ("mean_difference", "statistic")
_INTERVALS = ("ci", "ci_superiority", "ci_equivalence", "t_ci", "bca_ci_mean")
_SWAPPED = {"a": "b", "b": "a", "p_above": "p_below", "p_below": "p_above"}
#: Sections that are lists of comparisons, and those that hold one under a name.
_LISTS = ("comparisons", "early_stops", "quantities", "secondary")
_HELD = {
    "overrun": "comparisons",
    "exploratory": "comparisons",
    "curve": "pairs",
    "bayes": "pairs",
    "time_to_threshold": "pairs",
}


def treatment_of(a: str, b: str, control: str | None) -> str:
    """Return which arm of a comparison the other is subtracted from; ``a`` comes first in the specification."""
    return a if b == control else b


def treatment_first(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report in which every comparison is treatment minus baseline, for rendering only."""
    control = report["registration"]["analysis"]["control"]

    def turned(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
        return [faced(row, control) for row in rows]

    lists = {name: turned(report[name]) for name in _LISTS if report.get(name)}
    held = {
        name: {**report[name], inner: turned(report[name][inner])} for name, inner in _HELD.items() if report.get(name)
    }
    return {**report, **lists, **held}


def faced(row: Mapping[str, Any], control: str | None) -> Mapping[str, Any]:
    """Return a comparison with the treatment first."""
    return row if treatment_of(row["a"], row["b"], control) == row["a"] else _turned(row)


def _turned(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a comparison, or a part of one, says of the other order of its arms."""
    return {name: _value(name, row[_SWAPPED.get(name, name)]) for name in row}


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _NEGATED:
        return 0.0 - value
    if name in _NEGATED_LISTS:
        return [None if item is None else 0.0 - item for item in value]
    if name in _INTERVALS:
        return [None if end is None else 0.0 - end for end in reversed(value)]
    if name == "A12":
        return 1.0 - value
    if name == "failures":
        return value[::-1]
    if name == "pairs":
        return [_turned(item) for item in value]
    return _turned(value) if isinstance(value, Mapping) else value
