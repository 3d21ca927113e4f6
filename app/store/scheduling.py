"""What the scheduling tick reads and writes: order of the queue, idle workers, assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, insert, literal, select, text, update
from sqlalchemy.orm import Session

from app.domain.status import AssignmentState, BlockStatus, Desired, WorkerStatus
from app.store import tables as t
from app.store.engine import Store, utc
from app.store.tables import Record

_TICK_LOCK = 727_480_001
_HALF_LIFE_SECONDS = 24 * 3600.0
_SHARED = 2.0  # an owner's device in use counts as this many recent device-hours


def try_singleton(store: Store, session: Session) -> bool:
    """Take the lock of a singleton duty for this transaction; True on SQLite, which has one writer."""
    if store.is_sqlite:
        return True
    return bool(session.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _TICK_LOCK}).scalar_one())


def queue_paused(session: Session) -> bool:
    """Return whether an operator has paused the whole queue."""
    value = session.execute(select(t.meta.c.value).where(t.meta.c.key == "queue_paused")).scalar_one_or_none()
    return value == "1"


def set_meta(session: Session, key: str, value: str) -> None:
    """Write one value of the key-value table."""
    changed = session.execute(update(t.meta).where(t.meta.c.key == key).values(value=value).returning(t.meta.c.key))
    if changed.one_or_none() is None:
        session.execute(insert(t.meta).values(key=key, value=value))


def get_meta(session: Session, key: str) -> str | None:
    """Read one value of the key-value table."""
    return session.execute(select(t.meta.c.value).where(t.meta.c.key == key)).scalar_one_or_none()


def owner_shares(session: Session, now: float) -> dict[str, float]:
    """Return the recent device-seconds of each owner (half-life one day), devices in use included."""
    shares: dict[str, float] = {}
    for row in session.execute(select(t.usage)):
        age = max(0.0, now - row.updated_epoch)
        shares[row.owner] = row.device_seconds * 0.5 ** (age / _HALF_LIFE_SECONDS)
    for owner, count in devices_in_use(session).items():
        shares[owner] = shares.get(owner, 0.0) + count * _SHARED * 3600.0
    return shares


def devices_in_use(session: Session) -> dict[str, int]:
    """Return {owner: devices that its blocks hold now}."""
    query = (
        select(t.experiment.c.owner, func.count().label("devices"))
        .select_from(t.assignment)
        .join(t.block, t.block.c.id == t.assignment.c.block_id)
        .join(t.experiment, t.experiment.c.id == t.block.c.experiment_id)
        .where(t.IS_LIVE)
        .group_by(t.experiment.c.owner)
    )
    return {row.owner: int(row.devices) for row in session.execute(query)}


def add_usage(session: Session, now: float, owner: str, device_seconds: float) -> None:
    """Add to an owner's recent use, decayed to now."""
    row = session.execute(select(t.usage).where(t.usage.c.owner == owner)).one_or_none()
    if row is None:
        session.execute(insert(t.usage).values(owner=owner, device_seconds=device_seconds, updated_epoch=now))
        return
    decayed = row.device_seconds * 0.5 ** (max(0.0, now - row.updated_epoch) / _HALF_LIFE_SECONDS)
    session.execute(
        update(t.usage)
        .where(t.usage.c.owner == owner)
        .values(device_seconds=decayed + device_seconds, updated_epoch=now)
    )


def eligible_blocks(
    session: Session,
    now: float,
    shares: Mapping[str, float],
    *,
    limit: int,
    skip: int = 0,
    without: Sequence[str] = (),
) -> Sequence[Record]:
    """Return queued blocks, but for some owners', in the order in which they are served (control-plane.md 4.1)."""
    query = (
        select(
            t.block,
            t.experiment.c.owner,
            t.experiment.c.priority,
            t.experiment.c.rank,
            t.experiment.c.placement,
            t.experiment.c.placement_resolved,
            t.experiment.c.needs,
            t.experiment.c.num_arms,
        )
        .join(t.experiment, t.experiment.c.id == t.block.c.experiment_id)
        .where(
            t.block.c.status == BlockStatus.QUEUED,
            t.block.c.not_before_epoch <= now,
            t.experiment.c.desired == Desired.RUN,
            t.experiment.c.deleted_at.is_(None),
            t.experiment.c.owner.not_in(without),
        )
        .order_by(
            t.experiment.c.priority.desc(),
            _share_order(shares),
            t.experiment.c.rank,
            t.block.c.replicate,
            t.block.c.id,
        )
        .limit(limit)
        .offset(skip)
    )
    return session.execute(query).all()


def _share_order(shares: Mapping[str, float]) -> Any:
    if not shares:
        return literal(0.0)
    return case(shares, value=t.experiment.c.owner, else_=0.0)


def idle_workers(session: Session, now: float, ttl: float) -> Sequence[Record]:
    """Return the workers that may be given work, in id order, locked."""
    query = (
        select(t.worker)
        .where(
            t.worker.c.status == WorkerStatus.IDLE,
            t.worker.c.drain.is_(False),
            t.worker.c.seen_epoch > now - ttl,
        )
        .order_by(t.worker.c.id)
        .with_for_update(skip_locked=True)
    )
    return session.execute(query).all()


def registered_workers(session: Session) -> Sequence[Record]:
    """Return every worker that is not retired."""
    query = select(t.worker).where(t.worker.c.status != WorkerStatus.RETIRED).order_by(t.worker.c.id)
    return session.execute(query).all()


@dataclass(frozen=True)
class Share:
    """What one worker of a gang gets: its device index and its runs."""

    worker: Record
    device_index: int
    run_ids: tuple[str, ...]
    token: str


def insert_assignments(
    store: Store,
    session: Session,
    now: float,
    block_id: str,
    attempt: int,
    ttl: float,
    shares: Sequence[Share],
) -> None:
    """Insert the assignments of a gang and reserve its workers; any conflict raises."""
    for share in shares:
        assignment_id = store.new_id("asg")
        session.execute(
            insert(t.assignment).values(
                id=assignment_id,
                block_id=block_id,
                attempt=attempt,
                worker_id=share.worker.id,
                incarnation=share.worker.incarnation,
                device_uid=share.worker.device_uid,
                device_index=share.device_index,
                token=share.token,
                state=AssignmentState.OFFERED,
                expires_epoch=now + ttl,
                collected=False,
                ready=False,
                progress={},
                frame_age_seconds=0.0,
                offered_at=utc(now),
            )
        )
        session.execute(
            insert(t.assignment_run),
            [
                {"assignment_id": assignment_id, "run_id": run_id, "block_id": block_id, "attempt": attempt}
                for run_id in share.run_ids
            ],
        )


def start_attempt(
    session: Session, now: float, run_no: int, attempt: int, from_round: int, device_uid: str
) -> list[tuple[int, int]]:
    """Open an attempt of a run at ``from_round``; older attempts end there.

    Returns:
        (attempt, from_round) of each older attempt that lost rounds.
    """
    older = (t.run_attempt.c.run_no == run_no) & (t.run_attempt.c.attempt < attempt)
    cut = session.execute(
        update(t.run_attempt)
        .where(older, t.run_attempt.c.until_round.is_(None) | (t.run_attempt.c.until_round > from_round))
        .values(until_round=from_round)
        .returning(t.run_attempt.c.attempt)
    ).all()
    session.execute(
        insert(t.run_attempt).values(
            run_no=run_no,
            attempt=attempt,
            from_round=from_round,
            until_round=None,
            last_seq=0,
            device_uid=device_uid,
            started_at=utc(now),
        )
    )
    return [(row.attempt, from_round) for row in cut]
