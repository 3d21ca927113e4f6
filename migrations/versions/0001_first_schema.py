"""first schema"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
EPISODES_VIEW = """
CREATE VIEW episodes AS
SELECT e.experiment_id, e.block_id AS block, e.replicate, e.run_id, e.attempt, e.group_id, e.reward_mode,
       e.device, e.round, e.env_id, e.episode_idx, e.host_seed_key, e.env_steps, e.final_accuracy,
       e.committed_accuracy, e.best_accuracy, e.episode_reward, e.episode_return_raw, e.final_loss,
       e.param_ratio, e.n_contributing, e.outcome, e.started_at
FROM episode AS e
JOIN run_attempt AS a ON a.run_no = e.run_no AND a.attempt = e.attempt
WHERE e.round >= a.from_round AND (a.until_round IS NULL OR e.round < a.until_round)
"""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=200), nullable=False),
        sa.Column("before", JSON, nullable=True),
        sa.Column("after", JSON, nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_target"), ["target"], unique=False)

    op.create_table(
        "experiment",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("mode", sa.String(length=8), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("submitted", JSON, nullable=False),
        sa.Column("spec_hash", sa.String(length=64), nullable=False),
        sa.Column("analysis", JSON, nullable=True),
        sa.Column("analysis_hash", sa.String(length=64), nullable=True),
        sa.Column("warnings", JSON, nullable=False),
        sa.Column("seed", sa.String(length=20), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("num_arms", sa.Integer(), nullable=False),
        sa.Column("placement", sa.String(length=20), nullable=False),
        sa.Column("placement_resolved", sa.String(length=20), nullable=True),
        sa.Column("needs", JSON, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Float(), nullable=False),
        sa.Column("desired", sa.String(length=8), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.String(length=40), nullable=True),
        sa.Column("exploratory_from", sa.Integer(), nullable=True),
        sa.Column("unblinded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("desired IN ('run', 'pause', 'cancel')", name=op.f("ck_experiment_desired")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment")),
    )
    with op.batch_alter_table("experiment", schema=None) as batch_op:
        batch_op.create_index("ix_experiment_listing", ["deleted_at", "created_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_experiment_owner"), ["owner"], unique=False)

    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_epoch", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "key", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "live_ticket",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("principal", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("expires_epoch", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_live_ticket")),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )
    op.create_table(
        "metric_name",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_name")),
        sa.UniqueConstraint("name", name=op.f("uq_metric_name_name")),
    )
    op.create_table(
        "point",
        sa.Column("run_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("name_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Float(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("t", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "attempt", "seq", name=op.f("pk_point")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("point", schema=None) as batch_op:
        batch_op.create_index("ix_point_series", ["run_no", "name_id", "attempt", "seq"], unique=False)

    op.create_table(
        "token",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("sha256", name=op.f("uq_token_sha256")),
    )
    op.create_table(
        "usage",
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("device_seconds", sa.Float(), nullable=False),
        sa.Column("updated_epoch", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_usage")),
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("incarnation", sa.String(length=200), nullable=False),
        sa.Column("device_uid", sa.String(length=200), nullable=False),
        sa.Column("device_kind", sa.String(length=8), nullable=False),
        sa.Column("device_class", sa.String(length=200), nullable=False),
        sa.Column("device_model", sa.String(length=200), nullable=False),
        sa.Column("memory_bytes", sa.Float(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("status_text", sa.Text(), nullable=True),
        sa.Column("drain", sa.Boolean(), nullable=False),
        sa.Column("drain_now", sa.Boolean(), nullable=False),
        sa.Column("versions", JSON, nullable=False),
        sa.Column("datasets", JSON, nullable=False),
        sa.Column("rewards", JSON, nullable=False),
        sa.Column("environments", JSON, nullable=False),
        sa.Column("health", JSON, nullable=False),
        sa.Column("fast_failures", sa.Integer(), nullable=False),
        sa.Column("seen_epoch", sa.Float(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "status IN ('starting', 'idle', 'reserved', 'busy', 'cleaning', 'lost', 'quarantined', 'retired')",
            name=op.f("ck_worker_status"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
    )
    with op.batch_alter_table("worker", schema=None) as batch_op:
        batch_op.create_index(
            "uq_worker_live_device",
            ["device_uid"],
            unique=True,
            sqlite_where=sa.text("status NOT IN ('lost', 'retired')"),
            postgresql_where=sa.text("status NOT IN ('lost', 'retired')"),
        )

    op.create_table(
        "arm",
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("arm_index", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(length=32), nullable=False),
        sa.Column("policy", sa.String(length=32), nullable=False),
        sa.Column("reward_mode", sa.String(length=64), nullable=False),
        sa.Column("static_set", JSON, nullable=True),
        sa.Column("config", JSON, nullable=False),
        sa.Column("diff", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_arm_experiment_id_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "arm_index", name=op.f("pk_arm")),
        sa.UniqueConstraint("experiment_id", "label", name=op.f("uq_arm_experiment_id_label")),
    )
    op.create_table(
        "artifact",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.Float(), nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column("next_round", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("committed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_artifact_experiment_id_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifact")),
    )
    with op.batch_alter_table("artifact", schema=None) as batch_op:
        batch_op.create_index("ix_artifact_checkpoint", ["run_id", "kind", "next_round"], unique=False)
        batch_op.create_index(batch_op.f("ix_artifact_experiment_id"), ["experiment_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_artifact_run_id"), ["run_id"], unique=False)

    op.create_table(
        "block",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=True),
        sa.Column("cause_text", sa.Text(), nullable=True),
        sa.Column("desired", sa.String(length=8), nullable=False),
        sa.Column("counts_against_budget", sa.Boolean(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("resume_round", sa.Integer(), nullable=False),
        sa.Column("open_round", sa.Integer(), nullable=False),
        sa.Column("num_diverged", sa.Integer(), nullable=False),
        sa.Column("budget_used", JSON, nullable=False),
        sa.Column("not_before_epoch", sa.Float(), nullable=False),
        sa.Column("reserve_deadline_epoch", sa.Float(), nullable=True),
        sa.Column("ready_deadline_epoch", sa.Float(), nullable=True),
        sa.Column("stop_deadline_epoch", sa.Float(), nullable=True),
        sa.Column("round_opened_epoch", sa.Float(), nullable=True),
        sa.Column("waiting_since_epoch", sa.Float(), nullable=False),
        sa.Column("min_memory_bytes", sa.Float(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "cause IN ('worker_lost', 'preempted', 'oom', 'diverged', 'timeout', 'user', 'bug', 'config', 'decided')",
            name=op.f("ck_block_cause"),
        ),
        sa.CheckConstraint("desired IN ('run', 'pause', 'cancel')", name=op.f("ck_block_desired")),
        sa.CheckConstraint(
            "status IN ('queued', 'reserved', 'running', 'stopping', 'paused', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_block_status"),
        ),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_block_experiment_id_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_block")),
        sa.UniqueConstraint(
            "experiment_id",
            "replicate",
            "generation",
            name=op.f("uq_block_experiment_id_replicate_generation"),
        ),
    )
    with op.batch_alter_table("block", schema=None) as batch_op:
        batch_op.create_index("ix_block_status", ["status"], unique=False)

    op.create_table(
        "event",
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("severity", sa.String(length=8), nullable=False),
        sa.Column("block_id", sa.String(length=40), nullable=True),
        sa.Column("run_id", sa.String(length=40), nullable=True),
        sa.Column("worker_id", sa.String(length=40), nullable=True),
        sa.Column("replicate", sa.Integer(), nullable=True),
        sa.Column("group_id", sa.String(length=32), nullable=False),
        sa.Column("reward_mode", sa.String(length=64), nullable=True),
        sa.Column("device", sa.String(length=200), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("env_id", sa.Integer(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=True),
        sa.Column("cause", sa.String(length=16), nullable=True),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_event_experiment_id_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "seq", name=op.f("pk_event")),
        sa.UniqueConstraint("id", name=op.f("uq_event_id")),
    )
    op.create_table(
        "report",
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content", JSON, nullable=False),
        sa.Column("scores_csv", sa.Text(), nullable=False),
        sa.Column("scores_sha256", sa.String(length=64), nullable=False),
        sa.Column("trigger", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_report_experiment_id_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "version", name=op.f("pk_report")),
    )
    op.create_table(
        "worker_event",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("worker_id", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["worker.id"], name=op.f("fk_worker_event_worker_id_worker"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_event")),
    )
    with op.batch_alter_table("worker_event", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_worker_event_worker_id"), ["worker_id"], unique=False)

    op.create_table(
        "assignment",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("block_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=40), nullable=False),
        sa.Column("incarnation", sa.String(length=200), nullable=False),
        sa.Column("device_uid", sa.String(length=200), nullable=False),
        sa.Column("device_index", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("expires_epoch", sa.Float(), nullable=False),
        sa.Column("collected", sa.Boolean(), nullable=False),
        sa.Column("ready", sa.Boolean(), nullable=False),
        sa.Column("progress", JSON, nullable=False),
        sa.Column("frame_age_seconds", sa.Float(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("cause", sa.String(length=16), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("cleanup_status", sa.Text(), nullable=True),
        sa.Column("offered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('offered', 'active', 'released', 'expired', 'revoked')",
            name=op.f("ck_assignment_state"),
        ),
        sa.ForeignKeyConstraint(
            ["block_id"], ["block.id"], name=op.f("fk_assignment_block_id_block"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["worker.id"], name=op.f("fk_assignment_worker_id_worker")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_assignment")),
    )
    with op.batch_alter_table("assignment", schema=None) as batch_op:
        batch_op.create_index("ix_assignment_block_id_attempt", ["block_id", "attempt"], unique=False)
        batch_op.create_index(batch_op.f("ix_assignment_worker_id"), ["worker_id"], unique=False)
        batch_op.create_index(
            "uq_assignment_live_device",
            ["device_uid"],
            unique=True,
            sqlite_where=sa.text("state IN ('offered', 'active')"),
            postgresql_where=sa.text("state IN ('offered', 'active')"),
        )

    op.create_table(
        "log_line",
        sa.Column("block_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("assignment_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("level", sa.String(length=8), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["block_id"], ["block.id"], name=op.f("fk_log_line_block_id_block"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("block_id", "attempt", "assignment_id", "seq", name=op.f("pk_log_line")),
    )
    op.create_table(
        "run",
        sa.Column("no", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("block_id", sa.String(length=40), nullable=False),
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("arm_index", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=True),
        sa.Column("cause_text", sa.Text(), nullable=True),
        sa.Column("rounds_done", sa.Integer(), nullable=False),
        sa.Column("env_steps", sa.Float(), nullable=False),
        sa.Column("stalled", sa.Boolean(), nullable=False),
        sa.Column("resumed", sa.Integer(), nullable=False),
        sa.Column("device_uid", sa.String(length=200), nullable=True),
        sa.Column("device_seconds", sa.Float(), nullable=False),
        sa.Column("record", JSON, nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "cause IN ('worker_lost', 'preempted', 'oom', 'diverged', 'timeout', 'user', 'bug', 'config', 'decided')",
            name=op.f("ck_run_cause"),
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'paused', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_run_status"),
        ),
        sa.ForeignKeyConstraint(["block_id"], ["block.id"], name=op.f("fk_run_block_id_block"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_run_experiment_id_experiment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_run")),
        sa.UniqueConstraint("block_id", "arm_index", name=op.f("uq_run_block_id_arm_index")),
        sa.UniqueConstraint("id", name=op.f("uq_run_id")),
    )
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index("ix_run_experiment_id", ["experiment_id"], unique=False)

    op.create_table(
        "assignment_run",
        sa.Column("assignment_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("block_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["assignment_id"],
            ["assignment.id"],
            name=op.f("fk_assignment_run_assignment_id_assignment"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("assignment_id", "run_id", name=op.f("pk_assignment_run")),
        sa.UniqueConstraint("block_id", "attempt", "run_id", name=op.f("uq_assignment_run_block_id_attempt_run_id")),
    )
    op.create_table(
        "episode",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("block_id", sa.String(length=40), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.String(length=32), nullable=False),
        sa.Column("reward_mode", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("env_id", sa.Integer(), nullable=True),
        sa.Column("episode_idx", sa.Integer(), nullable=True),
        sa.Column("host_seed_key", sa.String(length=64), nullable=True),
        sa.Column("env_steps", sa.Integer(), nullable=True),
        sa.Column("final_accuracy", sa.Float(), nullable=True),
        sa.Column("committed_accuracy", sa.Float(), nullable=True),
        sa.Column("best_accuracy", sa.Float(), nullable=True),
        sa.Column("episode_reward", sa.Float(), nullable=True),
        sa.Column("episode_return_raw", sa.Float(), nullable=True),
        sa.Column("final_loss", sa.Float(), nullable=True),
        sa.Column("param_ratio", sa.Float(), nullable=True),
        sa.Column("n_contributing", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("values", JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_no"], ["run.no"], name=op.f("fk_episode_run_no_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_episode")),
    )
    with op.batch_alter_table("episode", schema=None) as batch_op:
        batch_op.create_index("ix_episode_experiment_id_round", ["experiment_id", "round"], unique=False)
        batch_op.create_index("ix_episode_run_no_round", ["run_no", "round"], unique=False)

    op.create_table(
        "eval_episode",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("experiment_id", sa.String(length=40), nullable=False),
        sa.Column("block_id", sa.String(length=40), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.String(length=32), nullable=False),
        sa.Column("reward_mode", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("env_id", sa.Integer(), nullable=True),
        sa.Column("episode_idx", sa.Integer(), nullable=True),
        sa.Column("host_seed_key", sa.String(length=64), nullable=True),
        sa.Column("env_steps", sa.Integer(), nullable=True),
        sa.Column("final_accuracy", sa.Float(), nullable=True),
        sa.Column("committed_accuracy", sa.Float(), nullable=True),
        sa.Column("best_accuracy", sa.Float(), nullable=True),
        sa.Column("episode_reward", sa.Float(), nullable=True),
        sa.Column("episode_return_raw", sa.Float(), nullable=True),
        sa.Column("final_loss", sa.Float(), nullable=True),
        sa.Column("param_ratio", sa.Float(), nullable=True),
        sa.Column("n_contributing", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("values", JSON, nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("split", sa.String(length=16), nullable=False),
        sa.Column("test_accuracy", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_no"], ["run.no"], name=op.f("fk_eval_episode_run_no_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_eval_episode")),
    )
    with op.batch_alter_table("eval_episode", schema=None) as batch_op:
        batch_op.create_index("ix_eval_episode_experiment_id_round", ["experiment_id", "round"], unique=False)
        batch_op.create_index("ix_eval_episode_run_no_round", ["run_no", "round"], unique=False)

    op.create_table(
        "round_result",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("env_steps", sa.Float(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("update_order", JSON, nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_no"], ["run.no"], name=op.f("fk_round_result_run_no_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_no", "attempt", "round", name=op.f("pk_round_result")),
    )
    op.create_table(
        "run_attempt",
        sa.Column("run_no", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("from_round", sa.Integer(), nullable=False),
        sa.Column("until_round", sa.Integer(), nullable=True),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("device_uid", sa.String(length=200), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_no"], ["run.no"], name=op.f("fk_run_attempt_run_no_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_no", "attempt", name=op.f("pk_run_attempt")),
    )
    op.execute(EPISODES_VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW episodes")
    op.drop_table("run_attempt")
    op.drop_table("round_result")
    with op.batch_alter_table("eval_episode", schema=None) as batch_op:
        batch_op.drop_index("ix_eval_episode_run_no_round")
        batch_op.drop_index("ix_eval_episode_experiment_id_round")

    op.drop_table("eval_episode")
    with op.batch_alter_table("episode", schema=None) as batch_op:
        batch_op.drop_index("ix_episode_run_no_round")
        batch_op.drop_index("ix_episode_experiment_id_round")

    op.drop_table("episode")
    op.drop_table("assignment_run")
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.drop_index("ix_run_experiment_id")

    op.drop_table("run")
    op.drop_table("log_line")
    with op.batch_alter_table("assignment", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_assignment_live_device",
            sqlite_where=sa.text("state IN ('offered', 'active')"),
            postgresql_where=sa.text("state IN ('offered', 'active')"),
        )
        batch_op.drop_index(batch_op.f("ix_assignment_worker_id"))
        batch_op.drop_index("ix_assignment_block_id_attempt")

    op.drop_table("assignment")
    with op.batch_alter_table("worker_event", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_worker_event_worker_id"))

    op.drop_table("worker_event")
    op.drop_table("report")
    op.drop_table("event")
    with op.batch_alter_table("block", schema=None) as batch_op:
        batch_op.drop_index("ix_block_status")

    op.drop_table("block")
    with op.batch_alter_table("artifact", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_artifact_run_id"))
        batch_op.drop_index(batch_op.f("ix_artifact_experiment_id"))
        batch_op.drop_index("ix_artifact_checkpoint")

    op.drop_table("artifact")
    op.drop_table("arm")
    with op.batch_alter_table("worker", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_worker_live_device",
            sqlite_where=sa.text("status NOT IN ('lost', 'retired')"),
            postgresql_where=sa.text("status NOT IN ('lost', 'retired')"),
        )

    op.drop_table("worker")
    op.drop_table("usage")
    op.drop_table("token")
    with op.batch_alter_table("point", schema=None) as batch_op:
        batch_op.drop_index("ix_point_series")

    op.drop_table("point")
    op.drop_table("metric_name")
    op.drop_table("meta")
    op.drop_table("live_ticket")
    op.drop_table("idempotency")
    with op.batch_alter_table("experiment", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_experiment_owner"))
        batch_op.drop_index("ix_experiment_listing")

    op.drop_table("experiment")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_target"))

    op.drop_table("audit")
