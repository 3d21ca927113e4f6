"""Schemas of plug-ins: a fault of one is told where it is declared, before values are judged by it."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.spec.text.schemas import schema_fault

SOUND = {"type": ["number", "null"], "minimum": 0, "maximum": 9.5, "enum": [1, None], "default": None}


def test_a_sound_schema_has_no_fault() -> None:
    assert schema_fault({"properties": {"price": SOUND, "any": {}, "word": {"type": "string", "default": "a"}}}) is None
    assert schema_fault({}) is None


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ([], "schema is []"),
        ({"properties": ["price"]}, "schema is {'properties': ['price']}"),
        ({"properties": {"price": "number"}}, "schema.properties['price'] is 'number'"),
        ({"properties": {"price": {"type": "float"}}}, "has type 'float'; write number"),
        ({"properties": {"price": {"type": []}}}, "has type []"),
        ({"properties": {"price": {"type": 3}}}, "has type 3"),
        ({"properties": {"price": {"enum": 3}}}, "has enum 3"),
        ({"properties": {"price": {"minimum": "0"}}}, "has minimum '0'; write a number"),
        ({"properties": {"price": {"exclusiveMaximum": True}}}, "has exclusiveMaximum True"),
        ({"properties": {"price": {"default": [1]}}}, "has default [1]; write text"),
        ({"properties": {"price": {"minimum": 1, "default": 0}}}, "has default 0, which is not at least 1"),
        ({"properties": {"price": {"default": float("nan")}}}, "schema is no JSON"),
        ({"properties": {"price": {"note": {1}}}}, "schema is no JSON"),
    ],
)
def test_a_schema_that_cannot_judge_is_told_by_its_place(schema: Any, told: str) -> None:
    assert told in str(schema_fault(schema))
