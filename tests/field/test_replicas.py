"""Several API processes on one PostgreSQL database: what one writes the others tell, and any of them may end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.services.context import Context
from app.services.queue import leading
from app.store.database import migrate
from app.store.database.engine import Limits, Store
from app.store.database.notices import Notices
from lockstep.client import Client
from tests import postgres
from tests.conftest import Clock, LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.forks import at_once

ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
ROUNDS = 8
_END_LISTENERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %%' AND datname = %s"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.pg)])
def unmade(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without a schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new.db'}"
        return
    name = f"lockstep_unmade_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    yield postgres.fresh(name)
    postgres.drop(name)


def test_three_upgrades_at_once_all_succeed(unmade: str) -> None:
    def upgrade() -> None:
        with closing(Store(unmade)) as store:
            migrate.upgrade(store)

    with closing(Store(unmade)):  # makes the file
        pass
    assert at_once([upgrade] * 3) == ["", "", ""]
    with closing(Store(unmade)) as store:
        assert migrate.current_revision(store) == migrate.head_revision()


def test_one_process_leads_until_its_term_is_over_or_it_resigns(ctx: Context, clock: Clock) -> None:
    assert leading.is_leader(ctx, "a")
    assert not leading.is_leader(ctx, "b")
    leading.resign(ctx, "b")  # who does not lead gives up nothing
    clock.advance(3 * ctx.settings.sweep_seconds)
    assert leading.is_leader(ctx, "a")
    clock.advance(5 * ctx.settings.sweep_seconds)
    assert leading.is_leader(ctx, "b")
    assert not leading.is_leader(ctx, "a")
    leading.resign(ctx, "b")
    assert leading.is_leader(ctx, "a")
    clock.advance(-3600.0)  # a clock set back binds nobody for an hour
    assert leading.is_leader(ctx, "b")


@contextmanager
def heard(store: Store, count: int) -> Iterator[tuple[list[Notices], list[list[float]]]]:
    """So many processes' notices, and the moments at which each was woken."""
    woken: list[list[float]] = [[] for _ in range(count)]
    url = store.url.render_as_string(hide_password=False)
    told = [Notices(store, url, partial(_note, mine)) for mine in woken]
    for notices in told:
        notices.start()
    try:
        yield told, woken
    finally:
        for notices in told:
            notices.stop()


def _note(moments: list[float]) -> None:
    moments.append(time.monotonic())


@pytest.mark.pg
@ON_POSTGRESQL
def test_a_notice_wakes_the_others_and_comes_back_after_its_connection_was_cut(ctx: Context) -> None:
    with heard(ctx.store, 2) as (told, woken):
        wait_until(lambda: all(woken), what="both listening")
        for mine in woken:
            mine.clear()
        told[0].written.set()
        wait_until(lambda: woken[1], what="a notice")
        assert not woken[0]
        woken[1].clear()
        with postgres.admin() as connection:
            connection.execute(_END_LISTENERS, [ctx.store.url.database])
        wait_until(lambda: woken[1], what="listening anew, which wakes for what was missed")


class Viewer:
    """Follows an experiment from now on and keeps the rounds that it is told, in order."""

    def __init__(self, url: str, experiment_id: str) -> None:
        self.rounds: list[tuple[int, float]] = []
        self._url, self._id = url, experiment_id
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        assert self._connected.wait(60)  # rounds from before are points of its snapshot

    def _follow(self) -> None:
        with Client(self._url) as client:
            for frame in client.watch(self._id):
                self._connected.set()
                for point in frame.get("rounds", []):
                    self.rounds.append((point["round"], time.monotonic()))

    def ended(self) -> bool:
        return not self._thread.is_alive()


@pytest.mark.pg
@pytest.mark.server
@ON_POSTGRESQL
def test_viewers_of_one_process_see_each_round_of_another_once_while_that_one_restarts(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    a, b = make_server(database_url), make_server(database_url)
    rung = threading.Event()
    b.ctx.bell.subscribe(rung)
    a.ctx.bell.ring()
    assert rung.wait(60)  # nothing but a notice of the other one rings there
    experiment_id = submit(a.ctx, tiny_spec(budget={"rounds": ROUNDS}))
    viewer = Viewer(b.url, experiment_id)
    worker = SimulatedWorker(a.ctx).register()
    while worker.claim() is None:
        worker.beat("idle")
    worker.ready()
    for index in range(ROUNDS):
        if index == ROUNDS // 2:
            a.stop()
            a = make_server(database_url)
            worker.ctx = a.ctx
        worker.hand_in(index)
        worker.checkpoint(index + 1)
    worker.release()
    wait_until(viewer.ended, what="the end")
    assert [number for number, _ in viewer.rounds] == list(range(ROUNDS))


@pytest.mark.server
def test_a_server_ends_within_two_seconds_while_workers_wait(sqlite_template: Path, tmp_path: Path) -> None:
    shutil.copy(sqlite_template, tmp_path / "lockstep.db")
    command = [sys.executable, "-m", "app.cli.admin", "serve", "--port", "0"]
    environment = {**os.environ, "LOCKSTEP_DATA_DIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server,
        ExitStack() as left,
    ):
        left.callback(server.kill)  # whatever fails below
        assert server.stdout is not None
        assert server.stderr is not None
        url = server.stdout.readline().split()[-1].rstrip("/")
        with httpx.Client(base_url=f"{url}/api/v1/", timeout=60) as http:
            wait_until(lambda: _answers(http), what="the server")
            answers: list[int] = []
            waits = [threading.Thread(target=_claim, args=(http, number, answers)) for number in range(3)]
            for thread in waits:
                thread.start()
            wait_until(lambda: "lockstep_claim_seconds_count 3.0" in http.get(f"{url}/metrics").text, what="who waits")
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
            spent = time.monotonic() - began
            for thread in waits:
                thread.join()
        said = server.stderr.read()
    assert not any(word in said for word in ("Traceback", "graceful shutdown exceeded", "did not end within"))
    assert spent < 2.0
    assert answers == [204] * 3


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("queue").status_code == 200
    except httpx.TransportError:
        return False


def _claim(http: httpx.Client, number: int, answers: list[int]) -> None:
    device = {"uid": f"cpu:h:{number}", "kind": "cpu", "device_class": "c", "model": "m", "memory_bytes": 1}
    body = {"name": f"w{number}", "host": "h", "incarnation": "1", "device": device}
    worker_id = http.post("workers", json=body).json()["worker_id"]
    answers.append(http.post(f"workers/{worker_id}/claim", params={"wait": 25}).status_code)


@pytest.mark.pg
@pytest.mark.parametrize(("prepares", "names"), [(True, True), (False, False)])
def test_statements_are_prepared_unless_a_pooler_of_transactions_is_between(
    pg_url: str, prepares: bool, names: bool
) -> None:
    with closing(Store(pg_url, limits=Limits(prepares=prepares))) as store, store.engine.connect() as connection:
        for _ in range(20):
            connection.execute(text("SELECT count(*) FROM meta"))
        found = connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()
    assert (found > 0) is names


@pytest.mark.pg
def test_a_statement_that_takes_too_long_ends(pg_url: str) -> None:
    with closing(Store(pg_url, limits=Limits(statement_seconds=0.2))) as store:
        with pytest.raises(OperationalError, match="statement timeout"), store.read() as session:
            session.execute(text("SELECT pg_sleep(20)"))
        with store.read() as session:
            assert session.execute(text("SELECT 1")).scalar_one() == 1
