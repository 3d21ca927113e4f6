"""Access: tokens, roles, sessions of browsers, single-use tickets for sockets."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from app.errors import ForbiddenError, NotFoundError, TooManyError, UnauthorizedError
from app.services.audit import record
from app.services.context import Actor, Context
from app.store import access
from app.store.database.engine import utc
from app.store.rows.access import TokenRow
from lockstep.logs import get_logger
from lockstep.quoting import shortened

_log = get_logger("access")
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


def create(
    ctx: Context, name: str, role: str, days: float | None, actor: Actor, *, like: str | None = None
) -> NewToken:
    """Create a token of 256 random bits; its secret is shown once and stored as SHA-256.

    Args:
        ctx: of the process.
        name: who or what holds it; two may have the same.
        role: one of ``ROLES``.
        days: until it expires; None: never.
        actor: who creates it.
        like: id of a token whose owner holds this one, too; default: it has an owner of its own.

    Raises:
        NotFoundError: there is no token ``like``.
    """
    secret = "lsk_" + secrets.token_urlsafe(32)
    token_id = ctx.store.new_id("tok")
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        other = access.token_by_id(session, like) if like is not None else None
        if like is not None and other is None:
            raise NotFoundError(f"no token {shortened(like)}; `lockstep token list` shows them", code="unknown_token")
        access.insert_token(
            session,
            now,
            {
                "id": token_id,
                "name": name,
                "identity": token_id if other is None else other.identity,
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
    return _actor(ctx, row, now, request_id)


def _actor(ctx: Context, row: TokenRow, now: datetime, request_id: str) -> Actor:
    """Return the holder of a token that is valid."""
    if state_of(row, now) != "valid":
        raise UnauthorizedError("the token is expired or revoked")
    if row.last_used_at is None or now - row.last_used_at > _TOUCH_EVERY:
        with ctx.store.write() as session:
            access.touch_token(session, now.timestamp(), row.id)
    return Actor(row.name, row.role, request_id, row.identity)


def state_of(row: TokenRow, now: datetime) -> str:
    """Return whether a token is valid, expired or revoked."""
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "valid"


def log_in(ctx: Context, secret: str, address: str, request_id: str) -> tuple[str, float]:
    """Exchange a token for a session of a browser; return its secret and for how many seconds it is valid.

    Raises:
        TooManyError: this address has failed too often within a minute.
        UnauthorizedError: unknown, expired or revoked.
    """
    wait = ctx.logins.wait(address)
    if wait:
        _log.warning("log-in refused: too many failures", address=address)
        raise TooManyError(f"too many failed log-ins from {address}; try again in {wait:.0f} s", seconds=wait)
    try:
        actor = authenticate(ctx, secret, request_id)
    except UnauthorizedError as error:
        ctx.logins.failed(address)
        _log.warning("log-in failed", address=address, reason=error.detail)
        raise
    cookie = "lss_" + secrets.token_urlsafe(32)
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        row = access.token_by_hash(session, digest(secret))
        if row is None:
            raise UnauthorizedError("unknown token")
        seconds = ctx.settings.session_hours * 3600.0
        if row.expires_at is not None:
            seconds = min(seconds, row.expires_at.timestamp() - now)
        access.insert_session(session, now, digest(cookie), row.id, now + seconds)
        record(ctx, session, actor, "session.begin", row.id, None, None)
    return cookie, seconds


def session_actor(ctx: Context, cookie: str, request_id: str) -> Actor:
    """Return who has logged in.

    Raises:
        UnauthorizedError: the session has ended, or its token is expired or revoked.
    """
    with ctx.store.read() as session:
        now = ctx.store.now(session)
        row = access.token_of_session(session, now, digest(cookie))
    if row is None:
        raise UnauthorizedError("the session has ended; log in again")
    return _actor(ctx, row, utc(now), request_id)


def log_out(ctx: Context, cookie: str) -> None:
    """End a session of a browser."""
    with ctx.store.write() as session:
        access.end_session(session, digest(cookie))


def require(actor: Actor, right: str) -> None:
    """Raise ``ForbiddenError`` unless the actor's role has a right."""
    if actor.role not in RIGHTS[right]:
        raise ForbiddenError(f"role {actor.role} lacks the right to {right}")


def listing(ctx: Context) -> list[dict[str, Any]]:
    """Return all tokens without their secrets."""
    with ctx.store.read() as session:
        rows = access.tokens(session)
        now = utc(ctx.store.now(session))
    return [
        {
            "id": row.id,
            "name": row.name,
            "owner_id": row.identity,
            "role": row.role,
            "state": state_of(row, now),
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
