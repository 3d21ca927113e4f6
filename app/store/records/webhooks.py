"""Webhooks and their deliveries: noted in the transaction of what they tell, sent later, one at a time each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from app.store.database.engine import utc
from app.store.rows.access import DeliveryRow, WebhookRow
from app.store.rows.selecting import columns, every, one
from app.store.schema import tables as t
from lockstep.status import BlockStatus

EVENTS = ("end", "failure", "verdict")
WAITING, DELIVERED, GIVEN_UP = "waiting", "delivered", "given_up"


def note(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Note what is to be sent of events that are being recorded; most tell nobody anything and cost nothing."""
    told = [(event, row) for row in rows for event in _told(row)]
    if not told:
        return
    webhooks = every(WebhookRow, session.execute(select(*columns(WebhookRow, t.webhook))))
    if not webhooks:
        return
    ids = {row["experiment_id"] for _, row in told}
    wanted = select(t.experiment.c.id, t.experiment.c.name, t.experiment.c.owner, t.experiment.c.owner_name)
    known = {row.id: row for row in session.execute(wanted.where(t.experiment.c.id.in_(ids)))}
    new = [
        _delivery(webhook, event, row, known[row["experiment_id"]])
        for event, row in told
        for webhook in webhooks
        if event in webhook.events and webhook.owner in (None, known[row["experiment_id"]].owner)
    ]
    if new:
        session.execute(insert(t.delivery), new)


def _told(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield which news an event is."""
    if row["type"] == "experiment_end":
        yield "end"
        if row["payload"].get("verdict") is not None:
            yield "verdict"
    elif row["type"] == "look":
        yield "verdict"
    elif row["type"] == "block_status" and row["status"] == BlockStatus.FAILED:
        yield "failure"


def _delivery(webhook: WebhookRow, event: str, row: Mapping[str, Any], experiment: Any) -> dict[str, Any]:
    body = {
        "id": row["id"],
        "event": event,
        "at": row["at"].isoformat(),
        "experiment": {"id": experiment.id, "name": experiment.name, "owner": experiment.owner_name},
        "status": row["status"],
        "text": row["text"],
        "replicate": row["replicate"],
        "cause": row["cause"],
        **{name: row["payload"].get(name) for name in ("verdict", "look", "report_version")},
    }
    return {
        "webhook_id": webhook.id,
        "event": event,
        "experiment_id": experiment.id,
        "body": json.dumps(body),
        "state": WAITING,
        "attempts": 0,
        "created_at": row["at"],
    }


def add(session: Session, now: float, values: Mapping[str, Any]) -> None:
    """Insert a webhook."""
    session.execute(insert(t.webhook).values(**values, failures=0, not_before_epoch=now, created_at=utc(now)))


def listing(session: Session) -> list[WebhookRow]:
    """Return all webhooks, the oldest first."""
    query = select(*columns(WebhookRow, t.webhook)).order_by(t.webhook.c.created_at, t.webhook.c.id)
    return every(WebhookRow, session.execute(query))


def get(session: Session, webhook_id: str) -> WebhookRow | None:
    """Return a webhook."""
    query = select(*columns(WebhookRow, t.webhook)).where(t.webhook.c.id == webhook_id)
    return one(WebhookRow, session.execute(query))


def remove(session: Session, webhook_id: str) -> bool:
    """Delete a webhook with its deliveries; False when there is none."""
    gone = session.execute(delete(t.webhook).where(t.webhook.c.id == webhook_id).returning(t.webhook.c.id))
    return gone.one_or_none() is not None


def deliveries(session: Session, webhook_id: str, *, before: int | None, limit: int) -> list[DeliveryRow]:
    """Return deliveries of a webhook, the newest first."""
    query = select(*columns(DeliveryRow, t.delivery)).where(t.delivery.c.webhook_id == webhook_id)
    if before is not None:
        query = query.where(t.delivery.c.id < before)
    return every(DeliveryRow, session.execute(query.order_by(t.delivery.c.id.desc()).limit(limit)))


def any_due(session: Session, now: float) -> bool:
    """Return whether a webhook may be asked now."""
    return session.execute(_DUE, {"now": now}).first() is not None


_HOOK = t.webhook.alias()
_WAITS = select(t.delivery.c.id).where(t.delivery.c.webhook_id == _HOOK.c.id, t.delivery.c.state == WAITING)
#: The webhook that has something to be told and has rested longest.
_DUE = (
    select(_HOOK.c.id)
    .where(_HOOK.c.not_before_epoch <= bindparam("now"), _WAITS.exists())
    .order_by(_HOOK.c.not_before_epoch, _HOOK.c.id)
    .limit(1)
)


def take(session: Session, now: float, until: float) -> tuple[WebhookRow, DeliveryRow] | None:
    """Take the oldest delivery of a webhook that may be asked now; no other process asks it before ``until``."""
    due = _DUE.with_for_update(skip_locked=True)
    taken = update(t.webhook).where(t.webhook.c.id.in_(due)).values(not_before_epoch=until)
    webhook = one(WebhookRow, session.execute(taken.returning(*columns(WebhookRow, t.webhook)), {"now": now}))
    if webhook is None:
        return None
    oldest = select(*columns(DeliveryRow, t.delivery)).where(
        t.delivery.c.webhook_id == webhook.id, t.delivery.c.state == WAITING
    )
    delivery = one(DeliveryRow, session.execute(oldest.order_by(t.delivery.c.id).limit(1)))
    return None if delivery is None else (webhook, delivery)


def note_outcome(
    session: Session, now: float, delivery: DeliveryRow, state: str, error: str | None, *, rest: float, failures: int
) -> None:
    """Store how a delivery went, and how long its webhook rests."""
    ended = None if state == WAITING else utc(now)
    changed = {"state": state, "error": error, "attempts": delivery.attempts + 1, "ended_at": ended}
    session.execute(update(t.delivery).where(t.delivery.c.id == delivery.id).values(**changed))
    again = {"not_before_epoch": now + rest, "failures": failures}
    session.execute(update(t.webhook).where(t.webhook.c.id == delivery.webhook_id).values(**again))


def drop_old(session: Session, before: float) -> None:
    """Delete deliveries that ended long ago."""
    ended = or_(t.delivery.c.state == DELIVERED, t.delivery.c.state == GIVEN_UP)
    session.execute(delete(t.delivery).where(ended, t.delivery.c.ended_at < utc(before)))
