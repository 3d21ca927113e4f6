"""Alembic environment: one connection, batch mode on SQLite, type comparison on."""

from alembic import context
from sqlalchemy import make_url

from app.store.database.engine import begun, make_engine
from app.store.schema.tables import metadata


def _compare_type(_context, _inspected, _metadata_column, _inspected_type, _metadata_type):
    return None


def run() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    is_sqlite = make_url(url).get_backend_name() == "sqlite"
    engine = make_engine(url, is_sqlite=is_sqlite)
    with begun(engine, is_sqlite=is_sqlite) as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            render_as_batch=connection.dialect.name == "sqlite",
            compare_type=_compare_type,
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()
