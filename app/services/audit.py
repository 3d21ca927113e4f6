"""The append-only record of steering acts, and idempotency keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.errors import ConflictError, InvalidError
from app.services.context import Actor, Context
from app.store import access


def record(
    ctx: Context,
    session: Session,
    actor: Actor,
    action: str,
    target: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """Record a steering act in the caller's transaction."""
    access.insert_audit(
        session,
        ctx.store.now(session),
        {
            "actor": actor.principal,
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


def begin_idempotent(ctx: Context, actor: Actor, key: str, digest: str) -> Replay | None:
    """Reserve a key; return the first answer when the key was used for the same request.

    Raises:
        InvalidError: ``idempotency_mismatch`` when the key was used for another request.
        ConflictError: when the first request is still running.
    """
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        access.drop_old_keys(session, now - 24 * 3600.0)
        row = access.idempotency_row(session, actor.principal, key)
        if row is None:
            access.reserve_key(session, now, actor.principal, key, digest)
            return None
        if row.request_sha256 != digest:
            raise InvalidError("this Idempotency-Key was used for another request", code="idempotency_mismatch")
        if row.status is None or row.body is None:
            raise ConflictError("the first request with this Idempotency-Key is still running", code="in_progress")
        return Replay(row.status, row.body)


def end_idempotent(ctx: Context, actor: Actor, key: str, status: int | None, body: str) -> None:
    """Store the answer of a key, or (status None) free the key after a failure."""
    with ctx.store.write() as session:
        if status is None:
            access.free_key(session, actor.principal, key)
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
            "action": row.action,
            "target": row.target,
            "before": row.before,
            "after": row.after,
            "request_id": row.request_id,
        }
        for row in shown
    ]
    return {"items": items, "next": shown[-1].id if len(rows) > limit else None}
