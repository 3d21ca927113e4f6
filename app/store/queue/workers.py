"""Workers: registration, reading, listing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from app.store.database.engine import CLOCK, Store, utc
from app.store.database.prepared import update_one
from app.store.rows.selecting import columns, every, one
from app.store.rows.workers import FailureOnWorker, HoldingWorker, WorkerEventRow, WorkerRow
from app.store.schema import tables as t
from lockstep.protocol import environment_fault, reward_fault
from lockstep.status import WorkerStatus


def get(session: Session, worker_id: str) -> WorkerRow | None:
    """Return a worker."""
    return one(WorkerRow, session.execute(_ONE, {"worker_id": worker_id}))


def get_at(store: Store, session: Session, worker_id: str) -> tuple[WorkerRow, float] | None:
    """Return (worker, now)."""
    found = session.execute(_ONE_NOW[store.dialect], {"worker_id": worker_id}).one_or_none()
    return None if found is None else (WorkerRow(*found[:-1]), store.at(found[-1]))


def some(session: Session, worker_ids: Collection[str]) -> list[WorkerRow]:
    """Return those of these workers that exist, by id."""
    return every(WorkerRow, session.execute(_SOME, {"worker_ids": list(worker_ids)}))


_WORKER = columns(WorkerRow, t.worker)
_ONE = select(*_WORKER).where(t.worker.c.id == bindparam("worker_id"))
_ONE_NOW = {dialect: _ONE.add_columns(clock) for dialect, clock in CLOCK.items()}
_SOME = select(*_WORKER).where(t.worker.c.id.in_(bindparam("worker_ids", expanding=True))).order_by(t.worker.c.id)


def status(session: Session, worker_id: str) -> str:
    """Return the status of a worker that exists."""
    return str(session.execute(_STATUS, {"worker_id": worker_id}).scalar_one())


_STATUS = select(t.worker.c.status).where(t.worker.c.id == bindparam("worker_id"))


def note_beat(session: Session, now: float, worker_id: str, health: Mapping[str, Any]) -> str:
    """Note that a worker has beaten and hold its row; return the status it has."""
    values = {"seen_epoch": now, "health": dict(health)}
    beaten = update_one(session, t.worker, worker_id, values, returning="status")
    if beaten is None:
        raise LookupError(worker_id)
    return str(beaten)


def live_on_device(session: Session, device_uid: str, *, lock: bool = False) -> WorkerRow | None:
    """Return the worker that is live (not lost, not retired) on a device; a lock comes after those of its leases."""
    query = select(*_WORKER).where(
        t.worker.c.device_uid == device_uid,
        t.worker.c.status.not_in((WorkerStatus.LOST, WorkerStatus.RETIRED)),
    )
    return one(WorkerRow, session.execute(query.with_for_update() if lock else query))


def same_incarnation(session: Session, device_uid: str, incarnation: str) -> WorkerRow | None:
    """Return the live worker of one start of a supervisor, if it registered before."""
    query = select(*_WORKER).where(
        t.worker.c.device_uid == device_uid,
        t.worker.c.incarnation == incarnation,
        t.worker.c.status.not_in((WorkerStatus.LOST, WorkerStatus.RETIRED)),
    )
    return one(WorkerRow, session.execute(query))


def lost_on_device(session: Session, device_uid: str) -> list[WorkerRow]:
    """Return the lost workers of a device."""
    query = select(*_WORKER).where(t.worker.c.device_uid == device_uid, t.worker.c.status == WorkerStatus.LOST)
    return every(WorkerRow, session.execute(query))


def insert_worker(session: Session, now: float, values: Mapping[str, Any]) -> None:
    """Insert a worker in state starting."""
    session.execute(
        insert(t.worker).values(
            **values,
            status=WorkerStatus.STARTING,
            drain=False,
            drain_now=False,
            health={},
            fast_failures=0,
            seen_epoch=now,
            registered_at=utc(now),
        )
    )


def change(session: Session, worker_id: str, **values: Any) -> None:
    """Change fields of a worker that are not its status."""
    update_one(session, t.worker, worker_id, values)


def count_fast_failure(session: Session, worker_id: str) -> int:
    """Count a failure soon after the start; return how many there were since an operator last cleared the worker."""
    return int(session.execute(_COUNT_FAST, {"worker_id": worker_id}).scalar_one())


_COUNT_FAST = (
    update(t.worker)
    .where(t.worker.c.id == bindparam("worker_id"))
    .values(fast_failures=t.worker.c.fast_failures + 1)
    .returning(t.worker.c.fast_failures)
)


def listing(session: Session) -> list[HoldingWorker]:
    """Return workers, a row for each block that one holds, newest registration first; retired ones too."""
    query = (
        select(
            *_WORKER,
            t.assignment.c.id.label("assignment_id"),
            t.assignment.c.block_id,
            t.assignment.c.progress,
            t.assignment.c.offered_at,
            t.block.c.experiment_id,
            t.experiment.c.name.label("experiment_name"),
            t.experiment.c.rounds,
            t.block.c.replicate,
        )
        .select_from(t.worker)
        .outerjoin(
            t.assignment,
            and_(t.assignment.c.worker_id == t.worker.c.id, t.IS_LIVE),
        )
        .outerjoin(t.block, t.block.c.id == t.assignment.c.block_id)
        .outerjoin(t.experiment, t.experiment.c.id == t.block.c.experiment_id)
        .order_by(t.worker.c.registered_at.desc(), t.worker.c.id, t.assignment.c.slot)
    )
    return every(HoldingWorker, session.execute(query))


def newest_events(session: Session, worker_ids: Collection[str], each: int) -> list[WorkerEventRow]:
    """Return the newest events of some workers, so many of each, newest first."""
    place = func.row_number().over(partition_by=t.worker_event.c.worker_id, order_by=t.worker_event.c.id.desc())
    ranked = (
        select(t.worker_event, place.label("place"))
        .where(t.worker_event.c.worker_id.in_(worker_ids))
        .subquery("ranked")
    )
    query = select(*columns(WorkerEventRow, ranked)).where(ranked.c.place <= each).order_by(ranked.c.id.desc())
    return every(WorkerEventRow, session.execute(query))


def last_failures(session: Session, worker_ids: Collection[str]) -> list[FailureOnWorker]:
    """Return the last assignment of each of some workers that ended with an error, if there is one."""
    assignment = t.assignment
    place = func.row_number().over(
        partition_by=assignment.c.worker_id, order_by=(assignment.c.ended_at.desc(), assignment.c.id.desc())
    )
    ranked = (
        select(assignment, t.block.c.experiment_id, t.block.c.replicate, place.label("place"))
        .join(t.block, t.block.c.id == assignment.c.block_id)
        .where(assignment.c.worker_id.in_(worker_ids), assignment.c.outcome == "error")
        .subquery("ranked")
    )
    query = select(*columns(FailureOnWorker, ranked)).where(ranked.c.place == 1, ranked.c.ended_at.is_not(None))
    return every(FailureOnWorker, session.execute(query))


def registered_names(session: Session) -> tuple[dict[str, Any], dict[str, Any], dict[str, list[str]]]:
    """Return what workers have announced: rewards and environments with their schemas, keys of registries by family.

    The facts have the names of the workers that offer it, or of those on which it is defective, too.
    """
    rewards: dict[str, Any] = {}
    environments: dict[str, Any] = {}
    registries: dict[str, list[str]] = {}
    # the newest package first: its defaults are written into specifications
    query = (
        select(t.worker.c.name, t.worker.c.rewards, t.worker.c.environments)
        .where(t.worker.c.status.not_in((WorkerStatus.LOST, WorkerStatus.RETIRED)))
        .order_by(t.worker.c.registered_at.desc(), t.worker.c.id)
    )
    rows = [(name, usable_rewards(own), usable_environments(other)) for name, own, other in session.execute(query)]
    for _, own_rewards, own_environments in rows:
        for known, announced in ((rewards, own_rewards), (environments, own_environments)):
            # one worker on which a name works is enough
            known.update({n: f for n, f in announced.items() if n not in known or "defect" in known[n]})
        for name, facts in own_environments.items():
            if "tasks" in facts and facts["tasks"] not in registries.setdefault(name, []):
                registries[name].append(facts["tasks"])
    offers = [(name, own) for name, own, _ in rows], [(name, other) for name, _, other in rows]
    return _with_workers(rewards, offers[0]), _with_workers(environments, offers[1]), registries


def usable_rewards(announced: Mapping[str, Any]) -> dict[str, Any]:
    """Return rewards that a worker announced, with a defect in the place of what an earlier version let pass."""
    return {name: _usable(facts, reward_fault(facts)) for name, facts in announced.items()}


def usable_environments(announced: Mapping[str, Any]) -> dict[str, Any]:
    """Return environments as ``usable_rewards``; a family stands among them with the key of its registry."""
    return {
        name: facts if "tasks" in facts else _usable(facts, environment_fault(facts))
        for name, facts in announced.items()
    }


def _usable(facts: dict[str, Any], fault: str | None) -> dict[str, Any]:
    return facts if fault is None else {"defect": facts.get("defect") or fault}


def _with_workers(known: Mapping[str, Any], offers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Add to the facts of each name the workers that offer it, or those on which it is defective too."""

    def same(name: str, facts: Mapping[str, Any]) -> list[str]:
        is_bad = "defect" in facts
        return [worker for worker, own in offers if name in own and ("defect" in own[name]) == is_bad]

    return {name: {**facts, "workers": same(name, facts)} for name, facts in known.items()}
