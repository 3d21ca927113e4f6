"""Field lesson L67: what is deleted is gone after its time, rows and files; a disk that is nearly full takes none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.errors import BusyError, StartupError
from app.services import retention, steering
from app.services.artifacts import FileStore
from app.services.context import Context
from app.store.database.engine import sqlite_file
from app.store.schema import tables as t
from app.store.schema.tables import metadata
from tests.conftest import Clock
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

#: What outlives an experiment: who asked, who worked, who did what, the names of metrics.
KEPT = {"meta", "worker", "worker_event", "audit", "usage", "metric_name", "task_groups", "idempotency", "owner"}


def trained(ctx: Context, worker: SimulatedWorker) -> str:
    experiment_id = submit(ctx, tiny_spec())
    assert worker.claim() is not None
    worker.train(rounds=2)
    return experiment_id


def counts(ctx: Context) -> dict[str, int]:
    with ctx.store.read() as session:
        return {
            table.name: session.execute(select(func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
        }


def files(ctx: Context) -> set[str]:
    return {path.name for path in ctx.files.root.rglob("*") if len(path.name) == 64}


def age(folder: Path, seconds: float) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - seconds,) * 2)


def test_l67_what_was_deleted_is_gone_after_its_time_and_nothing_else(ctx: Context, clock: Clock) -> None:
    worker = SimulatedWorker(ctx).register()
    kept = trained(ctx, worker)
    of_kept, rows_of_kept = files(ctx), counts(ctx)
    gone = trained(ctx, worker)
    steering.delete(ctx, gone, LOCAL)
    age(ctx.files.root, 2 * retention.UNNAMED_SECONDS)
    clock.advance(86_400 * ctx.settings.deleted_retention_days - 60)
    assert retention.purge(ctx) == 0  # its time is not over: who deleted by mistake can be helped
    assert retention.collect_files(ctx) == 0
    clock.advance(120)
    assert retention.purge(ctx) == 1
    assert retention.purge(ctx) == 0
    assert retention.collect_files(ctx) > 0
    assert files(ctx) == of_kept
    left = counts(ctx)
    assert {
        name: (left[name], rows) for name, rows in rows_of_kept.items() if left[name] != rows and name not in KEPT
    } == {}
    with ctx.store.read() as session:
        assert list(session.execute(select(t.experiment.c.id)).scalars()) == [kept]


def test_a_file_that_has_no_row_yet_is_left_and_one_left_half_written_goes(ctx: Context) -> None:
    stored = ctx.files.put([b"just uploaded"], max_bytes=100)
    half = ctx.files.incoming / "half"
    half.write_bytes(b"x")
    assert retention.collect_files(ctx) == 0
    age(ctx.files.root, 2 * retention.UNNAMED_SECONDS)
    assert ctx.files.put([b"just uploaded"], max_bytes=100) == stored  # uploaded again: it is new again
    assert retention.collect_files(ctx) == 0
    assert not half.exists()
    assert files(ctx) == {stored.sha256}


def test_a_file_that_is_uploaded_again_while_old_ones_are_collected_stays(ctx: Context) -> None:
    for content in (b"again", b"gone"):
        ctx.files.put([content], max_bytes=100)
    age(ctx.files.root, 2 * retention.UNNAMED_SECONDS)
    listed = [sha256 for sha256, _ in ctx.files.older_than(retention.UNNAMED_SECONDS)]
    again = ctx.files.put([b"again"], max_bytes=100)  # its row comes next
    removed = [sha256 for sha256 in listed if ctx.files.remove(sha256, older_than=retention.UNNAMED_SECONDS)]
    assert removed == [sha256 for sha256 in listed if sha256 != again.sha256]
    assert files(ctx) == {again.sha256}


def test_a_disk_that_is_nearly_full_takes_no_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path, min_free_bytes=1000)
    store.put([b"x"], max_bytes=10)
    monkeypatch.setattr("app.store.database.folders.free_bytes", lambda _: 999)
    with pytest.raises(BusyError, match=r"MiB free, less than LOCKSTEP_MIN_FREE_BYTES .* make room"):
        store.put([b"x"], max_bytes=10)
    with pytest.raises(StartupError, match="make room"):
        store.check()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_write_ahead_log_that_has_grown_is_emptied(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sqlite_file(ctx.store.url)
    assert path is not None
    log = path.with_name(f"{path.name}-wal")
    submit(ctx)
    assert log.stat().st_size > 0
    ctx.store.bound_log()
    assert log.stat().st_size > 0  # within its bound
    monkeypatch.setattr("app.store.database.engine._LOG_BYTES", 0)
    ctx.store.bound_log()
    assert log.stat().st_size == 0
