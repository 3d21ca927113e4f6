"""Fixtures: real databases, a live server in a thread, real worker processes; no mocks of our own code.

With LOCKSTEP_NO_SKIP set (CI) a skipped test is a failure.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import delete, text

from app import serving
from app.cli.admin import listen
from app.main import create_app
from app.services.artifacts import FileStore
from app.services.context import Bell, Context
from app.services.operations import ensure_epoch
from app.settings import Settings
from app.store.database import engine, migrate
from app.store.database.engine import Store
from app.store.records.points import MetricNames
from app.store.schema.tables import metadata
from lockstep.client import Client
from tests import postgres

# before torch is loaded: runs are stacked on one thread only
os.environ.setdefault("OMP_NUM_THREADS", "1")

FAST = {
    "heartbeat_seconds": 0.5,
    "lease_ttl_seconds": 600.0,  # no lease ends because the machine is busy: a test of their end says when
    "sweep_seconds": 0.3,
    "tick_seconds": 0.2,
    "grace_seconds": 10.0,
    "backoff_seconds": 0.2,
    "live_hz": 20.0,
    "log_level": "error",
}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn a skip into a failure where skips are forbidden."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and os.environ.get("LOCKSTEP_NO_SKIP") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI forbids: {report.longrepr}"


@pytest.fixture(autouse=True, scope="session")
def _patient_writers() -> Iterator[None]:
    """Refuse nobody who waits for his turn to write because the machine is busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_WRITER_WAIT_SECONDS", 60.0)
        yield


def _database_name() -> str:
    return f"lockstep_test_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


@pytest.fixture(scope="session")
def pg_url() -> Iterator[str]:
    """A PostgreSQL database of this test process, at the newest revision."""
    if not postgres.is_there():
        pytest.skip(f"no PostgreSQL server at {postgres.URL}")
    url = postgres.fresh(_database_name())
    with postgres.admin() as connection:  # a commit need not reach the disk: no test cuts the power
        connection.execute(f'ALTER DATABASE "{_database_name()}" SET synchronous_commit = off')
    store = Store(url)
    migrate.upgrade(store)
    store.close()
    yield url
    postgres.drop(_database_name())


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy for each test."""
    path = tmp_path_factory.mktemp("template") / "lockstep.db"
    store = Store(f"sqlite:///{path}")
    migrate.upgrade(store)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return path


def empty_postgres(url: str) -> None:
    """Delete all rows; TRUNCATE makes every file anew, which costs over ten times as much on small tables."""
    store = Store(url)
    with store.write() as session:
        for table in reversed(metadata.sorted_tables):
            session.execute(delete(table))
        restart = "SELECT setval(quote_ident(sequencename)::regclass, 1, false) FROM pg_sequences"
        session.execute(text(f"{restart} WHERE schemaname = current_schema()"))
    store.close()


DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.pg)]


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database: once SQLite, once PostgreSQL."""
    if request.param == "sqlite":
        path = tmp_path / "lockstep.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("pg_url")
    empty_postgres(url)
    return url


class Clock:
    """The time of a test: it stands still at the database's first word until the test moves it.

    What takes long on a loaded machine ends no lease and no back-off.
    """

    def __init__(self) -> None:
        self.skew = 0.0
        self._start: float | None = None

    def __call__(self, at: float) -> float:
        """Return what time it is, given what the database clock says."""
        self._start = at if self._start is None else self._start
        return self._start + self.skew

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self.skew += seconds


@pytest.fixture
def clock() -> Clock:
    """The clock of ``ctx``."""
    return Clock()


@pytest.fixture
def ctx(database_url: str, tmp_path: Path, clock: Clock) -> Iterator[Context]:
    """A context of use cases on an empty database, with an injected clock and counted ids."""
    counter = iter(range(10**9))
    store = Store(database_url, new_id=lambda prefix: f"{prefix}_{next(counter):010d}", clock=clock)
    given = {**FAST, "lease_ttl_seconds": 2.5}
    settings = Settings(database_url=database_url, data_dir=tmp_path / "data", **given)  # type: ignore[arg-type]
    context = Context(store, settings, FileStore(tmp_path / "files"), MetricNames(), Bell())
    ensure_epoch(context)
    yield context
    store.close()


@dataclass
class LiveServer:
    """A running server."""

    url: str
    settings: Settings
    server: uvicorn.Server
    thread: threading.Thread
    app: Any

    @property
    def ctx(self) -> Context:
        """The context of the server's process."""
        context: Context = self.app.state.ctx
        return context

    def stop(self) -> None:
        """Shut down and wait."""
        self.server.should_exit = True
        self.thread.join(timeout=60)


class ThreadServer(serving.Server):
    """The server in a thread: it ends as one in a process does, but the process, which is that of the tests, stays."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End without the clock that ends a process which hangs."""
        await self.send_away()
        await uvicorn.Server.shutdown(self, sockets)


def start_server(settings: Settings, *, port: int = 0) -> LiveServer:
    """Run uvicorn in a thread on a port, 0 for a free one, and wait until it answers."""
    listener = listen(settings.model_copy(update={"port": port}))
    app = create_app(settings)
    server = ThreadServer(app, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    deadline = time.monotonic() + 60
    while not server.started:
        if time.monotonic() > deadline or not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.02)
    return LiveServer(url, settings, server, thread, app)


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """A factory of live servers; all are stopped at the end."""
    started: list[LiveServer] = []

    def make(url: str, **given: Any) -> LiveServer:
        settings = Settings(**{**FAST, "database_url": url, "data_dir": tmp_path / "data", **given})
        server = start_server(settings)
        started.append(server)
        return server

    yield make
    for server in started:
        server.stop()


@pytest.fixture
def server(make_server: Callable[..., LiveServer], database_url: str) -> LiveServer:
    """A live server on each database."""
    return make_server(database_url)


@pytest.fixture
def sqlite_server(make_server: Callable[..., LiveServer], sqlite_template: Path, tmp_path: Path) -> LiveServer:
    """A live server on SQLite only."""
    path = tmp_path / "lockstep.db"
    shutil.copy(sqlite_template, path)
    return make_server(f"sqlite:///{path}")


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    """An httpx client of the live server."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    """The project's own client of the live server."""
    with Client(server.url) as made:
        yield made


@dataclass
class WorkerProcess:
    """A real supervisor process."""

    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> None:
        """End it and its tree."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """A factory of real worker processes on CPU slots of their own lock folder."""
    started: list[WorkerProcess] = []

    def start(url: str, *arguments: str, device: str = "cpu") -> WorkerProcess:
        log = tmp_path / f"worker-{len(started)}.log"
        environment = {**os.environ, "LOCKSTEP_LOCK_DIR": str(tmp_path / "locks"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "worker", "--api", url, "--device", device]
        command += ["--work-dir", str(tmp_path / "work"), *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        worker = WorkerProcess(process, log)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()


def wait_until(condition: Callable[[], Any], *, timeout: float = 240.0, what: str = "condition") -> Any:
    """Poll until a condition is true and return its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s")
        time.sleep(0.05)
