"""Rows of one experiment for an export, table by table, in a documented column order and bounded memory."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Select, column, select, table
from sqlalchemy.orm import Session

from app.store.database.engine import sqlite_module
from app.store.records.results import current_rounds
from app.store.schema import tables as t
from lockstep.nonfinite import jsonable

_CHUNK = 1_000
_EPISODE_NAMES = (
    "experiment_id block replicate run_id attempt group_id reward_mode device round env_id episode_idx "
    "host_seed_key env_steps final_accuracy committed_accuracy best_accuracy episode_reward episode_return_raw "
    "final_loss param_ratio n_contributing outcome started_at"
)
_EPISODES = tuple(re.findall(r"\w+", _EPISODE_NAMES))
_EVALUATION = tuple(c for c in t.eval_episode.c if c.name not in ("id", "run_no"))


class StoppedError(Exception):
    """Nobody waits for the rows any more."""


@dataclass(frozen=True)
class Exported:
    """One table of an export: its name and its columns, in order."""

    name: str
    columns: tuple[str, ...]


def _queries(experiment_id: str) -> dict[str, Select[Any]]:
    """Return the query of each table; rows of superseded attempts are left out."""
    episodes = table("episodes", *(column(name) for name in _EPISODES))
    runs = select(
        t.run.c.id.label("run_id"),
        t.run.c.block_id.label("block"),
        t.run.c.replicate,
        t.run.c.generation,
        t.arm.c.label.label("group_id"),
        t.arm.c.reward_mode,
        *(t.run.c[name] for name in ("status", "cause", "rounds_done", "env_steps", "resumed", "device_seconds")),
        t.run.c.record,
    ).join(t.arm, (t.arm.c.experiment_id == t.run.c.experiment_id) & (t.arm.c.arm_index == t.run.c.arm_index))
    rounds = _current(t.round_result, "attempt", "round", "digest", "env_steps", "seconds", "received_at")
    points = _current(t.point, "attempt", "seq", "step", "round", "t", "value", "kind", name=True)
    return {
        "episodes": select(*episodes.c)
        .where(episodes.c.experiment_id == experiment_id)
        .order_by(*(episodes.c[name] for name in ("replicate", "group_id", "round", "env_id", "episode_idx"))),
        "eval_episodes": select(*_EVALUATION)
        .join(t.run_attempt, current_rounds(t.eval_episode))
        .where(t.eval_episode.c.experiment_id == experiment_id)
        .order_by(t.eval_episode.c.run_no, t.eval_episode.c.id),
        "runs": runs.where(t.run.c.experiment_id == experiment_id).order_by(t.run.c.no),
        "rounds": rounds.where(t.run.c.experiment_id == experiment_id).order_by(t.run.c.no, t.round_result.c.round),
        "points": points.where(t.run.c.experiment_id == experiment_id).order_by(
            t.run.c.no, t.point.c.attempt, t.point.c.seq
        ),
        "events": select(*(c for c in t.event.c if c.name != "experiment_id"))
        .where(t.event.c.experiment_id == experiment_id)
        .order_by(t.event.c.seq),
    }


def _current(source: Any, *names: str, name: bool = False) -> Select[Any]:
    head = [t.run.c.id.label("run_id"), *([t.metric_name.c.name.label("metric")] if name else [])]
    query = (
        select(*head, *(source.c[column_name].label(column_name) for column_name in names))
        .select_from(source)
        .join(t.run, t.run.c.no == source.c.run_no)
        .join(t.run_attempt, current_rounds(source))
    )
    return query.join(t.metric_name, t.metric_name.c.id == source.c.name_id) if name else query


def layout() -> list[Exported]:
    """Return the tables of an export with their columns in order."""
    return [Exported(name, tuple(query.selected_columns.keys())) for name, query in _queries("").items()]


def rows(session: Session, name: str, experiment_id: str, stop: threading.Event) -> Iterator[Sequence[Any]]:
    """Yield the rows of one table.

    Raises:
        StoppedError: ``stop`` was set.
    """
    result = session.execute(_queries(experiment_id)[name].execution_options(yield_per=_CHUNK))
    for part in result.partitions():
        if stop.is_set():
            raise StoppedError
        yield from (tuple(row) for row in part)


def write_sqlite(
    session: Session, path: Path, experiment_id: str, facts: dict[str, str], stop: threading.Event
) -> None:
    """Write an experiment as a SQLite file of its own: the tables of ``layout`` and ``facts`` (key, value).

    Raises:
        StoppedError: ``stop`` was set.
    """
    with closing(sqlite_module().connect(path)) as connection:
        connection.execute("CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        connection.executemany("INSERT INTO facts VALUES (?, ?)", list(facts.items()))
        for exported in layout():
            names = ", ".join(f'"{name}"' for name in exported.columns)
            marks = ", ".join("?" for _ in exported.columns)
            connection.execute(f"CREATE TABLE {exported.name} ({names})")
            insert = f"INSERT INTO {exported.name} VALUES ({marks})"  # noqa: S608 - names of our own tables
            page = rows(session, exported.name, experiment_id, stop)
            connection.executemany(insert, (tuple(map(_cell, row)) for row in page))
        connection.commit()


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(jsonable(value), allow_nan=False)
    return value.isoformat() if hasattr(value, "isoformat") else value
