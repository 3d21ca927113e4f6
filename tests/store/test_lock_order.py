"""Locks are taken in one order by everybody: blocks, assignments, workers. Two that meet wait, and neither dies."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from sqlalchemy import event, text

from app.services.context import Context
from app.services.training import workers
from app.store.queue import blocks, leases
from app.store.queue.blocks import Why
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import BlockRow
from lockstep.protocol import Assignment, RegisterRequest
from lockstep.status import AssignmentState
from tests.conftest import Clock, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit

pytestmark = [pytest.mark.pg, pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]


class Meeting:
    """Lets each of two threads go on after its first lock only when the other one has its first lock too, or waits."""

    def __init__(self, ctx: Context) -> None:
        self._met = threading.Barrier(2)
        self._came: set[int] = set()
        event.listen(ctx.store.engine, "after_cursor_execute", self._executed)

    def _executed(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        me = threading.get_ident()
        takes_lock = "FOR UPDATE" in statement or statement.startswith("UPDATE")
        if threading.current_thread().name != "meeting" or not takes_lock or me in self._came:
            return
        self._came.add(me)
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one waits for a lock that this one holds
            self._met.wait(0.5)


def test_registration_and_heartbeat_of_one_worker_wait_for_each_other(ctx: Context, clock: Clock) -> None:
    submit(ctx)
    old = SimulatedWorker(ctx).register()
    while old.claim() is None:
        old.beat("idle")
    old.ready()
    workers.drain(ctx, old.worker_id, LOCAL, now=True)  # the heartbeat after this one stops the block, too
    clock.advance(10 * ctx.settings.heartbeat_seconds)
    new = RegisterRequest(name=old.name, host="host", incarnation="after a restart", device=old.device, **old.given)
    Meeting(ctx)
    failed: list[Exception] = []

    def run(act: Any) -> None:
        try:
            act()
        except Exception as error:
            failed.append(error)

    acts = (lambda: workers.register(ctx, new), old.beat)
    threads = [threading.Thread(target=run, args=(act,), name="meeting") for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not [error for error in failed if "deadlock" in str(error)], failed


def held_worker(ctx: Context) -> SimulatedWorker:
    """Return a worker that trains a block."""
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    assert worker.claim() is not None
    assert worker.ready()
    return worker


class Fencing:
    """A fence in a thread of its own, which waits for the block's row; its lease, block and clock once it has them."""

    def __init__(self, ctx: Context, held: Assignment) -> None:
        self.found: tuple[AssignmentRow, BlockRow, float] | None = None
        self._ctx, self._held = ctx, held
        self._thread = threading.Thread(target=self._fence)
        self._thread.start()
        wait_until(self._waits, what="the fence to wait")

    def _waits(self) -> bool:
        """Look in a transaction of its own: within one PostgreSQL shows what it showed at the first look."""
        with self._ctx.store.read() as session:
            return bool(session.execute(_WAITS).scalar_one())

    def _fence(self) -> None:
        with self._ctx.store.write() as session:
            self.found = leases.fence(self._ctx.store, session, self._held.assignment_id, self._held.lease)

    def end(self) -> None:
        self._thread.join(60)


_WAITS = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


def test_a_fence_that_waits_for_its_block_does_not_hold_the_assignment_yet(ctx: Context) -> None:
    held = held_worker(ctx).held
    with ctx.store.write() as session:
        assert blocks.get(session, held.block_id, lock=True) is not None
        fencing = Fencing(ctx, held)
        with ctx.store.write() as other:
            nobody_waits = text("SELECT id FROM assignment WHERE id = :id FOR UPDATE NOWAIT")
            assert other.execute(nobody_waits, {"id": held.assignment_id}).one()
    fencing.end()
    assert fencing.found is not None


def test_a_fence_sees_what_was_done_to_its_block_while_it_waited(ctx: Context) -> None:
    held = held_worker(ctx).held
    with ctx.store.write() as session:
        block = blocks.get(session, held.block_id, lock=True)
        assert block is not None
        fencing = Fencing(ctx, held)
        blocks.stop(session, 5.0, block, Why("operator"), grace_seconds=1.0)
    fencing.end()
    assert fencing.found is not None
    assert fencing.found[1].status == "stopping"


def test_a_fence_that_waited_for_the_end_of_its_lease_does_not_hold(ctx: Context) -> None:
    held = held_worker(ctx).held
    with ctx.store.write() as session:
        assert blocks.get(session, held.block_id, lock=True) is not None
        fencing = Fencing(ctx, held)
        assert leases.move(session, 5.0, held.assignment_id, AssignmentState.EXPIRED)
    fencing.end()
    assert fencing.found is None
