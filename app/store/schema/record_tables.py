"""Tables of what training hands in: points, episodes, files, log lines; and the view of the founding query."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    String,
    Table,
    Text,
)

from app.store.schema.columns import Json, UtcDateTime, metadata

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
    # the last three are what a chart over steps reads: it need not look up the rows
    Index("ix_point_series", "run_no", "name_id", "attempt", "seq", "round", "step", "value"),
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
        Index(f"ix_{name}_run_no_round", "run_no", "round"),
    )


episode = _episode_table("episode")

eval_episode = _episode_table(
    "eval_episode",
    Column("mode", String(16), nullable=False),
    Column("split", String(16), nullable=False),
    Column("test_accuracy", Float),
)

EPISODE_FIELDS = tuple(name for name, _ in _EPISODE_COLUMNS)

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
