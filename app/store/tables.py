"""All tables, for SQLite and PostgreSQL alike.

Instants are aware UTC (``UtcDateTime``); a lease's expiry is an epoch of the database clock
(``*_epoch``), because it is compared in SQL. Constraint names follow one convention, so that
migrations in batch mode can drop them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeAlias

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Row,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.domain.status import AssignmentState, BlockStatus, Cause, Desired, RunStatus, WorkerStatus

#: A row of any query; its columns are attributes.
Record: TypeAlias = Row[*tuple[Any, ...]]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC instant; a naive one is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; SQLite stores it without the zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("naive datetime; use aware UTC")
        converted = value.astimezone(UTC)
        return converted.replace(tzinfo=None) if dialect.name == "sqlite" else converted

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware UTC instant on both databases."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _one_of(column: str, values: type[Any]) -> CheckConstraint:
    words = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({words})", name=column)


experiment = Table(
    "experiment",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("notes", Text, nullable=False, default=""),
    Column("tags", Json, nullable=False),
    Column("owner", String(200), nullable=False, index=True),
    Column("kind", String(8), nullable=False),
    Column("mode", String(8), nullable=False),
    Column("spec", Json, nullable=False),
    Column("submitted", Json, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("analysis", Json),
    Column("analysis_hash", String(64)),
    Column("warnings", Json, nullable=False),
    Column("seed", String(20), nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("num_arms", Integer, nullable=False),
    Column("placement", String(20), nullable=False),
    Column("placement_resolved", String(20)),
    Column("needs", Json, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("rank", Float, nullable=False),
    Column("desired", String(8), nullable=False),
    Column("desired_cause", String(16)),
    Column("version", Integer, nullable=False),
    Column("event_seq", Integer, nullable=False),
    Column("parent_id", String(40)),
    Column("exploratory_from", Integer),
    Column("unblinded_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("deleted_at", UtcDateTime),
    _one_of("desired", Desired),
    Index("ix_experiment_listing", "deleted_at", "created_at", "id"),
)

arm = Table(
    "arm",
    metadata,
    Column("experiment_id", ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True),
    Column("arm_index", Integer, primary_key=True),
    Column("label", String(32), nullable=False),
    Column("policy", String(32), nullable=False),
    Column("reward_mode", String(64), nullable=False),
    Column("static_set", Json),
    Column("config", Json, nullable=False),
    Column("diff", Json, nullable=False),
    UniqueConstraint("experiment_id", "label"),
)

block = Table(
    "block",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("experiment_id", ForeignKey("experiment.id", ondelete="CASCADE"), nullable=False),
    Column("replicate", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("cause", String(16)),
    Column("cause_text", Text),
    Column("desired", String(8), nullable=False),
    Column("counts_against_budget", Boolean, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("resume_round", Integer, nullable=False),
    Column("open_round", Integer, nullable=False),
    Column("num_diverged", Integer, nullable=False),
    Column("budget_used", Json, nullable=False),
    Column("not_before_epoch", Float, nullable=False),
    Column("reserve_deadline_epoch", Float),
    Column("ready_deadline_epoch", Float),
    Column("stop_deadline_epoch", Float),
    Column("round_opened_epoch", Float),
    Column("waiting_since_epoch", Float, nullable=False),
    Column("min_memory_bytes", Float, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    UniqueConstraint("experiment_id", "replicate", "generation"),
    _one_of("status", BlockStatus),
    _one_of("cause", Cause),
    _one_of("desired", Desired),
    Index("ix_block_status", "status"),
)

run = Table(
    "run",
    metadata,
    Column("no", Integer, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("block_id", ForeignKey("block.id", ondelete="CASCADE"), nullable=False),
    Column("experiment_id", ForeignKey("experiment.id", ondelete="CASCADE"), nullable=False),
    Column("replicate", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("arm_index", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("cause", String(16)),
    Column("cause_text", Text),
    Column("rounds_done", Integer, nullable=False),
    Column("env_steps", Float, nullable=False),
    Column("stalled", Boolean, nullable=False),
    Column("resumed", Integer, nullable=False),
    Column("device_uid", String(200)),
    Column("device_seconds", Float, nullable=False),
    Column("record", Json, nullable=False),
    Column("finished_at", UtcDateTime),
    UniqueConstraint("block_id", "arm_index"),
    _one_of("status", RunStatus),
    _one_of("cause", Cause),
    Index("ix_run_experiment_id", "experiment_id"),
)

worker = Table(
    "worker",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("host", String(200), nullable=False),
    Column("incarnation", String(200), nullable=False),
    Column("device_uid", String(200), nullable=False),
    Column("device_kind", String(8), nullable=False),
    Column("device_class", String(200), nullable=False),
    Column("device_model", String(200), nullable=False),
    Column("memory_bytes", Float, nullable=False),
    Column("status", String(16), nullable=False),
    Column("status_text", Text),
    Column("drain", Boolean, nullable=False),
    Column("drain_now", Boolean, nullable=False),
    Column("versions", Json, nullable=False),
    Column("datasets", Json, nullable=False),
    Column("rewards", Json, nullable=False),
    Column("environments", Json, nullable=False),
    Column("health", Json, nullable=False),
    Column("fast_failures", Integer, nullable=False),
    Column("seen_epoch", Float, nullable=False),
    Column("registered_at", UtcDateTime, nullable=False),
    _one_of("status", WorkerStatus),
    Index(
        "uq_worker_live_device",
        "device_uid",
        unique=True,
        sqlite_where=text("status NOT IN ('lost', 'retired')"),
        postgresql_where=text("status NOT IN ('lost', 'retired')"),
    ),
)

assignment = Table(
    "assignment",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("block_id", ForeignKey("block.id", ondelete="CASCADE"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker_id", ForeignKey("worker.id"), nullable=False, index=True),
    Column("incarnation", String(200), nullable=False),
    Column("device_uid", String(200), nullable=False),
    Column("device_index", Integer, nullable=False),
    Column("token", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("expires_epoch", Float, nullable=False),
    Column("collected", Boolean, nullable=False),
    Column("ready", Boolean, nullable=False),
    Column("progress", Json, nullable=False),
    Column("frame_age_seconds", Float, nullable=False),
    Column("outcome", String(16)),
    Column("cause", String(16)),
    Column("detail", Text),
    Column("cleanup_status", Text),
    Column("offered_at", UtcDateTime, nullable=False),
    Column("ready_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    _one_of("state", AssignmentState),
    Index("ix_assignment_block_id_attempt", "block_id", "attempt"),
    Index(
        "uq_assignment_live_device",
        "device_uid",
        unique=True,
        sqlite_where=text("state IN ('offered', 'active')"),
        postgresql_where=text("state IN ('offered', 'active')"),
    ),
)

assignment_run = Table(
    "assignment_run",
    metadata,
    Column("assignment_id", ForeignKey("assignment.id", ondelete="CASCADE"), primary_key=True),
    Column("run_id", String(40), primary_key=True),
    Column("block_id", String(40), nullable=False),
    Column("attempt", Integer, nullable=False),
    UniqueConstraint("block_id", "attempt", "run_id"),
)

#: Which rounds of a run belong to which attempt: [from_round, until_round); the open end is NULL.
run_attempt = Table(
    "run_attempt",
    metadata,
    Column("run_no", ForeignKey("run.no", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("from_round", Integer, nullable=False),
    Column("until_round", Integer),
    Column("last_seq", Integer, nullable=False),
    Column("device_uid", String(200)),
    Column("started_at", UtcDateTime, nullable=False),
)

round_result = Table(
    "round_result",
    metadata,
    Column("run_no", ForeignKey("run.no", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("env_steps", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("update_order", Json, nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
)

metric_name = Table(
    "metric_name",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(128), nullable=False, unique=True),
)

point = Table(
    "point",
    metadata,
    Column("run_no", Integer, primary_key=True, autoincrement=False),
    Column("attempt", SmallInteger, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("name_id", Integer, nullable=False),
    Column("step", Float, nullable=False),
    Column("round", Integer, nullable=False),
    Column("t", Float, nullable=False),
    Column("value", Float),
    Column("kind", SmallInteger, nullable=False),
    Index("ix_point_series", "run_no", "name_id", "attempt", "seq"),
    sqlite_with_rowid=False,
)

_EPISODE_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("round", Integer),
    ("env_id", Integer),
    ("episode_idx", Integer),
    ("host_seed_key", String(64)),
    ("env_steps", Integer),
    ("final_accuracy", Float),
    ("committed_accuracy", Float),
    ("best_accuracy", Float),
    ("episode_reward", Float),
    ("episode_return_raw", Float),
    ("final_loss", Float),
    ("param_ratio", Float),
    ("n_contributing", Integer),
    ("outcome", String(32)),
)


def _episode_table(name: str, *extra: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column("experiment_id", String(40), nullable=False),
        Column("block_id", String(40), nullable=False),
        Column("replicate", Integer, nullable=False),
        Column("run_no", ForeignKey("run.no", ondelete="CASCADE"), nullable=False),
        Column("run_id", String(40), nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("group_id", String(32), nullable=False),
        Column("reward_mode", String(64), nullable=False),
        Column("device", String(200), nullable=False),
        *(Column(column, kind) for column, kind in _EPISODE_COLUMNS),
        Column("started_at", UtcDateTime, nullable=False),
        Column("values", Json, nullable=False),
        *extra,
        Index(f"ix_{name}_experiment_id_round", "experiment_id", "round"),
        Index(f"ix_{name}_run_no_attempt", "run_no", "attempt"),
    )


episode = _episode_table("episode")
eval_episode = _episode_table(
    "eval_episode",
    Column("mode", String(16), nullable=False),
    Column("split", String(16), nullable=False),
    Column("test_accuracy", Float),
)
EPISODE_FIELDS = tuple(name for name, _ in _EPISODE_COLUMNS)

event = Table(
    "event",
    metadata,
    Column("experiment_id", ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("id", String(40), nullable=False, unique=True),
    Column("type", String(40), nullable=False),
    Column("severity", String(8), nullable=False),
    Column("block_id", String(40)),
    Column("run_id", String(40)),
    Column("worker_id", String(40)),
    Column("replicate", Integer),
    Column("group_id", String(32), nullable=False),
    Column("reward_mode", String(64)),
    Column("device", String(200)),
    Column("round", Integer),
    Column("env_id", Integer),
    Column("status", String(16)),
    Column("cause", String(16)),
    Column("actor", String(200), nullable=False),
    Column("text", Text, nullable=False),
    Column("payload", Json, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

worker_event = Table(
    "worker_event",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("worker_id", ForeignKey("worker.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("status", String(16), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("text", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

artifact = Table(
    "artifact",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("experiment_id", ForeignKey("experiment.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("run_id", String(40), index=True),
    Column("kind", String(16), nullable=False),
    Column("name", String(200), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", Float, nullable=False),
    Column("media_type", String(100), nullable=False),
    Column("next_round", Integer),
    Column("attempt", Integer),
    Column("committed", Boolean, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_artifact_checkpoint", "run_id", "kind", "next_round"),
)

log_line = Table(
    "log_line",
    metadata,
    Column("block_id", ForeignKey("block.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("assignment_id", String(40), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("level", String(8), nullable=False),
    Column("text", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

report = Table(
    "report",
    metadata,
    Column("experiment_id", ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("content", Json, nullable=False),
    Column("scores_csv", Text, nullable=False),
    Column("scores_sha256", String(64), nullable=False),
    Column("trigger", String(40), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

token = Table(
    "token",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
)

live_ticket = Table(
    "live_ticket",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("principal", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("experiment_id", String(40), nullable=False),
    Column("expires_epoch", Float, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("principal", String(200), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("request_sha256", String(64), nullable=False),
    Column("status", Integer),
    Column("body", Text),
    Column("created_epoch", Float, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(200), nullable=False, index=True),
    Column("before", Json),
    Column("after", Json),
    Column("request_id", String(64), nullable=False),
)

usage = Table(
    "usage",
    metadata,
    Column("owner", String(200), primary_key=True),
    Column("device_seconds", Float, nullable=False),
    Column("updated_epoch", Float, nullable=False),
)

meta = Table(
    "meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

#: The view on which the founding query runs: training episodes without superseded attempts.
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
