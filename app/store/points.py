"""Metric points: exactly-once ingest, bounded reading in buckets, tailing by cursor.

A point is unique by (run, attempt, seq); inserting it again does nothing. Non-finite values are
stored as NULL with a kind. Reads go over the rounds that count and are bounded by rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from typing import cast as cast_to

import numpy as np
import numpy.typing as npt
from sqlalchemy import CursorResult, Integer, Result, and_, cast, func, or_, select, text, update
from sqlalchemy.orm import Session

from app.store import tables as t
from app.store.logs import ignore_duplicates
from app.store.results import current_rounds
from app.store.tables import Record

FloatArray: TypeAlias = npt.NDArray[np.float64]
_IN_MEMORY_ROWS = 250_000


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
        found = dict(self._ids)
        if missing:
            found |= self._lookup(session, missing)
            rest = [name for name in missing if name not in found]
            if rest:
                self._insert(session, rest)
                # not cached yet: this transaction may still roll back
                found |= self._read(session, rest)
        return [found[name] for name in names]

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


_COLUMNS = ", ".join(("run_no", "attempt", *PointRow._fields))
_ONE_BY_ONE = f"INSERT INTO point ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
_TYPES = ("integer", "integer", "double precision", "integer", "double precision", "double precision", "smallint")
_AT_ONCE = text(
    f"INSERT INTO point ({_COLUMNS}) SELECT :run_no, :attempt, given.* FROM unnest("  # noqa: S608 - our own names
    + ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in zip(PointRow._fields, _TYPES, strict=True))
    + ") AS given ON CONFLICT DO NOTHING"
)


def _array(numbers: Sequence[float | int | None]) -> str:
    """Return numbers as PostgreSQL writes an array; the driver would search each of them by a pattern."""
    return "{" + ",".join("NULL" if number is None else str(number) for number in numbers) + "}"


def insert_points(session: Session, run_no: int, attempt: int, rows: Sequence[PointRow]) -> None:
    """Insert points of one run in order; those already there are left as they are.

    Written for each database by hand: ingest is the one place where the cost of a row counts. PostgreSQL
    takes one statement with a column an array, SQLite's driver the bare tuples.
    """
    if not rows:
        return
    if session.get_bind().dialect.name == "postgresql":
        columns = zip(PointRow._fields, zip(*rows, strict=True), strict=True)
        arrays = {name: _array(column) for name, column in columns}
        session.execute(_AT_ONCE, {"run_no": run_no, "attempt": attempt, **arrays})
        return
    session.connection().exec_driver_sql(_ONE_BY_ONE, [(run_no, attempt, *row) for row in rows])


def advance(session: Session, run_no: int, attempt: int, first_seq: int, count: int) -> None:
    """Move the highest contiguous seq past a batch that follows it."""
    last = first_seq + count - 1
    session.execute(
        update(t.run_attempt)
        .where(
            t.run_attempt.c.run_no == run_no,
            t.run_attempt.c.attempt == attempt,
            t.run_attempt.c.last_seq >= first_seq - 1,
            t.run_attempt.c.last_seq < last,
        )
        .values(last_seq=last)
    )


def acknowledged(session: Session, run_no: int, attempt: int) -> int:
    """Return the highest seq of an attempt up to which no point is missing."""
    query = select(t.run_attempt.c.last_seq).where(t.run_attempt.c.run_no == run_no, t.run_attempt.c.attempt == attempt)
    return int(session.execute(query).scalar_one())


def names_of_run(session: Session, run_no: int) -> list[str]:
    """Return the metric names a run has, sorted."""
    query = (
        select(t.metric_name.c.name)
        .where(t.metric_name.c.id.in_(select(t.point.c.name_id).where(t.point.c.run_no == run_no).distinct()))
        .order_by(t.metric_name.c.name)
    )
    return list(session.execute(query).scalars())


@dataclass(frozen=True)
class SeriesQuery:
    """One series to read: a metric of a run, in at most ``max_points`` buckets over x."""

    run_no: int
    name_id: int
    x: str  # "step", "round" or "time"
    max_points: int
    low: float | None = None
    high: float | None = None
    all_attempts: bool = False


_POINT_COLUMNS = tuple(column.label("at") if column.name == "t" else column for column in t.point.c)
_X = {"step": t.point.c.step, "round": t.point.c.round, "time": t.point.c.t}


def read_series(session: Session, query: SeriesQuery) -> dict[str, Any]:
    """Return a series: every point when they fit, else buckets of equal numbers of rows.

    Returns:
        {"x", "min", "max", "mean", "first", "last", "count", "n_nonfinite", "nf", "total", "bucketed"}
        as columns; for single points min = max = mean = first = last.
    """
    source = _source(query)
    total = int(session.execute(select(func.count()).select_from(source.subquery())).scalar_one())
    if total <= query.max_points:
        return _plain(session.execute(source.order_by(t.point.c.attempt, t.point.c.seq)).all(), query, total)
    if total <= _IN_MEMORY_ROWS:
        columns = source.with_only_columns(_X[query.x].label("x"), t.point.c.value, t.point.c.kind)
        result = session.execute(columns.order_by(t.point.c.attempt, t.point.c.seq))
        return _reduced(_bare(result), query.max_points)
    return _bucketed(session, query, total)


def _bare(result: Result[Any]) -> Sequence[tuple[Any, ...]]:
    """Return the driver's own tuples: a row object each would cost more than reading them."""
    rows: Sequence[tuple[Any, ...]] = cast_to(CursorResult[Any], result).cursor.fetchall()
    result.close()
    return rows


def _source(query: SeriesQuery) -> Any:
    source = select(
        t.point.c.attempt,
        t.point.c.seq,
        _X[query.x].label("x"),
        t.point.c.value,
        t.point.c.kind,
    ).where(t.point.c.run_no == query.run_no, t.point.c.name_id == query.name_id)
    if not query.all_attempts:
        source = source.join(t.run_attempt, current_rounds(t.point))
    if query.low is not None:
        source = source.where(_X[query.x] >= query.low)
    if query.high is not None:
        source = source.where(_X[query.x] <= query.high)
    return source


def _plain(rows: Sequence[Record], query: SeriesQuery, total: int) -> dict[str, Any]:
    values = [row.value for row in rows]
    return {
        "x": [row.x for row in rows],
        "min": values,
        "max": values,
        "mean": values,
        "first": values,
        "last": values,
        "count": [1] * len(rows),
        "n_nonfinite": [1 if row.kind else 0 for row in rows],
        "kind": [row.kind for row in rows],
        "attempt": [row.attempt for row in rows] if query.all_attempts else None,
        "total": total,
        "bucketed": False,
    }


def _reduced(rows: Sequence[tuple[Any, ...]], max_points: int) -> dict[str, Any]:
    """Bucket rows in memory; the same result as in SQL, where sorting twice costs five times as much."""
    total = len(rows)
    x, values, kind = np.array(rows, dtype=float).T  # None becomes NaN
    starts = -(-np.arange(max_points) * total // max_points)  # ceil: row i lies in bucket i * max_points // total
    counts = np.diff(np.append(starts, total))
    finite = np.add.reduceat((~np.isnan(values)).astype(int), starts)
    sums = np.add.reduceat(np.nan_to_num(values), starts)
    means = np.divide(sums, finite, out=np.full(max_points, np.nan), where=finite > 0)
    return {
        "x": np.minimum.reduceat(x, starts).tolist(),
        "min": _nullable(np.fmin.reduceat(values, starts)),
        "max": _nullable(np.fmax.reduceat(values, starts)),
        "mean": _nullable(means),
        "first": _nullable(values[starts]),
        "last": _nullable(values[starts + counts - 1]),
        "count": counts.tolist(),
        "n_nonfinite": np.add.reduceat((kind > 0).astype(int), starts).tolist(),
        "kind": None,
        "attempt": None,
        "total": total,
        "bucketed": True,
    }


def _nullable(values: FloatArray) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _bucketed(session: Session, query: SeriesQuery, total: int) -> dict[str, Any]:
    numbered = _source(query).add_columns(
        func.row_number().over(order_by=(t.point.c.attempt, t.point.c.seq)).label("position")
    )
    inner = numbered.subquery()
    bucket = cast((inner.c.position - 1) * query.max_points / total, Integer)
    if session.get_bind().dialect.name == "postgresql":
        bucket = cast(func.floor((inner.c.position - 1) * query.max_points / float(total)), Integer)
    edges = select(
        bucket.label("bucket"),
        inner.c.x,
        inner.c.value,
        inner.c.kind,
        inner.c.position,
    ).subquery()
    rows = session.execute(
        select(
            func.min(edges.c.x).label("x"),
            func.min(edges.c.value).label("low"),
            func.max(edges.c.value).label("high"),
            func.avg(edges.c.value).label("mean"),
            func.count().label("rows"),
            func.sum(cast(edges.c.kind > 0, Integer)).label("n_nonfinite"),
            func.min(edges.c.position).label("first_position"),
            func.max(edges.c.position).label("last_position"),
        )
        .group_by(edges.c.bucket)
        .order_by(edges.c.bucket)
    ).all()
    ends = _values_at(session, inner, {row.first_position for row in rows} | {row.last_position for row in rows})
    return {
        "x": [row.x for row in rows],
        "min": [row.low for row in rows],
        "max": [row.high for row in rows],
        "mean": [row.mean for row in rows],
        "first": [ends.get(row.first_position) for row in rows],
        "last": [ends.get(row.last_position) for row in rows],
        "count": [row.rows for row in rows],
        "n_nonfinite": [int(row.n_nonfinite or 0) for row in rows],
        "kind": None,
        "attempt": None,
        "total": total,
        "bucketed": True,
    }


def _values_at(session: Session, inner: Any, positions: set[int]) -> dict[int, float | None]:
    query = select(inner.c.position, inner.c.value).where(inner.c.position.in_(positions))
    return {row.position: row.value for row in session.execute(query)}


def tail(session: Session, spans: Sequence[tuple[int, int, int]], limit: int) -> Sequence[Record]:
    """Return points after (run_no, attempt, seq) cursors with their names, in order."""
    if not spans:
        return []
    conditions = [
        and_(t.point.c.run_no == run_no, t.point.c.attempt == attempt, t.point.c.seq > seq)
        for run_no, attempt, seq in spans
    ]
    query = (
        # the columns t and count would be hidden by attributes that every Row has
        select(*_POINT_COLUMNS, t.metric_name.c.name)
        .join(t.metric_name, t.metric_name.c.id == t.point.c.name_id)
        .where(or_(*conditions))
        .order_by(t.point.c.run_no, t.point.c.attempt, t.point.c.seq)
        .limit(limit)
    )
    return session.execute(query).all()


def positions(session: Session, experiment_ids: Sequence[str]) -> Sequence[Record]:
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
    return session.execute(query).all()


def last_values(session: Session, experiment_id: str, names: Sequence[str]) -> Sequence[Record]:
    """Return every point that counts of some metrics of an experiment, by run, name and round."""
    query = (
        select(t.run.c.id.label("run_id"), t.metric_name.c.name, *_POINT_COLUMNS)
        .select_from(t.point)
        .join(t.run, t.run.c.no == t.point.c.run_no)
        .join(t.metric_name, t.metric_name.c.id == t.point.c.name_id)
        .join(t.run_attempt, current_rounds(t.point))
        .where(t.run.c.experiment_id == experiment_id, t.metric_name.c.name.in_(names))
        .order_by(t.point.c.run_no, t.metric_name.c.name, t.point.c.attempt, t.point.c.seq)
    )
    return session.execute(query).all()


def known_names(session: Session, names: Sequence[str]) -> dict[str, int]:
    """Return {name: id} of the metric names that exist."""
    query = select(t.metric_name.c.name, t.metric_name.c.id).where(t.metric_name.c.name.in_(names))
    return {row.name: row.id for row in session.execute(query)}
