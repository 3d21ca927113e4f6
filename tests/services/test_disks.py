"""A server whose own disk lacks a checkpoint asks the others before it is given up for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import BusyError, NotFoundError
from app.services import disks
from app.services.artifacts import FileStore
from app.services.context import Context
from app.services.training import ingest
from app.store.queue import scheduling
from tests.conftest import Clock
from tests.factories import SimulatedWorker, submit, tiny_spec


@pytest.fixture
def other(ctx: Context, tmp_path: Path) -> Context:
    """Another server on the same database, with a disk of its own."""
    return replace(ctx, files=FileStore(tmp_path / "other"))


@pytest.fixture
def resumed(ctx: Context) -> SimulatedWorker:
    """A worker that is to resume from a checkpoint on the first server's disk."""
    submit(ctx, tiny_spec(budget={"rounds": 3}))
    worker = SimulatedWorker(ctx).register()
    assert worker.claim() is not None
    worker.ready()
    worker.hand_in(0)
    worker.checkpoint(1)
    worker.release("stopped", "preempted", "moved")
    assert worker.claim() is not None
    assert worker.held.resume_round == 1
    return worker


def download(server: Context, worker: SimulatedWorker) -> bytes:
    [first, *_] = [run.checkpoint for run in worker.held.runs if run.checkpoint is not None]
    return ingest.read_file(server, worker.held.assignment_id, worker.held.lease, first.sha256)


def test_a_checkpoint_on_another_disk_is_waited_for_and_kept(
    ctx: Context, other: Context, resumed: SimulatedWorker
) -> None:
    for server in (ctx, other):
        disks.announce(server)
    for _ in range(2):
        with pytest.raises(BusyError, match="not on this server's disk, and the other servers are asked; give all of"):
            download(other, resumed)
        disks.announce(ctx)  # it has the file, so it does not say that it lacks it
    assert download(ctx, resumed)
    disks.announce(ctx)
    with ctx.store.read() as session:
        left = [*scheduling.metas(session, "lacking:"), *scheduling.metas(session, "since:")]
    assert left == []  # nothing is left of the question


def test_a_damaged_file_is_given_up_though_its_server_still_has_it(
    ctx: Context, other: Context, resumed: SimulatedWorker
) -> None:
    for server in (ctx, other):
        disks.announce(server)
    for run in resumed.held.runs:
        assert run.checkpoint is not None
        ctx.files.path(run.checkpoint.sha256).write_bytes(b"damaged")
    with pytest.raises(BusyError):
        download(ctx, resumed)
    for server in (other, ctx):
        disks.announce(server)
    with pytest.raises(NotFoundError):
        download(ctx, resumed)


def ask_for_what_no_disk_has(ctx: Context, other: Context, resumed: SimulatedWorker) -> None:
    """Have the second of two servers asked for checkpoints that have been lost."""
    for server in (ctx, other):
        disks.announce(server)
    for run in resumed.held.runs:
        assert run.checkpoint is not None
        ctx.files.remove(run.checkpoint.sha256)
    with pytest.raises(BusyError):
        download(other, resumed)


def test_a_checkpoint_that_no_disk_has_is_given_up_once_all_have_been_asked(
    ctx: Context, other: Context, resumed: SimulatedWorker, clock: Clock
) -> None:
    ask_for_what_no_disk_has(ctx, other, resumed)
    disks.announce(ctx)
    with pytest.raises(NotFoundError, match="is damaged on the server; the next attempt resumes from the one before"):
        download(other, resumed)


def test_a_server_that_is_gone_is_not_asked(
    ctx: Context, other: Context, resumed: SimulatedWorker, clock: Clock
) -> None:
    for server in (ctx, other):
        disks.announce(server)
    clock.advance(100 * ctx.settings.sweep_seconds)
    disks.announce(other)
    with pytest.raises(NotFoundError):
        download(other, resumed)


def test_a_question_that_nobody_comes_back_for_is_dropped_after_a_day(
    ctx: Context, other: Context, resumed: SimulatedWorker, clock: Clock
) -> None:
    def notes() -> list[str]:
        with ctx.store.read() as session:
            return [*scheduling.metas(session, "lacking:"), *scheduling.metas(session, "since:")]

    ask_for_what_no_disk_has(ctx, other, resumed)
    disks.announce(ctx)
    assert len(notes()) == 2
    clock.advance(86_300.0)
    disks.announce(ctx)
    assert len(notes()) == 2
    clock.advance(200.0)
    disks.announce(ctx)
    assert notes() == []


def test_servers_that_share_a_folder_have_one_name_for_it(ctx: Context) -> None:
    assert FileStore(ctx.files.root).identity == ctx.files.identity


def test_nothing_is_kept_of_a_disk_that_was_not_there_for_a_day(ctx: Context, other: Context, clock: Clock) -> None:
    disks.announce(other)
    clock.advance(2 * 86_400.0)
    disks.announce(ctx)
    with ctx.store.read() as session:
        assert list(scheduling.metas(session, "disk:")) == [f"disk:{ctx.files.identity}"]
