"""Guarded updates built once: building a statement costs more than what SQLite does for it.

A statement is kept for each table, set of columns and set of states; the values come as parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Insert,
    Integer,
    Numeric,
    String,
    Table,
    Update,
    bindparam,
    cast,
    column,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from app.store.schema.columns import is_among


def update_one(
    session: Session,
    table: Table,
    row_id: str,
    values: Mapping[str, Any],
    *,
    guard: tuple[str, frozenset[Any]] | None = None,
    only_if: ColumnElement[bool] | None = None,
    returning: str = "id",
) -> Any:
    """Set columns of the row with an id, if its state allows it.

    Args:
        session: a writing transaction.
        table: a table whose primary key is ``id``.
        row_id: which row.
        values: {column: value}; plain values, no expressions.
        guard: (column, states it may be in); None changes the row in any state.
        only_if: a further condition without parameters; the same object each time.
        returning: the column to return.

    Returns:
        The value of the column ``returning``, which is never null; None when nothing was changed.
    """
    guarded, states = guard if guard is not None else (None, frozenset())
    statement = _statement(table, tuple(values), guarded, states, only_if, returning)
    given = {f"new_{name}": value for name, value in values.items()}
    return session.execute(statement, {**given, "row_id": row_id}).scalar_one_or_none()


@cache
def _statement(
    table: Table,
    names: tuple[str, ...],
    guarded: str | None,
    states: frozenset[Any],
    only_if: ColumnElement[bool] | None,
    returning: str,
) -> Update:
    statement = update(table).where(table.c.id == bindparam("row_id"))
    if guarded is not None:
        statement = statement.where(is_among(table.c[guarded], sorted(states)))
    if only_if is not None:
        statement = statement.where(only_if)
    return statement.values({name: bindparam(f"new_{name}") for name in names}).returning(table.c[returning])


def pairs_in(name: str) -> dict[str, FromClause]:
    """Return by dialect a table of the columns ``key`` and ``value``, from a parameter that is a JSON object of texts.

    One parameter for any number of rows: a statement for each number of them would have to be prepared anew.
    """
    given = bindparam(name, type_=String)
    makers = {"sqlite": func.json_each(given), "postgresql": func.jsonb_each_text(cast(given, JSONB))}
    return {dialect: made.table_valued("key", "value", name="given") for dialect, made in makers.items()}


def insert_rows(session: Session, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have the same columns; no number in them may be non-finite.

    PostgreSQL takes them as one parameter, a JSON array: a statement with a parameter for each value is taken apart and
    put together again for each number of rows, which costs more than what the database does for it.
    """
    if not rows:
        return
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_insert_from_json(table, tuple(rows[0])), {"rows": as_json(rows)})
    else:
        session.execute(_insert_each(table), rows)


@cache
def _insert_each(table: Table) -> Insert:
    return insert(table)


@cache
def _insert_from_json(table: Table, names: tuple[str, ...]) -> Insert:
    values = rows_from_json(table, names)
    return insert(table).from_select(names, select(*values.values()), include_defaults=False)


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as the parameter ``rows`` of ``rows_from_json``."""
    return json.dumps(rows, default=_as_text)


def rows_from_json(table: Table, names: Sequence[str]) -> dict[str, ColumnElement[Any]]:
    """Return for PostgreSQL the columns of a table from the parameter ``rows``, a JSON array of objects."""
    whole = {name for name in names if isinstance(table.c[name].type, Integer)}
    # a trainer may write a whole number as 3.0, which is no text of an integer
    columns = [column(name, Numeric() if name in whole else table.c[name].type) for name in names]
    given = func.jsonb_to_recordset(cast(bindparam("rows", type_=String), JSONB)).table_valued(*columns)
    each = given.render_derived(name="given", with_types=True).c
    return {name: cast(each[name], Integer) if name in whole else each[name] for name in names}


def _as_text(value: datetime) -> str:
    return value.isoformat()
