"""All tables, for SQLite and PostgreSQL alike; the queue's own are defined here.

A lease's expiry is an epoch of the database clock (``*_epoch``), because it is compared in SQL.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from app.store.schema.access_tables import audit as audit
from app.store.schema.access_tables import browser_session as browser_session
from app.store.schema.access_tables import delivery as delivery
from app.store.schema.access_tables import idempotency as idempotency
from app.store.schema.access_tables import live_ticket as live_ticket
from app.store.schema.access_tables import meta as meta
from app.store.schema.access_tables import token as token
from app.store.schema.access_tables import usage as usage
from app.store.schema.access_tables import webhook as webhook
from app.store.schema.columns import Json, UtcDateTime, one_of
from app.store.schema.columns import is_among as is_among
from app.store.schema.columns import metadata as metadata
from app.store.schema.record_tables import EPISODE_FIELDS as EPISODE_FIELDS
from app.store.schema.record_tables import EPISODES_VIEW as EPISODES_VIEW
from app.store.schema.record_tables import artifact as artifact
from app.store.schema.record_tables import episode as episode
from app.store.schema.record_tables import eval_episode as eval_episode
from app.store.schema.record_tables import log_line as log_line
from app.store.schema.record_tables import metric_name as metric_name
from app.store.schema.record_tables import point as point
from lockstep.status import AssignmentState, BlockStatus, Cause, Desired, RunStatus, WorkerStatus

experiment = Table(
    "experiment",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("notes", Text, nullable=False, default=""),
    Column("tags", Json, nullable=False),
    Column("owner", String(200), nullable=False, index=True),
    Column("owner_name", String(200), nullable=False),
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
    Column("version", Integer, nullable=False),
    Column("event_seq", Integer, nullable=False),
    Column("parent_id", String(40)),
    Column("exploratory_from", Integer),
    Column("unblinded_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("deleted_at", UtcDateTime),
    one_of("desired", Desired),
    Index("ix_experiment_listing", "deleted_at", "created_at", "id"),
    Index(
        "ix_experiment_unfinished",
        "created_at",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
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
    one_of("status", BlockStatus),
    one_of("cause", Cause),
    one_of("desired", Desired),
    Index("ix_block_status", "status"),
    Index("ix_block_experiment_id_status", "experiment_id", "status"),
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
    one_of("status", RunStatus),
    one_of("cause", Cause),
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
    Column("max_blocks", Integer, nullable=False),
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
    one_of("status", WorkerStatus),
    Index("ix_worker_status", "status"),
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
    Column("worker_id", ForeignKey("worker.id"), nullable=False),
    Column("incarnation", String(200), nullable=False),
    Column("device_uid", String(200), nullable=False),
    Column("device_index", Integer, nullable=False),
    #: Place among the blocks that the worker was given in one go, from 0.
    Column("slot", Integer, nullable=False),
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
    one_of("state", AssignmentState),
    Index("ix_assignment_block_id_attempt", "block_id", "attempt"),
    Index("ix_assignment_worker_id_offered_at", "worker_id", "offered_at"),
    Index(
        "uq_assignment_live_device",
        "device_uid",
        "slot",
        unique=True,
        sqlite_where=text("state IN ('offered', 'active')"),
        postgresql_where=text("state IN ('offered', 'active')"),
    ),
)

#: Written out as in the partial index above: SQLite takes that index for these words only, not for bound values.
IS_LIVE = is_among(assignment.c.state, ("offered", "active"))

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
    Index(
        "ix_event_run_id_round",
        "run_id",
        "round",
        sqlite_where=text("env_id IS NOT NULL"),
        postgresql_where=text("env_id IS NOT NULL"),
    ),
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
