"""What a cycle of the queue costs in statements, locks and transactions, so that none of them grows unseen."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import event

from app.services.context import Context
from app.services.training import sweeping
from tests.conftest import Clock
from tests.factories import SimulatedWorker, submit, tiny_spec

#: Statements of claim, ready, a round that ends the block, and a heartbeat; a lower number is better.
STATEMENTS = {"sqlite": 49, "postgresql": 42}
#: Of these, what waits for rows that others hold; SQLite has one lock for all.
LOCKS = {"sqlite": 0, "postgresql": 4}
#: A round of two runs that ends nothing.
ROUND = {"sqlite": 12, "postgresql": 10}


def spent(ctx: Context, act: Callable[[], object]) -> tuple[int, int, int]:
    """Return statements, those that lock rows, and transactions of what is done."""
    seen: list[str] = []
    begun: list[object] = []

    def begin(connection: object) -> None:
        begun.append(connection)

    def hear(_connection: object, _cursor: object, sql: str, *_: object) -> None:
        seen.append(sql)

    event.listen(ctx.store.engine, "before_cursor_execute", hear)
    event.listen(ctx.store.engine, "begin", begin)
    try:
        act()
    finally:
        event.remove(ctx.store.engine, "before_cursor_execute", hear)
        event.remove(ctx.store.engine, "begin", begin)
    return len(seen), sum("FOR UPDATE" in sql for sql in seen), len(begun)


def test_a_cycle_of_the_queue_costs_no_more_than_it_did(ctx: Context, clock: Clock) -> None:
    submit(ctx, tiny_spec(experiment={"replicates": 4}, budget={"rounds": 1}, eval={"every_rounds": 1}))
    worker = SimulatedWorker(ctx).register()

    def cycle() -> None:
        assert worker.claim() is not None
        assert worker.ready()
        worker.hand_in(0, diverged=("A", "B"))
        worker.assignment = None
        worker.beat("idle")
        clock.advance(0.1)

    cycle()
    cycle()  # what is read once and kept, as names of metrics once they have been committed
    statements, locks, transactions = spent(ctx, cycle)
    name = "sqlite" if ctx.store.is_sqlite else "postgresql"
    assert statements <= STATEMENTS[name]
    assert locks <= LOCKS[name]
    assert transactions <= 4


def test_a_round_costs_no_more_than_it_did(ctx: Context) -> None:
    submit(ctx, tiny_spec(budget={"rounds": 5}))
    worker = SimulatedWorker(ctx).register()
    assert worker.claim() is not None
    assert worker.ready()
    worker.hand_in(0)
    worker.hand_in(1)  # what is read once and kept
    statements, _, transactions = spent(ctx, lambda: worker.hand_in(2))
    assert statements <= ROUND["sqlite" if ctx.store.is_sqlite else "postgresql"]
    assert transactions == 1


def test_a_sweep_asks_no_more_of_the_database_where_more_blocks_train(ctx: Context) -> None:
    submit(ctx, tiny_spec(experiment={"replicates": 5}, budget={"rounds": 5}))

    def train(name: str) -> None:
        worker = SimulatedWorker(ctx, name).register()
        assert worker.claim() is not None
        assert worker.ready()

    train("w0")
    sweeping.sweep(ctx)  # what is read once and kept
    few = spent(ctx, lambda: sweeping.sweep(ctx))
    for number in range(1, 5):
        train(f"w{number}")
    assert spent(ctx, lambda: sweeping.sweep(ctx)) == few
