"""Leases: fencing of every write, heartbeats, expiry. The database clock decides.

A lease token is stored as SHA-256 and stands in the WHERE clause of each write; no row means the
lease is lost and nothing is stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Update, and_, bindparam, literal, literal_column, select, update
from sqlalchemy.orm import Session

from app.store.database.engine import CLOCK, Store, utc
from app.store.database.prepared import pairs_in, update_one
from app.store.records.events import add_worker_event, add_worker_events
from app.store.rows.assignments import AssignmentOfExperiment, AssignmentRow, EndedAssignment, LiveAssignment, Renewed
from app.store.rows.experiments import BlockRow
from app.store.rows.selecting import columns, every, one
from app.store.rows.workers import Told, WorkerRow
from app.store.schema import tables as t
from lockstep.status import (
    ACTIVE_BLOCK,
    LIVE_ASSIGNMENT,
    AssignmentState,
    BlockStatus,
    WorkerStatus,
    assignment_sources,
    worker_sources,
)

_GONE = (WorkerStatus.LOST, WorkerStatus.RETIRED)
#: Assignments of a worker that are looked at to judge its device.
_LATELY = 50


def token_hash(token: str) -> str:
    """Return what is stored of a lease token."""
    return hashlib.sha256(token.encode()).hexdigest()


def fence(
    store: Store, session: Session, assignment_id: str, token: str
) -> tuple[AssignmentRow, BlockRow, float] | None:
    """Return (assignment, its block, now) if its lease holds, and lock both to the end of the transaction.

    The block first, then the assignment, as everybody does.
    """
    given = {"assignment_id": assignment_id, "hashed": token_hash(token)}
    found = session.execute(_FENCE[store.dialect], given).one_or_none()
    if found is None:
        return None
    *fields, now = found
    return AssignmentRow(*fields[len(_BLOCK) :]), BlockRow(*fields[: len(_BLOCK)]), store.at(now)


_HELD = and_(t.assignment.c.id == bindparam("assignment_id"), t.assignment.c.token == bindparam("hashed"), t.IS_LIVE)
_ASSIGNMENT = columns(AssignmentRow, t.assignment)
_BLOCK = columns(BlockRow, t.block)
_OF_ITS_BLOCK = and_(t.block.c.id == t.assignment.c.block_id, t.block.c.attempt == t.assignment.c.attempt)
_FENCE = {
    # PostgreSQL locks a row's tables in the order in which they are named, and then reads what it waited for anew
    dialect: select(*_BLOCK, *_ASSIGNMENT, clock)
    .join(t.assignment, _OF_ITS_BLOCK)
    .where(_HELD)
    .with_for_update(of=[t.block, t.assignment])
    for dialect, clock in CLOCK.items()
}


def failed_since(session: Session, worker_id: str, since: float) -> list[AssignmentRow]:
    """Return the assignments of a worker that ended with an error after ``since``."""
    query = select(*_ASSIGNMENT).where(
        t.assignment.c.worker_id == worker_id, t.assignment.c.outcome == "error", t.assignment.c.ended_at >= utc(since)
    )
    return every(AssignmentRow, session.execute(query.order_by(t.assignment.c.block_id)))


def get(session: Session, assignment_id: str) -> AssignmentRow | None:
    """Return an assignment in any state."""
    return one(AssignmentRow, session.execute(_ONE, {"assignment_id": assignment_id}))


_ONE = select(*_ASSIGNMENT).where(t.assignment.c.id == bindparam("assignment_id"))


def of_block(session: Session, block_id: str, attempt: int) -> list[AssignmentRow]:
    """Return the assignments of one attempt, by device index."""
    return every(AssignmentRow, session.execute(_OF_BLOCK, {"block_id": block_id, "attempt": attempt}))


_OF_BLOCK = (
    select(*_ASSIGNMENT)
    .where(t.assignment.c.block_id == bindparam("block_id"), t.assignment.c.attempt == bindparam("attempt"))
    .order_by(t.assignment.c.device_index)
)


def run_ids(session: Session, assignment_id: str) -> list[str]:
    """Return the ids of the runs of an assignment."""
    return list(session.execute(_RUN_IDS, {"assignment_id": assignment_id}).scalars())


_RUN_IDS = select(t.assignment_run.c.run_id).where(t.assignment_run.c.assignment_id == bindparam("assignment_id"))


def offered_to(session: Session, asking: Collection[WorkerRow]) -> list[AssignmentRow]:
    """Return the assignments that wait for these workers to collect them or to become ready, by worker and slot.

    Found by the device: that has few live assignments, a worker any number of ended ones.
    """
    mine = {(worker.id, worker.incarnation) for worker in asking}
    found = every(AssignmentRow, session.execute(_OFFERED, {"devices": [worker.device_uid for worker in asking]}))
    return [row for row in found if (row.worker_id, row.incarnation) in mine]


def lock_offered(session: Session, asking: Collection[WorkerRow]) -> None:
    """Hold the blocks of what these workers are offered, in the order of their ids, to the end of the transaction."""
    session.execute(_LOCK_OFFERED, {"devices": [worker.device_uid for worker in asking]}).all()


_OFFERED_NOW = and_(
    t.IS_LIVE,
    t.assignment.c.device_uid.in_(bindparam("devices", expanding=True)),
    t.assignment.c.state == AssignmentState.OFFERED,
)
_OFFERED = select(*_ASSIGNMENT).where(_OFFERED_NOW).order_by(t.assignment.c.worker_id, t.assignment.c.slot)
_LOCK_OFFERED = (
    select(t.block.c.id)
    .where(t.block.c.id.in_(select(t.assignment.c.block_id).where(_OFFERED_NOW)))
    .order_by(t.block.c.id)
    .with_for_update()
)
_OFFER = and_(
    t.IS_LIVE,
    t.assignment.c.device_uid == bindparam("of_device"),
    t.assignment.c.worker_id == bindparam("of_worker"),
    t.assignment.c.incarnation == bindparam("of_incarnation"),
    t.assignment.c.state == AssignmentState.OFFERED,
)


def _offer_to(worker: WorkerRow) -> dict[str, str]:
    return {"of_device": worker.device_uid, "of_worker": worker.id, "of_incarnation": worker.incarnation}


def ends_beside(session: Session, row: AssignmentRow) -> list[float | None]:
    """Return when each assignment ended that its worker was given together with ``row``, which is one of them."""
    given = {"of_worker": row.worker_id, "given_at": row.offered_at}
    found = session.execute(_BESIDE, given).scalars()
    return [None if ended is None else ended.timestamp() for ended in found]


_BESIDE = select(t.assignment.c.ended_at).where(
    t.assignment.c.worker_id == bindparam("of_worker"), t.assignment.c.offered_at == bindparam("given_at")
)


def change(session: Session, assignment_id: str, **values: Any) -> None:
    """Change fields of an assignment that are not its state."""
    update_one(session, t.assignment, assignment_id, values)


def collect(session: Session, tokens: Mapping[str, str], until: float) -> set[str]:
    """Let offers be held until then under new tokens, {assignment: hash}; return the ids of those that were offers.

    Not one that has been accepted or has ended since it was read.
    """
    collect_these = _COLLECT[session.get_bind().dialect.name]
    return set(session.execute(collect_these, {"tokens": json.dumps(dict(tokens)), "until": until}).scalars())


def _collect_from(pairs: FromClause) -> Update:
    return (
        update(t.assignment)
        .where(t.assignment.c.id == pairs.c.key, t.assignment.c.state == AssignmentState.OFFERED)
        .values(token=pairs.c.value, collected=True, expires_epoch=bindparam("until"))
        .returning(t.assignment.c.id)
    )


_COLLECT = {name: _collect_from(pairs) for name, pairs in pairs_in("tokens").items()}


def move(session: Session, now: float, assignment_id: str, target: AssignmentState, **values: Any) -> bool:
    """Move an assignment if the table allows it."""
    if target not in LIVE_ASSIGNMENT:
        values["ended_at"] = utc(now)
    guard = ("state", assignment_sources(target))
    return update_one(session, t.assignment, assignment_id, {"state": target, **values}, guard=guard) is not None


def end_of_block(
    session: Session, now: float, block: BlockRow, target: AssignmentState, *, outcome: str
) -> list[EndedAssignment]:
    """End the live assignments of a block's attempt, whose row is held; return them by device index."""
    given = {"of_block": block.id, "of_attempt": block.attempt, "to": target, "outcome": outcome, "at": utc(now)}
    return sorted(every(EndedAssignment, session.execute(_END, given)), key=lambda row: row.device_index)


# by hand: behind RETURNING SQLAlchemy leaves out the table of a column for SQLite, and it would be that of ``beside``
_NUM_GIVEN: ColumnElement[int] = literal_column(
    "(SELECT count(*) FROM assignment AS beside"
    " WHERE beside.worker_id = assignment.worker_id AND beside.offered_at = assignment.offered_at)"
)
_END = (
    update(t.assignment)
    .where(
        t.assignment.c.block_id == bindparam("of_block"), t.assignment.c.attempt == bindparam("of_attempt"), t.IS_LIVE
    )
    .values(state=bindparam("to"), outcome=bindparam("outcome"), ended_at=bindparam("at"))
    .returning(*_ASSIGNMENT, _NUM_GIVEN)
)


def renew(
    session: Session, assignment_id: str, token: str, until: float, progress: Mapping[str, Any], frame_age: float
) -> Renewed | None:
    """Extend a lease that still holds, with what its worker told; None when it is lost."""
    given = {"assignment_id": assignment_id, "hashed": token_hash(token), "until": until}
    return one(Renewed, session.execute(_RENEW, {**given, "told": progress, "frame_age": frame_age}))


_RENEW = (
    update(t.assignment)
    .where(_HELD)
    .values(expires_epoch=bindparam("until"), progress=bindparam("told"), frame_age_seconds=bindparam("frame_age"))
    .returning(t.assignment.c.block_id, t.assignment.c.attempt)
)


def evaluations(session: Session, experiment_id: str) -> list[Told]:
    """Return what live assignments of an experiment that evaluate told last, by replicate."""
    query = (
        select(t.block.c.replicate, t.assignment.c.progress)
        .join(t.assignment, t.assignment.c.block_id == t.block.c.id)
        .where(t.block.c.experiment_id == experiment_id, t.IS_LIVE)
        .order_by(t.block.c.replicate, t.assignment.c.slot)
    )
    return [row for row in every(Told, session.execute(query)) if row.progress.get("evaluation")]


def keep_uncollected(session: Session, worker: WorkerRow, until: float) -> None:
    """A worker that beats keeps what it has been offered; the reservation's deadline limits that."""
    session.execute(_KEEP, {"until": until, **_offer_to(worker)})


_KEEP = update(t.assignment).where(_OFFER, t.assignment.c.collected.is_(False)).values(expires_epoch=bindparam("until"))


def overdue(session: Session, before: float) -> list[AssignmentRow]:
    """Return every live lease whose expiry lies before ``before``, by block."""
    query = select(*_ASSIGNMENT).where(t.IS_LIVE, t.assignment.c.expires_epoch < before)
    return every(AssignmentRow, session.execute(query.order_by(t.assignment.c.block_id, t.assignment.c.id)))


def is_overdue(session: Session, assignment_id: str, before: float) -> bool:
    """Return whether a lease is live and past its expiry, and lock it to the end of the transaction."""
    query = select(t.assignment.c.id).where(
        t.assignment.c.id == assignment_id,
        t.IS_LIVE,
        t.assignment.c.expires_epoch < before,
    )
    return session.execute(query.with_for_update()).one_or_none() is not None


def lock_held_by(session: Session, worker_id: str) -> set[str]:
    """Lock what a worker holds, to the end of the transaction; return the ids of its live assignments.

    Blocks (in id order), then assignments; who needs the worker's row locks it after them. So does everybody.
    """
    held = (t.IS_LIVE, t.assignment.c.worker_id == worker_id)
    blocks = select(t.assignment.c.block_id).where(*held)
    session.execute(select(t.block.c.id).where(t.block.c.id.in_(blocks)).order_by(t.block.c.id).with_for_update()).all()
    query = select(t.assignment.c.id).where(*held).order_by(t.assignment.c.id).with_for_update()
    return set(session.execute(query).scalars())


def shift_clocks(session: Session, now: float, gap: float, ttl: float) -> None:
    """Move every term by time that must not count: the control plane was away, or its clock jumped.

    Locks blocks (in id order), then assignments, then workers, as every other transaction does.
    """
    due = t.block.c.status.in_(ACTIVE_BLOCK) | ((t.block.c.status == BlockStatus.QUEUED) & literal(gap < 0))
    session.execute(select(t.block.c.id).where(due).order_by(t.block.c.id).with_for_update()).all()
    live = t.IS_LIVE
    session.execute(select(t.assignment.c.id).where(live).order_by(t.assignment.c.id).with_for_update()).all()
    session.execute(update(t.assignment).where(live).values(expires_epoch=now + ttl))
    session.execute(update(t.worker).where(t.worker.c.status.not_in(_GONE)).values(seen_epoch=now))
    columns = ("reserve_deadline_epoch", "ready_deadline_epoch", "stop_deadline_epoch", "round_opened_epoch")
    session.execute(
        update(t.block)
        .where(t.block.c.status.in_(ACTIVE_BLOCK))
        .values({name: t.block.c[name] + gap for name in columns})
    )
    if gap < 0:
        waits = ("not_before_epoch", "waiting_since_epoch")
        session.execute(
            update(t.block)
            .where(t.block.c.status == BlockStatus.QUEUED)
            .values({name: t.block.c[name] + gap for name in waits})
        )


def ended_lately(session: Session, worker_id: str) -> list[AssignmentOfExperiment]:
    """Return the last assignments of a worker that have ended, newest first, each with its experiment."""
    query = (
        select(*_ASSIGNMENT, t.block.c.experiment_id)
        .join(t.block, t.block.c.id == t.assignment.c.block_id)
        .where(t.assignment.c.worker_id == worker_id, t.assignment.c.ended_at.is_not(None))
        .order_by(t.assignment.c.ended_at.desc(), t.assignment.c.id.desc())
        .limit(_LATELY)
    )
    return every(AssignmentOfExperiment, session.execute(query))


def failed_elsewhere(session: Session, experiment_ids: Collection[str], device_uid: str) -> set[str]:
    """Return those of some experiments that have failed on another device too."""
    query = (
        select(t.block.c.experiment_id)
        .join(t.assignment, t.assignment.c.block_id == t.block.c.id)
        .where(
            t.block.c.experiment_id.in_(experiment_ids),
            t.assignment.c.device_uid != device_uid,
            t.assignment.c.outcome == "error",
        )
    )
    return set(session.execute(query.distinct()).scalars())


def live(session: Session) -> list[LiveAssignment]:
    """Return every live assignment with the state of its block."""
    query = (
        select(
            *_ASSIGNMENT,
            t.block.c.status.label("block_status"),
            t.block.c.stop_deadline_epoch,
            t.block.c.experiment_id,
        )
        .join(t.block, t.block.c.id == t.assignment.c.block_id)
        .where(t.IS_LIVE)
        .order_by(t.assignment.c.id)
    )
    return every(LiveAssignment, session.execute(query))


def with_stalled_runs(session: Session) -> set[str]:
    """Return the live assignments of which a run has the flag ``stalled``."""
    return set(session.execute(_WITH_STALLED_RUNS).scalars())


_WITH_STALLED_RUNS = (
    select(t.assignment.c.id)
    .join(t.assignment_run, t.assignment_run.c.assignment_id == t.assignment.c.id)
    .join(t.run, t.run.c.id == t.assignment_run.c.run_id)
    .where(t.IS_LIVE, t.run.c.stalled)
)


def move_worker(
    session: Session,
    now: float,
    worker_id: str,
    target: WorkerStatus,
    text: str,
    *,
    actor: str = "system",
) -> bool:
    """Move a worker if the table allows it; record the event."""
    values = {"status": target, "status_text": text}
    if update_one(session, t.worker, worker_id, values, guard=("status", worker_sources(target))) is None:
        return False
    add_worker_event(session, now, worker_id, target, actor, text)
    return True


def reserve_workers(session: Session, now: float, tasks: Mapping[str, str], *, actor: str) -> None:
    """Reserve free workers, {worker: what it is to do}; record the events."""
    statement = _RESERVE[session.get_bind().dialect.name]
    moved = set(session.execute(statement, {"tasks": json.dumps(dict(tasks))}).scalars())
    told = {name: text for name, text in tasks.items() if name in moved}
    add_worker_events(session, now, told, WorkerStatus.RESERVED, actor)


def _reserve_from(pairs: FromClause) -> Update:
    may_be = t.is_among(t.worker.c.status, sorted(worker_sources(WorkerStatus.RESERVED)))
    return (
        update(t.worker)
        .where(t.worker.c.id == pairs.c.key, may_be)
        .values(status=WorkerStatus.RESERVED, status_text=pairs.c.value)
        .returning(t.worker.c.id)
    )


_RESERVE = {name: _reserve_from(pairs) for name, pairs in pairs_in("tasks").items()}


def free_worker(session: Session, now: float, worker_id: str, text: str) -> bool:
    """Let a worker be cleaned that holds no live assignment any more; one that holds others trains on."""
    # two of its assignments may end at once: the second to come here sees that the first has ended
    session.execute(_HOLD_WORKER, {"of_worker": worker_id})
    if session.execute(_HOLDS, {"of_worker": worker_id}).scalar_one():
        return False
    return move_worker(session, now, worker_id, WorkerStatus.CLEANING, text)


_HOLD_WORKER = select(t.worker.c.id).where(t.worker.c.id == bindparam("of_worker")).with_for_update()
_HOLDS = select(
    select(t.assignment.c.id)
    .where(
        t.assignment.c.device_uid.in_(select(t.worker.c.device_uid).where(t.worker.c.id == bindparam("of_worker"))),
        t.assignment.c.worker_id == bindparam("of_worker"),
        t.IS_LIVE,
    )
    .exists()
)


def silent_workers(session: Session, before: float) -> list[WorkerRow]:
    """Return workers that should beat and have not since ``before``."""
    alive = (
        WorkerStatus.STARTING,
        WorkerStatus.IDLE,
        WorkerStatus.RESERVED,
        WorkerStatus.BUSY,
        WorkerStatus.CLEANING,
    )
    query = select(*columns(WorkerRow, t.worker)).where(t.worker.c.status.in_(alive), t.worker.c.seen_epoch < before)
    return every(WorkerRow, session.execute(query.order_by(t.worker.c.id)))


def stopping_blocks_without_lease(session: Session) -> list[BlockRow]:
    """Return stopping blocks that hold no device any more, in id order."""
    live_of_block = select(t.assignment.c.id).where(t.assignment.c.block_id == t.block.c.id, t.IS_LIVE).exists()
    query = select(*columns(BlockRow, t.block)).where(t.block.c.status == BlockStatus.STOPPING, ~live_of_block)
    return every(BlockRow, session.execute(query.order_by(t.block.c.id)))
