"""Rows that are inserted together: on both databases as if each value were a parameter of its own."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import DBAPIError

from app.services.context import Context
from app.store.database.engine import utc
from app.store.database.prepared import insert_rows
from app.store.schema import tables as t
from tests.factories import submit

TEXT = """quotes ' " and \\, a tab\t, %s, :name, \U0001f98a"""


def event_row(experiment_id: str, seq: int, **changes: Any) -> dict[str, Any]:
    row = {"experiment_id": experiment_id, "seq": seq, "id": f"evt_{seq}", "type": "note", "severity": "info"}
    row |= {"group_id": "*", "actor": "system", "text": TEXT, "at": utc(1_700_000_000.123457), "env_id": None}
    return {**row, "payload": {"nested": [1, 2.5, None, {"a": TEXT}], "tiny": 5e-324, "third": 1 / 3}, **changes}


def test_rows_inserted_together_are_read_as_those_inserted_one_by_one(ctx: Context) -> None:
    experiment_id = submit(ctx)
    rows = [event_row(experiment_id, seq, env_id=env) for seq, env in ((100, 7), (101, None), (102, 3.0))]
    with ctx.store.write() as session:
        insert_rows(session, t.event, [])
        insert_rows(session, t.event, rows)
        for row in rows:
            other = {**row, "seq": row["seq"] + 100, "id": f"{row['id']}_alone"}
            session.execute(insert(t.event).values(**other))
    with ctx.store.read() as session:
        query = select(t.event).where(t.event.c.seq >= 100).order_by(t.event.c.seq)
        found = [dict(row._mapping) for row in session.execute(query)]
    together, alone = ([{**row, "seq": 0, "id": ""} for row in half] for half in (found[:3], found[3:]))
    assert together == alone
    assert [row["env_id"] for row in together] == [7, None, 3]
    assert together[0]["text"] == TEXT
    assert together[0]["payload"] == rows[0]["payload"]


@pytest.mark.pg
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_text_that_is_too_long_for_its_column_is_refused_and_not_cut(ctx: Context) -> None:
    experiment_id = submit(ctx)
    with pytest.raises(DBAPIError, match="too long"), ctx.store.write() as session:
        insert_rows(session, t.event, [event_row(experiment_id, 100, severity="far too long")])
