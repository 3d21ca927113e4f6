"""Webhooks: who is told of ends, failures and verdicts, signed so that the receiver can tell who sent it.

A delivery is noted in the transaction of what it tells, so that a restart loses none. One that cannot be made is tried
again after 5 s, 10 s, .. 1 h, for three days; meanwhile later ones of the same webhook wait behind it, and no other
webhook waits. It may come twice, after a crash between sending and noting: its id tells.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidError, NotFoundError
from app.services.audit import record
from app.services.context import Actor, Context
from app.store.records import webhooks
from app.store.records.webhooks import EVENTS as EVENTS
from app.store.rows.access import DeliveryRow, WebhookRow
from lockstep.address import BadAddress, clean_url, hidden

#: The header of a delivery's number.
DELIVERY = "Lockstep-Delivery"
#: A receiver has this long to answer; no other process asks it within three times as long.
ANSWER_SECONDS = 10.0
#: A part of a path that nobody would write by hand.
_SECRET_PART = re.compile(r"/[\w.~-]{20,}(?=[/?#]|$)")
_FIRST_REST, _LONGEST_REST = 5.0, 3600.0
_PATIENCE_SECONDS = 3 * 24 * 3600.0
_KEPT_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True)
class Outgoing:
    """A delivery to make: where to, with which headers and body."""

    url: str
    headers: dict[str, str]
    body: bytes
    webhook: WebhookRow
    delivery: DeliveryRow


def signature(secret: str, at: int, body: bytes) -> str:
    """Return the header that signs a body: ``t=TIME,v1=HMAC-SHA256(secret, "TIME." + body)`` in hexadecimal."""
    made = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


def add(ctx: Context, url: str, events: Sequence[str], owner: str | None, actor: Actor) -> dict[str, Any]:
    """Store a webhook; return it with its secret, which is shown once, and with its URL as it may be shown.

    Raises:
        InvalidError: the URL cannot be used, or there is no event.
    """
    try:
        cleaned = clean_url(url, "url", is_base=False)
    except BadAddress as error:
        raise InvalidError(str(error), code="bad_url") from error
    if not events:
        raise InvalidError(f"events: name one or more of {', '.join(EVENTS)}", code="no_events")
    webhook_id, secret = ctx.store.new_id("whk"), "whs_" + secrets.token_urlsafe(32)
    values = {"id": webhook_id, "url": cleaned, "events": sorted(set(events)), "owner": owner, "secret": secret}
    with ctx.store.write() as session:
        webhooks.add(session, ctx.store.now(session), values)
        shown = {**values, "url": shown_url(cleaned)}
        told = {name: shown[name] for name in ("url", "events", "owner")}
        record(ctx, session, actor, "webhook.add", webhook_id, None, told)
    return shown


def shown_url(url: str) -> str:
    """Return a URL without what lets its reader send there, too: many chats have a secret in the path."""
    return _SECRET_PART.sub("/***", hidden(url))


def listing(ctx: Context) -> list[dict[str, Any]]:
    """Return all webhooks without their secrets."""
    with ctx.store.read() as session:
        rows = webhooks.listing(session)
    return [
        {
            "id": row.id,
            "url": shown_url(row.url),
            "events": row.events,
            "owner": row.owner,
            "failures": row.failures,
            "created_at": row.created_at.isoformat(),
        }
        for row in rows
    ]


def remove(ctx: Context, webhook_id: str, actor: Actor) -> None:
    """Delete a webhook and what it was to be told.

    Raises:
        NotFoundError: there is none.
    """
    with ctx.store.write() as session:
        if not webhooks.remove(session, webhook_id):
            raise _unknown(webhook_id)
        record(ctx, session, actor, "webhook.remove", webhook_id, None, None)


def deliveries(ctx: Context, webhook_id: str, *, before: int | None, limit: int) -> dict[str, Any]:
    """Return what a webhook was told and is to be told, the newest first.

    Raises:
        NotFoundError: there is no such webhook.
    """
    with ctx.store.read() as session:
        if webhooks.get(session, webhook_id) is None:
            raise _unknown(webhook_id)
        rows = webhooks.deliveries(session, webhook_id, before=before, limit=limit + 1)
    shown = rows[:limit]
    items = [
        {
            "id": row.id,
            "event": row.event,
            "experiment_id": row.experiment_id,
            "state": row.state,
            "attempts": row.attempts,
            "error": row.error,
            "created_at": row.created_at.isoformat(),
            "ended_at": row.ended_at and row.ended_at.isoformat(),
        }
        for row in shown
    ]
    return {"items": items, "next": shown[-1].id if len(rows) > limit else None}


def _unknown(webhook_id: str) -> NotFoundError:
    return NotFoundError(f"no webhook {webhook_id}", code="unknown_webhook")


def take(ctx: Context) -> Outgoing | None:
    """Take the next delivery that is due, signed; None when there is none."""
    with ctx.store.read() as session:  # mostly there is none, and nobody needs to write
        if not webhooks.any_due(session, ctx.store.now(session)):
            return None
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        taken = webhooks.take(session, now, now + 3 * ANSWER_SECONDS)
    if taken is None:
        return None
    webhook, delivery = taken
    body = delivery.body.encode()
    headers = {
        "Content-Type": "application/json",
        "Lockstep-Event": delivery.event,
        DELIVERY: str(delivery.id),
        "Lockstep-Signature": signature(webhook.secret, int(now), body),
    }
    return Outgoing(webhook.url, headers, body, webhook, delivery)


def note_outcome(ctx: Context, sent: Outgoing, error: str | None) -> None:
    """Store how a delivery went: None, or why it was not taken."""
    failures = 0 if error is None else sent.webhook.failures + 1
    rest = 0.0 if error is None else min(_LONGEST_REST, _FIRST_REST * 2.0 ** min(failures - 1, 20))
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        state = webhooks.DELIVERED if error is None else webhooks.WAITING
        if error is not None and now - sent.delivery.created_at.timestamp() > _PATIENCE_SECONDS:
            state = webhooks.GIVEN_UP
        webhooks.note_outcome(session, now, sent.delivery, state, error, rest=rest, failures=failures)
        webhooks.drop_old(session, now - _KEPT_SECONDS)
