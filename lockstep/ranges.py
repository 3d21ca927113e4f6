"""Numbers that people give on a command line."""

from __future__ import annotations

from typing import TypeVar

from lockstep.quoting import quoted

NumberT = TypeVar("NumberT", int, float)


def number_within(text: str, low: NumberT, high: NumberT) -> NumberT:
    """Return the number of a text, a whole one where the range is of whole numbers.

    Raises:
        ValueError: it is none, or lies outside of the range; NaN is in no range.
    """
    kind = type(low)
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        words = "a whole number" if kind is int else "a number"
        raise ValueError(f"use {words} from {low} to {high}, not {quoted(str(text))}")
    return value
