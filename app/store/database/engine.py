"""The engine for both databases: connection rules, transactions, the database clock.

SQLite facts this relies on: WAL is set once, when the file is made; a transaction that will write
begins with BEGIN IMMEDIATE, because a deferred one cannot be upgraded once its snapshot is stale;
writers inside the process queue on one fair lock so that busy time-outs are never reached.
"""

from __future__ import annotations

import copy
import math
import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import psycopg
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    create_engine,
    event,
    literal_column,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.orm import Session

from app.errors import BusyError
from app.errors import StartupError as StartupError
from app.store.database.folders import hand_over

_WRITE = "lockstep_write"
_MIGRATION_LOCK = 7_480_001
#: Key of ``session.info``: what a writing transaction does before it commits, by its place in the order of locks.
AT_THE_END = "at_the_end"
#: The order of locks among what is done at the end.
END_USAGE, END_EVENTS = range(2)
#: Key of ``session.info``: what the process keeps of this database from one session to the next, by name.
KEPT = "kept"
#: By dialect: a column that reads the database clock; ``Store.at`` tells what time it is then.
CLOCK: dict[str, ColumnElement[Any]] = {
    "postgresql": literal_column("extract(epoch from clock_timestamp())"),
    # unixepoch('subsec') yields NULL before SQLite 3.42, and a NULL expiry never passes
    "sqlite": literal_column("(julianday('now') - 2440587.5) * 86400.0"),
}
_NOW = {dialect: select(clock) for dialect, clock in CLOCK.items()}
_WRITER_WAIT_SECONDS = 5.0
#: Bytes that the write-ahead log of SQLite keeps between two checkpoints.
_LOG_BYTES = 64 * 2**20
_PING_AFTER_SECONDS = 1.0
_CONNECT_SECONDS = 5
#: For so long a session waits for a connection of its pool.
_POOL_SECONDS = 10
#: Connections of a store that is not a server's.
_ONE_POOL = 10
_SHARED_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "virtiofs", "fuse.sshfs", "vboxsf")


class FairLock:
    """A lock served in order of arrival, what is urgent before all else, with a time limit."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._urgent: deque[threading.Lock] = deque()
        self._waiting: deque[threading.Lock] = deque()
        self._held = False

    @contextmanager
    def hold(self, timeout: float, *, urgent: bool = False) -> Iterator[None]:
        """Hold the lock; raise ``BusyError`` after ``timeout`` seconds of waiting."""
        self._acquire(timeout, self._urgent if urgent else self._waiting)
        try:
            yield
        finally:
            self._release()

    def _acquire(self, timeout: float, queue: deque[threading.Lock]) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            queue.append(turn)
        if turn.acquire(timeout=timeout):
            return
        with self._mutex:
            if turn in queue:
                queue.remove(turn)
                raise BusyError("the database has been busy for 5 seconds; try again")
        turn.acquire()  # the turn was handed over while we gave up: it is ours

    def _release(self) -> None:
        with self._mutex:
            if queue := self._urgent or self._waiting:
                queue.popleft().release()
            else:
                self._held = False


class _CoreSession(Session):
    """A session of Core statements: they go to one connection without what the ORM prepares for each.

    The transaction is the connection's: the session begins none of its own, which would cost as much as two statements.
    """

    def __init__(self, core: Connection, info: dict[Any, Any]) -> None:
        super().__init__(core, info=info)
        self._core = core

    def execute(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """Execute a Core statement in the connection's transaction."""
        return self._core.execute(statement, params, **options)

    def connection(self, *_: Any, **__: Any) -> Connection:
        """Return the one connection."""
        return self._core


class Store:
    """Sessions on one database.

    Args:
        url: SQLAlchemy URL.
        new_id: makes identifiers, ``prefix_`` plus random text; injected in tests.
        limits: how PostgreSQL is spoken to.
        pools: connections for whom; None: one pool for all, as a command needs it.
        clock: what time it is, given what the database clock says; injected in tests, whose time stands or jumps.
    """

    def __init__(
        self,
        url: str,
        *,
        new_id: Callable[[str], str] | None = None,
        limits: Limits | None = None,
        pools: Pools | None = None,
        clock: Callable[[float], float] = float,
    ) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engines = self._make_engines(limits, pools)
        self.engine = self._engines["workers"]
        self.new_id = new_id or (lambda prefix: f"{prefix}_{secrets.token_hex(10)}")
        self._clock = clock
        self._kept: dict[str, Any] = {}
        self._writer = FairLock()
        self._write_engine = self.engine.execution_options(**{_WRITE: True})

    def _make_engines(self, limits: Limits | None, pools: Pools | None) -> dict[Lane, Engine]:
        url = self.url.render_as_string(hide_password=False)
        if pools is None:
            return dict.fromkeys(LANES, make_engine(url, is_sqlite=self.is_sqlite, limits=limits))
        sizes = pools.by_lane
        return {lane: make_engine(url, is_sqlite=self.is_sqlite, limits=limits, size=sizes[lane]) for lane in LANES}

    def on(self, lane: Lane) -> Store:
        """Return the same store on the connections of a lane."""
        other = copy.copy(self)
        other.engine = self._engines[lane]
        other._write_engine = other.engine.execution_options(**{_WRITE: True})
        return other

    def in_use(self) -> dict[Lane, int]:
        """Return how many connections of each lane sessions hold now."""
        return {lane: engine.pool.checkedout() for lane, engine in self._engines.items()}  # type: ignore[attr-defined]  # of QueuePool

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading; it never writes and holds nothing after the block."""
        with self.engine.connect() as connection:
            yield _CoreSession(connection, {KEPT: self._kept})

    @contextmanager
    def write(self, *, urgent: bool = False, bulk: bool = False) -> Iterator[Session]:
        """One writing transaction: commits at the end of the block, rolls back on an exception.

        Args:
            urgent: take the next turn of SQLite's one writer; for what is short and bounds a lease.
            bulk: take turns with other bulk writers of this process, on PostgreSQL too, so that what is short need
                not compete with all of them.
        """
        info: dict[str, Any] = {KEPT: self._kept, AT_THE_END: {}}
        with self._turn(urgent, bulk), self._write_engine.begin() as connection:
            session = _CoreSession(connection, info)
            yield session
            for _, act in sorted(info[AT_THE_END].items()):
                act(session)

    def _turn(self, urgent: bool, bulk: bool) -> AbstractContextManager[None]:
        """SQLite has one writer at a time; on PostgreSQL only bulk takes turns."""
        if self.is_sqlite or bulk:
            return self._writer.hold(_WRITER_WAIT_SECONDS, urgent=urgent)
        return nullcontext()

    def now(self, session: Session) -> float:
        """The database clock, seconds since 1970 UTC; the only clock that decides anything."""
        return self.at(session.execute(_NOW[self.dialect]).scalar_one())

    def at(self, read: Any) -> float:
        """What time it is, given what the database clock said when a column of ``CLOCK`` was read."""
        return self._clock(float(read))

    @property
    def dialect(self) -> str:
        """The name by which statements of one database are kept."""
        return "sqlite" if self.is_sqlite else "postgresql"

    def bound_log(self) -> None:
        """Empty a write-ahead log of SQLite that has outgrown its bound; readers that never pause let it grow."""
        path = sqlite_file(self.url)
        log = path.with_name(f"{path.name}-wal") if path is not None else None
        if log is not None and log.exists() and log.stat().st_size > _LOG_BYTES:
            with self._writer.hold(_WRITER_WAIT_SECONDS), self.engine.connect() as connection:
                connection.exec_driver_sql("COMMIT")  # no transaction: it would hold up what it asks for
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.exec_driver_sql("BEGIN")

    def close(self) -> None:
        """Close all connections."""
        for engine in self._engines.values():
            engine.dispose()


def utc(epoch: float) -> datetime:
    """Return the aware UTC instant of an epoch."""
    return datetime.fromtimestamp(epoch, tz=UTC)


def sqlite_module() -> ModuleType | Any:
    """Return the newest SQLite driver that is importable."""
    try:
        import pysqlite3.dbapi2 as newer
    except ImportError:
        return sqlite3
    return newer if newer.sqlite_version_info > sqlite3.sqlite_version_info else sqlite3


def sqlite_warning(version: tuple[int, ...]) -> str | None:
    """Return a warning when this SQLite has the WAL-reset defect, and refuse one too old.

    Raises:
        StartupError: below 3.35, which has no RETURNING.
    """
    text_version = ".".join(map(str, version))
    if version < (3, 35):
        raise StartupError(f"SQLite {text_version} is too old; install pysqlite3 or use PostgreSQL")
    if (3, 7, 0) <= version <= (3, 51, 2) and version not in ((3, 44, 6), (3, 50, 7)):
        return (
            f"SQLite {text_version} has the rare WAL-reset defect (fixed in 3.51.3); "
            "install pysqlite3, or use PostgreSQL in production"
        )
    return None


def check_local_disk(path: Path) -> None:
    """Refuse a database on a network or host-shared file system, where WAL corrupts.

    Raises:
        StartupError: with the file system's name.
    """
    kind = _file_system(path.absolute().parent)
    if kind in _SHARED_FILE_SYSTEMS:
        raise StartupError(
            f"{path} lies on {kind}; SQLite corrupts there. Use a local disk (a named volume in "
            "containers) or PostgreSQL"
        )


def _file_system(path: Path) -> str:
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts:
        _, where, fstype = line.split()[:3]
        inside = str(path) == where or str(path).startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, kind = where, fstype
    return kind


def sqlite_file(url: URL) -> Path | None:
    """Return the one absolute path of a SQLite file, however a URL names it; None for PostgreSQL and memory.

    Driver, query, relative path and symbolic link make no difference, so two processes that open one file agree.
    """
    named = url.database or ":memory:"
    if url.get_backend_name() != "sqlite":
        return None
    if named.startswith("file:") and url.query.get("uri"):
        if url.query.get("mode") == "memory":
            return None
        named = unquote(urlsplit(named).path)
    return None if named in ("", ":memory:") else Path(named).resolve()


@dataclass(frozen=True)
class Limits:
    """How PostgreSQL is spoken to.

    Attributes:
        prepares: whether statements are prepared by name; a pooler of transactions loses them.
        statement_seconds: after so long a statement ends; a third of it for waiting for a lock. None: no limit.
    """

    prepares: bool = True
    statement_seconds: float | None = 60.0


Lane = Literal["workers", "people", "exports"]
LANES: tuple[Lane, ...] = ("workers", "people", "exports")


@dataclass(frozen=True)
class Pools:
    """How many connections a server holds at most, and for whom: no lane takes those of another.

    Attributes:
        workers: for the calls of workers, the schedule and the sweep.
        people: for pages, live streams and the calls of people and scripts.
        exports: for exports, reports, webhooks and what is deleted.
    """

    workers: int
    people: int
    exports: int

    @property
    def by_lane(self) -> dict[Lane, int]:
        """The size of each pool."""
        return {"workers": self.workers, "people": self.people, "exports": self.exports}

    @property
    def total(self) -> int:
        """Connections of all pools together; a server that listens for notices has one more."""
        return self.workers + self.people + self.exports


def _connect_options(url: URL, limits: Limits | None) -> dict[str, Any]:
    """Return what the driver is given beside the URL, which wins."""
    # without a limit of its own libpq waits for the kernel's, two minutes and more
    options: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS}
    if limits is not None and not limits.prepares:
        options["prepare_threshold"] = None
    elif limits is not None and limits.statement_seconds is not None:
        # a pooler refuses options of a session: there they are set for the role
        milliseconds = round(1000 * limits.statement_seconds)
        told = {"statement_timeout": milliseconds, "lock_timeout": milliseconds // 3}
        told["idle_in_transaction_session_timeout"] = milliseconds
        options["options"] = " ".join(f"-c {name}={value}" for name, value in told.items())
    return {name: value for name, value in options.items() if name not in url.query}


def make_engine(url: str, *, is_sqlite: bool, limits: Limits | None = None, size: int = _ONE_POOL) -> Engine:
    """Return an engine with the rules of its database; one SQLite library per process, or locks break.

    Args:
        url: SQLAlchemy URL.
        is_sqlite: of which kind it is.
        limits: how PostgreSQL is spoken to.
        size: connections at most.
    """
    pool = {"pool_size": size, "max_overflow": 0, "pool_timeout": _POOL_SECONDS}
    parsed = make_url(url)
    if not is_sqlite:
        options = _connect_options(parsed, limits)
        engine = create_engine(url, connect_args=options, **pool)
        # many rows in one INSERT: the driver's executemany has a statement and a synchronisation for each
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "checkin", _note_idle)
        event.listen(engine, "checkout", _ping_after_idling)
        return engine
    path = sqlite_file(parsed)
    if path is not None:
        _create_file(path)
    engine = create_engine(
        url,
        module=sqlite_module(),
        connect_args={"check_same_thread": False, "timeout": 5},
        **pool,
    )
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


@contextmanager
def begun(engine: Engine, *, is_sqlite: bool) -> Iterator[Connection]:
    """A transaction that no other one of its kind runs beside: who comes second waits, and finds what the first did."""
    with engine.connect().execution_options(**{_WRITE: True}) as connection:
        if is_sqlite:
            # past SQLAlchemy, which would begin a transaction for it, and that is what may have to wait
            connection.connection.cursor().execute("PRAGMA busy_timeout=600000").close()
        with connection.begin():
            if not is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            yield connection


def _note_idle(_connection: Any, record: Any) -> None:
    record.info["idle_since"] = time.monotonic()


def _ping_after_idling(connection: Any, record: Any, _proxy: Any) -> None:
    """Replace a connection that the server has closed while it lay in the pool; one just used needs no ping.

    Raises:
        InvalidatePoolError: the pool drops it and its idle neighbours, which the server has closed with it.
    """
    if time.monotonic() - record.info.get("idle_since", float("inf")) < _PING_AFTER_SECONDS:
        return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except psycopg.Error as error:
        raise InvalidatePoolError from error


def _create_file(path: Path) -> None:
    check_local_disk(path)
    sqlite_warning(sqlite_module().sqlite_version_info)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    connection = sqlite_module().connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    hand_over(path)


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own BEGIN is deferred; ours is explicit
    connection.create_function("power", 2, math.pow, deterministic=True)  # which not every SQLite has
    cursor = connection.cursor()
    for pragma in (
        f"journal_size_limit={_LOG_BYTES}",
        "synchronous=NORMAL",
        "busy_timeout=5000",
        "foreign_keys=ON",
        "cache_size=-65536",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: Any) -> None:
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


class FileLock:
    """Exclusive lock on ``<db>.lock`` for the lifetime of the one API process on SQLite.

    Args:
        database: as ``sqlite_file`` has it, so that all names of one file lead to one lock.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StartupError: when another process holds it, naming that process.
        """
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        hand_over(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise StartupError(
                f"{self.path} is held by {holder}: SQLite serves one API process. Stop that one, or "
                "use PostgreSQL for several"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} since {time.strftime('%FT%TZ', time.gmtime())}".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
