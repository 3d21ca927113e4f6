"""Migrations up, check and down on both databases with rows in them; a newer database is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import event, func, inspect, select, text
from sqlalchemy.exc import IntegrityError

from app.errors import ForbiddenError
from app.main import open_store
from app.services import access, steering
from app.services.artifacts import FileStore
from app.services.context import Bell, Context
from app.services.results.finishing import finish_due
from app.settings import Settings
from app.store.database import migrate
from app.store.database.engine import StartupError, Store, begun, make_engine, sqlite_module
from app.store.records.points import MetricNames
from app.store.schema import tables as t
from lockstep.status import Desired
from tests import postgres
from tests.factories import LOCAL, SimulatedWorker, submit

NAME = f"lockstep_migrations_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.pg)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on a database without any schema."""
    if request.param == "sqlite":
        store = Store(f"sqlite:///{tmp_path / 'lockstep.db'}")
        yield store
        store.close()
        return
    if not postgres.is_there():
        pytest.skip(f"no PostgreSQL server at {postgres.URL}")
    store = Store(postgres.fresh(NAME))
    yield store
    store.close()
    postgres.drop(NAME)


def url_of(store: Store) -> str:
    return store.url.render_as_string(hide_password=False)


def test_upgrade_matches_the_tables_of_the_code(empty: Store) -> None:
    migrate.upgrade(empty)
    assert migrate.current_revision(empty) == migrate.head_revision()
    command.check(migrate.alembic_config(url_of(empty)))


def test_rows_survive_and_the_founding_query_runs(empty: Store, tmp_path: Path) -> None:
    migrate.upgrade(empty)
    settings = Settings(database_url=url_of(empty), data_dir=tmp_path)
    ctx = Context(empty, settings, FileStore(tmp_path / "files"), MetricNames(), Bell())
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.train(rounds=2)
    assert migrate.upgrade(empty) is None
    with empty.read() as session:
        assert session.execute(select(func.count()).select_from(t.round_result)).scalar_one() == 4
        rows = session.execute(
            text(
                "SELECT group_id, reward_mode, AVG(final_accuracy) AS avg_acc FROM episodes "
                "GROUP BY group_id, reward_mode"
            )
        ).all()
    assert sorted((row.group_id, row.reward_mode) for row in rows) == [("A", "shaped"), ("B", "simplified")]


#: What revisions after the first one have added; an older schema has no place for it.
ADDED = {
    "experiment": {"owner_name"},
    "token": {"identity"},
    "worker": {"max_blocks"},
    "assignment": {"slot"},
    "audit": {"actor_id"},
    "idempotency": {"request_id", "effect"},
}
ADDED_TABLES = {"browser_session", "webhook", "delivery"}


def all_rows(store: Store) -> dict[str, list[str]]:
    """Return every row of every table of ours as the first revision has it, in an order of their own."""
    found = {}
    inspector = inspect(store.engine)
    with store.engine.connect() as connection:
        for name in set(inspector.get_table_names()) - {"alembic_version"} - ADDED_TABLES:
            columns = [item["name"] for item in inspector.get_columns(name) if item["name"] not in ADDED.get(name, ())]
            names = ", ".join(f'"{column}"' for column in columns)
            rows = connection.exec_driver_sql(f'SELECT {names} FROM "{name}"').all()
            found[name] = sorted(str(row) for row in rows)
    return found


def test_owners_of_before_keep_what_was_theirs_and_new_tokens_have_an_owner_of_their_own(
    empty: Store, tmp_path: Path
) -> None:
    migrate.upgrade(empty)
    ctx = Context(empty, Settings(database_url=url_of(empty)), FileStore(tmp_path / "files"), MetricNames(), Bell())
    old = access.create(ctx, "mia", "submitter", None, LOCAL)
    migrate.downgrade(empty, "0003")
    with empty.write() as session:  # as the older code stored it
        session.execute(text("UPDATE token SET name = 'mia'"))
    migrate.upgrade(empty)
    holder = access.authenticate(ctx, old.secret, "-")
    theirs = submit(ctx, actor=holder)
    new = access.authenticate(ctx, access.create(ctx, "mia", "submitter", None, LOCAL).secret, "-")
    assert (holder.principal, holder.name, new.name) == ("mia", "mia", "mia")
    with pytest.raises(ForbiddenError, match="another owner of that name"):
        steering.set_desired(ctx, theirs, Desired.CANCEL, "", new)
    migrate.downgrade(empty, "0003")
    with empty.read() as session:
        assert session.execute(text("SELECT owner FROM experiment")).scalar_one() == "mia"
    migrate.upgrade(empty)
    assert steering.set_desired(ctx, theirs, Desired.CANCEL, "", access.authenticate(ctx, old.secret, "-"))


def test_each_revision_runs_down_and_up_with_rows_and_loses_none(empty: Store, tmp_path: Path) -> None:
    migrate.upgrade(empty)
    ctx = Context(empty, Settings(database_url=url_of(empty)), FileStore(tmp_path / "files"), MetricNames(), Bell())
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.train(rounds=2)
    finish_due(ctx)
    before = all_rows(empty)
    assert {"experiment", "block", "run", "point", "event", "episode", "report"} <= {k for k, v in before.items() if v}
    scripts = list(ScriptDirectory(str(migrate._SCRIPTS)).walk_revisions())
    for script in scripts[:-1]:  # newest first; below the first revision there are no tables
        migrate.downgrade(empty, str(script.down_revision))
        assert migrate.current_revision(empty) == script.down_revision
        assert all_rows(empty) == before
    for script in reversed(scripts[:-1]):
        migrate.upgrade(empty, script.revision)
        assert all_rows(empty) == before
    migrate.downgrade(empty, "base")  # also with rows in every table
    migrate.upgrade(empty)
    command.check(migrate.alembic_config(url_of(empty)))


def test_a_cause_that_an_older_schema_does_not_know_becomes_one_that_it_knows(empty: Store, tmp_path: Path) -> None:
    migrate.upgrade(empty)
    ctx = Context(empty, Settings(database_url=url_of(empty)), FileStore(tmp_path / "files"), MetricNames(), Bell())
    submit(ctx)
    with empty.write() as session:
        session.execute(text("UPDATE block SET cause = 'environment'"))
        session.execute(text("UPDATE run SET cause = 'device'"))
    migrate.downgrade(empty, "0002")
    with empty.read() as session:
        assert set(session.execute(text("SELECT cause FROM block UNION SELECT cause FROM run")).scalars()) == {"bug"}
    with pytest.raises(IntegrityError), empty.write() as session:
        session.execute(text("UPDATE block SET cause = 'environment'"))
    migrate.upgrade(empty)
    with empty.write() as session:
        session.execute(text("UPDATE block SET cause = 'environment'"))
    with pytest.raises(IntegrityError), empty.write() as session:
        session.execute(text("UPDATE block SET cause = 'weather'"))


def test_downgrade_removes_everything_and_upgrade_returns(empty: Store) -> None:
    migrate.upgrade(empty)
    migrate.downgrade(empty, "base")
    assert migrate.current_revision(empty) is None
    assert [name for name in inspect(empty.engine).get_table_names() if name != "alembic_version"] == []
    migrate.upgrade(empty)
    assert migrate.check(empty)


def test_database_newer_than_the_code_is_refused_and_not_changed(empty: Store) -> None:
    migrate.upgrade(empty)
    with empty.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StartupError, match="newer than the code"):
        migrate.upgrade(empty)
    assert migrate.current_revision(empty) == "9999"


@pytest.mark.pg
def test_server_on_an_older_postgresql_schema_refuses_and_advises_a_backup() -> None:
    if not postgres.is_there():
        pytest.skip(f"no PostgreSQL server at {postgres.URL}")
    store = Store(postgres.fresh(NAME))
    migrate.upgrade(store, "0001")
    with pytest.raises(StartupError, match=r"pg_dump.*lockstep db upgrade"):
        open_store(Settings(database_url=url_of(store)))
    assert migrate.current_revision(store) == "0001"
    store.close()
    postgres.drop(NAME)


def test_copy_before_a_migration_holds_every_row(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'lockstep.db'}")
    migrate.upgrade(store)
    ctx = Context(store, Settings(database_url=url_of(store)), FileStore(tmp_path / "files"), MetricNames(), Bell())
    submit(ctx)
    path = migrate._backup(store)
    assert path is not None
    copy = Store(f"sqlite:///{path}")
    with copy.read() as session:
        assert session.execute(select(func.count()).select_from(t.experiment)).scalar_one() == 1
    assert migrate.check(copy)
    copy.close()
    store.close()


def test_a_migration_waits_for_another_longer_than_a_write_would(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'lockstep.db'}", is_sqlite=True)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=1").close())
    other = sqlite_module().connect(tmp_path / "lockstep.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.1, other.execute, ["COMMIT"]).start()
    with begun(engine, is_sqlite=True):
        other.close()
    engine.dispose()
