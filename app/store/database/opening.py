"""The one way to the database for ``serve``, ``db``, ``token`` and ``doctor``.

Whatever is wrong with the URL, the server, the file or the schema leaves here as one sentence that names the URL,
its password hidden, and the remedy. No command opens a ``Store`` of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import BusyError
from app.store.database import folders, migrate
from app.store.database.engine import (
    FileLock,
    Limits,
    Pools,
    StartupError,
    Store,
    sqlite_file,
    sqlite_module,
    sqlite_warning,
)
from lockstep.address import BadAddress, clean_path, hidden
from lockstep.logs import get_logger

_log = get_logger("server")
_OFFERED = text(
    "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
)
_SETTING = "LOCKSTEP_DATABASE_URL"
_EXAMPLES = "sqlite:////data/lockstep.db or postgresql+psycopg://user:password@host/name"
_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_ENCODE = "write special characters of the password percent-encoded, @ as %40 and / as %2F"
_UNKNOWN_HOST = ("name or service not known", "name resolution", "no address associated", "translate host name")
#: What a driver says, in lower case, and what that means for whoever set the URL.
_SAID = (
    ("connection refused", "nothing listens at {place}; start PostgreSQL there, or correct host and port"),
    ("no such file or directory", "nothing listens at {place}; start PostgreSQL there, or name a host"),
    *((words, "the host {host} is not known; correct it, or mend the name service") for words in _UNKNOWN_HOST),
    ("invalid sslmode", "sslmode is one of disable, allow, prefer, require, verify-ca and verify-full; correct it"),
    ("does not support ssl", "the server at {place} speaks no TLS; turn it on there, or set sslmode=prefer or disable"),
    (
        "root certificate",
        "the certificate of an authority is missing; name its file as sslrootcert, or set sslmode=require",
    ),
    ("certificate", "the certificate of {place} is refused; correct sslrootcert or the host, or set sslmode=require"),
    ("invalid connection option", "it has a parameter that PostgreSQL does not know; take it out"),
    ("startup parameter", "a pooler stands before it; set LOCKSTEP_PREPARED_STATEMENTS=off"),
    ("too many clients", "the server takes no more connections; end some, or raise its max_connections"),
    ("starting up", "the server is starting; try again"),
    ("timeout", "no answer from {place} in time; check host, port and what lies between"),
    ("unreachable", "{place} cannot be reached; check host, port and what lies between"),
    ("authentication failed", f"user {{user}} or the password is refused; correct them ({_ENCODE})"),
    ("no password supplied", "the server wants a password for user {user}; give one"),
    ("pg_hba.conf", "the server lets user {user} not in from here; allow it in its pg_hba.conf, or correct the user"),
    ('role "', "the server has no user {user}; create it, or correct the user"),
    ('database "', "the server has no database {database}; create it (`createdb`), or correct the name"),
    ("permission denied", "user {user} may not make or change tables there; grant it the rights"),
    ("locked", "another process has been writing to it for 5 seconds; stop that one, or try again"),
    ("readonly", "the file is not writable for this process; correct its rights, or name another file"),
    ("unable to open", "the file cannot be opened or made; correct the rights of its folder, or name another file"),
    ("not a database", "the file is no SQLite database; move it away, or name another file"),
    ("malformed", "the file is damaged; put a copy of it back (`lockstep db upgrade` keeps them beside it)"),
    ("disk is full", "the disk is full; make room"),
    ("disk i/o error", "its disk cannot be written or read; look for room, quota and hardware"),
)


class UnusableDatabase(StartupError):  # noqa: N818 - says what is wrong
    """The whole sentence: the URL, what is wrong with it, and the remedy."""


def shown(url: str) -> str:
    """Return a database URL as it may be shown, readable or not: without its password."""
    return hidden(url) or "''"


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what a database or its driver says inside of the block into one sentence.

    Raises:
        UnusableDatabase: in place of the error.
    """
    try:
        yield
    except (SQLAlchemyError, sqlite_module().Error) as error:
        raise UnusableDatabase(f"cannot use the database {shown(url)}: {_reason(url, error)}") from error


@contextmanager
def _named(url: str) -> Iterator[None]:
    """As ``explained``; and what this code refuses gets the URL before it."""
    try:
        with explained(url):
            yield
    except UnusableDatabase:
        raise
    except StartupError as error:
        raise UnusableDatabase(f"cannot use the database {shown(url)}: {error}") from error
    except OSError as error:  # a folder on the way that may not be entered
        told = f"{error.filename} cannot be reached ({error.strerror}); correct the rights on the way"
        raise UnusableDatabase(f"cannot use the database {shown(url)}: {told}, or {_SETTING}") from error


def is_busy(error: Exception) -> bool:
    """Return whether an error says that a place of the store was not free in time, and no more than that."""
    return isinstance(error, BusyError | PoolTimeout)


def why_away(error: BaseException) -> str | None:
    """Return in one line why the database of a running server does not answer; None for a fault of ours."""
    if not isinstance(error, OperationalError | InterfaceError | PoolTimeout):
        return None
    return " ".join(str(getattr(error, "orig", None) or error).split())[:300]


def open_store(
    url: str, *, make_folder: bool = False, limits: Limits | None = None, pools: Pools | None = None
) -> Store:
    """Open a database with the schema of this code: SQLite is migrated by itself, PostgreSQL must have been.

    Args:
        url: SQLAlchemy URL as set.
        make_folder: make the folder of a SQLite file; for the one that nobody named.
        limits: how PostgreSQL is spoken to.
        pools: connections of a server; None: those of a command.

    Raises:
        UnusableDatabase: with the sentence.
    """
    store = connect(url, make_folder=make_folder, limits=limits, pools=pools)
    try:
        with _named(url):
            _bring_up(store)
            if pools is not None and (limits is None or limits.prepares):
                _check_room(store, pools)
    except BaseException:
        store.close()
        raise
    return store


def _bring_up(store: Store) -> None:
    if store.is_sqlite:
        warning = sqlite_warning(sqlite_module().sqlite_version_info)
        if warning:
            _log.warning(warning)
        backup = migrate.upgrade(store)
        if backup is not None:
            _log.info("database migrated", backup=str(backup))
    elif not migrate.check(store):
        raise StartupError(
            "its schema is older than this version; back it up (`pg_dump`), then run `lockstep db upgrade`"
        )


def connections_offered(store: Store) -> int | None:
    """Return how many connections the server of the database has for all its clients; None on SQLite."""
    if store.is_sqlite:
        return None
    with store.read() as session:
        return int(session.execute(_OFFERED).scalar_one())


def _check_room(store: Store, pools: Pools) -> None:
    """Refuse pools that together are larger than the server of the database can ever serve."""
    offered = connections_offered(store)
    if offered is not None and pools.total + 1 > offered:
        sizes = ", ".join(f"LOCKSTEP_POOL_{lane.upper()} {size}" for lane, size in pools.by_lane.items())
        raise StartupError(
            f"this process may ask for {pools.total + 1} connections ({sizes}, and one that listens), and the server "
            f"has {offered} for all its clients (max_connections); lower the pools or raise that"
        )


def connect(
    database: str, *, make_folder: bool = False, limits: Limits | None = None, pools: Pools | None = None
) -> Store:
    """Open a database that answers, its schema old or new but for one that this code does not know.

    Raises:
        UnusableDatabase: with the sentence.
    """
    with _named(database):
        url = _parse(database)
        file = sqlite_file(url)
        if file is not None:
            _check_file(file, make_folder=make_folder)
        store = Store(url.render_as_string(hide_password=False), limits=limits, pools=pools)
        try:
            migrate.check(store)
        except BaseException:
            store.close()
            raise
        return store


def lock(url: str, *, make_folder: bool = False) -> FileLock | None:
    """Take the lock of the one API process on a SQLite file, by whatever URL or path it is named; None on PostgreSQL.

    Raises:
        UnusableDatabase: another process holds it, or the lock cannot be made.
    """
    with _named(url):
        file = sqlite_file(_parse(url))
        if file is None:
            return None
        _check_file(file, make_folder=make_folder)
        held = FileLock(file)
        try:
            held.acquire()
        except OSError as error:
            raise StartupError(
                f"its lock {held.path} cannot be made ({error.strerror}); correct the rights of the folder"
            ) from error
        return held


def _parse(given: str) -> URL:
    """Return the URL, with the one driver that each database has here."""
    if "://" not in given:
        raise StartupError(f"it has no scheme; set {_SETTING} to something like {_EXAMPLES}")
    try:
        url = make_url(given.strip())
    except (ArgumentError, ValueError) as error:
        raise StartupError(f"it is not a URL with a number as its port; correct {_SETTING} ({_ENCODE})") from error
    if url.drivername not in _DRIVERS:
        raise StartupError(f"{url.drivername!r} is not served; use {_EXAMPLES} in {_SETTING}")
    url = url.set(drivername=_DRIVERS[url.drivername])
    if url.get_backend_name() == "sqlite":
        return _at_home(url)
    if "@" in f"{url.host or ''}{url.database or ''}" or not 0 < (url.port or 1) < 65_536:
        raise StartupError(f"its host and port cannot be read; correct {_SETTING} ({_ENCODE})")
    return url


def _at_home(url: URL) -> URL:
    """Return the URL of a SQLite file with the home folder in place of a ``~``."""
    _check_sqlite(url)
    if (url.database or "").startswith("~"):
        try:
            return url.set(database=str(clean_path(url.database or "")))
        except BadAddress as error:
            raise StartupError(f"{error} ({_SETTING})") from error
    return url


def _check_sqlite(url: URL) -> None:
    if url.host or url.username:
        raise StartupError(f"a SQLite URL has three slashes, and four before an absolute path; correct {_SETTING}")
    if sqlite_file(url) is None:
        raise StartupError(f"a database in memory is gone with its connection; name a file in {_SETTING}")


def _check_file(file: Path, *, make_folder: bool) -> None:
    """Refuse a path that cannot hold the database, before SQLite says less about it."""
    folder = file.parent
    if make_folder:
        folders.make_folder(folder, "LOCKSTEP_DATA_DIR")
    if not folder.is_dir():
        raise StartupError(f"there is no folder {folder}; make it (`mkdir -p`), or correct {_SETTING}")
    if file.is_dir():
        raise StartupError(f"{file} is a folder; name a file in it in {_SETTING}")
    folders.check_writable(folder, "LOCKSTEP_DATA_DIR" if make_folder else _SETTING)
    if file.exists():
        _check_content(file)


def _check_content(file: Path) -> None:
    for part in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm", ".lock"))):
        if part.exists() and not os.access(part, os.R_OK | os.W_OK):
            raise StartupError(f"{part} {folders.unwritable(part)}")
    with file.open("rb") as opened:
        start = opened.read(16)
    if start and start != b"SQLite format 3\0":
        raise StartupError(f"{file} is no SQLite database; move it away, or name another file in {_SETTING}")


def _reason(database: str, error: Exception) -> str:
    """Return what an error means and what to do, in words without a password."""
    said = str(getattr(error, "orig", None) or error)
    url = _parse(database)
    named = {
        "place": f"{url.host}:{url.port or 5432}" if url.host else "the local socket",
        "host": url.host or "",
        "user": repr(url.username or ""),
        "database": repr(url.database or ""),
    }
    for words, meaning in _SAID:
        if words in said.lower():
            return f"{meaning.format(**named)} ({_SETTING})"
    last = said.strip().splitlines()[-1] if said.strip() else type(error).__name__
    last = last.replace(str(url.password), "***") if url.password else last
    return f"{' '.join(last.split())[:300]}; correct {_SETTING}, or see to the database"
