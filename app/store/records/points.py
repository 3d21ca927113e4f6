"""Metric points: exactly-once ingest, tailing by cursor. Reading in buckets is in ``series``.

A point is unique by (run, attempt, seq); inserting it again does nothing. Non-finite values are
stored as NULL with a kind. Reads go over the rounds that count and are bounded by rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, func, or_, select, text, tuple_, update
from sqlalchemy.orm import Session

from app.store.records.logs import ignore_duplicates
from app.store.records.results import current_rounds
from app.store.rows.assignments import RunPosition
from app.store.rows.records import PointOfMetric, PointOfRun
from app.store.rows.selecting import every
from app.store.schema import tables as t


class PointRow(NamedTuple):
    """One point as stored: value None with kind > 0 is non-finite."""

    seq: int
    name_id: int
    step: float
    round: int
    t: float
    value: float | None
    kind: int


class MetricNames:
    """Ids of metric names, cached for the life of the process."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, session: Session, names: Sequence[str]) -> list[int]:
        """Return the id of each name; unknown names are inserted."""
        missing = sorted({name for name in names if name not in self._ids})
        ids = dict(self._ids)
        if missing:
            ids |= self._lookup(session, missing)
            rest = [name for name in missing if name not in ids]
            if rest:
                self._insert(session, rest)
                # not cached yet: this transaction may still roll back
                ids |= self._read(session, rest)
        return [ids[name] for name in names]

    def _lookup(self, session: Session, names: Sequence[str]) -> dict[str, int]:
        known = self._read(session, names)
        self._ids |= known if not session.info.get("names_inserted") else {}
        return known

    def _insert(self, session: Session, names: Sequence[str]) -> None:
        session.info["names_inserted"] = True
        rows = [{"name": name} for name in names]
        session.execute(ignore_duplicates(session, t.metric_name), rows)

    @staticmethod
    def _read(session: Session, names: Sequence[str]) -> dict[str, int]:
        query = select(t.metric_name.c.name, t.metric_name.c.id).where(t.metric_name.c.name.in_(names))
        return {row.name: row.id for row in session.execute(query)}


_COLUMNS = ", ".join(("attempt", "run_no", *PointRow._fields))
_ONE_BY_ONE = f"INSERT INTO point ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
_TYPES = (
    "integer",
    "integer",
    "integer",
    "double precision",
    "integer",
    "double precision",
    "double precision",
    "smallint",
)
_AT_ONCE = text(
    f"INSERT INTO point ({_COLUMNS}) SELECT :attempt, given.* FROM unnest("  # noqa: S608 - our own names
    + ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in zip(("run_no", *PointRow._fields), _TYPES, strict=True))
    + ") AS given ON CONFLICT DO NOTHING"
)


def _array(numbers: Sequence[float | int | None]) -> str:
    """Return numbers as PostgreSQL writes an array; the driver would search each of them by a pattern."""
    return "{" + ",".join("NULL" if number is None else str(number) for number in numbers) + "}"


def insert_points(session: Session, run_no: int, attempt: int, rows: Sequence[PointRow]) -> None:
    """Insert points of one run in order; those already there are left as they are."""
    insert_of_runs(session, attempt, {run_no: rows})


def insert_of_runs(session: Session, attempt: int, of_runs: Mapping[int, Sequence[PointRow]]) -> None:
    """Insert points of the same attempt of some runs, each run's in order; those already there are left as they are.

    Written for each database by hand: ingest is the one place where the cost of a row counts. PostgreSQL
    takes one statement with a column an array, SQLite's driver the bare tuples.
    """
    rows = list(chain.from_iterable(of_runs.values()))
    if not rows:
        return
    if session.get_bind().dialect.name == "postgresql":
        columns = zip(PointRow._fields, zip(*rows, strict=True), strict=True)
        arrays = {name: _array(column) for name, column in columns}
        numbers = ",".join(",".join([str(run_no)] * len(of)) for run_no, of in of_runs.items() if of)
        session.execute(_AT_ONCE, {"attempt": attempt, "run_no": f"{{{numbers}}}", **arrays})
        return
    given = [(attempt, run_no, *row) for run_no, of in of_runs.items() for row in of]
    session.connection().exec_driver_sql(_ONE_BY_ONE, given)


def advance(session: Session, run_no: int, attempt: int, first_seq: int, count: int) -> int:
    """Move the highest contiguous seq past a batch that follows it; return the seq up to which no point is missing."""
    given = {"of_run": run_no, "of_attempt": attempt, "before": first_seq - 1, "last": first_seq + count - 1}
    moved = session.execute(_ADVANCE, given).scalar_one_or_none()
    return int(session.execute(_ACKNOWLEDGED, given).scalar_one() if moved is None else moved)


def follow(session: Session, run_nos: Sequence[int], attempt: int, first_seq: int, count: int) -> None:
    """Move the highest contiguous seq of some runs past batches that have the same place in each."""
    given = {"of_attempt": attempt, "before": first_seq - 1, "last": first_seq + count - 1}
    session.execute(_FOLLOW, {**given, "run_nos": list(run_nos)})


_OF_ATTEMPT = and_(t.run_attempt.c.run_no == bindparam("of_run"), t.run_attempt.c.attempt == bindparam("of_attempt"))
_FOLLOWS = t.run_attempt.c.last_seq.between(bindparam("before"), bindparam("last") - 1)
_ADVANCE = (
    update(t.run_attempt)
    .where(_OF_ATTEMPT, _FOLLOWS)
    .values(last_seq=bindparam("last"))
    .returning(t.run_attempt.c.last_seq)
)
_FOLLOW = (
    update(t.run_attempt)
    .where(
        t.run_attempt.c.run_no.in_(bindparam("run_nos", expanding=True)),
        t.run_attempt.c.attempt == bindparam("of_attempt"),
        _FOLLOWS,
    )
    .values(last_seq=bindparam("last"))
)
_ACKNOWLEDGED = select(t.run_attempt.c.last_seq).where(_OF_ATTEMPT)


def names_of_run(session: Session, run_no: int) -> list[str]:
    """Return the metric names a run has, sorted."""
    query = (
        select(t.metric_name.c.name)
        .where(t.metric_name.c.id.in_(select(t.point.c.name_id).where(t.point.c.run_no == run_no).distinct()))
        .order_by(t.metric_name.c.name)
    )
    return list(session.execute(query).scalars())


_POINT_COLUMNS = tuple(column.label("at") if column.name == "t" else column for column in t.point.c)


class Span(NamedTuple):
    """What is to be read of a run: what follows (attempt, seq), with ``end`` only of attempts before it."""

    run_no: int
    attempt: int
    seq: int
    end: int | None = None


#: Runs that one statement tails: SQLite takes no expression deeper than 1,000 terms.
_TAILED_AT_ONCE = 300


def tail(session: Session, spans: Sequence[Span], limit: int) -> list[PointOfMetric]:
    """Return the points of some spans with their names, run by run, attempt by attempt and in order."""
    points: list[PointOfMetric] = []
    for first in range(0, len(spans), _TAILED_AT_ONCE):
        if len(points) < limit:
            points += _tail(session, spans[first : first + _TAILED_AT_ONCE], limit - len(points))
    return points


def _tail(session: Session, spans: Sequence[Span], limit: int) -> list[PointOfMetric]:
    query = (
        # the columns t and count would be hidden by attributes that every Row has
        select(*_POINT_COLUMNS, t.metric_name.c.name)
        .join(t.metric_name, t.metric_name.c.id == t.point.c.name_id)
        .where(or_(*(_within(span) for span in spans)))
        .order_by(t.point.c.run_no, t.point.c.attempt, t.point.c.seq)
        .limit(limit)
    )
    return every(PointOfMetric, session.execute(query))


def _within(span: Span) -> Any:
    follows = tuple_(t.point.c.attempt, t.point.c.seq) > (span.attempt, span.seq)
    condition = and_(t.point.c.run_no == span.run_no, follows)
    return condition if span.end is None else and_(condition, t.point.c.attempt < span.end)


def positions(session: Session, experiment_ids: Sequence[str]) -> list[RunPosition]:
    """Return the newest attempt of each run of some experiments and its highest seq."""
    newest = (
        select(t.run_attempt.c.run_no, func.max(t.run_attempt.c.attempt).label("attempt"))
        .join(t.run, t.run.c.no == t.run_attempt.c.run_no)
        .where(t.run.c.experiment_id.in_(experiment_ids))
        .group_by(t.run_attempt.c.run_no)
        .subquery()
    )
    query = (
        select(
            t.run.c.no,
            t.run.c.id,
            t.run.c.experiment_id,
            t.run_attempt.c.attempt,
            t.run_attempt.c.from_round,
            t.run_attempt.c.last_seq,
        )
        .join(newest, newest.c.run_no == t.run.c.no)
        .join(
            t.run_attempt,
            and_(t.run_attempt.c.run_no == newest.c.run_no, t.run_attempt.c.attempt == newest.c.attempt),
        )
    )
    return every(RunPosition, session.execute(query))


def last_values(session: Session, experiment_id: str, names: Sequence[str]) -> list[PointOfRun]:
    """Return every point that counts of some metrics of an experiment, by run, name and round."""
    query = (
        select(*_POINT_COLUMNS, t.metric_name.c.name, t.run.c.id)
        .select_from(t.point)
        .join(t.run, t.run.c.no == t.point.c.run_no)
        .join(t.metric_name, t.metric_name.c.id == t.point.c.name_id)
        .join(t.run_attempt, current_rounds(t.point))
        .where(t.run.c.experiment_id == experiment_id, t.metric_name.c.name.in_(names))
        .order_by(t.point.c.run_no, t.metric_name.c.name, t.point.c.attempt, t.point.c.seq)
    )
    return every(PointOfRun, session.execute(query))


def known_names(session: Session, names: Sequence[str]) -> dict[str, int]:
    """Return {name: id} of the metric names that exist."""
    query = select(t.metric_name.c.name, t.metric_name.c.id).where(t.metric_name.c.name.in_(names))
    return {row.name: row.id for row in session.execute(query)}
