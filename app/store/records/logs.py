"""Log lines of training children: insert once, tail, page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from app.store.database.engine import utc
from app.store.rows.assignments import AssignmentRow
from app.store.rows.records import LogLine
from app.store.rows.selecting import columns, every
from app.store.schema import tables as t

LEVELS = ("debug", "info", "warning", "error")


def ignore_duplicates(session: Session, table: Any) -> Any:
    """Return an INSERT of the session's dialect that leaves existing rows as they are."""
    dialect = session.get_bind().dialect.name
    return (pg_insert if dialect == "postgresql" else sqlite_insert)(table).on_conflict_do_nothing()


def insert_lines(
    session: Session, now: float, assignment: AssignmentRow, lines: Sequence[tuple[int, str, str]]
) -> None:
    """Insert (seq, level, text) lines of an assignment."""
    if lines:
        session.execute(
            ignore_duplicates(session, t.log_line),
            [
                {
                    "block_id": assignment.block_id,
                    "attempt": assignment.attempt,
                    "assignment_id": assignment.id,
                    "seq": seq,
                    "level": level,
                    "text": text,
                    "at": utc(now),
                }
                for seq, level, text in lines
            ],
        )


def read(
    session: Session,
    block_id: str,
    *,
    levels: Sequence[str],
    after: tuple[int, int] | None,
    before: tuple[int, int] | None = None,
    limit: int,
) -> list[LogLine]:
    """Return lines after (attempt, seq) ascending, or else the newest ones (before a place), ascending."""
    query = select(*columns(LogLine, t.log_line)).where(
        t.log_line.c.block_id == block_id, t.log_line.c.level.in_(levels)
    )
    order = (t.log_line.c.attempt, t.log_line.c.seq, t.log_line.c.assignment_id)
    if before is not None:
        attempt, seq = before
        earlier = (t.log_line.c.attempt < attempt) | ((t.log_line.c.attempt == attempt) & (t.log_line.c.seq < seq))
        query = query.where(earlier)
    if after is None:
        newest = session.execute(query.order_by(*(column.desc() for column in order)).limit(limit))
        return every(LogLine, newest)[::-1]
    attempt, seq = after
    later = (t.log_line.c.attempt > attempt) | ((t.log_line.c.attempt == attempt) & (t.log_line.c.seq > seq))
    return every(LogLine, session.execute(query.where(later).order_by(*order).limit(limit)))
