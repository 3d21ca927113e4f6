"""Guarded updates built once: building a statement costs more than what SQLite does for it.

A statement is kept for each table, set of columns and set of states; the values come as parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import FromClause, String, Table, Update, bindparam, cast, func, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session


def update_one(
    session: Session,
    table: Table,
    row_id: str,
    values: Mapping[str, Any],
    *,
    guard: tuple[str, frozenset[Any]] | None = None,
    returning: str = "id",
) -> Any:
    """Set columns of the row with an id, if its state allows it.

    Args:
        session: a writing transaction.
        table: a table whose primary key is ``id``.
        row_id: which row.
        values: {column: value}; plain values, no expressions.
        guard: (column, states it may be in); None changes the row in any state.
        returning: the column to return.

    Returns:
        The value of the column ``returning``, which is never null; None when nothing was changed.
    """
    column, states = guard if guard is not None else (None, frozenset())
    statement = _statement(table, tuple(values), column, states, returning)
    given = {f"new_{name}": value for name, value in values.items()}
    return session.execute(statement, {**given, "row_id": row_id}).scalar_one_or_none()


@cache
def _statement(
    table: Table, names: tuple[str, ...], column: str | None, states: frozenset[Any], returning: str
) -> Update:
    statement = update(table).where(table.c.id == bindparam("row_id"))
    if column is not None:
        statement = statement.where(table.c[column].in_(states))
    return statement.values({name: bindparam(f"new_{name}") for name in names}).returning(table.c[returning])


def pairs_in(name: str) -> dict[str, FromClause]:
    """Return by dialect a table of the columns ``key`` and ``value``, from a parameter that is a JSON object of texts.

    One parameter for any number of rows: a statement for each number of them would have to be prepared anew.
    """
    given = bindparam(name, type_=String)
    makers = {"sqlite": func.json_each(given), "postgresql": func.jsonb_each_text(cast(given, JSONB))}
    return {dialect: made.table_valued("key", "value", name="given") for dialect, made in makers.items()}
