"""What concurrent transactions may not lose; on both databases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.services.context import Context
from app.store import experiment_cache, experiments
from app.store.database.engine import FairLock
from app.store.queue import scheduling
from app.store.records import events
from app.store.records.events import NewEvent
from tests.conftest import wait_until
from tests.factories import submit, tiny_spec

SENDERS = 8


def test_device_time_of_simultaneous_releases_adds_up_from_the_first_on(ctx: Context) -> None:
    start = threading.Barrier(SENDERS)

    def release(_: int) -> None:
        start.wait(60)
        for _ in range(5):
            with ctx.store.write() as session:
                scheduling.add_usage(session, 1_000.0, "newcomer", 2.0)

    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(release, range(SENDERS)))
    with ctx.store.read() as session:
        assert scheduling.owner_use(session, 1_000.0).shares == {"newcomer": pytest.approx(SENDERS * 5 * 2.0)}


def test_device_time_of_years_ago_leaves_nothing_and_a_clock_that_goes_back_takes_nothing(ctx: Context) -> None:
    with ctx.store.write() as session:
        scheduling.add_usage(session, 1_000.0, "old", 500.0)
    with ctx.store.write() as session:
        scheduling.add_usage(session, 1_000.0 + 20 * 365 * 86_400.0, "old", 2.0)
    with ctx.store.write() as session:
        scheduling.add_usage(session, 1_000.0, "old", 3.0)
    with ctx.store.read() as session:
        assert scheduling.owner_use(session, 1_000.0).shares == {"old": pytest.approx(5.0)}


def test_device_time_halves_in_a_day(ctx: Context) -> None:
    for days in (0, 1, 2):
        with ctx.store.write() as session:
            scheduling.add_usage(session, days * 86_400.0, "steady", 8.0)
    with ctx.store.read() as session:
        assert scheduling.owner_use(session, 2 * 86_400.0).shares == {"steady": pytest.approx(8.0 + 4.0 + 2.0)}


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
        with lock.hold(60, urgent=urgent):
            served.append(name)

    with lock.hold(1):
        for name, urgent in (("a", False), ("b", False), ("beat", True), ("c", False), ("beat 2", True)):
            threads.append(threading.Thread(target=take, args=(name, urgent)))
            threads[-1].start()
            wait_until(lambda: len(lock._waiting) + len(lock._urgent) == len(threads), what="its place in the queue")
    for thread in threads:
        thread.join(60)
    assert served == ["beat", "beat 2", "a", "b", "c"]


ORDERS = {  # the same owner or another, equal ranks and priorities, and a page that one experiment cannot fill
    "alone": [("local", 50, 1.0), ("local", 50, 2.0), ("local", 50, 3.0)],
    "equal ranks": [("local", 50, 1.0), ("local", 50, 1.0), ("local", 50, 2.0)],
    "equal shares": [("anna", 50, 1.0), ("bert", 50, 1.0), ("local", 50, 0.0)],
    "shares first": [("heavy", 50, 1.0), ("light", 50, 2.0), ("local", 40, 0.0)],
    "priority first": [("heavy", 60, 9.0), ("light", 50, 2.0), ("local", 60, 9.0)],
}
SHARES = {"heavy": 9.0, "light": 1.0, "local": 3.0}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("case", list(ORDERS))
def test_page_of_the_queue_begins_as_the_whole_queue_does(ctx: Context, case: str, size: int) -> None:
    ids = [submit(ctx, tiny_spec(experiment={"replicates": 3})) for _ in ORDERS[case]]
    keys = dict(zip(ids, ORDERS[case], strict=True))
    with ctx.store.write() as session:
        for experiment_id, (owner, priority, rank) in keys.items():
            experiments.change(session, experiment_id, owner=owner, priority=priority, rank=rank)
        now = ctx.store.now(session)
    with ctx.store.read() as session:
        every = [row for experiment_id in ids for row in experiments.blocks(session, experiment_id)]
        page = scheduling.eligible_blocks(session, now, SHARES, limit=size)

    def place(row: Any) -> tuple[Any, ...]:
        owner, priority, rank = keys[row.experiment_id]
        return -priority, SHARES.get(owner, 0.0), rank, row.replicate, row.id

    assert [row.id for row in page] == [row.id for row in sorted(every, key=place)][:size]


def test_facts_are_read_once_and_hold_nothing_that_changes(ctx: Context) -> None:
    experiment_id = submit(ctx)
    with ctx.store.read() as session:
        known = experiment_cache.of(session, experiment_id)
    with ctx.store.read() as session:
        assert experiment_cache.of(session, experiment_id) is known
    changing = {"name", "notes", "tags", "priority", "rank", "desired", "needs", "placement_resolved", "finished_at"}
    assert not changing & set(experiment_cache.Facts.__dataclass_fields__)


def test_bulk_writers_take_turns_and_a_heartbeat_does_not_wait_for_them(ctx: Context) -> None:
    if ctx.store.is_sqlite:
        return  # one writer at all: the turns of SQLite are tested with its lock
    order: list[str] = []
    first = threading.Event()

    def bulk() -> None:
        with ctx.store.write(bulk=True):
            order.append("bulk")

    with ThreadPoolExecutor(1) as pool:
        with ctx.store.write(bulk=True):
            waiting = pool.submit(bulk)
            with ctx.store.write(urgent=True):
                order.append("beat")
            first.wait(0.05)
            order.append("first")
        waiting.result(60)
    assert order == ["beat", "first", "bulk"]
