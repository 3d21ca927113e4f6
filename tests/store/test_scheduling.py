"""What concurrent transactions may not lose; on both databases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.services.context import Context
from app.store import events, scheduling
from app.store.engine import FairLock
from app.store.events import NewEvent
from tests.conftest import wait_until
from tests.factories import submit

SENDERS = 8


def test_device_time_of_simultaneous_releases_adds_up_from_the_first_on(ctx: Context) -> None:
    start = threading.Barrier(SENDERS)

    def release(_: int) -> None:
        start.wait(20)
        for _ in range(5):
            with ctx.store.write() as session:
                scheduling.add_usage(session, 1_000.0, "newcomer", 2.0)

    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(release, range(SENDERS)))
    with ctx.store.read() as session:
        assert scheduling.owner_shares(session, 1_000.0, {}) == {"newcomer": pytest.approx(SENDERS * 5 * 2.0)}


def test_events_of_simultaneous_transactions_have_numbers_without_gaps(ctx: Context) -> None:
    one, two = submit(ctx), submit(ctx)

    def act(number: int) -> None:
        for order in ((one, two), (two, one)):  # in either order no transaction waits for another in a circle
            with ctx.store.write() as session:
                for experiment_id in order:
                    events.add_events(session, 1_000.0, experiment_id, [NewEvent("note", f"{number}")])
                events.add_events(session, 1_000.0, one, [NewEvent("second", f"{number}")])

    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(act, range(SENDERS)))
    with ctx.store.read() as session:
        rows = events.list_events(session, one, after=0, limit=1_000)
    assert [row.seq for row in rows] == list(range(1, 2 * 2 * SENDERS + 2))
    written = [(row.type, row.text) for row in rows[1:]]
    # the two of one transaction follow each other, in the order in which they happened
    assert [kind for kind, _ in written] == ["note", "second"] * 2 * SENDERS
    assert [text for _, text in written[::2]] == [text for _, text in written[1::2]]


def test_transaction_that_fails_leaves_no_event(ctx: Context) -> None:
    experiment_id = submit(ctx)

    def fail() -> None:
        with ctx.store.write() as session:
            events.add_events(session, 1_000.0, experiment_id, [NewEvent("note", "lost")])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with ctx.store.read() as session:
        assert [row.type for row in events.list_events(session, experiment_id, after=0, limit=10)] == ["submitted"]


def test_urgent_writer_goes_first_and_the_others_in_order_of_arrival() -> None:
    lock, served = FairLock(), []
    threads = []

    def take(name: str, urgent: bool) -> None:
        with lock.hold(20, urgent=urgent):
            served.append(name)

    with lock.hold(1):
        for name, urgent in (("a", False), ("b", False), ("beat", True), ("c", False), ("beat 2", True)):
            threads.append(threading.Thread(target=take, args=(name, urgent)))
            threads[-1].start()
            wait_until(lambda: len(lock._waiting) + len(lock._urgent) == len(threads), what="its place in the queue")
    for thread in threads:
        thread.join(20)
    assert served == ["beat", "beat 2", "a", "b", "c"]
