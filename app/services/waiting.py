"""Why a block waits, in one sentence with numbers, from the scheduler's own predicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.placement import Fit, Wait, WorkerView
from app.services.scheduling import explain_in_order, worker_view
from app.store import experiments, scheduling
from app.store.rows import BlockRow, ExperimentRow
from lockstep.status import BlockStatus, Desired


def why_waiting(
    ctx: Context, session: Session, experiment: ExperimentRow, states: Sequence[BlockRow]
) -> dict[str, Any] | None:
    """Explain why the first queued block of an experiment is not running, or None."""
    queued = [row for row in states if row.status == BlockStatus.QUEUED]
    if not queued:
        return None
    queue = explain_queue(ctx, session)
    found = [item for item in queue if item["block_id"] in {row.id for row in queued}]
    if found:
        return cast(dict[str, Any], found[0]["why_waiting"])
    now = ctx.store.now(session)
    later = min(row.not_before_epoch for row in queued)
    if experiment.desired != Desired.RUN:
        return _why("paused", "the experiment is paused")
    return _why("backoff", f"waits {max(0.0, later - now):.0f} s after a failure", seconds=max(0.0, later - now))


def _why(code: str, text: str, **numbers: float) -> dict[str, Any]:
    return {"code": code, "text": text, "numbers": numbers}


def explain_queue(ctx: Context, session: Session, *, limit: int = 500) -> list[dict[str, Any]]:
    """Return the eligible blocks in order with the reason why each one waits."""
    now = ctx.store.now(session)
    idle = scheduling.idle_ids(session, now, ctx.settings.lease_ttl_seconds)
    views = [worker_view(row, idle=row.id in idle) for row in scheduling.registered_workers(session)]
    paused = scheduling.queue_paused(session)
    decided = explain_in_order(ctx, session, now, {view.id: view for view in views}, limit)
    return [
        {
            "position": position + 1,
            "block_id": block.id,
            "experiment_id": block.experiment_id,
            "replicate": block.replicate,
            "owner": block.owner_name,
            "owner_id": block.owner,
            "priority": block.priority,
            "why_waiting": _reason(choice, views, paused, position),
        }
        for position, (block, choice) in enumerate(decided)
    ]


def _reason(choice: Fit | Wait, views: Sequence[WorkerView], paused: bool, position: int) -> dict[str, Any]:
    if paused:
        return _why("paused", "the queue is paused by an operator")
    if isinstance(choice, Fit):
        return _why("starting", "a device is free; it is assigned at the next tick")
    if choice.code == "needs_devices" and position and any(view.idle for view in views):
        text = f"{position} blocks are ahead in the queue and take the idle devices; it {choice.text}"
        return {"code": "behind_in_order", "text": text, "numbers": {**choice.numbers, "ahead": position}}
    ahead = f"; {position} blocks ahead" if position else ""
    return {
        "code": choice.code,
        "text": choice.text + ahead,
        "numbers": {**choice.numbers, "ahead": position},
    }


def queue_document(ctx: Context) -> dict[str, Any]:
    """Return the queue in order."""
    with ctx.store.read() as session:
        items = explain_queue(ctx, session)
        names = experiments.names(session, {item["experiment_id"] for item in items})
        paused = scheduling.queue_paused(session)
    return {"paused": paused, "items": [{**item, "name": names[item["experiment_id"]]} for item in items]}
