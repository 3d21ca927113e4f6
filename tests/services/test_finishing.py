"""Which experiments the reports' thread looks at, and that a long report does not hold the sweep back."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import event

from app import background
from app.services import steering
from app.services.context import Context
from app.services.operations import readiness
from app.services.results import finishing, reports
from app.store import experiments
from app.store.queue import blocks
from app.store.queue.blocks import Why
from lockstep.status import Cause, Desired
from tests.conftest import Clock, wait_until
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


def test_a_report_that_cannot_be_built_holds_up_no_other(ctx: Context) -> None:
    spoilt, sound = (submit(ctx, tiny_spec(experiment={"seed": seed})) for seed in (1, 2))
    worker = SimulatedWorker(ctx).register()
    for record in ({"plugins": "no mapping"}, {}):
        assert worker.claim() is not None
        worker.ready(record=record)
        for index in range(2):
            worker.hand_in(index)
            worker.checkpoint(index + 1)
        worker.release()
    with pytest.raises(AttributeError) as failed:
        finishing.finish_due(ctx)
    assert failed.value.__notes__ == [f"the report of {spoilt} could not be built"]
    assert reports.read(ctx, sound).content["verdict"]
    assert due(ctx) == [spoilt]


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


def test_sweeps_go_on_while_a_report_is_built(ctx: Context, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    building, go_on = threading.Event(), threading.Event()

    def long_report(_: Context) -> int:
        building.set()
        go_on.wait(240)
        return 0

    monkeypatch.setattr(finishing, "finish_due", long_report)
    running = background.BackgroundTasks(ctx)
    running.start()
    try:
        assert building.wait(60)
        for _ in range(2):
            clock.advance(5.0)
            wait_until(lambda: readiness(ctx)["sweep_age_seconds"] == 0, timeout=60, what="a sweep")
    finally:
        go_on.set()
        running.stop()


def claimed(worker: SimulatedWorker) -> None:
    wait_until(lambda: worker.beat("idle") is not None and worker.claim() is not None, what="a claim")


def test_the_first_crossing_stands_and_what_runs_on_is_shown_apart(ctx: Context) -> None:
    analysis = {"inference": "full", "looks": {"mode": "planned", "at": [7, 14]}}
    spec = tiny_spec(experiment={"replicates": 14}, budget={"rounds": 1}, analysis=analysis)
    experiment_id = submit(ctx, spec)
    worker, late = SimulatedWorker(ctx).register(), SimulatedWorker(ctx, "w1")
    worker.accuracy = lambda arm, replicate: 60.0 + replicate + (5.0 if arm == "A" else 0.1 * replicate)
    late.accuracy = lambda arm, _: 0.0 if arm == "A" else 100.0
    with ctx.store.write() as session:
        first = experiments.blocks(session, experiment_id)[0]
        lost = Why("test", Cause.WORKER_LOST, "its worker is gone")
        assert blocks.finish_unassigned(session, ctx.store.now(session), first, Desired.CANCEL, lost)
    for _ in range(6):
        claimed(worker)
        worker.train(rounds=1)
    # seven blocks have ended, and six are complete: nothing is analysed
    assert finishing.finish_due(ctx) == 0
    assert reports.versions(ctx, experiment_id) == []
    claimed(worker)
    claimed(late.register())
    worker.train(rounds=1)
    assert finishing.finish_due(ctx) == 1
    look = reports.read(ctx, experiment_id).content
    assert (look["verdict"]["winner"], look["verdict"]["suffix"]) == ("A", "@look 1")
    late.train(rounds=1)
    assert finishing.finish_due(ctx) == 1
    final = reports.read(ctx, experiment_id).content
    for name in ("code", "winner", "suffix", "level", "p_max", "promotable", "flags"):
        assert final["verdict"][name] == look["verdict"][name]
    kept = ("p", "estimate", "ci_superiority", "ci_equivalence", "pairs", "verdict", "look")
    assert [final["comparisons"][0][k] for k in kept] == [look["comparisons"][0][k] for k in kept]
    assert (look["overrun"], final["overrun"]["blocks"]) == (None, [8])
    assert final["overrun"]["comparisons"][0]["pooled"] < 0 < final["overrun"]["comparisons"][0]["estimate"]
