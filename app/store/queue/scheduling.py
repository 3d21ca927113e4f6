"""What the scheduling tick reads and writes: order of the queue, idle workers, assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    Float,
    FromClause,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    literal,
    literal_column,
    null,
    select,
    text,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from app.store.database.engine import AT_THE_END, CLOCK, END_USAGE, Store, utc
from app.store.database.prepared import insert_rows
from app.store.queue.leases import token_hash
from app.store.rows.experiments import BlockRow, WaitingBlock
from app.store.rows.selecting import columns, every
from app.store.rows.workers import IdleWorker, PresentWorker, SchedulableWorker
from app.store.schema import tables as t
from lockstep.status import AssignmentState, BlockStatus, Desired, WorkerStatus

_TICK_LOCK = 727_480_001
_HALF_LIFE_SECONDS = 24 * 3600.0
_SHARED = 2.0  # an owner's device in use counts as this many recent device-hours


def try_singleton(store: Store, session: Session) -> bool:
    """Take the lock of a singleton duty for this transaction; True on SQLite, which has one writer."""
    if store.is_sqlite:
        return True
    return bool(session.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _TICK_LOCK}).scalar_one())


def begin_pass(store: Store, session: Session) -> float | None:
    """Take the lock of passes over the queue; return now, or None where another makes one or an operator paused it."""
    now, paused, is_mine = session.execute(_BEGIN_PASS[store.dialect], {"of_key": "queue_paused"}).one()
    return store.at(now) if is_mine and paused != "1" else None


def queue_paused(session: Session) -> bool:
    """Return whether an operator has paused the whole queue."""
    return get_meta(session, "queue_paused") == "1"


def set_meta(session: Session, key: str, value: str) -> None:
    """Write one value of the key-value table."""
    session.execute(_SET_META, {"of_key": key, "to": value})


def add_meta(session: Session, key: str, value: str) -> None:
    """Write one value of the key-value table unless there is one."""
    session.execute(_ADD_META, {"of_key": key, "to": value})


def metas(session: Session, prefix: str) -> dict[str, str]:
    """Return what the key-value table holds under keys that begin so."""
    query = select(t.meta.c.key, t.meta.c.value).where(t.meta.c.key.startswith(prefix, autoescape=True))
    return {row.key: row.value for row in session.execute(query)}


def drop_meta(session: Session, key: str) -> None:
    """Take one value out of the key-value table."""
    session.execute(delete(t.meta).where(t.meta.c.key == key))


_ADD_META = text("INSERT INTO meta (key, value) VALUES (:of_key, :to) ON CONFLICT (key) DO NOTHING")
_SET_META = text(
    "INSERT INTO meta (key, value) VALUES (:of_key, :to) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


def get_meta(session: Session, key: str, *, lock: bool = False) -> str | None:
    """Read one value of the key-value table, and lock it to the end of the transaction where that is asked for."""
    return session.execute(_META_LOCKED if lock else _META, {"of_key": key}).scalar_one_or_none()


_META = select(t.meta.c.value).where(t.meta.c.key == bindparam("of_key"))
_META_LOCKED = _META.with_for_update()
_IS_MINE = {"postgresql": func.pg_try_advisory_xact_lock(literal_column(str(_TICK_LOCK))), "sqlite": true()}
_BEGIN_PASS = {dialect: select(clock, _META.scalar_subquery(), _IS_MINE[dialect]) for dialect, clock in CLOCK.items()}


@dataclass(frozen=True)
class OwnerUse:
    """What owners use.

    Attributes:
        in_use: devices that their blocks hold now.
        shares: their recent device-seconds (half-life one day), with the devices in use.
    """

    in_use: Mapping[str, int]
    shares: Mapping[str, float]


def owner_use(session: Session, now: float) -> OwnerUse:
    """Return what each owner uses now and has used lately."""
    in_use: dict[str, int] = {}
    shares: dict[str, float] = {}
    for owner, seconds, updated, devices in session.execute(_OWNER_USE):
        if devices is not None:
            in_use[owner] = int(devices)
        else:
            shares[owner] = seconds * 0.5 ** (max(0.0, now - updated) / _HALF_LIFE_SECONDS)
    for owner, count in in_use.items():
        shares[owner] = shares.get(owner, 0.0) + count * _SHARED * 3600.0
    return OwnerUse(in_use, shares)


_NO_NUMBER, _NO_COUNT = cast(null(), Float), cast(null(), Integer)
_IN_USE = (
    select(t.experiment.c.owner, _NO_NUMBER, _NO_NUMBER, func.count(t.assignment.c.device_uid.distinct()))
    .select_from(t.assignment)
    .join(t.block, t.block.c.id == t.assignment.c.block_id)
    .join(t.experiment, t.experiment.c.id == t.block.c.experiment_id)
    .where(t.IS_LIVE)
    .group_by(t.experiment.c.owner)
)
_OWNER_USE = union_all(select(t.usage.c.owner, t.usage.c.device_seconds, t.usage.c.updated_epoch, _NO_COUNT), _IN_USE)


def add_usage(session: Session, now: float, owner: str, device_seconds: float) -> None:
    """Add to an owner's recent use, decayed to now, at the end of the transaction.

    The owner's row is held then, so that no other addition is lost; several owners in the order of their names.
    """
    used = session.info[AT_THE_END].setdefault(END_USAGE, _Used({}))
    used.seconds[owner] = used.seconds.get(owner, 0.0) + device_seconds
    used.now = now


@dataclass
class _Used:
    """Device-seconds of a transaction that are not added yet, by owner."""

    seconds: dict[str, float]
    now: float = 0.0

    def __call__(self, session: Session) -> None:
        for owner, seconds in sorted(self.seconds.items()):
            _add_usage(session, self.now, owner, seconds)


def _add_usage(session: Session, now: float, owner: str, device_seconds: float) -> None:
    statement = _USE[session.get_bind().dialect.name]
    session.execute(statement, {"owner": owner, "device_seconds": device_seconds, "updated_epoch": now})


def _use_by(add: Any) -> Any:
    """Return the statement that adds to what is left of an owner's use by now, given an INSERT of a dialect."""
    halvings = (add.excluded.updated_epoch - t.usage.c.updated_epoch) / _HALF_LIFE_SECONDS
    # what is left after so many is nothing, which PostgreSQL refuses to compute
    bounded = case((halvings < 0.0, 0.0), (halvings > _MOST_HALVINGS, _MOST_HALVINGS), else_=halvings)
    left = t.usage.c.device_seconds * func.power(0.5, bounded)
    new = {"device_seconds": left + add.excluded.device_seconds, "updated_epoch": add.excluded.updated_epoch}
    return add.on_conflict_do_update(index_elements=[t.usage.c.owner], set_=new)


_MOST_HALVINGS = 200.0
_USE = {"postgresql": _use_by(pg_insert(t.usage)), "sqlite": _use_by(sqlite_insert(t.usage))}


def eligible_blocks(
    session: Session,
    now: float,
    shares: Mapping[str, float],
    *,
    limit: int,
    skip: int = 0,
    without: Sequence[str] = (),
) -> list[WaitingBlock]:
    """Return queued blocks, but for some owners', in the order in which they are served (control-plane.md 4.1)."""
    given: dict[str, Any] = {"now": now, "without": list(without)}
    for index, (owner, share) in enumerate(shares.items()):
        given |= {f"owner_{index}": owner, f"share_{index}": share}
    if not skip and (first := _first_experiment(session, len(shares), given)) is not None:
        page = every(WaitingBlock, session.execute(_OF_EXPERIMENT, {"experiment_id": first, "now": now, "size": limit}))
        if len(page) == limit:
            return page
    return every(WaitingBlock, session.execute(_in_order(len(shares)), {**given, "size": limit, "skip": skip}))


def count_ready(session: Session, now: float, experiment_id: str) -> int:
    """Return how many blocks of an experiment may be assigned now."""
    return int(session.execute(_COUNT_READY, {"experiment_id": experiment_id, "now": now}).scalar_one())


def _first_experiment(session: Session, num_owners: int, parameters: Mapping[str, Any]) -> str | None:
    """Return the experiment whose blocks all come before any other's, or None where it is not one alone.

    It mostly fills the page, and then a long queue need not be sorted for a few blocks.
    """
    rows = session.execute(_first_two(num_owners), parameters).all()
    if not rows or (len(rows) > 1 and rows[0][1:] == rows[1][1:]):
        return None
    return str(rows[0].id)


def _with_experiment(block: FromClause) -> Select[Any]:
    """Return a query of blocks, the table or a page of it, with what the scheduler asks of their experiment."""
    asked = ("owner", "owner_name", "priority", "rank", "placement", "placement_resolved", "needs", "num_arms", "name")
    return (
        select(*columns(BlockRow, block), *(t.experiment.c[name] for name in asked))
        .join(t.experiment, t.experiment.c.id == block.c.experiment_id)
        .where(t.experiment.c.desired == Desired.RUN, t.experiment.c.deleted_at.is_(None))
    )


_READY = and_(t.block.c.status == BlockStatus.QUEUED, t.block.c.not_before_epoch <= bindparam("now"))
_SERVED = t.experiment.c.owner.not_in(bindparam("without", expanding=True))
_COUNT_READY = (
    select(func.count()).select_from(t.block).where(t.block.c.experiment_id == bindparam("experiment_id"), _READY)
)
_PAGE = (
    select(t.block)
    .where(t.block.c.experiment_id == bindparam("experiment_id"), _READY)
    .order_by(t.block.c.replicate, t.block.c.id)
    .limit(bindparam("size"))
    .subquery()
)
_OF_EXPERIMENT = _with_experiment(_PAGE).order_by(_PAGE.c.replicate, _PAGE.c.id)


@cache
def _in_order(num_owners: int) -> Select[Any]:
    order = (*_order(num_owners), t.block.c.replicate, t.block.c.id)
    query = _with_experiment(t.block).where(_READY, _SERVED).order_by(*order)
    return query.limit(bindparam("size")).offset(bindparam("skip"))


@cache
def _first_two(num_owners: int) -> Select[Any]:
    """Return the query of the two experiments that are served first; some of them may have been deleted."""
    queued = select(t.block.c.id).where(t.block.c.experiment_id == t.experiment.c.id, _READY)
    # what has a queued block is unfinished, and these have an index
    waits = (t.experiment.c.finished_at.is_(None), t.experiment.c.desired == Desired.RUN, queued.exists())
    order = _order(num_owners)
    key = (column.label(f"key_{index}") for index, column in enumerate(order))
    return select(t.experiment.c.id, *key).where(*waits, _SERVED).order_by(*order).limit(2)


def _order(num_owners: int) -> tuple[Any, ...]:
    """Return the part of the order that the blocks of an experiment have in common."""
    shares = {bindparam(f"owner_{i}", type_=String): bindparam(f"share_{i}", type_=Float) for i in range(num_owners)}
    share = case(shares, value=t.experiment.c.owner, else_=0.0) if shares else literal(0.0)
    return -t.experiment.c.priority, share, t.experiment.c.rank


def idle_workers(session: Session, now: float, ttl: float) -> list[IdleWorker]:
    """Return the workers that may be given work, in id order, locked.

    A worker that was lost and reports idle again may still hold an offer: its device is not free before that ends.
    """
    return every(IdleWorker, session.execute(_IDLE, {"since": now - ttl}))


def idle_ids(session: Session, now: float, ttl: float) -> set[str]:
    """Return the ids of the workers that may be given work; locks nothing."""
    return {row.id for row in session.execute(_FREE, {"since": now - ttl})}


_HOLDS = exists().where(t.assignment.c.device_uid == t.worker.c.device_uid, t.IS_LIVE)
_FREE = (
    select(*columns(IdleWorker, t.worker))
    .where(
        t.worker.c.status == WorkerStatus.IDLE,
        t.worker.c.drain.is_(False),
        t.worker.c.seen_epoch > bindparam("since"),
        ~_HOLDS,
    )
    .order_by(t.worker.c.id)
)
_IDLE = _FREE.with_for_update(skip_locked=True)


def registered_workers(session: Session) -> list[PresentWorker]:
    """Return every worker that is not retired."""
    return every(PresentWorker, session.execute(_REGISTERED))


_PRESENT = [status for status in WorkerStatus if status is not WorkerStatus.RETIRED]
_WORKER = columns(SchedulableWorker, t.worker)
_REGISTERED = select(*_WORKER, _HOLDS).where(t.is_among(t.worker.c.status, _PRESENT)).order_by(t.worker.c.id)


@dataclass(frozen=True)
class NewAssignment:
    """What one worker gets of a block.

    Attributes:
        device_index: of its device among those of the block.
        slot: place among the blocks that the worker is given in one go.
        lease: the token; only its hash is stored.
        collected: whether the worker is told of it at once.
    """

    id: str
    block_id: str
    attempt: int
    worker: IdleWorker
    device_index: int
    slot: int
    run_ids: tuple[str, ...]
    lease: str
    collected: bool


def insert_assignments(session: Session, now: float, ttl: float, assignments: Sequence[NewAssignment]) -> None:
    """Insert the assignments of one pass, of any number of blocks; any conflict raises."""
    rows, runs = [], []
    for assignment in assignments:
        same = {"block_id": assignment.block_id, "attempt": assignment.attempt}
        row = {
            **same,
            "id": assignment.id,
            "worker_id": assignment.worker.id,
            "incarnation": assignment.worker.incarnation,
            "device_uid": assignment.worker.device_uid,
            "device_index": assignment.device_index,
            "slot": assignment.slot,
            "token": token_hash(assignment.lease),
            "state": AssignmentState.OFFERED,
            "expires_epoch": now + ttl,
            "collected": assignment.collected,
            "ready": False,
            "progress": {},
            "frame_age_seconds": 0.0,
            "offered_at": utc(now),
        }
        rows.append(row)
        runs += [{**same, "assignment_id": row["id"], "run_id": run_id} for run_id in assignment.run_ids]
    insert_rows(session, t.assignment, rows)
    insert_rows(session, t.assignment_run, runs)


def end_older_attempts(session: Session, run_no: int, attempt: int, from_round: int) -> bool:
    """End the attempts of a run before ``attempt`` at ``from_round``; return whether any lost rounds."""
    older = (t.run_attempt.c.run_no == run_no) & (t.run_attempt.c.attempt < attempt)
    cut = session.execute(
        update(t.run_attempt)
        .where(older, t.run_attempt.c.until_round.is_(None) | (t.run_attempt.c.until_round > from_round))
        .values(until_round=from_round)
        .returning(t.run_attempt.c.attempt)
    )
    return bool(cut.all())


@dataclass(frozen=True)
class NewAttempt:
    """An attempt of a run, by its number, that begins at a round on a device."""

    run_no: int
    attempt: int
    from_round: int
    device_uid: str


def open_attempts(session: Session, now: float, attempts: Sequence[NewAttempt]) -> None:
    """Open attempts of runs."""
    same = {"until_round": None, "last_seq": 0, "started_at": utc(now)}
    insert_rows(session, t.run_attempt, [{**asdict(attempt), **same} for attempt in attempts])
