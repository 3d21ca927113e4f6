"""Transitions of blocks and runs, each with its event, in one guarded UPDATE.

Nothing else in the project writes these status columns. A transition that the table of
``lockstep.status`` does not allow changes no row and returns False.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, bindparam, exists, func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from app.store import experiment_cache
from app.store.database.engine import utc
from app.store.database.prepared import update_one
from app.store.records.events import NewEvent, add_events
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import BlockOfExperiment, BlockRow, RunRow, StoppedBlock
from app.store.rows.selecting import columns, every, one
from app.store.schema import tables as t
from lockstep.status import (
    CAUSE_SENTENCES,
    TERMINAL_BLOCK,
    AssignmentState,
    BlockStatus,
    Cause,
    Desired,
    RunStatus,
    block_sources,
    ended_text,
    run_sources,
)


@dataclass(frozen=True)
class Why:
    """Who caused a transition and why."""

    actor: str = "system"
    cause: Cause | None = None
    text: str = ""

    def sentence(self) -> str:
        """A sentence for people."""
        return self.text or (CAUSE_SENTENCES[self.cause] if self.cause else "")


def get(session: Session, block_id: str, *, lock: bool = False) -> BlockRow | None:
    """Return a block; ``lock`` holds its row to the end of the transaction."""
    return one(BlockRow, session.execute(_ONE_LOCKED if lock else _ONE, {"block_id": block_id}))


_BLOCK = columns(BlockRow, t.block)
_ONE = select(*_BLOCK).where(t.block.c.id == bindparam("block_id"))
_ONE_LOCKED = _ONE.with_for_update()


def with_experiments(session: Session, block_ids: Collection[str]) -> dict[str, BlockOfExperiment]:
    """Return blocks by id, each with name and ``placement_resolved`` of its experiment."""
    rows = every(BlockOfExperiment, session.execute(_WITH_EXPERIMENT, {"block_ids": sorted({*block_ids})}))
    return {row.id: row for row in rows}


_WITH_EXPERIMENT = (
    select(*_BLOCK, t.experiment.c.name, t.experiment.c.placement_resolved)
    .join(t.experiment, t.experiment.c.id == t.block.c.experiment_id)
    .where(t.block.c.id.in_(bindparam("block_ids", expanding=True)))
)


def reserve(session: Session, now: float, wanted: Sequence[tuple[BlockRow, Why]], **values: Any) -> set[str]:
    """Move queued blocks to reserved with the same ``values``, each for a reason; return the ids of those moved."""
    given = {f"new_{name}": value for name, value in values.items()}
    named = {"block_ids": [block.id for block, _ in wanted]}
    moved = set(session.execute(_reserve(tuple(values)), {**given, **named}).scalars())
    for block, why in wanted:
        if block.id in moved:
            event = _moved_event(block, BlockStatus.RESERVED, why, values["attempt"])
            add_events(session, now, block.experiment_id, [event])
    return moved


@cache
def _reserve(names: tuple[str, ...]) -> ReturningUpdate[Any]:
    may_be = sorted(block_sources(BlockStatus.RESERVED))
    to: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    return (
        update(t.block)
        .where(t.block.c.id.in_(bindparam("block_ids", expanding=True)), t.is_among(t.block.c.status, may_be))
        .values(status=BlockStatus.RESERVED, **to)
        .returning(t.block.c.id)
    )


def move(
    session: Session,
    now: float,
    block: BlockRow,
    target: BlockStatus,
    why: Why,
    *,
    among: frozenset[BlockStatus] | None = None,
    only_if: ColumnElement[bool] | None = None,
    **values: Any,
) -> bool:
    """Move a block to ``target`` if the transition table allows it, from ``among`` only if given; record the event.

    ``only_if`` is a further condition, one of this module's constants.

    Returns:
        False when the block is in a state from which ``target`` cannot be reached; nothing changed.
    """
    if why.cause is not None:
        values = {"cause": why.cause, "cause_text": why.sentence(), **values}
    if target in TERMINAL_BLOCK:
        values["finished_at"] = utc(now)
    guard = ("status", among or block_sources(target))
    values = {"status": target, **values}
    moved = update_one(session, t.block, block.id, values, guard=guard, only_if=only_if, returning="attempt")
    if moved is None:
        return False
    add_events(session, now, block.experiment_id, [_moved_event(block, target, why, moved)])
    return True


def start(session: Session, now: float, block: BlockRow) -> bool:
    """Let a reserved block train once every assignment of its attempt is ready; record the event."""
    values: dict[str, Any] = {"round_opened_epoch": now}
    if block.started_at is None:
        values["started_at"] = utc(now)
    why = Why("worker", None, "every child is ready")
    return move(session, now, block, BlockStatus.RUNNING, why, only_if=_ALL_ARE_READY, **values)


_ALL_ARE_READY = ~exists().where(
    t.assignment.c.block_id == t.block.c.id,
    t.assignment.c.attempt == t.block.c.attempt,
    t.assignment.c.ready.is_(False),
)


def _moved_event(block: BlockRow, target: BlockStatus, why: Why, attempt: int) -> NewEvent:
    text, became = why.sentence(), ended_text(target.value)
    return NewEvent(
        type="block_status",
        text=f"block of replicate {block.replicate} {became}" + (f": {text}" if text else ""),
        actor=why.actor,
        block_id=block.id,
        replicate=block.replicate,
        status=target,
        cause=why.cause,
        payload={"attempt": attempt},
    )


def move_runs(
    session: Session,
    now: float,
    block: BlockRow,
    target: RunStatus,
    why: Why,
    *,
    run_ids: Sequence[str] | None = None,
) -> list[str]:
    """Move those runs of a block that may go to ``target``; record one event each; return their ids."""
    values: dict[str, Any] = {"status": target}
    if why.cause is not None:
        values |= {"cause": why.cause, "cause_text": why.sentence()}
    if target in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED):
        values["finished_at"] = utc(now)
    given = {"of_block": block.id, **{f"new_{name}": value for name, value in values.items()}}
    given |= {"only": list(run_ids)} if run_ids is not None else {}
    moved = session.execute(_move_runs(target, tuple(values), run_ids is None), given).all()
    if not moved:
        return []
    labels = {arm.arm_index: arm.label for arm in experiment_cache.of(session, block.experiment_id).arms}
    add_events(
        session,
        now,
        block.experiment_id,
        [
            NewEvent(
                type="run_status",
                text=_account(labels[row.arm_index], block.replicate, target, why),
                actor=why.actor,
                block_id=block.id,
                run_id=row.id,
                replicate=block.replicate,
                group_id=labels[row.arm_index],
                status=target,
                cause=why.cause,
            )
            for row in sorted(moved, key=lambda row: row.arm_index)
        ],
    )
    return [row.id for row in moved]


def _account(arm: str, replicate: int, target: RunStatus, why: Why) -> str:
    if why.cause is Cause.DIVERGED:  # an outcome of this run alone: its block says nothing of it
        return f"arm {arm} diverged in replicate {replicate}: {why.sentence()}"
    return f"run of arm {arm} in replicate {replicate} {ended_text(target.value)}"


@cache
def _move_runs(target: RunStatus, names: tuple[str, ...], every: bool) -> ReturningUpdate[Any]:
    query = update(t.run).where(
        t.run.c.block_id == bindparam("of_block"), t.is_among(t.run.c.status, run_sources(target))
    )
    if not every:
        query = query.where(t.run.c.id.in_(bindparam("only", expanding=True)))
    new: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    return query.values(new).returning(t.run.c.id, t.run.c.arm_index)


def stop(
    session: Session,
    now: float,
    block: BlockRow,
    why: Why,
    *,
    grace_seconds: float,
    desired: Desired | None = None,
    counts: bool = True,
) -> bool:
    """Begin to stop a reserved or running block; the first cause stays, but a user's cancel overrides."""
    values: dict[str, Any] = {
        "stop_deadline_epoch": now + grace_seconds,
        "counts_against_budget": counts,
    }
    if desired is not None:
        values["desired"] = desired
    if move(session, now, block, BlockStatus.STOPPING, why, **values):
        return True
    if desired is None:
        return False
    changed: dict[str, Any] = {"desired": desired}
    if desired is Desired.CANCEL:
        changed |= {"cause": Cause.USER, "cause_text": why.sentence()}
    session.execute(
        update(t.block).where(t.block.c.id == block.id, t.block.c.status == BlockStatus.STOPPING).values(**changed)
    )
    return False


_UNASSIGNED = frozenset({BlockStatus.QUEUED, BlockStatus.PAUSED})


def finish_unassigned(session: Session, now: float, block: BlockRow, desired: Desired, why: Why) -> bool:
    """Pause or cancel a block that holds no device (queued or paused)."""
    target = BlockStatus.CANCELLED if desired is Desired.CANCEL else BlockStatus.PAUSED
    # a stopping block may still hold a device: it is paused or cancelled when that is released
    if not move(session, now, block, target, why, among=_UNASSIGNED, desired=desired):
        return False
    if desired is Desired.CANCEL:
        move_runs(session, now, block, RunStatus.CANCELLED, why)
    return True


def requeue(session: Session, now: float, block: BlockRow, why: Why, **values: Any) -> bool:
    """Put a stopped or paused block back into the queue, its live runs pending."""
    fields = {
        "desired": Desired.RUN,
        "cause": None,
        "cause_text": None,
        "counts_against_budget": True,
        "waiting_since_epoch": now,
        "stop_deadline_epoch": None,
        **values,
    }
    moved = move(session, now, block, BlockStatus.QUEUED, Why(why.actor, None, why.sentence()), **fields)
    if moved:
        move_runs(session, now, block, RunStatus.PENDING, Why(why.actor))
    return moved


def live_runs(session: Session, block_id: str) -> list[RunRow]:
    """Return the runs of a block that still train (not diverged, not ended), by arm."""
    return every(RunRow, session.execute(_LIVE_RUNS, {"block_id": block_id}))


def lock_with_runs(session: Session, block_ids: Collection[str]) -> dict[str, list[RunRow]]:
    """Return the runs of each of these queued blocks that still train, by arm, and hold the blocks.

    To the end of the transaction and in the order of their ids. Which runs train cannot change while a block stays
    queued, so what is read with the lock is as good as what would be read after it.
    """
    found: dict[str, list[RunRow]] = {block_id: [] for block_id in block_ids}
    for run in every(RunRow, session.execute(_LOCK_WITH_RUNS, {"block_ids": list(found)})):
        found[run.block_id].append(run)
    return found


_TRAINS = t.is_among(t.run.c.status, (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.PAUSED))
_LIVE_RUNS = (
    select(*columns(RunRow, t.run))
    .where(t.run.c.block_id == bindparam("block_id"), _TRAINS)
    .order_by(t.run.c.arm_index)
)


_LOCK_WITH_RUNS = (
    select(*columns(RunRow, t.run))
    .join(t.block, t.block.c.id == t.run.c.block_id)
    .where(t.block.c.id.in_(bindparam("block_ids", expanding=True)), _TRAINS)
    .order_by(t.block.c.id, t.run.c.arm_index)
    .with_for_update(of=t.block)
)


def share_trains(session: Session, assignment_id: str) -> bool:
    """Return whether any run of an assignment still trains."""
    return bool(session.execute(_SHARE_TRAINS, {"assignment_id": assignment_id}).scalar_one())


_SHARE_TRAINS = select(
    select(t.run.c.id)
    .join(t.assignment_run, t.assignment_run.c.run_id == t.run.c.id)
    .where(t.assignment_run.c.assignment_id == bindparam("assignment_id"), _TRAINS)
    .exists()
)


def stopped(session: Session, block_id: str) -> StoppedBlock | None:
    """Return a stopping block that holds no device any more; ``trains`` says whether any of its runs still does."""
    return one(StoppedBlock, session.execute(_STOPPED, {"block_id": block_id}))


_STOPPED = select(
    *_BLOCK, select(t.run.c.id).where(t.run.c.block_id == t.block.c.id, _TRAINS).exists().label("trains")
).where(
    t.block.c.id == bindparam("block_id"),
    t.block.c.status == BlockStatus.STOPPING,
    ~select(t.assignment.c.id).where(t.assignment.c.block_id == t.block.c.id, t.IS_LIVE).exists(),
)


def lock_all(session: Session, experiment_id: str) -> None:
    """Lock the blocks of an experiment before the experiment itself, the order of every round."""
    query = select(t.block.c.id).where(t.block.c.experiment_id == experiment_id)
    session.execute(query.order_by(t.block.c.id).with_for_update()).all()


def lock_queued(session: Session, experiment_id: str) -> list[BlockRow]:
    """Lock and return the queued blocks of an experiment, without those that another transaction holds.

    Its caller holds another block already, so it must wait for none; what others hold is being assigned or steered.
    """
    query = select(*_BLOCK).where(t.block.c.experiment_id == experiment_id, t.block.c.status == BlockStatus.QUEUED)
    return every(BlockRow, session.execute(query.order_by(t.block.c.id).with_for_update(skip_locked=True)))


def let_go_together(session: Session, now: float, block: BlockRow) -> None:
    """Let the blocks that were given back with this one be assigned as soon as none of them is on its way any more.

    They are those of its experiment with its ``not_before_epoch``; what another transaction holds keeps that instant.
    """
    group = [t.block.c.experiment_id == block.experiment_id, t.block.c.not_before_epoch == block.not_before_epoch]
    coming = select(t.block.c.id).where(*group, t.block.c.status == BlockStatus.STOPPING)
    queued = select(t.block.c.id).where(*group, t.block.c.status == BlockStatus.QUEUED, ~coming.exists())
    free = session.execute(queued.order_by(t.block.c.id).with_for_update(skip_locked=True)).scalars().all()
    session.execute(update(t.block).where(t.block.c.id.in_(free)).values(not_before_epoch=now))


def let_go_beside(session: Session, now: float, row: AssignmentRow) -> None:
    """Let the blocks be assigned that a worker was given together with that of an assignment and has given back."""
    is_back = (t.assignment.c.outcome == "stopped") | (t.assignment.c.state == AssignmentState.EXPIRED)
    given = (t.assignment.c.worker_id == row.worker_id, t.assignment.c.offered_at == row.offered_at, is_back)
    its_last = (t.assignment.c.block_id == t.block.c.id, t.assignment.c.attempt == t.block.c.attempt)
    waits = (exists().where(*given, *its_last), t.block.c.status == BlockStatus.QUEUED)
    free = session.execute(select(t.block.c.id).where(*waits).order_by(t.block.c.id).with_for_update(skip_locked=True))
    session.execute(update(t.block).where(t.block.c.id.in_(free.scalars().all())).values(not_before_epoch=now))


def count_live_runs(session: Session, block_ids: Sequence[str]) -> dict[str, int]:
    """Return for each block how many of its runs still train."""
    live = (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.PAUSED)
    query = select(t.run.c.block_id, func.count().label("number")).where(
        t.run.c.block_id.in_(block_ids), t.run.c.status.in_(live)
    )
    return {row.block_id: int(row.number) for row in session.execute(query.group_by(t.run.c.block_id))}


def without_live_runs(session: Session) -> set[str]:
    """Return the running blocks of which no run trains any more."""
    return set(session.execute(_WITHOUT_LIVE_RUNS).scalars())


_WITHOUT_LIVE_RUNS = select(t.block.c.id).where(
    t.block.c.status == BlockStatus.RUNNING, ~exists().where(t.run.c.block_id == t.block.c.id, _TRAINS)
)


def in_states(session: Session, states: Sequence[BlockStatus]) -> list[BlockRow]:
    """Return the blocks in some states, by id."""
    query = select(*_BLOCK).where(t.block.c.status.in_(states)).order_by(t.block.c.id)
    return every(BlockRow, session.execute(query))


def change(session: Session, block_id: str, **values: Any) -> None:
    """Change fields of a block that are not its status."""
    update_one(session, t.block, block_id, values)


def counts(session: Session) -> dict[str, int]:
    """Return the number of blocks by status."""
    query = select(t.block.c.status, func.count().label("number")).group_by(t.block.c.status)
    return {row.status: int(row.number) for row in session.execute(query)}
