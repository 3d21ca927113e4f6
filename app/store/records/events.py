"""The event timeline of an experiment: numbered under its row lock, so a reader loses none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import String, bindparam, func, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from app.store.database.engine import AT_THE_END, END_EVENTS, utc
from app.store.database.prepared import as_json, insert_rows, rows_from_json
from app.store.records import webhooks
from app.store.records.results import current_rounds
from app.store.rows.records import EventRow
from app.store.rows.selecting import columns, every, one
from app.store.rows.workers import WorkerEventRow
from app.store.schema import tables as t
from lockstep.nonfinite import jsonable
from lockstep.status import BlockStatus, Cause


@dataclass(frozen=True)
class NewEvent:
    """An event to record.

    Attributes:
        type: what happened, for example ``block_status``.
        text: a sentence for people.
        group_id: arm label, or ``*`` for the block or experiment.
    """

    type: str
    text: str
    actor: str = "system"
    severity: str = "info"
    block_id: str | None = None
    run_id: str | None = None
    worker_id: str | None = None
    replicate: int | None = None
    group_id: str = "*"
    reward_mode: str | None = None
    device: str | None = None
    round: int | None = None
    env_id: int | None = None
    status: str | None = None
    cause: str | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)


def add_events(session: Session, now: float, experiment_id: str, events: Sequence[NewEvent]) -> None:
    """Record events of one experiment, in order, in the caller's transaction.

    They are numbered and inserted at its end, all at once: the experiment's row is locked late and briefly,
    after every block, and a transaction of several experiments locks them in the order of their ids.
    """
    if not events:
        return
    pending = session.info[AT_THE_END].setdefault(END_EVENTS, _Pending())
    pending.events.setdefault(experiment_id, []).extend((event, now) for event in events)


class _Pending:
    """Events of a transaction that are not inserted yet, each with its time, by experiment."""

    def __init__(self) -> None:
        self.events: dict[str, list[tuple[NewEvent, float]]] = {}

    def __call__(self, session: Session) -> None:
        rows: list[dict[str, Any]] = []
        for experiment_id, events in sorted(self.events.items()):
            rows += _add(session, experiment_id, [_row(experiment_id, event, utc(now)) for event, now in events])
        webhooks.note(session, rows)


def _add(session: Session, experiment_id: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Number rows and insert them; return them with their numbers.

    The row of the experiment is what all its blocks wait for: PostgreSQL is asked once while it is held.
    """
    given: dict[str, Any] = {"of_experiment": experiment_id, "count": len(rows)}
    if session.get_bind().dialect.name == "postgresql":
        placed = as_json([{**row, "seq": place} for place, row in enumerate(rows, start=1)])
        given |= {"rows": placed, "prefix": _id_of(experiment_id, "")}
        last = max(session.execute(_NUMBER_AND_ADD, given).scalars())
        return _numbered(experiment_id, rows, last)
    numbered = _numbered(experiment_id, rows, session.execute(_TAKE_NUMBERS, given).scalar_one())
    insert_rows(session, t.event, numbered)
    return numbered


def _numbered(experiment_id: str, rows: Sequence[Mapping[str, Any]], last: int) -> list[dict[str, Any]]:
    numbers = range(last - len(rows) + 1, last + 1)
    return [{**row, "seq": seq, "id": _id_of(experiment_id, seq)} for seq, row in zip(numbers, rows, strict=True)]


def _id_of(experiment_id: str, seq: int | str) -> str:
    return f"evt_{experiment_id[4:]}_{seq}"


def _row(experiment_id: str, event: NewEvent, at: datetime) -> dict[str, Any]:
    values = {name: getattr(event, name) for name in _FIELDS}
    values["payload"] = jsonable(dict(event.payload))
    return {**values, "experiment_id": experiment_id, "at": at}


_FIELDS = tuple(NewEvent.__dataclass_fields__)
_TAKE_NUMBERS = (
    update(t.experiment)
    .where(t.experiment.c.id == bindparam("of_experiment"))
    .values(event_seq=t.experiment.c.event_seq + bindparam("count"))
    .returning(t.experiment.c.event_seq)
)


def _number_and_add() -> ReturningInsert[Any]:
    """Return the statement of PostgreSQL that takes numbers and inserts, given the place of each row as its ``seq``."""
    taken = _TAKE_NUMBERS.returning(t.experiment.c.id).cte("taken")
    values = rows_from_json(t.event, (*_FIELDS, "experiment_id", "at", "seq"))
    seq = taken.c.event_seq - bindparam("count") + values["seq"]
    numbered = {**values, "seq": seq, "id": func.concat(bindparam("prefix", type_=String), seq)}
    rows = select(*numbered.values()).where(values["experiment_id"] == taken.c.id)
    return insert(t.event).from_select([*numbered], rows, include_defaults=False).returning(t.event.c.seq)


_NUMBER_AND_ADD = _number_and_add()


def list_events(
    session: Session, experiment_id: str, *, after: int, limit: int, types: Sequence[str] = ()
) -> list[EventRow]:
    """Return events with a number above ``after``, ascending."""
    query = select(*_EVENT).where(t.event.c.experiment_id == experiment_id, t.event.c.seq > after)
    if types:
        query = query.where(t.event.c.type.in_(types))
    return every(EventRow, session.execute(query.order_by(t.event.c.seq).limit(limit)))


def stops(session: Session, experiment_id: str, causes: Collection[Cause]) -> list[EventRow]:
    """Return the events by which attempts of blocks stopped for some causes, in order."""
    query = select(*_EVENT).where(
        t.event.c.experiment_id == experiment_id,
        t.event.c.type == "block_status",
        t.event.c.status == BlockStatus.STOPPING,
        t.event.c.cause.in_(causes),
    )
    return every(EventRow, session.execute(query.order_by(t.event.c.seq)))


_EVENT = columns(EventRow, t.event)


def of_round(session: Session, run_no: int, run_id: str, round_index: int) -> list[EventRow] | None:
    """Return what happened in the environments of a run in one round, in order; None where no such round counts.

    A round that was trained again has the events of every attempt. Those that count came with the result that counts,
    in one transaction and at its instant.
    """
    received = session.execute(_RECEIVED, {"run_no": run_no, "of_round": round_index}).scalar_one_or_none()
    if received is None:
        return None
    return every(
        EventRow, session.execute(_OF_ROUND, {"of_run": run_id, "of_round": round_index, "received": received})
    )


_RECEIVED = (
    select(t.round_result.c.received_at)
    .join(t.run_attempt, current_rounds(t.round_result))
    .where(t.round_result.c.run_no == bindparam("run_no"), t.round_result.c.round == bindparam("of_round"))
)
_OF_ROUND = (
    select(*_EVENT)
    .where(
        t.event.c.run_id == bindparam("of_run"),
        t.event.c.round == bindparam("of_round"),
        t.event.c.env_id.is_not(None),
        t.event.c.at == bindparam("received", type_=t.event.c.at.type),
    )
    .order_by(t.event.c.seq)
)


def next_truncations(session: Session, experiment_id: str, *, after: int) -> dict[str, int]:
    """Return {run id: attempt that its first truncation after an event number makes room for}."""
    query = select(t.event.c.run_id, t.event.c.payload).where(
        t.event.c.experiment_id == experiment_id, t.event.c.seq > after, t.event.c.type == "truncate"
    )
    ends: dict[str, int] = {}
    for row in session.execute(query.order_by(t.event.c.seq)):
        ends.setdefault(row.run_id, row.payload["attempt"])
    return ends


def newest(session: Session, experiment_id: str, kind: str) -> EventRow | None:
    """Return the newest event of a type, or None."""
    query = select(*_EVENT).where(t.event.c.experiment_id == experiment_id, t.event.c.type == kind)
    return one(EventRow, session.execute(query.order_by(t.event.c.seq.desc()).limit(1)))


def newest_by_block(session: Session, experiment_id: str, kind: str) -> list[EventRow]:
    """Return the newest event of a type of each block, in order."""
    mine = t.event.c.experiment_id == experiment_id
    last = select(func.max(t.event.c.seq)).where(mine, t.event.c.type == kind).group_by(t.event.c.block_id)
    # two statements: in one, both databases may go through all events again for each event
    numbers = session.execute(last).scalars().all()
    query = select(*_EVENT).where(mine, t.event.c.seq.in_(numbers)).order_by(t.event.c.seq)
    return every(EventRow, session.execute(query))


def event_document(row: EventRow) -> dict[str, Any]:
    """Return an event as the API shows it."""
    return {
        "event_id": row.id,
        "seq": row.seq,
        "time": row.at.isoformat(),
        "experiment_id": row.experiment_id,
        "type": row.type,
        "severity": row.severity,
        "text": row.text,
        "actor": row.actor,
        "block_id": row.block_id,
        "run_id": row.run_id,
        "worker_id": row.worker_id,
        "replicate": row.replicate,
        "group_id": row.group_id,
        "reward_mode": row.reward_mode,
        "device": row.device,
        "round": row.round,
        "env_id": row.env_id,
        "status": row.status,
        "cause": row.cause,
        "payload": row.payload,
    }


def add_worker_event(session: Session, now: float, worker_id: str, status: str, actor: str, text: str) -> None:
    """Record a change of a worker."""
    add_worker_events(session, now, {worker_id: text}, status, actor)


def add_worker_events(session: Session, now: float, texts: Mapping[str, str], status: str, actor: str) -> None:
    """Record the same change of several workers, {worker: text}."""
    same = {"status": status, "actor": actor, "at": utc(now)}
    if texts:
        rows = [{**same, "worker_id": worker_id, "text": text[:2000]} for worker_id, text in texts.items()]
        insert_rows(session, t.worker_event, rows)


def worker_events(session: Session, worker_id: str, limit: int = 50) -> list[WorkerEventRow]:
    """Return the newest events of a worker, newest first."""
    query = select(*columns(WorkerEventRow, t.worker_event)).where(t.worker_event.c.worker_id == worker_id)
    return every(WorkerEventRow, session.execute(query.order_by(t.worker_event.c.id.desc()).limit(limit)))
