"""Tokens, tickets, idempotency keys and the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from app.store.database.engine import utc
from app.store.records.logs import ignore_duplicates
from app.store.rows.access import AuditRow, IdempotencyRow, TicketRow, TokenRow
from app.store.rows.selecting import columns, every, one
from app.store.schema import tables as t


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


def token_by_id(session: Session, token_id: str) -> TokenRow | None:
    """Return a token by its id."""
    return one(TokenRow, session.execute(select(*columns(TokenRow, t.token)).where(t.token.c.id == token_id)))


def insert_session(session: Session, now: float, sha256: str, token_id: str, expires_epoch: float) -> None:
    """Insert a session of a browser (its hash), and drop those that have expired."""
    session.execute(delete(t.browser_session).where(t.browser_session.c.expires_epoch < now))
    values = {"sha256": sha256, "token_id": token_id, "created_at": utc(now), "expires_epoch": expires_epoch}
    session.execute(insert(t.browser_session).values(**values))


def token_of_session(session: Session, now: float, sha256: str) -> TokenRow | None:
    """Return the token of a session that has not expired."""
    query = select(*columns(TokenRow, t.token)).join(t.browser_session, t.browser_session.c.token_id == t.token.c.id)
    query = query.where(t.browser_session.c.sha256 == sha256, t.browser_session.c.expires_epoch > now)
    return one(TokenRow, session.execute(query))


def end_session(session: Session, sha256: str) -> None:
    """Delete a session."""
    session.execute(delete(t.browser_session).where(t.browser_session.c.sha256 == sha256))


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


def reserve_key(session: Session, now: float, principal: str, key: str, digest: str, request_id: str) -> None:
    """Enter a key whose request is running, unless it is there; another transaction may be entering it, too."""
    row = {
        "principal": principal,
        "key": key,
        "request_sha256": digest,
        "created_epoch": now,
        "request_id": request_id,
    }
    session.execute(ignore_duplicates(session, t.idempotency), [row])


def take_key(session: Session, now: float, principal: str, key: str, request_id: str) -> None:
    """Let another request run under a key whose first one never ended."""
    values = {"created_epoch": now, "request_id": request_id}
    session.execute(update(t.idempotency).where(*_of_key(principal, key)).values(**values))


def note_effect(session: Session, principal: str, key: str, request_id: str, effect: str) -> bool:
    """Note what a request has done, in the transaction that does it; False when the key is another request's now."""
    changed = session.execute(
        update(t.idempotency)
        .where(*_of_key(principal, key), t.idempotency.c.request_id == request_id)
        .values(effect=effect)
        .returning(t.idempotency.c.key)
    )
    return changed.one_or_none() is not None


def _of_key(principal: str, key: str) -> tuple[ColumnElement[bool], ...]:
    return t.idempotency.c.principal == principal, t.idempotency.c.key == key


def store_answer(session: Session, principal: str, key: str, status: int, body: str) -> None:
    """Store the answer of a key."""
    session.execute(update(t.idempotency).where(*_of_key(principal, key)).values(status=status, body=body))


def free_key(session: Session, principal: str, key: str, request_id: str) -> None:
    """Forget a key whose request failed and has done nothing."""
    mine = (t.idempotency.c.request_id == request_id, t.idempotency.c.effect.is_(None))
    session.execute(delete(t.idempotency).where(*_of_key(principal, key), *mine))


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
        query = query.where(or_(t.audit.c.actor == actor, t.audit.c.actor_id == actor))
    if target is not None:
        query = query.where(t.audit.c.target == target)
    if before is not None:
        query = query.where(t.audit.c.id < before)
    return every(AuditRow, session.execute(query))
