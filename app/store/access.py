"""Tokens, tickets, idempotency keys and the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from app.store import tables as t
from app.store.engine import utc
from app.store.rows import AuditRow, IdempotencyRow, TicketRow, TokenRow, columns, every, one


def insert_token(session: Session, now: float, values: Mapping[str, Any]) -> None:
    """Insert a token (its hash)."""
    session.execute(insert(t.token).values(**values, created_at=utc(now)))


def token_by_hash(session: Session, sha256: str) -> TokenRow | None:
    """Return a token by the hash of its secret."""
    return one(TokenRow, session.execute(select(*columns(TokenRow, t.token)).where(t.token.c.sha256 == sha256)))


def tokens(session: Session) -> list[TokenRow]:
    """Return all tokens, newest first."""
    query = select(*columns(TokenRow, t.token)).order_by(t.token.c.created_at.desc(), t.token.c.id)
    return every(TokenRow, session.execute(query))


def touch_token(session: Session, now: float, token_id: str) -> None:
    """Note the last use of a token."""
    session.execute(update(t.token).where(t.token.c.id == token_id).values(last_used_at=utc(now)))


def revoke_token(session: Session, now: float, token_id: str) -> bool:
    """Revoke a token; False when there is none that is still valid."""
    changed = session.execute(
        update(t.token)
        .where(t.token.c.id == token_id, t.token.c.revoked_at.is_(None))
        .values(revoked_at=utc(now))
        .returning(t.token.c.id)
    )
    return changed.one_or_none() is not None


def insert_ticket(session: Session, values: Mapping[str, Any]) -> None:
    """Insert a single-use ticket for a socket."""
    session.execute(insert(t.live_ticket).values(**values))


def take_ticket(session: Session, sha256: str) -> TicketRow | None:
    """Use a ticket up; None when there is none."""
    taken = delete(t.live_ticket).where(t.live_ticket.c.sha256 == sha256)
    return one(TicketRow, session.execute(taken.returning(*columns(TicketRow, t.live_ticket))))


def drop_old_tickets(session: Session, before: float) -> None:
    """Delete expired tickets."""
    session.execute(delete(t.live_ticket).where(t.live_ticket.c.expires_epoch < before))


def idempotency_row(session: Session, principal: str, key: str) -> IdempotencyRow | None:
    """Return what is known of a key."""
    query = select(*columns(IdempotencyRow, t.idempotency))
    query = query.where(t.idempotency.c.principal == principal, t.idempotency.c.key == key)
    return one(IdempotencyRow, session.execute(query.with_for_update()))


def reserve_key(session: Session, now: float, principal: str, key: str, digest: str) -> None:
    """Enter a key whose request is running."""
    session.execute(
        insert(t.idempotency).values(principal=principal, key=key, request_sha256=digest, created_epoch=now)
    )


def store_answer(session: Session, principal: str, key: str, status: int, body: str) -> None:
    """Store the answer of a key."""
    session.execute(
        update(t.idempotency)
        .where(t.idempotency.c.principal == principal, t.idempotency.c.key == key)
        .values(status=status, body=body)
    )


def free_key(session: Session, principal: str, key: str) -> None:
    """Forget a key whose request failed."""
    session.execute(delete(t.idempotency).where(t.idempotency.c.principal == principal, t.idempotency.c.key == key))


def drop_old_keys(session: Session, before: float) -> None:
    """Forget keys older than their keeping time."""
    session.execute(delete(t.idempotency).where(t.idempotency.c.created_epoch < before))


def insert_audit(session: Session, now: float, values: Mapping[str, Any]) -> None:
    """Append to the audit trail."""
    session.execute(insert(t.audit).values(**values, at=utc(now)))


def audit_page(
    session: Session, *, actor: str | None, target: str | None, before: int | None, limit: int
) -> list[AuditRow]:
    """Return audit rows, newest first."""
    query = select(*columns(AuditRow, t.audit)).order_by(t.audit.c.id.desc()).limit(limit)
    if actor is not None:
        query = query.where(t.audit.c.actor == actor)
    if target is not None:
        query = query.where(t.audit.c.target == target)
    if before is not None:
        query = query.where(t.audit.c.id < before)
    return every(AuditRow, session.execute(query))
