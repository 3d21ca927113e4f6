"""Bucketed reading of series against ten plain lines, on both databases and on each way of reading."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.orm import Session

from app.services.context import Context
from app.store import experiments
from app.store.database.engine import utc
from app.store.records import points, series
from app.store.records.points import PointRow
from app.store.records.series import SeriesQuery
from app.store.schema import tables as t
from lockstep.nonfinite import to_column
from tests.factories import SimulatedWorker, submit, tiny_spec

_ODD = [math.nan, math.inf, -math.inf]


def drawn_points(seed: int, count: int, first_seq: int, round_: int, name_id: int) -> list[PointRow]:
    """Return points with gaps between their seqs, equal steps and non-finite values, a whole bucket of them."""
    draw = random.Random(seed)
    rows, seq = [], first_seq
    for index in range(count):
        seq += draw.choice([1, 1, 2, 7])
        odd = draw.random() < 0.1 or 40 <= index < 80
        value = draw.choice(_ODD) if odd else draw.uniform(-1e3, 1e3)
        step = float(draw.randrange(1000))
        rows.append(PointRow(seq, name_id, step, round_, index * 0.5, *to_column(value)))
    return rows


def plain_buckets(rows: Sequence[PointRow], max_points: int) -> dict[str, Any]:
    """The oracle: row i lies in bucket i * max_points // total."""
    total = len(rows)
    groups: dict[int, list[PointRow]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(index * max_points // total, []).append(row)
    finite = [[row.value for row in group if row.value is not None] for group in groups.values()]
    return {
        "x": [min(row.step for row in group) for group in groups.values()],
        "min": [min(values, default=None) for values in finite],
        "max": [max(values, default=None) for values in finite],
        "mean": [pytest.approx(math.fsum(values) / len(values)) if values else None for values in finite],
        "first": [group[0].value for group in groups.values()],
        "last": [group[-1].value for group in groups.values()],
        "count": [len(group) for group in groups.values()],
        "n_nonfinite": [sum(row.kind > 0 for row in group) for group in groups.values()],
        "total": total,
        "bucketed": True,
    }


def two_attempts(ctx: Context) -> tuple[int, int, list[PointRow], list[PointRow]]:
    """Return (run, name, points of attempt 1, of attempt 2); rounds from 2 on of the first are superseded."""
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    with ctx.store.write() as session:
        run = experiments.run(session, worker.held.runs[0].run_id)
        assert run is not None
        name_id, other = ctx.names.ids(session, ["sys/odd", "sys/other"])
        kept = drawn_points(1, 500, 0, 1, name_id)
        lost = drawn_points(2, 300, kept[-1].seq, 2, name_id)
        points.insert_points(session, run.no, 1, [*kept, *lost])
        points.insert_points(session, run.no, 1, drawn_points(3, 200, lost[-1].seq, 1, other))
        newer = drawn_points(4, 700, 0, 2, name_id)
        points.insert_points(session, run.no, 2, newer)
        session.execute(text("UPDATE run_attempt SET until_round = 2 WHERE run_no = :no"), {"no": run.no})
        session.execute(
            text(
                "INSERT INTO run_attempt (run_no, attempt, from_round, last_seq, started_at) "
                "SELECT run_no, 2, 2, 0, started_at FROM run_attempt WHERE run_no = :no"
            ),
            {"no": run.no},
        )
    return run.no, name_id, [*kept, *lost], newer


def one(session: Session, query: SeriesQuery) -> dict[str, Any]:
    return series.read_series(session, [query])[0]


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [name for name in wanted if found[name] != wanted[name]]


@pytest.mark.parametrize("in_memory", [250_000, 100], ids=["in_memory", "in_sql"])
def test_series_in_buckets_equals_the_plain_computation(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(series, "_IN_MEMORY_ROWS", in_memory)
    run_no, name_id, older, newer = two_attempts(ctx)
    current = [*(row for row in older if row.round < 2), *newer]
    everything = [*older, *newer]
    within = [row for row in current if 100 <= row.step <= 600]
    with ctx.store.read() as session:
        for max_points in (2, 33, 400, 1199):
            found = one(session, SeriesQuery(run_no, name_id, "step", max_points))
            assert difference(found, plain_buckets(current, max_points)) == []
        found = one(session, SeriesQuery(run_no, name_id, "step", 50, all_attempts=True))
        assert difference(found, plain_buckets(everything, 50)) == []
        found = one(session, SeriesQuery(run_no, name_id, "step", 50, 100.0, 600.0))
        assert difference(found, plain_buckets(within, 50)) == []


@pytest.mark.parametrize("x", ["step", "round", "time"])
def test_series_in_buckets_over_any_axis(ctx: Context, x: str) -> None:
    run_no, name_id, older, newer = two_attempts(ctx)
    current = [*(row for row in older if row.round < 2), *newer]
    axis: dict[str, list[float]] = {
        "step": [row.step for row in current],
        "round": [float(row.round) for row in current],
        "time": [row.t for row in current],
    }
    places = axis[x]
    with ctx.store.read() as session:
        found = one(session, SeriesQuery(run_no, name_id, x, 50))
    groups = [[p for i, p in enumerate(places) if i * 50 // len(places) == bucket] for bucket in range(50)]
    assert found["x"] == [min(group) for group in groups]


def test_series_that_shrank_since_it_was_counted_has_fewer_buckets() -> None:
    few = np.arange(5.0)
    assert series._reduced(few, few, 10)["count"] == [1] * 5
    assert series._reduced(few[:0], few[:0], 10)["total"] == 0


def test_series_that_fits_shows_every_point_with_its_kind(ctx: Context) -> None:
    run_no, name_id, older, newer = two_attempts(ctx)
    current = [*(row for row in older if row.round < 2), *newer]
    with ctx.store.read() as session:
        found = one(session, SeriesQuery(run_no, name_id, "time", len(current)))
    assert found["x"] == [row.t for row in current]
    assert found["min"] == found["last"] == [row.value for row in current]
    assert found["kind"] == [row.kind for row in current]
    assert (found["total"], found["bucketed"]) == (len(current), False)


def test_series_without_points_is_empty(ctx: Context) -> None:
    run_no, name_id, _, _ = two_attempts(ctx)
    with ctx.store.read() as session:
        found = one(session, SeriesQuery(run_no, name_id, "step", 10, 5_000.0))
    assert (found["x"], found["total"], found["bucketed"]) == ([], 0, False)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_series_reads_its_metric_by_index_not_the_whole_run(ctx: Context) -> None:
    """A run of fifty metrics must not pay for the other forty-nine."""
    run_no, name_id, _, _ = two_attempts(ctx)
    seen: list[tuple[str, Any]] = []
    event.listen(
        ctx.store.engine, "before_cursor_execute", lambda _c, _k, sql, given, _x, _m: seen.append((sql, given))
    )
    with ctx.store.read() as session:
        one(session, SeriesQuery(run_no, name_id, "step", 10))
        asked = [(sql, given) for sql, given in seen if "coalesce(point.value" in sql]
        driver = session.connection()
        plans = [str(driver.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given).all()) for sql, given in asked]
    assert len(plans) == 2  # one of each attempt
    assert all("ix_point_series" in plan and "B-TREE" not in plan for plan in plans)


@pytest.mark.parametrize("replicates", [2, 7])
def test_series_that_fit_cost_two_statements_for_any_number_of_runs(ctx: Context, replicates: int) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": replicates}))
    with ctx.store.write() as session:
        runs = experiments.runs(session, experiment_id)
        [name_id] = ctx.names.ids(session, ["sys/odd"])
        session.execute(
            insert(t.run_attempt),
            [{"run_no": run.no, "attempt": 1, "from_round": 0, "last_seq": 3, "started_at": utc(0.0)} for run in runs],
        )
        for run in runs:
            rows = [PointRow(seq, name_id, float(seq), seq, 0.0, float(run.no), 0) for seq in (1, 2, 3)]
            points.insert_points(session, run.no, 1, rows)
    seen: list[str] = []
    event.listen(ctx.store.engine, "before_cursor_execute", lambda _c, _k, sql, *_: seen.append(sql))
    with ctx.store.read() as session:
        found = series.read_series(session, [SeriesQuery(run.no, name_id, "round", 10) for run in runs])
    assert [one["mean"] for one in found] == [[float(run.no)] * 3 for run in runs]
    assert [one["x"] for one in found] == [[1, 2, 3]] * len(runs)
    # PostgreSQL's arrays come by the driver's own cursor, which no listener hears
    assert sum("point" in sql for sql in seen) == (2 if ctx.store.is_sqlite else 1)
