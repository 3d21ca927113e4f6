"""A database that is away or wrong ends every command with one sentence and code 3, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from app.cli.admin import app as command
from app.main import create_app
from app.settings import Settings
from app.store.database import migrate, opening
from app.store.database.engine import StartupError, Store
from tests import postgres

COMMANDS = [
    ["serve", "--port", "0"],
    ["doctor"],
    ["db", "upgrade"],
    ["db", "downgrade", "0001"],
    ["db", "restored"],
    ["token", "create", "--name", "x"],
    ["token", "list"],
    ["token", "revoke", "tok_0000"],
]
BY_NAME = pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
SECRET = "s3cret-word"


def run(arguments: list[str], url: str, folder: Path) -> str:
    """Run a command on a database and return the one sentence that it must end with."""
    environment = {"LOCKSTEP_DATABASE_URL": url, "LOCKSTEP_DATA_DIR": str(folder / "data")}
    result = CliRunner().invoke(command, arguments, env=environment)
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == 3
    assert SECRET not in result.output
    said = [line for line in result.stderr.splitlines() if line]
    assert len(said) == 1, said
    assert said[0].startswith("error: cannot use the database ")
    return said[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def refusing() -> Iterator[int]:
    """The port of a server that speaks just enough of PostgreSQL's protocol to refuse every password."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                _refuse_password(connection)

    thread = threading.Thread(target=answer)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _refuse_password(connection: socket.socket) -> None:
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


def server_url(**changes: object) -> str:
    """Return the URL of the test server with a password in it, changed."""
    url = make_url(postgres.URL).set(password=SECRET)
    return url.set(**changes).render_as_string(hide_password=False)  # type: ignore[arg-type]  # parts of a URL


@BY_NAME
def test_postgresql_refused_says_where_nothing_listens(arguments: list[str], tmp_path: Path) -> None:
    port = free_port()
    said = run(arguments, f"postgresql://ann:{SECRET}@127.0.0.1:{port}/db", tmp_path)
    assert f"postgresql://ann:***@127.0.0.1:{port}/db: nothing listens at 127.0.0.1:{port}; start PostgreSQL" in said


@BY_NAME
def test_postgresql_unknown_host_is_named(arguments: list[str], tmp_path: Path) -> None:
    said = run(arguments, f"postgresql+psycopg://ann:{SECRET}@db.invalid/lockstep", tmp_path)
    assert "the host db.invalid is not known" in said or "the host db.invalid has no address" in said


@BY_NAME
def test_postgresql_wrong_password_names_the_user(arguments: list[str], tmp_path: Path, refusing: int) -> None:
    said = run(arguments, f"postgres://ann:{SECRET}@127.0.0.1:{refusing}/db", tmp_path)
    assert "user 'ann' or the password is refused; correct them" in said


@pytest.mark.pg
@BY_NAME
def test_postgresql_wrong_name_is_told(arguments: list[str], tmp_path: Path, pg_url: str) -> None:
    said = run(arguments, server_url(database="no_such_database"), tmp_path)
    assert "the server has no database 'no_such_database'; create it" in said


@pytest.mark.pg
@BY_NAME
def test_postgresql_unknown_user_is_told(arguments: list[str], tmp_path: Path, pg_url: str) -> None:
    said = run(arguments, server_url(username="nobody_here"), tmp_path)
    assert "the server has no user 'nobody_here'" in said


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("localhost/lockstep", "it has no scheme"),
        ("mysql://ann:s3cret-word@host/db", "'mysql' is not served; use sqlite:////"),
        ("postgresql+asyncpg://ann:s3cret-word@host/db", "'postgresql+asyncpg' is not served"),
        ("sqlite+pysqlcipher://:s3cret-word@/x.db", "'sqlite+pysqlcipher' is not served"),
        ("postgresql://ann:s3cret-word@host:port/db", "not a URL with a number as its port"),
        ("postgresql://ann:x@y/s3cret-word@host/db", "@ as %40 and / as %2F"),
        ("postgresql://ann:s3cret-word@host:70000/db", "host and port cannot be read"),
        ("postgresql://host/db?user=ann&password=s3cret-word&port=1&host=127.0.0.1", "***"),
        ("sqlite://x.db", "a SQLite URL has three slashes"),
        ("sqlite://", "a database in memory is gone with its connection"),
        ("sqlite:///file:x?mode=memory&uri=true", "a database in memory is gone"),
    ],
)
@BY_NAME
def test_url_that_cannot_be_used_is_told(arguments: list[str], url: str, reason: str, tmp_path: Path) -> None:
    assert reason in run(arguments, url, tmp_path)


def missing_folder(folder: Path) -> tuple[Path, str]:
    return folder / "missing" / "x.db", f"there is no folder {folder / 'missing'}; make it"


def is_folder(folder: Path) -> tuple[Path, str]:
    return folder, f"{folder} is a folder; name a file in it"


def no_database(folder: Path) -> tuple[Path, str]:
    path = folder / "notes.txt"
    path.write_text("these are notes, not a database\n" * 100)
    return path, "is no SQLite database; move it away"


def damaged(folder: Path) -> tuple[Path, str]:
    path = folder / "damaged.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    return path, "the file is"


def not_writable(_: Path) -> tuple[Path, str]:
    return Path("/sys/x.db"), "correct the rights of"  # where even root makes no file


def folder_is_file(folder: Path) -> tuple[Path, str]:
    (folder / "file").write_text("")
    return folder / "file" / "x.db", "there is no folder"


@pytest.mark.parametrize("made", [missing_folder, is_folder, no_database, damaged, not_writable, folder_is_file])
@BY_NAME
def test_sqlite_path_that_cannot_be_used_is_told(
    arguments: list[str], made: Callable[[Path], tuple[Path, str]], tmp_path: Path
) -> None:
    path, reason = made(tmp_path)
    assert reason in run(arguments, f"sqlite:///{path}", tmp_path)


@BY_NAME
def test_schema_that_is_newer_is_refused_and_kept(arguments: list[str], database_url: str, tmp_path: Path) -> None:
    set_revision(database_url, "9999")
    assert "revision 9999, which this version does not know" in run(arguments, database_url, tmp_path)
    set_revision(database_url, migrate.head_revision())


@pytest.mark.pg
@pytest.mark.parametrize(
    "arguments", [item for item in COMMANDS if item[1:2] not in (["upgrade"], ["downgrade"])], ids=str
)
def test_schema_that_is_older_names_the_upgrade_on_postgresql(
    arguments: list[str], pg_url: str, tmp_path: Path
) -> None:
    set_revision(pg_url, "0001")
    try:
        assert "back it up (`pg_dump`), then run `lockstep db upgrade`" in run(arguments, pg_url, tmp_path)
    finally:
        set_revision(pg_url, migrate.head_revision())


def set_revision(url: str, revision: str) -> None:
    store = Store(url)
    with store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :number"), {"number": revision})
    store.close()


def test_downgrade_to_an_unknown_revision_names_those_there_are(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["db", "downgrade", "zero"], env={"LOCKSTEP_DATA_DIR": str(tmp_path)})
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "there is no revision 'zero'; name one of 0001, 0002" in result.stderr


def test_default_folder_is_made(tmp_path: Path) -> None:
    environment = {"LOCKSTEP_DATA_DIR": str(tmp_path / "a" / "100% of it?")}
    result = CliRunner().invoke(command, ["doctor"], env=environment)
    assert result.exit_code == 0
    assert (tmp_path / "a" / "100% of it?" / "lockstep.db").exists()


def test_default_folder_that_cannot_be_made_names_the_setting() -> None:
    result = CliRunner().invoke(command, ["doctor"], env={"LOCKSTEP_DATA_DIR": "/sys/lockstep"})
    assert result.exit_code == 3
    assert "set LOCKSTEP_DATA_DIR" in result.stderr


def test_data_folder_that_cannot_be_made_names_the_setting(database_url: str) -> None:
    environment = {"LOCKSTEP_DATABASE_URL": database_url, "LOCKSTEP_DATA_DIR": "/sys/lockstep"}
    result = CliRunner().invoke(command, ["serve", "--port", "0"], env=environment)
    assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1)
    assert "LOCKSTEP_DATA_DIR" in result.stderr


def said_at_start(settings: Settings) -> str:
    """Return what the application tells its server when it cannot start."""
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def start() -> None:
        await create_app(settings)({"type": "lifespan", "state": {}}, receive, send)

    with ThreadPoolExecutor(1) as thread, pytest.raises(StartupError):  # beside browser tests this one has a loop
        thread.submit(lambda: asyncio.run(start())).result()
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    return str(sent[0]["message"])


def test_server_that_loses_its_database_at_start_says_one_sentence(tmp_path: Path) -> None:
    """The command has checked the database before; here it is away when the application starts."""
    url = f"postgresql://ann:{SECRET}@127.0.0.1:{free_port()}/db"
    said = said_at_start(Settings(database_url=url, data_dir=tmp_path, log_level="error"))
    assert said.startswith("cannot use the database postgresql://ann:***@127.0.0.1")
    assert len(said.splitlines()) == 1


def fail_in_use(url: str) -> None:
    with opening.explained(url), closing(Store(url)) as store, store.read() as session:
        session.execute(text("SELECT 1 FROM no_such_table"))


def test_database_lost_while_a_command_uses_it_is_told(database_url: str) -> None:
    with pytest.raises(StartupError, match=r"cannot use the database .* see to the database"):
        fail_in_use(database_url)


def test_running_server_tells_a_lost_database_in_one_line() -> None:
    store = Store(f"postgresql+psycopg://ann@127.0.0.1:{free_port()}/db")
    with pytest.raises(OperationalError) as lost, store.read() as session:
        session.execute(text("SELECT 1"))
    assert "Connection refused" in str(opening.why_away(lost.value))
    assert opening.why_away(ValueError("ours")) is None


@pytest.mark.parametrize(("query", "seconds"), [("", 5), ("?connect_timeout=30", "30")])
def test_postgresql_connects_within_a_limit(query: str, seconds: object) -> None:
    store, seen = Store(f"postgresql+psycopg://ann@127.0.0.1:{free_port()}/db{query}"), []
    event.listen(store.engine, "do_connect", lambda *given: seen.append(given[3]["connect_timeout"]))
    with pytest.raises(StartupError), opening.explained("postgresql://ann@h/db"), store.read() as session:
        session.execute(text("SELECT 1"))
    assert seen == [seconds]


@pytest.mark.parametrize(
    ("given", "hidden"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p@q/r:s@h/d", "postgresql://u:***@h/d"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("postgresql://h/d?SSLPassword=p", "postgresql://h/d?SSLPassword=***"),
        ("https://u:p@h/d", "https://u:***@h/d"),
        ("https://ghp_1@h/d?sig=s&code=c&x=1", "https://***@h/d?sig=***&code=***&x=1"),
        ("postgresql://u:a\nb@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("sqlite:////data/x.db", "sqlite:////data/x.db"),
        ("", "''"),
    ],
)
def test_shown_hides_every_password(given: str, hidden: str) -> None:
    assert opening.shown(given) == hidden


def names_of(path: Path) -> list[str]:
    """Return URLs that all lead to one SQLite file."""
    link, folder = path.with_name("link.db"), path.parent.with_name("linked")
    link.symlink_to(path)
    folder.symlink_to(path.parent)
    return [
        f"sqlite:///{path}",
        f"sqlite+pysqlite:///{path}",
        f"sqlite:///{path}?timeout=7",
        f"sqlite:///file:{path}?mode=rwc&uri=true",
        f"sqlite:///file://{path}?uri=true",
        f"sqlite:///{link}",
        f"sqlite:///{folder / path.name}",
        f"sqlite:///{os.path.relpath(path)}",
        f"sqlite:///{path.parent}/../{path.parent.name}/{path.name}",
        f"  sqlite:///{path}\n",
    ]


def test_lock_is_the_same_by_every_name_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "db" / "lockstep.db"
    path.parent.mkdir()
    first, *others = names_of(path)
    held = opening.lock(first)
    assert held is not None
    for name in others:
        with pytest.raises(StartupError, match=f"lockstep.db.lock is held by pid {os.getpid()}"):
            opening.lock(name)
    held.release()
    for name in others:
        again = opening.lock(name)
        assert again is not None
        again.release()


@pytest.mark.parametrize("index", range(10))
def test_second_server_by_another_name_is_refused(index: int, tmp_path: Path) -> None:
    path = tmp_path / "db" / "lockstep.db"
    path.parent.mkdir()
    names = names_of(path)
    held = opening.lock(names[0])
    assert held is not None
    assert "SQLite serves one API process" in run(["serve", "--port", "0"], names[index], tmp_path)
    held.release()


def test_application_made_without_the_command_takes_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.db"
    held = opening.lock(f"sqlite:///{path}")
    assert held is not None
    settings = Settings(database_url=f"sqlite+pysqlite:///{path}?timeout=9", data_dir=tmp_path, log_level="error")
    assert "SQLite serves one API process" in said_at_start(settings)
    held.release()
