"""Mistakes are told as the page says: no traceback, no sentence of a library, nothing twice."""

from __future__ import annotations

from benchmarks import refusals

FOREIGN = (
    "Traceback",
    "Input should be",
    "Value error",
    "validation error",
    "Tuple should",
    "errno",
    "see the field's",
)


def test_mistakes_are_told_as_the_page_says() -> None:
    found = list(refusals.refusals())
    assert len(found) >= 50
    for item in found:
        assert item.told, item
        assert not [word for word in FOREIGN if word in item.told], item
        assert len(item.told) < 500, item
        parts = item.told.split("; ")
        assert len(parts) == len(set(parts)), item
    assert refusals.TARGET.read_text() == refusals.page(found), "python -m benchmarks.refusals"
