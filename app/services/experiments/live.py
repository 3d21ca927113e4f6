"""Frames of the live protocol (control-plane.md 9): plain data made from rows, and cursors.

A cursor names the last event and, for each run, (attempt, seq) of the last point seen. There is no
global serial: such numbers commit out of order on PostgreSQL and a reader would lose rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from app.services.context import Context
from app.services.experiments.cursors import bad_cursor, decode_numbers, encode_numbers
from app.services.experiments.reading import run_document
from app.services.results.series import SeriesRequest, read_series
from app.services.steering import existing
from app.store import experiments
from app.store.records import events, points
from app.store.rows.experiments import BlockRow
from app.store.rows.records import EventRow
from lockstep.nonfinite import word

CATCH_UP_ROWS = 20_000
#: Characters of a cursor: 8,000 runs, the most of an experiment, take 46,000 if no two of them are alike.
MAX_CURSOR = 60_000
#: The largest number that the column of an attempt holds.
_MAX_ATTEMPT = 2**15 - 1
_CATCH_UP_EVENTS = 2_000
_STATUS_TYPES = ("block_status", "run_status")


@dataclass
class Position:
    """How far a reader is in one experiment; ``runs`` maps run number to (attempt, seq)."""

    event: int = 0
    runs: dict[int, tuple[int, int]] = field(default_factory=dict)

    def cursor(self) -> str:
        """Return the opaque cursor."""
        rows = [(no, *span) for no, span in sorted(self.runs.items())]
        return encode_numbers([self.event, *(number for column in zip(*rows, strict=True) for number in column)])

    @staticmethod
    def parse(cursor: str) -> Position:
        """Return the position of a cursor.

        Raises:
            InvalidError: when it is not one of ours.
        """
        numbers = decode_numbers(cursor)
        count, rest = divmod(len(numbers) - 1, 3)
        if rest or min(numbers) < 0:
            raise bad_cursor()
        event, *columns = numbers
        nos, attempts, seqs = (columns[place * count : (place + 1) * count] for place in range(3))
        if max(attempts, default=0) > _MAX_ATTEMPT:
            raise bad_cursor()
        return Position(event, {no: (attempt, seq) for no, attempt, seq in zip(nos, attempts, seqs, strict=True)})

    def covers(self, other: Position) -> bool:
        """Return whether everything up to ``other`` has been seen."""
        behind = any(self.runs.get(no, (0, 0)) < span for no, span in other.runs.items())
        return self.event >= other.event and not behind

    def copy(self) -> Position:
        """Return an independent copy."""
        return Position(self.event, dict(self.runs))


@dataclass(frozen=True)
class Interest:
    """What a reader subscribed to; empty means everything."""

    metrics: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    max_points: int = 1_000

    @property
    def everything(self) -> bool:
        """Whether nothing is filtered."""
        return not self.metrics and not self.runs

    def wants(self, row: PointView) -> bool:
        """Return whether a point row (with run_id) is of interest."""
        return (not self.metrics or row.name in self.metrics) and (not self.runs or row.run_id in self.runs)


@dataclass(frozen=True)
class Batch:
    """What happened in an experiment between two positions."""

    events: Sequence[EventRow]
    points: Sequence[Any]
    more: bool = False


@dataclass(frozen=True)
class PointView:
    """A point with the identity of its run."""

    run_no: int
    run_id: str
    attempt: int
    seq: int
    name: str
    step: float
    round: int
    t: float
    value: float | None
    kind: int


def read_batch(ctx: Context, experiment_id: str, position: Position) -> Batch:
    """Read what follows a position, at most ``CATCH_UP_ROWS`` points.

    A reader that was away while a run was taken up again gets what is left of the older attempt, then its
    truncation, and in the next batch the new attempt: whoever adds and cuts in that order shows what counts.
    """
    with ctx.store.read() as session:
        rows = events.list_events(session, experiment_id, after=position.event, limit=_CATCH_UP_EVENTS)
        places = points.positions(session, [experiment_id])
        seen = {place.no: position.runs.get(place.no, (0, 0)) for place in places}
        ends: dict[str, int] = {}
        if any(place.attempt > seen[place.no][0] for place in places):
            ends = events.next_truncations(session, experiment_id, after=position.event)
        spans = [
            points.Span(place.no, *seen[place.no], ends.get(place.id))
            for place in places
            if (place.attempt, place.last_seq) != seen[place.no]
        ]
        tail = points.tail(session, spans, CATCH_UP_ROWS)
    ids = {place.no: place.id for place in places}
    is_full = len(tail) == CATCH_UP_ROWS
    ready = _ready(rows, is_full=is_full)
    more = is_full or len(rows) == _CATCH_UP_EVENTS or bool(ends)
    views = [
        PointView(
            row.run_no,
            ids[row.run_no],
            row.attempt,
            row.seq,
            row.name,
            row.step,
            row.round,
            row.at,
            row.value,
            row.kind,
        )
        for row in tail
    ]
    return Batch(ready, views, more)


def _ready(rows: Sequence[EventRow], *, is_full: bool) -> Sequence[EventRow]:
    """Return the events that may go out with a batch: a truncation comes after all points that it may void.

    Two of one run need a batch each, and the end of the experiment one after the points of the new attempt.
    """
    cut: set[str | None] = set()
    for index, row in enumerate(rows):
        if (row.type == "truncate" and (is_full or row.run_id in cut)) or (row.type == "experiment_end" and cut):
            return rows[:index]
        if row.type == "truncate":
            cut.add(row.run_id)
    return rows


def advance(position: Position, batch: Batch) -> None:
    """Move a position past a batch."""
    if batch.events:
        position.event = max(position.event, batch.events[-1].seq)
    for point in batch.points:
        position.runs[point.run_no] = (point.attempt, point.seq)


def frames_of(batch: Batch, position: Position, interest: Interest, *, live: bool = True) -> list[dict[str, Any]]:
    """Return the frames of a batch for a reader and move its position; seen rows are left out.

    Points stand before the events of the batch. The cursor of a frame covers it and what came before it, so a
    stream may be cut anywhere. An ``end`` frame is made live only: in the past of an extended experiment it was
    not the end.
    """
    fresh = [row for row in batch.events if row.seq > position.event]
    new = [point for point in batch.points if (point.attempt, point.seq) > position.runs.get(point.run_no, (0, 0))]
    advance(position, Batch((), new))
    columns = point_columns([point for point in new if interest.wants(point)])
    frames: list[dict[str, Any]] = []
    for is_round, rows in groupby(fresh, key=lambda row: row.type == "round_completed"):
        members = list(rows)
        if is_round or columns:
            position.event = members[-1].seq if is_round else position.event
            rounds = [_completed_round(row) for row in members] if is_round else []
            frames.append({"type": "delta", "points": columns, "rounds": rounds, "cursor": position.cursor()})
            columns = []
        for row in members if not is_round else ():
            position.event = row.seq
            frames.append({**event_frame(row, live=live), "cursor": position.cursor()})
    if columns:
        frames.append({"type": "delta", "points": columns, "rounds": [], "cursor": position.cursor()})
    return frames


def _completed_round(row: EventRow) -> dict[str, Any]:
    return {"block_id": row.block_id, "replicate": row.replicate, "round": row.round, "comparison": row.payload}


def event_frame(row: EventRow, *, live: bool) -> dict[str, Any]:
    """Return the frame of an event that does not travel in a delta."""
    if row.type == "truncate":
        return {"type": "truncate", **row.payload, "event": row.seq}
    if row.type == "experiment_end" and live:
        return {"type": "end", "status": row.status, **row.payload, "event": row.seq}
    kind = "status" if row.type in _STATUS_TYPES else "event"
    return {"type": kind, "event": events.event_document(row)}


def point_columns(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return points grouped by (run, attempt, metric), as columns."""
    order = sorted(rows, key=lambda row: (row.run_id, row.attempt, row.name, row.seq))
    grouped = []
    for (run_id, attempt, name), members in groupby(order, key=lambda row: (row.run_id, row.attempt, row.name)):
        items = list(members)
        grouped.append(
            {
                "run_id": run_id,
                "attempt": attempt,
                "metric": name,
                "seq": [row.seq for row in items],
                "step": [row.step for row in items],
                "round": [row.round for row in items],
                "t": [row.t for row in items],
                "value": [row.value for row in items],
                "nf": [[index, word(row.kind)] for index, row in enumerate(items) if row.kind],
            }
        )
    return grouped


def snapshot(ctx: Context, experiment_id: str, interest: Interest) -> tuple[dict[str, Any], Position]:
    """Return the snapshot frame of an experiment and the position it stands for."""
    with ctx.store.read() as session:
        row = existing(session, experiment_id)
        position = Position(row.event_seq)
        for place in points.positions(session, [experiment_id]):
            position.runs[place.no] = (place.attempt, place.last_seq)
        states = experiments.blocks(session, experiment_id)
        runs = experiments.runs(session, experiment_id)
        status = experiments.derived_status(row, states)
        latest = events.newest_by_block(session, experiment_id, "round_completed")
    chosen = [run.id for run in runs if not interest.runs or run.id in interest.runs]
    series = _snapshot_series(ctx, experiment_id, chosen, interest)
    frame = {
        "type": "snapshot",
        "experiment": {"id": experiment_id, "name": row.name, "status": status.value, "rounds": row.rounds},
        "blocks": [_block_state(block) for block in states],
        "runs": [run_document(run) for run in runs],
        "series": series,
        "comparisons": {item.block_id: item.payload for item in latest},
        "cursor": position.cursor(),
    }
    return frame, position


def _block_state(block: BlockRow) -> dict[str, Any]:
    return {
        "id": block.id,
        "replicate": block.replicate,
        "status": block.status,
        "cause": block.cause,
        "attempt": block.attempt,
        "complete_rounds": block.open_round,
    }


def _snapshot_series(
    ctx: Context, experiment_id: str, runs: Sequence[str], interest: Interest
) -> Sequence[Mapping[str, Any]]:
    if not interest.metrics or not runs:
        return []
    room = max(1, 200_000 // max(1, len(runs) * len(interest.metrics)))
    fitting = list(runs)[: max(1, 200 // len(interest.metrics))]
    request = SeriesRequest(fitting, sorted(interest.metrics), "round", None, None, min(interest.max_points, room))
    document = read_series(ctx, experiment_id, request)
    return [_whole(series) for series in document["series"]]


#: Columns of a bucket that say nothing new where each is a single point: min = max = first = last = mean.
_OF_BUCKETS = frozenset(("min", "max", "first", "last", "count", "n_nonfinite"))


def _whole(series: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a series with what a reader needs: of every single point x and value, of buckets all."""
    if series["bucketed"]:
        return series
    return {name: column for name, column in series.items() if name not in _OF_BUCKETS}


def last_end(ctx: Context, experiment_id: str) -> dict[str, Any] | None:
    """Return the end frame of an experiment that is over now, or None."""
    with ctx.store.read() as session:
        row = experiments.get(session, experiment_id)
        if row is None or row.finished_at is None:
            return None
        end = events.newest(session, experiment_id, "experiment_end")
    return event_frame(end, live=True) if end is not None else None
