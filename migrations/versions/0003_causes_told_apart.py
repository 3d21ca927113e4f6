"""causes of an end are told apart: device, environment"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = ("block", "run")
OLD = "'worker_lost', 'preempted', 'oom', 'diverged', 'timeout', 'user', 'bug', 'config', 'decided'"
NEW = OLD.replace("'bug', ", "'bug', 'device', 'environment', ")


def upgrade() -> None:
    _replace_checks(OLD, NEW)


def downgrade() -> None:
    for name in TABLES:
        table = sa.table(name, sa.column("cause"))
        op.execute(sa.update(table).where(table.c.cause.in_(("device", "environment"))).values(cause="bug"))
    _replace_checks(NEW, OLD)


def _replace_checks(before: str, after: str) -> None:
    if op.get_bind().dialect.name != "sqlite":
        for name in TABLES:
            op.drop_constraint(op.f(f"ck_{name}_cause"), name, type_="check")
            op.create_check_constraint(op.f(f"ck_{name}_cause"), name, f"cause IN ({after})")
        return
    # making the tables anew would delete every row that refers to them; SQLite documents this way for a CHECK
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    for name in TABLES:
        changed = connection.exec_driver_sql(
            "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = ? AND instr(sql, ?) > 0",
            (before, after, name, before),
        )
        if changed.rowcount != 1:
            raise RuntimeError(f"table {name} has another CHECK of its causes than {before}")
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
