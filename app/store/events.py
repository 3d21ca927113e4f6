"""The event timeline of an experiment: numbered under its row lock, so a reader loses none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from app.store import tables as t
from app.store import webhooks
from app.store.engine import AT_THE_END, END_EVENTS, utc
from app.store.results import current_rounds
from app.store.rows import EventRow, WorkerEventRow, columns, every, one
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
            given = {"experiment_id": experiment_id, "count": len(events)}
            first = int(session.execute(_TAKE_NUMBERS, given).scalar_one()) - len(events) + 1
            rows += [_row(experiment_id, first + i, event, utc(now)) for i, (event, now) in enumerate(events)]
        session.execute(_ADD, rows)
        webhooks.note(session, rows)


_ADD = insert(t.event)
_TAKE_NUMBERS = (
    update(t.experiment)
    .where(t.experiment.c.id == bindparam("experiment_id"))
    .values(event_seq=t.experiment.c.event_seq + bindparam("count"))
    .returning(t.experiment.c.event_seq)
)


def _row(experiment_id: str, seq: int, event: NewEvent, at: datetime) -> dict[str, Any]:
    values = {name: getattr(event, name) for name in NewEvent.__dataclass_fields__}
    values["payload"] = jsonable(dict(event.payload))
    return {
        **values,
        "experiment_id": experiment_id,
        "seq": seq,
        "id": f"evt_{experiment_id[4:]}_{seq}",
        "at": at,
    }


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
        session.execute(_ADD_WORKER_EVENT, rows)


_ADD_WORKER_EVENT = insert(t.worker_event)


def worker_events(session: Session, worker_id: str, limit: int = 50) -> list[WorkerEventRow]:
    """Return the newest events of a worker, newest first."""
    query = select(*columns(WorkerEventRow, t.worker_event)).where(t.worker_event.c.worker_id == worker_id)
    return every(WorkerEventRow, session.execute(query.order_by(t.worker_event.c.id.desc()).limit(limit)))
