"""a worker may hold several blocks of one experiment at once"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

DEVICE = "uq_assignment_live_device"
LIVE = sa.text("state IN ('offered', 'active')")
WORKER = "ix_assignment_worker_id"
GIVEN = "ix_assignment_worker_id_offered_at"


def upgrade() -> None:
    op.add_column("worker", sa.Column("max_blocks", sa.Integer, nullable=False, server_default="1"))
    op.add_column("assignment", sa.Column("slot", sa.Integer, nullable=False, server_default="0"))
    op.drop_index(DEVICE, table_name="assignment")
    op.create_index(DEVICE, "assignment", ["device_uid", "slot"], unique=True, sqlite_where=LIVE, postgresql_where=LIVE)
    op.drop_index(WORKER, table_name="assignment")
    op.create_index(GIVEN, "assignment", ["worker_id", "offered_at"])


def downgrade() -> None:
    # of several live leases on a device one can stay; the others end as if they had expired, their blocks with them
    op.execute(
        "UPDATE block SET status = 'stopping', cause = 'worker_lost', cause_text = 'its lease was one of several' "
        "WHERE status IN ('reserved', 'running') AND id IN "
        "(SELECT block_id FROM assignment WHERE state IN ('offered', 'active') AND slot > 0)"
    )
    op.execute("UPDATE assignment SET state = 'expired' WHERE state IN ('offered', 'active') AND slot > 0")
    op.drop_index(GIVEN, table_name="assignment")
    op.create_index(WORKER, "assignment", ["worker_id"])
    op.drop_index(DEVICE, table_name="assignment")
    op.create_index(DEVICE, "assignment", ["device_uid"], unique=True, sqlite_where=LIVE, postgresql_where=LIVE)
    op.drop_column("assignment", "slot")
    op.drop_column("worker", "max_blocks")
