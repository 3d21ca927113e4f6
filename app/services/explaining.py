"""Why a block waits, in one sentence with numbers, from the scheduler's own predicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy.orm import Session

from app.domain.gang import Fit, WorkerView, fit
from app.domain.status import BlockStatus, Desired, WorkerStatus
from app.services.context import Context
from app.services.scheduling import need_of, worker_view
from app.store import blocks, scheduling
from app.store.tables import Record


def why_waiting(ctx: Context, session: Session, experiment: Record, states: Sequence[Record]) -> dict[str, Any] | None:
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
    ttl = ctx.settings.lease_ttl_seconds
    views = [
        worker_view(row, idle=row.status == WorkerStatus.IDLE and not row.drain and row.seen_epoch > now - ttl)
        for row in scheduling.registered_workers(session)
    ]
    shares = scheduling.owner_shares(session, now)
    in_use = scheduling.devices_in_use(session)
    paused = scheduling.queue_paused(session)
    items = []
    free = sum(view.idle for view in views)
    for position, block in enumerate(scheduling.eligible_blocks(session, now, shares, limit=limit)):
        reason = _reason(ctx, session, block, views, paused, in_use, position, free)
        items.append(
            {
                "position": position + 1,
                "block_id": block.id,
                "experiment_id": block.experiment_id,
                "replicate": block.replicate,
                "owner": block.owner,
                "priority": block.priority,
                "why_waiting": reason,
            }
        )
    return items


def _reason(
    ctx: Context,
    session: Session,
    block: Record,
    views: Sequence[WorkerView],
    paused: bool,
    in_use: Mapping[str, int],
    position: int,
    free: int,
) -> dict[str, Any]:
    if paused:
        return _why("paused", "the queue is paused by an operator")
    if in_use.get(block.owner, 0) >= ctx.settings.owner_device_limit:
        limit = ctx.settings.owner_device_limit
        return _why("owner_limit", f"{block.owner} already uses {limit} devices, the limit", limit=limit)
    num_live = len(blocks.live_runs(session, block.id)) if position < 50 else 1
    choice = fit(need_of(block, block.placement_resolved or block.placement, num_live), views)
    if isinstance(choice, Fit):
        if position < free:
            return _why("starting", "a device is free; it is assigned at the next tick")
        return _why("behind_in_order", f"{position} blocks are ahead in the queue", ahead=position)
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
        paused = scheduling.queue_paused(session)
    return {"paused": paused, "items": items}
