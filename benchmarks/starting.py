"""What faults at start-up and on the network are told: docs/results/starting.md.

    python -m benchmarks.starting

Each command is called as the binary calls it, in this process; PostgreSQL must be there (tests/postgres.py says where).
Faults of disks and of other users need processes of their own: tests/field/test_starting.py.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import typer
from sqlalchemy import make_url, text
from typer.testing import CliRunner

import worker.__main__ as worker_command
from app.cli import admin, people
from app.cli.ends import ended_by
from app.store.database import migrate, opening
from app.store.database.engine import Store
from tests import postgres

TARGET = Path(__file__).parents[1] / "docs" / "results" / "starting.md"
HEAD = """# Faults at the start and what each is told

Made by `python -m benchmarks.starting`; a test makes them again and compares. Every command ends with one sentence that
names the setting and the remedy, with exit code 3 (a worker whose token the server refuses: 4), and without a secret.
"""
#: A word that stands for a secret: no sentence may hold it.
SECRET = "s3cret-word"
_TOKEN = f"lsk_{SECRET}"


@dataclass(frozen=True)
class World:
    """What the faults are made of.

    Attributes:
        folder: an empty folder.
        taken: a port on which another program listens.
        closed: a port on which nothing listens.
        postgres: URL of a database of the test server that is at the newest revision.
        refusing: port of a server that refuses every password as PostgreSQL does.
        pages: URL of a server that answers everything with a page, whose path says with which status.
    """

    folder: Path
    taken: int
    closed: int
    postgres: str
    refusing: int
    pages: str

    def server(self, **changes: object) -> str:
        """Return the URL of the database with a password, changed."""
        url = make_url(self.postgres).set(password=SECRET)
        return url.set(**changes).render_as_string(hide_password=False)  # type: ignore[arg-type]  # parts of a URL

    def file(self, name: str, content: bytes) -> str:
        """Return the path of a file that is made."""
        (self.folder / name).write_bytes(content)
        return str(self.folder / name)


@dataclass(frozen=True)
class Fault:
    """A fault: what is wrong in words, the command, and the environment that it meets."""

    wrong: str
    command: str
    environment: Callable[[World], Mapping[str, str]] = field(default=lambda _: {})
    code: int = 3


@dataclass(frozen=True)
class Told:
    """What a fault is told, with which exit code."""

    fault: Fault
    said: str
    code: int


def _database(**changes: object) -> Callable[[World], Mapping[str, str]]:
    return lambda world: {"LOCKSTEP_DATABASE_URL": world.server(**changes)}


def _url(form: str) -> Callable[[World], Mapping[str, str]]:
    return lambda world: {"LOCKSTEP_DATABASE_URL": form.format(**vars(world), secret=SECRET)}


def _env(**given: str) -> Callable[[World], Mapping[str, str]]:
    return lambda world: {name: value.format(**vars(world), secret=SECRET) for name, value in given.items()}


def _newer(world: World) -> Mapping[str, str]:
    _set_revision(world.postgres, "9999")
    return {"LOCKSTEP_DATABASE_URL": world.postgres}


def _older(world: World) -> Mapping[str, str]:
    _set_revision(world.postgres, "0001")
    return {"LOCKSTEP_DATABASE_URL": world.postgres}


def _foreign_file(world: World) -> Mapping[str, str]:
    return {"LOCKSTEP_DATABASE_URL": f"sqlite:///{world.file('notes.txt', b'notes, no database' * 100)}"}


def _damaged_file(world: World) -> Mapping[str, str]:
    return {"LOCKSTEP_DATABASE_URL": f"sqlite:///{world.file('damaged.db', b'SQLite format 3' + bytes(2000))}"}


def _token_file(content: bytes) -> Callable[[World], Mapping[str, str]]:
    return lambda world: {"TOKEN_FILE": world.file("token", content)}


FAULTS = (
    Fault(
        "nothing listens where the database should", "serve", _url("postgresql://ann:{secret}@127.0.0.1:{closed}/db")
    ),
    Fault("host of the database unknown", "db upgrade", _url("postgresql://ann:{secret}@db.invalid/lockstep")),
    Fault("no such database", "doctor", _database(database="no_such_database")),
    Fault("no such user of the database", "token list", _database(username="nobody_here")),
    Fault("wrong password", "serve", _url("postgres://ann:{secret}@127.0.0.1:{refusing}/db")),
    Fault("password with an @ in it", "serve", _url("postgresql://ann:p@{secret}@127.0.0.1/db")),
    Fault("a mode of TLS that there is not", "serve", _database(query={"sslmode": "on"})),
    Fault("TLS wanted of a server without", "doctor", _database(query={"sslmode": "require"})),
    Fault("a parameter that PostgreSQL does not know", "doctor", _database(query={"ssl": "true"})),
    Fault("a port that is no number", "doctor", _url("postgresql://ann:{secret}@host:port/db")),
    Fault("another database", "serve", _url("mysql://ann:{secret}@host/db")),
    Fault("another driver", "serve", _url("postgresql+asyncpg://ann:{secret}@host/db")),
    Fault("no scheme", "serve", _url("localhost/lockstep")),
    Fault("schema newer than the code", "serve", _newer),
    Fault("schema older than the code", "serve", _older),
    Fault("two slashes before a SQLite file", "db upgrade", _url("sqlite://data.db")),
    Fault("no folder for the SQLite file", "serve", _url("sqlite:///{folder}/missing/x.db")),
    Fault("a folder in place of the file", "doctor", _url("sqlite:///{folder}")),
    Fault("a file that is no database", "token list", _foreign_file),
    Fault("a damaged file", "doctor", _damaged_file),
    Fault("a home folder that there is not", "doctor", _url("sqlite:///~nobody-here/x.db")),
    Fault("a data folder in such a home", "serve", _env(LOCKSTEP_DATA_DIR="~nobody-here/data")),
    Fault("a data folder where none can be made", "serve", _env(LOCKSTEP_DATA_DIR="/sys/lockstep")),
    Fault("port taken", "serve", _env(LOCKSTEP_PORT="{taken}", LOCKSTEP_DATA_DIR="{folder}")),
    Fault(
        "an address of another machine",
        "serve --port 0",
        _env(LOCKSTEP_BIND="192.0.2.1", LOCKSTEP_AUTH="token", LOCKSTEP_DATA_DIR="{folder}"),
    ),
    Fault("what Kubernetes sets as the port", "serve", _env(LOCKSTEP_PORT="tcp://10.0.0.7:7480")),
    Fault("no authentication for all addresses", "serve", _env(LOCKSTEP_BIND="0.0.0.0")),
    Fault("no server", "list", _env(LOCKSTEP_URL="http://127.0.0.1:{closed}")),
    Fault("URL without scheme", "list", _env(LOCKSTEP_URL="localhost:7480")),
    Fault("a token as the URL", "list", _env(LOCKSTEP_URL=_TOKEN)),
    Fault("URL with a blank", "list", _env(LOCKSTEP_URL="http://local host:7480")),
    Fault("token with a line break inside", "list", _env(LOCKSTEP_TOKEN=f"{_TOKEN}\nx")),
    Fault("a proxy that is none", "list", _env(LOCKSTEP_URL="http://lab.invalid", ALL_PROXY="ftp://127.0.0.1")),
    Fault(
        "a proxy in the way",
        "list",
        _env(LOCKSTEP_URL="http://lab.invalid", http_proxy="http://ann:{secret}@127.0.0.1:{closed}"),
    ),
    Fault("a page in place of an answer", "list", _env(LOCKSTEP_URL="{pages}/200")),
    Fault("a proxy whose server is away", "list", _env(LOCKSTEP_URL="{pages}/502")),
    Fault("a sign-in page", "show exp_0001", _env(LOCKSTEP_URL="{pages}/302")),
    Fault("a worker's URL without scheme", "worker", _env(LOCKSTEP_URL="localhost:7480")),
    Fault(
        "a worker's token of two lines", "worker --token-file TOKEN_FILE", _token_file(f"{_TOKEN}\n{_TOKEN}\n".encode())
    ),
    Fault("a worker's empty file of a token", "worker --token-file TOKEN_FILE", _token_file(b"\n")),
    Fault("no file of a token", "worker --token-file /missing/token"),
    Fault("a worker's folder where none can be made", "worker", _env(LOCKSTEP_SPOOL_DIR="/sys/lockstep")),
    Fault("a folder of locks where none can be made", "worker --device cpu", _env(LOCKSTEP_LOCK_DIR="/sys/lockstep")),
    Fault("a size in words", "worker", _env(LOCKSTEP_SPOOL_MAX_BYTES="1G")),
    Fault("a level that there is not", "worker", _env(LOCKSTEP_LOG_LEVEL="loud")),
    Fault("a worker's server that is another program", "worker --device cpu", _env(LOCKSTEP_URL="{pages}/404")),
    Fault("a device that there is not", "worker --device GPU-0"),
)


def told(world: World) -> Iterator[Told]:
    """Make every fault and yield what is told."""
    for fault in FAULTS:
        given = dict(fault.environment(world))
        words = [given.pop(word, word) for word in fault.command.split()]
        given.setdefault("LOCKSTEP_LOCK_DIR", str(world.folder / "locks"))
        given.setdefault("LOCKSTEP_SPOOL_DIR", str(world.folder / "spool"))
        with _environment(given):
            said, code = _of_worker(words[1:]) if words[0] == "worker" else _of_command(words)
        _set_revision(world.postgres, migrate.head_revision())
        yield Told(fault, said.replace(str(world.folder), "/data"), code)


def _of_command(words: list[str]) -> tuple[str, int]:
    program: typer.Typer = people.app if words[0] in ("list", "show") else admin.app
    result = CliRunner().invoke(program, words)
    if isinstance(result.exception, Exception):
        ended = ended_by(result.exception)
        return ended if ended is not None else (f"Traceback: {result.exception!r}", 1)
    return result.stderr.strip(), result.exit_code


def _of_worker(words: list[str]) -> tuple[str, int]:
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        code = worker_command.run(words)
    return printed.getvalue().strip(), code


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    for name in before:
        if (name.startswith("LOCKSTEP_") and name != "LOCKSTEP_NO_SKIP") or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _set_revision(url: str, revision: str) -> None:
    with closing(Store(url)) as store, store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :number"), {"number": revision})


@contextmanager
def world(database: str, folder: Path) -> Iterator[World]:
    """Make what the faults need, for the block."""
    with ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            closed = probe.getsockname()[1]
        refusing, pages = stack.enter_context(_refusing()), stack.enter_context(_pages())
        yield World(folder, taken.getsockname()[1], closed, database, refusing, pages)


@contextmanager
def _refusing() -> Iterator[int]:
    """The port of a server that speaks just enough of PostgreSQL's protocol to refuse every password."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                _refuse(connection)

    thread = threading.Thread(target=answer)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _refuse(connection: socket.socket) -> None:
    encrypted = (80877103, 80877104)  # requests for TLS and GSS
    while True:
        length, version = struct.unpack("!ii", connection.recv(8))
        connection.recv(length - 8)
        if version not in encrypted:
            break
        connection.sendall(b"N")
    connection.sendall(b"R" + struct.pack("!ii", 8, 3))
    connection.recv(1024)
    fields = b'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "ann"\0\0'
    connection.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)


@contextmanager
def _pages() -> Iterator[str]:
    """The URL of a server whose answers are pages, with the status that the path begins with."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "nginx", ""

        def _answer(self) -> None:
            self.send_response(int(self.path.split("/")[1]))
            self.send_header("Content-Type", "text/html")
            self.send_header("Location", "https://sign-in.invalid/")
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b"<h1>page</h1>")

        do_GET = do_POST = _answer  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{listener.server_port}"
    listener.shutdown()
    listener.server_close()
    thread.join()


def page(found: list[Told], world: World) -> str:
    """Return the table; ports that differ from run to run have names."""
    place = make_url(world.postgres)
    names = {
        str(world.taken): "7480",
        str(world.closed): "5433",
        str(world.refusing): "5432",
        world.pages: "http://lab",
        str(place.database): "lockstep",
        f"{place.username}:***@{place.host}:{place.port}": "ann:***@db",
        f"{place.username}@{place.host}:{place.port}": "ann@db",
        f"{place.host}:{place.port}": "db:5432",
    }
    rows = []
    for number, item in enumerate(found, 1):
        said = item.said
        for name, shown in names.items():
            said = said.replace(name, shown)
        said = said.replace("|", "\\|").replace("\n", "<br>")
        rows.append(f"| {number} | {item.fault.wrong} | `lockstep {item.fault.command}` | {said} | {item.code} |")
    return "\n".join([HEAD, "| # | wrong | command | told | code |", "|---|---|---|---|---|", *rows, ""])


def main() -> None:
    """Write the page."""
    logging.disable(logging.WARNING)
    database = postgres.fresh("lockstep_starting")
    with closing(opening.connect(database)) as store:
        migrate.upgrade(store)
    try:
        with tempfile.TemporaryDirectory() as folder, world(database, Path(folder)) as made:
            found = list(told(made))
            TARGET.write_text(page(found, made), encoding="utf-8")
    finally:
        postgres.drop("lockstep_starting")
    print(f"{len(found)} faults in {TARGET}")


if __name__ == "__main__":
    main()
