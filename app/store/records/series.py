"""Reading of metric series: every point when they fit, else buckets of equal numbers of rows.

All series that fit are read together, so that a page of many runs costs two statements, not two for each run.
A hundred thousand points cost what their way out of the database costs, so they leave it as columns:
PostgreSQL sends an array each, SQLite's driver bare tuples, both attempt by attempt in the order of the
index, which saves a sort. Non-finite values are NULL with a kind; here they are infinity, and only counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias
from typing import cast as cast_to

import numpy as np
import numpy.typing as npt
from sqlalchemy import CursorResult, Float, Integer, Select, cast, func, select, true
from sqlalchemy.orm import Session

from app.store.records.results import current_rounds
from app.store.rows.assignments import AttemptRow
from app.store.rows.selecting import every
from app.store.schema import tables as t

FloatArray: TypeAlias = npt.NDArray[np.float64]
_IN_MEMORY_ROWS = 250_000
#: PostgreSQL's binary form of an array of double precision: a header, then length and value of each element.
_HEADER_BYTES = 20
_ELEMENT = np.dtype([("length", ">i4"), ("value", ">f8")])


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

    @property
    def key(self) -> tuple[int, int]:
        """Which series it is."""
        return self.run_no, self.name_id


_X = {"step": t.point.c.step, "round": t.point.c.round, "time": t.point.c.t}


def read_series(session: Session, queries: Sequence[SeriesQuery]) -> list[dict[str, Any]]:
    """Return some series, in order: every point of those that fit, else buckets of equal numbers of rows.

    Args:
        session: a reading transaction.
        queries: alike but for run and name.

    Returns:
        {"x", "min", "max", "mean", "first", "last", "count", "n_nonfinite", "kind", "attempt", "total", "bucketed"}
        of each, as columns; for single points min = max = mean = first = last.
    """
    if not queries:
        return []
    short = _short(session, queries)
    whole = _whole(session, [query for query in queries if query.key in short])
    return [whole[query.key] if query.key in short else _long(session, query) for query in queries]


def _short(session: Session, queries: Sequence[SeriesQuery]) -> set[tuple[int, int]]:
    """Return the keys of the series that surely fit: superseded attempts count too, which saves a join.

    None is counted further than it could fit.
    """
    first = queries[0]
    few = select(t.point.c.seq).where(
        t.point.c.run_no == t.run.c.no, t.point.c.name_id == t.metric_name.c.id, *_within(first)
    )
    counted = few.correlate(t.run, t.metric_name).limit(first.max_points + 1).subquery()
    count = select(func.count()).select_from(counted).scalar_subquery()
    runs, names = ({key[place] for key in (query.key for query in queries)} for place in (0, 1))
    rows = session.execute(
        select(t.run.c.no, t.metric_name.c.id, count.label("rows"))
        .select_from(t.run)
        .join(t.metric_name, true())  # each with each
        .where(t.run.c.no.in_(runs), t.metric_name.c.id.in_(names))
    )
    return {(row.no, row.id) for row in rows if row.rows <= first.max_points}


def _whole(session: Session, queries: Sequence[SeriesQuery]) -> dict[tuple[int, int], dict[str, Any]]:
    """Return every point of the series that fit, by key; one statement."""
    if not queries:
        return {}
    first = queries[0]
    runs, names = ({key[place] for key in (query.key for query in queries)} for place in (0, 1))
    source = select(
        *(cast(t.point.c[name], Float).label(name) for name in ("run_no", "name_id", "attempt", "kind")),
        cast(_X[first.x], Float).label("x"),
        func.coalesce(t.point.c.value, math.inf).label("value"),
    ).where(t.point.c.run_no.in_(runs), t.point.c.name_id.in_(names), *_within(first))
    source = source if first.all_attempts else source.join(t.run_attempt, current_rounds(t.point))
    order = (t.point.c.run_no, t.point.c.name_id, t.point.c.attempt, t.point.c.seq)
    columns = _read(session, source.order_by(*order))
    edges = np.flatnonzero(np.any(np.diff(columns[:2], axis=1) != 0, axis=0)) + 1
    parts = {(int(part[0, 0]), int(part[1, 0])): part for part in np.split(columns, edges, axis=1) if part.size}
    empty = np.empty((len(columns), 0))
    return {query.key: _plain(parts.get(query.key, empty), query) for query in queries}


def _long(session: Session, query: SeriesQuery) -> dict[str, Any]:
    """Return one series that may not fit."""
    x, values = _columns(session, query)
    if len(x) > _IN_MEMORY_ROWS:
        return _bucketed(session, query)
    if len(x) <= query.max_points:  # rows of superseded attempts were counted with it
        return _whole(session, [query])[query.key]
    return _reduced(x, values, query.max_points)


def _columns(session: Session, query: SeriesQuery) -> tuple[FloatArray, FloatArray]:
    """Return x and value (infinity where it is not finite) in order; at most one row more than fit in memory."""
    attempts = select(t.run_attempt.c.attempt, t.run_attempt.c.from_round, t.run_attempt.c.until_round)
    mine = attempts.where(t.run_attempt.c.run_no == query.run_no).order_by(t.run_attempt.c.attempt)
    parts = [np.empty((2, 0))]
    left = _IN_MEMORY_ROWS + 1
    for attempt in every(AttemptRow, session.execute(mine)):
        parts.append(_read(session, _of_attempt(session, query, attempt).limit(left)))
        left -= parts[-1].shape[1]
    x, values = np.concatenate(parts, axis=1)
    return x, values


def _of_attempt(session: Session, query: SeriesQuery, attempt: AttemptRow) -> Select[Any]:
    source = (
        select(cast(_X[query.x], Float).label("x"), func.coalesce(t.point.c.value, math.inf).label("value"))
        .where(*_wanted(session, query), t.point.c.attempt == attempt.attempt)
        .order_by(t.point.c.seq)
    )
    if query.all_attempts:
        return source
    source = source.where(t.point.c.round >= attempt.from_round)
    return source if attempt.until_round is None else source.where(t.point.c.round < attempt.until_round)


def _read(session: Session, source: Select[Any]) -> FloatArray:
    """Return a selection of numbers as columns, in order."""
    return (_arrays if session.get_bind().dialect.name == "postgresql" else _tuples)(session, source)


def _arrays(session: Session, source: Select[Any]) -> FloatArray:
    rows = source.subquery()
    whole = select(*(func.array_send(func.array_agg(column)) for column in rows.c))
    connection = session.connection()
    compiled = whole.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})
    cursor = connection.connection.cursor(binary=True)
    cursor.execute(str(compiled), compiled.params)
    columns = [column or bytes(_HEADER_BYTES) for column in cursor.fetchone() or ()]
    cursor.close()
    return np.array([np.frombuffer(column, _ELEMENT, offset=_HEADER_BYTES)["value"] for column in columns], dtype=float)


def _tuples(session: Session, source: Select[Any]) -> FloatArray:
    result = cast_to(CursorResult[Any], session.execute(source))
    # the driver's own tuples: a row object each would cost more than reading them
    rows: Iterable[tuple[float, ...]] = result.cursor.fetchall()
    result.close()
    return np.fromiter(chain.from_iterable(rows), dtype=float).reshape(-1, len(source.selected_columns)).T


def _wanted(session: Session, query: SeriesQuery) -> list[Any]:
    """Return the conditions on a point, without those on its attempt."""
    named = t.point.c.name_id == query.name_id
    if session.get_bind().dialect.name == "sqlite":
        # without a hint SQLite reads every metric of the run, in the order of the primary key
        named = func.unlikely(named)
    return [t.point.c.run_no == query.run_no, named, *_within(query)]


def _within(query: SeriesQuery) -> list[Any]:
    low = [] if query.low is None else [_X[query.x] >= query.low]
    return low if query.high is None else [*low, _X[query.x] <= query.high]


def _source(session: Session, query: SeriesQuery) -> Select[Any]:
    source = select(t.point.c.attempt, t.point.c.seq, _X[query.x].label("x"), t.point.c.value, t.point.c.kind).where(
        *_wanted(session, query)
    )
    return source if query.all_attempts else source.join(t.run_attempt, current_rounds(t.point))


def _plain(columns: FloatArray, query: SeriesQuery) -> dict[str, Any]:
    _, _, attempts, kinds, x, values = columns
    shown = _nullable(np.where(np.isinf(values), np.nan, values))
    kind = kinds.astype(int).tolist()
    return {
        "x": x.tolist() if query.x != "round" else x.astype(int).tolist(),
        "min": shown,
        "max": shown,
        "mean": shown,
        "first": shown,
        "last": shown,
        "count": [1] * len(shown),
        "n_nonfinite": (kinds > 0).astype(int).tolist(),
        "kind": kind if any(kind) else None,
        "attempt": attempts.astype(int).tolist() if query.all_attempts else None,
        "total": len(shown),
        "bucketed": False,
    }


def _reduced(x: FloatArray, values: FloatArray, max_points: int) -> dict[str, Any]:
    """Bucket columns in memory; the same result as in SQL, where sorting twice costs five times as much."""
    total = len(x)
    # fewer than were counted, when a requeue came between
    max_points = min(max_points, total)
    lost = np.isinf(values)
    values = np.where(lost, np.nan, values)
    starts = -(-np.arange(max_points) * total // max_points)  # ceil: row i lies in bucket i * max_points // total
    counts = np.diff(np.append(starts, total))
    finite = np.add.reduceat((~lost).astype(int), starts)
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
        "n_nonfinite": (counts - finite).tolist(),
        "kind": None,
        "attempt": None,
        "total": total,
        "bucketed": True,
    }


def _nullable(values: FloatArray) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _bucketed(session: Session, query: SeriesQuery) -> dict[str, Any]:
    source = _source(session, query)
    total = int(session.execute(select(func.count()).select_from(source.subquery())).scalar_one())
    numbered = source.add_columns(func.row_number().over(order_by=(t.point.c.attempt, t.point.c.seq)).label("position"))
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
