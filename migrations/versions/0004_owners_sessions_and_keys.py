"""owners are identities, sessions of browsers, effects of idempotency keys

A token that exists keeps as its identity its name, by which it owned experiments until now: nobody loses what was
theirs, and tokens that shared a name go on to share it. Each token made from now on has an identity of its own.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("token", sa.Column("identity", sa.String(200), nullable=False, server_default=""))
    op.execute("UPDATE token SET identity = name")
    op.add_column("experiment", sa.Column("owner_name", sa.String(200), nullable=False, server_default=""))
    op.execute("UPDATE experiment SET owner_name = owner")
    op.add_column("audit", sa.Column("actor_id", sa.String(200)))
    op.execute("UPDATE audit SET actor_id = actor")
    op.add_column("idempotency", sa.Column("request_id", sa.String(64)))
    op.add_column("idempotency", sa.Column("effect", sa.Text()))
    op.create_table(
        "browser_session",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("token_id", sa.String(40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_epoch", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_browser_session")),
    )
    op.create_index(op.f("ix_browser_session_token_id"), "browser_session", ["token_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_browser_session_token_id"), table_name="browser_session")
    op.drop_table("browser_session")
    op.drop_column("idempotency", "effect")
    op.drop_column("idempotency", "request_id")
    op.drop_column("audit", "actor_id")
    # who owned what by an identity of their own owns it by their name again
    op.execute("UPDATE experiment SET owner = owner_name")
    op.drop_column("experiment", "owner_name")
    op.drop_column("token", "identity")
