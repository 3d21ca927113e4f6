"""Schema migrations: upgrade, downgrade, and the guard against a database newer than the code."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from app.store.database.engine import StartupError, Store, sqlite_file, sqlite_module
from app.store.database.folders import hand_over

_SCRIPTS = Path(__file__).resolve().parents[3] / "migrations"


def alembic_config(url: str) -> Config:
    """Return the alembic configuration for a database."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def current_revision(store: Store) -> str | None:
    """Return the revision of a database, None when it is empty."""
    with store.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head_revision() -> str:
    """Return the newest revision the code knows."""
    head = ScriptDirectory(str(_SCRIPTS)).get_current_head()
    if head is None:
        raise StartupError(f"no migrations in {_SCRIPTS}")
    return head


def revisions() -> list[str]:
    """Return every revision the code knows, the oldest first."""
    return [script.revision for script in ScriptDirectory(str(_SCRIPTS)).walk_revisions()][::-1]


def check(store: Store) -> bool:
    """Return whether the database is at the newest revision.

    Raises:
        StartupError: when the database is newer than the code; it is never changed then.
    """
    current = current_revision(store)
    if current is not None and current not in revisions():
        raise StartupError(
            f"the database is at revision {current}, which this version does not know: it is newer than "
            "the code. Upgrade lockstep; the database was not changed"
        )
    return current == head_revision()


def upgrade(store: Store, revision: str = "head") -> Path | None:
    """Bring a database to a revision; a SQLite file with data is copied first.

    Returns:
        The path of the copy, or None.
    """
    if check(store):
        return None
    backup = _backup(store)
    command.upgrade(alembic_config(store.url.render_as_string(hide_password=False)), revision)
    return backup


def downgrade(store: Store, revision: str) -> None:
    """Take a database back to a revision."""
    command.downgrade(alembic_config(store.url.render_as_string(hide_password=False)), revision)


def _backup(store: Store) -> Path | None:
    path = sqlite_file(store.url)
    if path is None or current_revision(store) is None:
        return None
    copy = path.with_name(f"{path.name}.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.bak")
    # SQLite's own backup: a copy of the file could miss what another connection writes meanwhile
    with closing(sqlite_module().connect(path)) as source, closing(sqlite_module().connect(copy)) as target:
        source.backup(target)
    hand_over(copy)
    return copy
