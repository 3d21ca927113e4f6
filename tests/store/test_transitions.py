"""The tables of lockstep.status hold in the store: what they do not allow changes no row, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sqlalchemy import Table, func, select, update
from sqlalchemy.orm import Session

from app.services.context import Context
from app.store.queue import blocks, leases
from app.store.queue.blocks import Why
from app.store.schema import tables as t
from lockstep import status as s
from tests.factories import SimulatedWorker, submit

Move = Callable[[Session, Any, Any], bool]


def move_block(session: Session, row: Any, target: Any) -> bool:
    return blocks.move(session, 1_000.0, row, target, Why("tester"))


def move_run(session: Session, row: Any, target: Any) -> bool:
    block = blocks.get(session, row.block_id)
    return bool(blocks.move_runs(session, 1_000.0, block, target, Why("tester"), run_ids=[row.id]))  # type: ignore[arg-type]


def move_worker(session: Session, row: Any, target: Any) -> bool:
    return leases.move_worker(session, 1_000.0, row.id, target, "tested", actor="tester")


def move_assignment(session: Session, row: Any, target: Any) -> bool:
    return leases.move(session, 1_000.0, row.id, target)


CASES: list[Any] = [
    pytest.param(t.block, "status", s.BLOCK_TRANSITIONS, move_block, id="block"),
    pytest.param(t.run, "status", s.RUN_TRANSITIONS, move_run, id="run"),
    pytest.param(t.worker, "status", s.WORKER_TRANSITIONS, move_worker, id="worker"),
    pytest.param(t.assignment, "state", s.ASSIGNMENT_TRANSITIONS, move_assignment, id="assignment"),
]


@pytest.mark.parametrize(("table", "column", "transitions", "move"), CASES)
def test_store_moves_a_row_exactly_where_the_table_allows_it(
    ctx: Context, table: Table, column: str, transitions: dict[Any, Iterable[Any]], move: Move
) -> None:
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    with ctx.store.read() as session:
        row_id = session.execute(select(table.c.id).limit(1)).scalar_one()
    wrong = []
    for source in transitions:
        for target in transitions:
            with ctx.store.write() as session:
                session.execute(update(table).where(table.c.id == row_id).values({column: source}))
                row = session.execute(select(table).where(table.c.id == row_id)).one()
                moved = move(session, row, target)
                now = getattr(session.execute(select(table).where(table.c.id == row_id)).one(), column)
            allowed = target in transitions[source]
            if moved is not allowed or now != (target if allowed else source):
                wrong.append((source, target, moved, now))
    assert wrong == []


def test_every_move_has_one_event_with_its_actor(ctx: Context) -> None:
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.train(rounds=2)
    with ctx.store.read() as session:
        rows = session.execute(select(t.event).order_by(t.event.c.experiment_id, t.event.c.seq)).all()
        of_worker = session.execute(select(t.worker_event).order_by(t.worker_event.c.id)).all()
        count = session.execute(select(func.count()).select_from(t.event).where(t.event.c.actor == "")).scalar_one()
    assert count == 0
    assert [row.actor for row in rows if row.type == "submitted"] == ["alice"]
    block = [(row.status, row.actor) for row in rows if row.type == "block_status"]
    assert block == [("reserved", "scheduler"), ("running", "worker"), ("succeeded", "system")]
    of_a_run = {row.run_id for row in rows if row.type == "run_status"}
    assert len(of_a_run) == 2
    for run_id in of_a_run:
        statuses = [row.status for row in rows if row.type == "run_status" and row.run_id == run_id]
        assert statuses == ["running", "succeeded"]
    assert [row.status for row in of_worker] == ["idle", "reserved", "busy", "cleaning", "idle"]
    assert of_worker[1].actor == "scheduler"
