"""Access: tokens, roles, sessions of browsers, single-use tickets for sockets."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from app.errors import ForbiddenError, NotFoundError, UnauthorizedError
from app.services.audit import record
from app.services.context import Actor, Context
from app.store import access
from app.store.engine import utc

ROLES = ("viewer", "submitter", "operator", "admin", "worker")
#: Everybody on this machine while authentication is off (loopback only).
LOCAL = "local"
#: Which roles have a right.
RIGHTS: dict[str, frozenset[str]] = {
    "read": frozenset({"viewer", "submitter", "operator", "admin", LOCAL}),
    "submit": frozenset({"submitter", "operator", "admin", LOCAL}),
    "operate": frozenset({"operator", "admin", LOCAL}),
    "admin": frozenset({"admin", LOCAL}),
    "work": frozenset({"worker", LOCAL}),
}
TICKET_SECONDS = 30.0
_TOUCH_EVERY = timedelta(minutes=1)


def digest(secret: str) -> str:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class NewToken:
    """A token as shown once."""

    id: str
    secret: str
    prefix: str


def create(ctx: Context, name: str, role: str, days: float | None, actor: Actor) -> NewToken:
    """Create a token of 256 random bits; its secret is shown once and stored as SHA-256."""
    secret = "lsk_" + secrets.token_urlsafe(32)
    token_id = ctx.store.new_id("tok")
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        access.insert_token(
            session,
            now,
            {
                "id": token_id,
                "name": name,
                "role": role,
                "prefix": secret[:8],
                "sha256": digest(secret),
                "expires_at": utc(now) + timedelta(days=days) if days is not None else None,
            },
        )
        record(ctx, session, actor, "token.create", token_id, None, {"name": name, "role": role})
    return NewToken(token_id, secret, secret[:8])


def authenticate(ctx: Context, secret: str, request_id: str) -> Actor:
    """Return who holds a secret.

    Raises:
        UnauthorizedError: unknown, expired or revoked.
    """
    with ctx.store.read() as session:
        row = access.token_by_hash(session, digest(secret))
        now = utc(ctx.store.now(session))
    if row is None or not secrets.compare_digest(row.sha256, digest(secret)):
        raise UnauthorizedError("unknown token")
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        raise UnauthorizedError("the token is expired or revoked")
    if row.last_used_at is None or now - row.last_used_at > _TOUCH_EVERY:
        with ctx.store.write() as session:
            access.touch_token(session, now.timestamp(), row.id)
    return Actor(row.name, row.role, request_id)


def require(actor: Actor, right: str) -> None:
    """Raise ``ForbiddenError`` unless the actor's role has a right."""
    if actor.role not in RIGHTS[right]:
        raise ForbiddenError(f"role {actor.role} lacks the right to {right}")


def listing(ctx: Context) -> list[dict[str, Any]]:
    """Return all tokens without their secrets."""
    with ctx.store.read() as session:
        rows = access.tokens(session)
    return [
        {
            "id": row.id,
            "name": row.name,
            "role": row.role,
            "prefix": row.prefix,
            "created_at": row.created_at.isoformat(),
            "expires_at": row.expires_at and row.expires_at.isoformat(),
            "revoked_at": row.revoked_at and row.revoked_at.isoformat(),
            "last_used_at": row.last_used_at and row.last_used_at.isoformat(),
        }
        for row in rows
    ]


def revoke(ctx: Context, token_id: str, actor: Actor) -> None:
    """Revoke a token.

    Raises:
        NotFoundError: when there is none that is still valid.
    """
    with ctx.store.write() as session:
        if not access.revoke_token(session, ctx.store.now(session), token_id):
            raise NotFoundError(f"no valid token {token_id}", code="unknown_token")
        record(ctx, session, actor, "token.revoke", token_id, None, None)


def issue_ticket(ctx: Context, experiment_id: str, actor: Actor) -> str:
    """Return a single-use ticket for the live stream of one experiment, valid for 30 s."""
    secret = "lst_" + secrets.token_urlsafe(32)
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        access.drop_old_tickets(session, now)
        values = {
            "sha256": digest(secret),
            "principal": actor.principal,
            "role": actor.role,
            "experiment_id": experiment_id,
            "expires_epoch": now + TICKET_SECONDS,
        }
        access.insert_ticket(session, values)
    return secret


def use_ticket(ctx: Context, secret: str, experiment_id: str, request_id: str) -> Actor:
    """Use a ticket up and return who it was issued to.

    Raises:
        UnauthorizedError: unknown, used, expired or for another experiment.
    """
    with ctx.store.write() as session:
        row = access.take_ticket(session, digest(secret))
        now = ctx.store.now(session)
    if row is None or row.expires_epoch < now or row.experiment_id != experiment_id:
        raise UnauthorizedError("the ticket is unknown, used or expired")
    return Actor(row.principal, row.role, request_id)
