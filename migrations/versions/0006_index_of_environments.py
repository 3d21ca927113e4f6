"""what happened in the environments of a run is found by its round"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

NAME = "ix_event_run_id_round"
WHERE = sa.text("env_id IS NOT NULL")


def upgrade() -> None:
    op.create_index(NAME, "event", ["run_id", "round"], sqlite_where=WHERE, postgresql_where=WHERE)


def downgrade() -> None:
    op.drop_index(NAME, table_name="event")
