"""Which experiments the reports' thread looks at, and that a long report does not hold the sweep back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import event

from app import background
from app.services import finishing, steering
from app.services.context import Context
from app.services.operations import readiness
from app.store import experiments
from lockstep.status import Desired
from tests.conftest import wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec


def due(ctx: Context) -> list[str]:
    with ctx.store.read() as session:
        return experiments.may_be_due(session)


def test_only_an_ended_or_looked_at_experiment_may_be_due(ctx: Context) -> None:
    waiting = submit(ctx, tiny_spec(experiment={"replicates": 3}))
    analysis = {"inference": "full", "looks": {"mode": "planned", "at": [6, 8]}}
    looked_at = submit(ctx, tiny_spec(experiment={"replicates": 8}, analysis=analysis))
    ended = submit(ctx)
    steering.set_desired(ctx, ended, Desired.CANCEL, "", LOCAL)
    assert due(ctx) == [looked_at, ended]
    finishing.finish_due(ctx)
    assert due(ctx) == [looked_at]
    steering.set_desired(ctx, waiting, Desired.CANCEL, "", LOCAL)
    assert due(ctx) == [waiting, looked_at]


def test_paused_and_stopping_blocks_keep_an_experiment_open(ctx: Context) -> None:
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    experiment_id = worker.held.experiment_id
    steering.set_desired(ctx, experiment_id, Desired.PAUSE, "", LOCAL)
    assert due(ctx) == []  # stopping
    worker.release("stopped")
    assert due(ctx) == []  # paused
    steering.set_desired(ctx, experiment_id, Desired.CANCEL, "", LOCAL)
    assert due(ctx) == [experiment_id]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_may_be_due_is_read_by_index(ctx: Context) -> None:
    asked: list[tuple[str, Any]] = []
    event.listen(
        ctx.store.engine, "before_cursor_execute", lambda _c, _k, sql, given, _x, _m: asked.append((sql, given))
    )
    with ctx.store.read() as session:
        experiments.may_be_due(session)
        sql, given = asked[-1]
        plan = str(session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given).all())
    assert "ix_experiment_unfinished" in plan
    assert "ix_block_experiment_id_status" in plan


def test_sweeps_go_on_while_a_report_is_built(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    building, go_on = threading.Event(), threading.Event()

    def long_report(_: Context) -> int:
        building.set()
        go_on.wait(30)
        return 0

    monkeypatch.setattr(finishing, "finish_due", long_report)
    running = background.BackgroundTasks(ctx)
    running.start()
    try:
        assert building.wait(10)
        began = time.monotonic()
        with ctx.store.read() as session:
            epoch = ctx.store.now(session)
        wait_until(lambda: swept_after(ctx, epoch), timeout=10, what="a sweep")
        assert time.monotonic() - began < 10
    finally:
        go_on.set()
        running.stop()


def swept_after(ctx: Context, epoch: float) -> bool:
    age = readiness(ctx)["sweep_age_seconds"]
    with ctx.store.read() as session:
        return age is not None and ctx.store.now(session) - age > epoch + 2 * ctx.settings.sweep_seconds
