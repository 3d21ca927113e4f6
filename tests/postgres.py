"""The PostgreSQL server of the tests: where it is, and databases made for this run."""

from __future__ import annotations

import os
import sys

import psycopg
from sqlalchemy import make_url

URL = os.environ.get("LOCKSTEP_TEST_PG", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")


def admin() -> psycopg.Connection[tuple[object, ...]]:
    """Connect to the maintenance database."""
    url = make_url(URL).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def is_there() -> bool:
    """Return whether the server answers."""
    try:
        admin().close()
    except psycopg.OperationalError:
        return False
    return True


def fresh(name: str) -> str:
    """Create an empty database (dropping an old one) and return its SQLAlchemy URL."""
    with admin() as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    return make_url(URL).set(database=name).render_as_string(hide_password=False)


def drop(name: str) -> None:
    """Drop a database made by ``fresh``."""
    with admin() as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


if __name__ == "__main__":
    sys.exit(0 if is_there() else 1)
