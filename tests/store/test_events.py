"""Reading of the timeline: the newest event of each block, and what that costs, on both databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, event
from sqlalchemy.orm import Session

from app.services.context import Context
from app.store.records import events
from app.store.records.events import NewEvent, add_events
from tests.factories import submit

BLOCKS = ["blk_a", "blk_b", "blk_c"]


def add_rounds(ctx: Context, experiment_id: str, first: int, last: int) -> None:
    with ctx.store.write() as session:
        for index in range(first, last):
            new = [NewEvent("round_completed", "", block_id=name, round=index) for name in BLOCKS]
            other = NewEvent("checkpoint_saved", "", block_id="blk_a", round=index)
            add_events(session, 0.0, experiment_id, [*new, other])


def test_newest_by_block_returns_one_event_for_each_block_in_order(ctx: Context) -> None:
    experiment_id, other = submit(ctx), submit(ctx)
    add_rounds(ctx, other, 0, 9)
    add_rounds(ctx, experiment_id, 0, 5)
    with ctx.store.write() as session:
        add_events(session, 0.0, experiment_id, [NewEvent("round_completed", "", block_id="blk_a", round=5)])
    with ctx.store.read() as session:
        found = events.newest_by_block(session, experiment_id, "round_completed")
    assert [(row.block_id, row.round) for row in found] == [("blk_b", 4), ("blk_c", 4), ("blk_a", 5)]
    assert {row.experiment_id for row in found} == {experiment_id}


def work(ctx: Context, experiment_id: str) -> int:
    """Return what the newest events cost: steps of SQLite's machine, rows that PostgreSQL's plan touches."""
    with ctx.store.read() as session:
        return _steps(session, experiment_id) if ctx.store.is_sqlite else _rows(session, experiment_id)


def _steps(session: Session, experiment_id: str) -> int:
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    driver: Any = session.connection().connection.driver_connection
    driver.set_progress_handler(count, 50)
    events.newest_by_block(session, experiment_id, "round_completed")
    driver.set_progress_handler(None, 0)
    return counted


def _rows(session: Session, experiment_id: str) -> int:
    statements: list[str] = []
    connection = session.connection()

    def note(_connection: Any, clause: Any, *_: Any) -> None:
        if isinstance(clause, Select):
            compiled = clause.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
            statements.append(str(compiled))

    event.listen(connection, "before_execute", note)
    events.newest_by_block(session, experiment_id, "round_completed")
    event.remove(connection, "before_execute", note)
    plans = [connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}").scalar_one() for text in statements]
    return sum(_touched(plan[0]["Plan"]) for plan in plans)


def _touched(node: dict[str, Any]) -> int:
    removed = sum(int(value) for name, value in node.items() if name.startswith("Rows Removed"))
    own = (int(node["Actual Rows"]) + removed) * int(node["Actual Loops"])
    return own + sum(map(_touched, node.get("Plans", [])))


def test_newest_by_block_costs_in_proportion_to_the_events(ctx: Context) -> None:
    experiment_id = submit(ctx)
    add_rounds(ctx, experiment_id, 0, 20)
    before = work(ctx, experiment_id)
    add_rounds(ctx, experiment_id, 20, 160)
    assert work(ctx, experiment_id) < 1.5 * 8 * before
