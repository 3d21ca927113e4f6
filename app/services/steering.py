"""Steering of experiments and the queue: pause, resume, cancel, reorder, edit, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from app.errors import ConflictError, ForbiddenError, NotFoundError, PreconditionError
from app.services.audit import record
from app.services.context import Actor, Context
from app.services.fencing import grace
from app.store import experiments
from app.store.database.engine import utc
from app.store.queue import blocks, scheduling
from app.store.queue.blocks import Why
from app.store.records.events import NewEvent, add_events
from app.store.rows.experiments import BlockRow, ExperimentRow
from lockstep.quoting import shortened
from lockstep.status import TERMINAL_BLOCK, TERMINAL_EXPERIMENT, BlockStatus, Cause, Desired


def existing(session: Session, experiment_id: str, *, lock: bool = False) -> ExperimentRow:
    """Return an experiment.

    Raises:
        NotFoundError: unknown or deleted.
    """
    row = experiments.get(session, experiment_id, lock=lock)
    if row is None:
        raise NotFoundError(f"no experiment {shortened(experiment_id)}", code="unknown_experiment")
    return row


def owned(session: Session, experiment_id: str, actor: Actor) -> ExperimentRow:
    """Return an experiment, locked, that the actor may change.

    Raises:
        NotFoundError: unknown or deleted.
        ForbiddenError: not the actor's.
    """
    row = existing(session, experiment_id, lock=True)
    if not actor.may_steer(row.owner):
        owner = (
            row.owner_name if row.owner_name != actor.name else f"{row.owner_name}, who is another owner of that name"
        )
        raise ForbiddenError(f"{actor.name} ({actor.role}) may not change experiments of {owner}")
    return row


def check_priority(ctx: Context, actor: Actor, wanted: int, present: int = 0) -> None:
    """Refuse a priority that is above what a submitter may give.

    Raises:
        ForbiddenError: ``priority`` names the limit.
    """
    limit = max(ctx.settings.submitter_priority_limit, present)
    if actor.role == "submitter" and wanted > limit:
        told = f"priority {wanted} is above the limit of submitters; use at most {limit}, or ask an operator"
        raise ForbiddenError(told, code="priority")


def set_desired(ctx: Context, experiment_id: str, desired: Desired, reason: str, actor: Actor) -> bool:
    """Store what the user wants and act on it; return False when it was so already.

    Raises:
        ConflictError: ``terminal`` when the experiment has ended.
    """
    with ctx.store.write() as session:
        blocks.lock_all(session, experiment_id)
        experiment = owned(session, experiment_id, actor)
        rows = experiments.blocks(session, experiment_id)
        status = experiments.derived_status(experiment, rows)
        if experiment.desired == desired:
            return False
        if status in TERMINAL_EXPERIMENT or experiment.desired == Desired.CANCEL:
            raise ConflictError(f"the experiment is {status.value}; this cannot change any more", code="terminal")
        now = ctx.store.now(session)
        experiments.change(session, experiment_id, desired=desired)
        text = f"{desired.value} requested" + (f": {reason}" if reason else "")
        add_events(session, now, experiment_id, [NewEvent("desired", text, actor=actor.name)])
        _apply(
            ctx,
            session,
            now,
            rows,
            desired,
            Why(actor.name, Cause.USER, reason or f"{desired.value} by {actor.name}"),
        )
        record(
            ctx,
            session,
            actor,
            f"experiment.{desired.value}",
            experiment_id,
            {"desired": experiment.desired},
            {"desired": desired.value, "reason": reason},
        )
    ctx.bell.ring()
    return True


def _apply(ctx: Context, session: Session, now: float, rows: Any, desired: Desired, why: Why) -> None:
    for row in rows:
        if BlockStatus(row.status) in TERMINAL_BLOCK:
            continue
        block = blocks.get(session, row.id, lock=True)
        if block is None:
            continue
        if desired is Desired.RUN:
            _resume(session, now, block, why)
        elif not blocks.finish_unassigned(session, now, block, desired, why):
            blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block), desired=desired)


def _resume(session: Session, now: float, block: BlockRow, why: Why) -> None:
    if block.status == BlockStatus.PAUSED:
        blocks.requeue(session, now, block, Why(why.actor, None, "resumed"))
    elif block.status == BlockStatus.STOPPING:
        blocks.change(session, block.id, desired=Desired.RUN)


def cancel_decided(session: Session, now: float, experiment_id: str, text: str) -> int:
    """Cancel what is still queued after a registered look settled the experiment."""
    count = 0
    for row in experiments.blocks(session, experiment_id):
        if row.status == BlockStatus.QUEUED:
            why = Why("analysis", Cause.DECIDED, text)
            count += blocks.finish_unassigned(session, now, row, Desired.CANCEL, why)
    return count


def edit(ctx: Context, experiment_id: str, changes: Mapping[str, Any], actor: Actor, *, if_match: str | None) -> None:
    """Change name, notes, tags or priority.

    Raises:
        ForbiddenError: not the actor's, or a priority above the limit of a submitter.
        PreconditionError: when ``if_match`` names another version.
    """
    with ctx.store.write() as session:
        experiment = owned(session, experiment_id, actor)
        if if_match is not None and if_match.strip('W/"') not in (str(experiment.version), "*"):
            raise PreconditionError(f"the experiment is at version {experiment.version}; read it again")
        check_priority(ctx, actor, changes.get("priority", 0), experiment.priority)
        before = {name: getattr(experiment, name) for name in changes}
        experiments.change(session, experiment_id, **changes)
        now = ctx.store.now(session)
        text = f"changed {', '.join(sorted(changes))}"
        add_events(session, now, experiment_id, [NewEvent("edited", text, actor=actor.name)])
        record(ctx, session, actor, "experiment.edit", experiment_id, before, dict(changes))
    ctx.bell.ring()


def reorder(ctx: Context, experiment_id: str, actor: Actor, *, before: str | None, after: str | None) -> float:
    """Move an experiment before or after another, or to the top; return its rank."""
    with ctx.store.write() as session:
        experiment = owned(session, experiment_id, actor)
        rank = _rank(session, experiment_id, before, after)
        experiments.change(session, experiment_id, rank=rank)
        now = ctx.store.now(session)
        add_events(session, now, experiment_id, [NewEvent("reordered", "moved in the queue", actor=actor.name)])
        record(
            ctx,
            session,
            actor,
            "experiment.reorder",
            experiment_id,
            {"rank": experiment.rank},
            {"rank": rank},
        )
    ctx.bell.ring()
    return rank


def _rank(session: Session, experiment_id: str, before: str | None, after: str | None) -> float:
    if before is None and after is None:
        return experiments.edge_rank(session, None, below=True) - 1.0
    other = existing(session, before or after or "")
    if other.id == experiment_id:
        raise ConflictError("an experiment cannot be moved relative to itself", code="same_experiment")
    neighbour = experiments.edge_rank(session, other.rank, below=before is not None, skip=experiment_id)
    return float(other.rank + neighbour) / 2.0


def delete(ctx: Context, experiment_id: str, actor: Actor) -> None:
    """Hide an experiment that has ended; rows and files go after ``deleted_retention_days`` (services.retention).

    Raises:
        ConflictError: ``active`` when it must be cancelled first.
    """
    with ctx.store.write() as session:
        experiment = owned(session, experiment_id, actor)
        status = experiments.derived_status(experiment, experiments.blocks(session, experiment_id))
        if status not in TERMINAL_EXPERIMENT:
            raise ConflictError(f"the experiment is {status.value}; cancel it first", code="active")
        experiments.change(session, experiment_id, deleted_at=utc(ctx.store.now(session)))
        record(ctx, session, actor, "experiment.delete", experiment_id, None, None)
    ctx.bell.ring()


def pause_queue(ctx: Context, actor: Actor, *, paused: bool) -> bool:
    """Pause or resume the whole queue; return False when it was so already."""
    with ctx.store.write() as session:
        if scheduling.queue_paused(session) is paused:
            return False
        scheduling.set_meta(session, "queue_paused", "1" if paused else "0")
        record(ctx, session, actor, "queue.pause" if paused else "queue.resume", "queue", None, None)
    ctx.bell.ring()
    return True
