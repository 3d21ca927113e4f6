"""Commands for operators: server, database, tokens, demonstration. They need the extra ``server``."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from app.cli.demo import DEMO_SPEC, run_demo
from app.cli.doctor import ask_server, is_named, plugins_here, plugins_of, pools_text
from app.cli.ends import fail, run, within
from app.errors import AppError
from app.main import create_app, open_store
from app.services import access
from app.services.artifacts import FileStore
from app.services.context import Actor, Bell, Context
from app.services.operations import ensure_epoch, renew_epoch
from app.serving import Server
from app.settings import DATABASE_FILE, Settings
from app.store.database import migrate, opening
from app.store.database.engine import Limits, StartupError, Store, sqlite_module, sqlite_warning
from app.store.queue import scheduling, workers
from app.store.records.points import MetricNames
from app.store.rows.workers import WorkerRow
from lockstep.direction import isolated
from lockstep.quoting import quoted
from lockstep.spec.text.faults import sentence
from lockstep.status import WorkerStatus
from lockstep.text import check_line

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Commands for operators.")
database = typer.Typer(no_args_is_help=True, help="Schema of the database.")
token = typer.Typer(no_args_is_help=True, help="Access tokens.")
app.add_typer(database, name="db")
app.add_typer(token, name="token")
_OPERATOR = Actor("command line", access.LOCAL)
#: For so long what was sent may wait for a client to take it; the server itself has given it up after half of that.
_UNTAKEN_SECONDS = 120
#: Exit code where settings, database, folder or address cannot be used.
UNUSABLE = 3


def load_settings(**overrides: Any) -> Settings:
    """Return the settings; a wrong one ends the process with code 3 and a sentence."""
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        for item in error.errors():
            name = "LOCKSTEP_" + "_".join(str(part) for part in item["loc"]).upper() if item["loc"] else "settings"
            typer.echo("{}; {}".format(*sentence(name, [item])), err=True)
        raise typer.Exit(UNUSABLE) from error


@app.command()
def serve(
    bind: Annotated[
        str | None, typer.Option(help="Address to listen on; default LOCKSTEP_BIND, else 127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(parser=within(0, 65_535), help="Port; 0: a free one, printed; default LOCKSTEP_PORT, else 7480"),
    ] = None,
) -> None:
    """Run the API, the live streams and the pages in one process."""
    settings = load_settings(bind=bind, port=port)
    try:
        _preflight(settings)
        listener = listen(settings)
    except (StartupError, OSError) as error:
        raise fail(error, UNUSABLE) from error
    host, actual = listener.getsockname()[:2]
    if settings.host_warning is not None:
        typer.echo(f"warning: {settings.host_warning}", err=True)
    shown = f"[{host}]" if ":" in host else host
    server = Server(
        create_app(settings), settings, partial(_say_where, f"http://{shown}:{actual}{settings.base_path}/")
    )
    server.run(sockets=[listener])
    raise typer.Exit(0 if server.started else UNUSABLE)


def _say_where(url: str) -> None:
    typer.echo(f"Lockstep listens on {url}")
    sys.stdout.flush()


def _preflight(settings: Settings) -> None:
    lock = opening.lock(settings.url, make_folder=not settings.database_url)
    if lock is not None:
        lock.release()
    open_store(settings).close()
    FileStore.of(settings)


def listen(settings: Settings) -> socket.socket:
    """Return a socket bound as the settings say.

    Raises:
        OSError: the address is taken, or is none of this machine; the message names a way out.
    """
    family = socket.AF_INET6 if ":" in settings.bind else socket.AF_INET
    # asyncio sends without delay (TCP_NODELAY) only where the protocol is named; else each body waits 40 ms for an ACK
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":  # inherited by connections: the kernel ends one whose client takes nothing for so long
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNTAKEN_SECONDS)
    try:
        listener.bind((settings.bind, settings.port))
    except OSError as error:
        listener.close()
        told = f"cannot listen on {settings.bind}:{settings.port} ({error.strerror})"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise OSError(f"{told}; name an address of this machine with --bind or LOCKSTEP_BIND") from error
        raise OSError(f"{told}; choose another with --port, or --port 0 for a free one") from error
    return listener


@contextmanager
def opened(*, any_schema: bool = False) -> Iterator[tuple[Settings, Store]]:
    """Settings and store for the block; a database that cannot be used, or is lost, ends with a sentence and code 3."""
    settings = load_settings()
    try:
        if any_schema:
            limits = Limits(settings.prepared_statements, None)  # a migration takes as long as it takes
            store = opening.connect(settings.url, make_folder=not settings.database_url, limits=limits)
        else:
            store = open_store(settings)
        with closing(store), opening.explained(settings.url):
            yield settings, store
    except StartupError as error:
        raise fail(error, UNUSABLE) from error


@contextmanager
def _context() -> Iterator[Context]:
    with opened() as (settings, store):
        ctx = Context(
            store,
            settings,
            FileStore.of(settings),
            MetricNames(),
            Bell(),
        )
        ensure_epoch(ctx)
        yield ctx


@database.command("upgrade")
def db_upgrade() -> None:
    """Bring the database to the newest revision; a SQLite file is copied first."""
    with opened(any_schema=True) as (_, store):
        backup = migrate.upgrade(store)
    typer.echo(f"at revision {migrate.head_revision()}" + (f"; copy kept at {backup}" if backup else ""))


@database.command("downgrade")
def db_downgrade(revision: Annotated[str, typer.Argument(help="Number of the revision, for example 0006")]) -> None:
    """Take the database back to a revision."""
    if revision not in (known := migrate.revisions()):
        raise fail(ValueError(f"there is no revision {revision!r}; name one of {', '.join(known)}"), 2)
    with opened(any_schema=True) as (_, store):
        migrate.downgrade(store, revision)
    typer.echo(f"at revision {revision}")


@database.command("restored")
def db_restored() -> None:
    """Say that the database was restored from a copy: live readers start anew."""
    with _context() as ctx:
        renew_epoch(ctx)
    typer.echo("the epoch was renewed")


@token.command("create")
def token_create(
    name: Annotated[str, typer.Option(help="Who or what holds it")],
    role: Annotated[str, typer.Option(help=f"one of {', '.join(access.ROLES)}")] = "submitter",
    days: Annotated[
        float | None,
        typer.Option(parser=within(0.001, 3650.0), help="Days for which it is valid; default: until revoked"),
    ] = None,
    like: Annotated[str | None, typer.Option(help="Id of a token whose owner holds this one, too")] = None,
) -> None:
    """Create a token; its secret is printed once. It has an owner of its own, unless it is like another token."""
    if role not in access.ROLES:
        raise fail(ValueError(f"unknown role {quoted(role)}; use one of {', '.join(access.ROLES)}"), 2)
    try:
        check_line(name)
    except ValueError as error:
        raise fail(ValueError(f"--name: {error}"), 2) from error
    with _context() as ctx:
        try:
            made = access.create(ctx, name, role, days, _OPERATOR, like=like)
        except AppError as error:
            raise fail(f"--like: {error.detail}", 1) from error
    typer.echo(made.secret)


@token.command("list")
def token_list(as_json: Annotated[bool, typer.Option("--json", help="As JSON")] = False) -> None:
    """List tokens without their secrets: role, state, when each one expires and was last used."""
    with _context() as ctx:
        rows = access.listing(ctx)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        ends = f"expires {_minute(row['expires_at'])}" if row["expires_at"] else "never expires"
        used = f"used {_minute(row['last_used_at'])}" if row["last_used_at"] else "never used"
        shared = f"  owner {row['owner_id']}" if row["owner_id"] != row["id"] else ""
        head = f"{row['id']}  {row['prefix']}..  {row['role']:9}  {row['state']:7}"
        typer.echo(f"{head}  {ends:24}  {used:21}  {isolated(row['name'])}{shared}")


def _minute(text: str) -> str:
    return text[:16].replace("T", " ")


@token.command("revoke")
def token_revoke(
    token_id: Annotated[str, typer.Argument(help="Token id, as `lockstep token list` shows it")],
) -> None:
    """Revoke a token."""
    with _context() as ctx:
        try:
            access.revoke(ctx, token_id, _OPERATOR)
        except AppError as error:
            raise fail(error.detail, 1) from error
    typer.echo("revoked")


@app.command()
def doctor(
    url: Annotated[
        str | None, typer.Option(help="Server to ask as well; default LOCKSTEP_URL, else http://127.0.0.1:7480")
    ] = None,
) -> None:
    """Check settings, database, libraries and plug-ins here and the server that commands ask, and say what to mend."""
    if url is not None:
        os.environ["LOCKSTEP_URL"] = url
    epoch, rows = _look_here()
    for line in [*plugins_here(), *(line for row in rows for line in plugins_of(row))] or ["plug-ins: none"]:
        typer.echo(line)
    asked = ask_server(epoch)
    for line in asked.lines:
        typer.echo(line)
    raise typer.Exit(asked.code)


def _look_here() -> tuple[str | None, list[WorkerRow]]:
    """Say how settings and database are; return the epoch of the database, None where there is none, and its workers.

    Beside a server that is named, a database that is not there yet is not made.
    """
    settings = load_settings()
    module = sqlite_module()
    typer.echo(f"settings: ok (a server started with them binds {settings.bind}:{settings.port}, auth {settings.auth})")
    if is_named() and not settings.database_url and not (settings.data_dir / DATABASE_FILE).exists():
        typer.echo(f"database of these settings, {opening.shown(settings.url)}: not made yet, and not looked at")
        return None, []
    with opened() as (_, store), store.read() as session:
        typer.echo(f"pools: {pools_text(settings, opening.connections_offered(store))}")
        typer.echo(f"sqlite {module.sqlite_version}: {sqlite_warning(module.sqlite_version_info) or 'ok'}")
        where = f"database of these settings, {opening.shown(settings.url)}"
        typer.echo(f"{where}: ok, clock {store.now(session):.0f}, revision {migrate.current_revision(store)}")
        listed = {row.id: row for row in workers.listing(session)}  # one of several rows, where it holds several blocks
        epoch = scheduling.get_meta(session, "server_epoch")
    return epoch, [row for row in listed.values() if row.status != WorkerStatus.RETIRED]


@app.command()
def demo(
    spec: Annotated[
        Path, typer.Option(exists=True, show_default="CartPole, two learning rates", help="Specification to submit")
    ] = DEMO_SPEC,
    workers: Annotated[int, typer.Option(parser=within(1, 64), help="Workers to start, each on a CPU")] = 2,
    port: Annotated[
        int | None, typer.Option(parser=within(0, 65_535), help="Port; default 7480, or a free one where that is taken")
    ] = None,
) -> None:
    """Run the whole product on this machine once: server, workers, experiment, verdict."""
    run_demo(spec, load_settings(port=port), num_workers=workers)


if __name__ == "__main__":
    run(app, sys.argv[1:])
