"""indexes of the queue: workers by status, what is open in an experiment, experiments without a recorded end, charts"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UNFINISHED = sa.text("finished_at IS NULL")
KEYS = ["run_no", "name_id", "attempt", "seq"]


def upgrade() -> None:
    op.create_index("ix_worker_status", "worker", ["status"], unique=False)
    op.create_index("ix_block_experiment_id_status", "block", ["experiment_id", "status"], unique=False)
    op.create_index(
        "ix_experiment_unfinished",
        "experiment",
        ["created_at"],
        unique=False,
        sqlite_where=UNFINISHED,
        postgresql_where=UNFINISHED,
    )

    op.drop_index("ix_point_series", table_name="point")
    op.create_index("ix_point_series", "point", [*KEYS, "round", "step", "value"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_point_series", table_name="point")
    op.create_index("ix_point_series", "point", KEYS, unique=False)
    op.drop_index("ix_experiment_unfinished", table_name="experiment")
    op.drop_index("ix_block_experiment_id_status", table_name="block")
    op.drop_index("ix_worker_status", table_name="worker")
