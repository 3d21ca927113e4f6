"""How records are read: the columns that a query selects, and the records made of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ColumnElement, FromClause, Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind")


def columns(kind: type[DataclassInstance], table: FromClause) -> list[ColumnElement[Any]]:
    """Return the columns of a table that a record holds, in the order of its fields."""
    return [table.c[field.name] for field in fields(kind)]


def one(kind: Callable[..., Kind], result: Result[Any]) -> Kind | None:
    """Return the record of the one row of a result, or None where there is none."""
    row = result.one_or_none()
    return kind(*row) if row is not None else None


def every(kind: Callable[..., Kind], result: Result[Any]) -> list[Kind]:
    """Return the records of all rows of a result."""
    return [kind(*row) for row in result]
