"""Locks are taken in one order by everybody: blocks, assignments, workers. Two that meet wait, and neither dies."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from sqlalchemy import event

from app.services import workers
from app.services.context import Context
from lockstep.protocol import RegisterRequest
from tests.conftest import Clock
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
        thread.join(30)
    assert not [error for error in failed if "deadlock" in str(error)], failed
