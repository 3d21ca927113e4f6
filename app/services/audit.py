"""The append-only record of steering acts, and idempotency keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.errors import ConflictError, InvalidError
from app.services.context import Actor, Context
from app.store import access

#: A request of which nothing has been heard for so long has died with its process.
_DEAD_AFTER_SECONDS = 60.0


def record(
    ctx: Context,
    session: Session,
    actor: Actor,
    action: str,
    target: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    *,
    effect: Any = None,
) -> None:
    """Record a steering act in the caller's transaction, and under its idempotency key that it was done.

    Args:
        ctx: of the process.
        session: the transaction of the act.
        actor: who acts.
        action: what is done.
        target: to what.
        before: what it was.
        after: what it is now.
        effect: from what the answer can be made again; default: the target.

    Raises:
        ConflictError: ``in_progress`` when another request runs under the key by now, so that this one must not act.
    """
    if actor.key is not None:
        told = json.dumps(target if effect is None else effect)
        if not access.note_effect(session, actor.principal, actor.key, actor.request_id, told):
            raise _still_running()
    access.insert_audit(
        session,
        ctx.store.now(session),
        {
            "actor": actor.name,
            "actor_id": actor.principal,
            "action": action,
            "target": target,
            "before": dict(before) if before is not None else None,
            "after": dict(after) if after is not None else None,
            "request_id": actor.request_id,
        },
    )


@dataclass(frozen=True)
class Replay:
    """The stored first answer to an idempotency key."""

    status: int
    body: str


def request_hash(method: str, path: str, body: bytes) -> str:
    """Return what identifies a request under its key."""
    return hashlib.sha256(b"\n".join([method.encode(), path.encode(), body])).hexdigest()


@dataclass(frozen=True)
class Done:
    """What was done under an idempotency key whose answer was lost with its process."""

    effect: Any


def begin_idempotent(ctx: Context, actor: Actor, key: str, digest: str) -> Replay | Done | None:
    """Reserve a key; return the first answer, or what was done, when the key was used for the same request.

    A request that has done nothing and not ended after a minute has died with its process: this one takes its place.

    Raises:
        InvalidError: ``idempotency_mismatch`` when the key was used for another request.
        ConflictError: when the first request is still running.
    """
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        access.drop_old_keys(session, now - 24 * 3600.0)
        row = access.idempotency_row(session, actor.principal, key)
        if row is None:
            access.reserve_key(session, now, actor.principal, key, digest, actor.request_id)
            row = access.idempotency_row(session, actor.principal, key)
        if row is None or (row.request_id == actor.request_id and row.status is None):
            return None
        if row.request_sha256 != digest:
            raise InvalidError("this Idempotency-Key was used for another request", code="idempotency_mismatch")
        if row.status is not None and row.body is not None:
            return Replay(row.status, row.body)
        if row.effect is not None:
            return Done(json.loads(row.effect))
        if now - row.created_epoch < _DEAD_AFTER_SECONDS:
            raise _still_running()
        access.take_key(session, now, actor.principal, key, actor.request_id)
        return None


def _still_running() -> ConflictError:
    return ConflictError("another request with this Idempotency-Key is still running", code="in_progress")


def end_idempotent(ctx: Context, actor: Actor, key: str, status: int | None, body: str) -> None:
    """Store the answer of a key, or (status None) free the key after a failure."""
    with ctx.store.write() as session:
        if status is None:
            access.free_key(session, actor.principal, key, actor.request_id)
        else:
            access.store_answer(session, actor.principal, key, status, body)


def page(ctx: Context, *, actor: str | None, target: str | None, before: int | None, limit: int) -> dict[str, Any]:
    """Return audit rows, newest first; ``next`` is null at the end."""
    with ctx.store.read() as session:
        rows = access.audit_page(session, actor=actor, target=target, before=before, limit=limit + 1)
    shown = rows[:limit]
    items = [
        {
            "id": row.id,
            "at": row.at.isoformat(),
            "actor": row.actor,
            "actor_id": row.actor_id,
            "action": row.action,
            "target": row.target,
            "before": row.before,
            "after": row.after,
            "request_id": row.request_id,
        }
        for row in shown
    ]
    return {"items": items, "next": shown[-1].id if len(rows) > limit else None}
