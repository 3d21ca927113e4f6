"""Records of who may do what, what was done, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token; of its secret only the hash is kept."""

    id: str
    name: str
    identity: str
    role: str
    prefix: str
    sha256: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class TicketRow:
    """A ticket to open one socket."""

    principal: str
    role: str
    experiment_id: str
    expires_epoch: float


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    """What is known of an idempotency key; ``status`` is None while its request runs."""

    request_sha256: str
    status: int | None
    body: str | None
    created_epoch: float
    request_id: str | None
    effect: str | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An act of a person, as it was recorded."""

    id: int
    at: datetime
    actor: str
    actor_id: str | None
    action: str
    target: str
    before: Any
    after: Any
    request_id: str


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """Where news are sent; ``owner`` None: of everybody's experiments."""

    id: str
    url: str
    secret: str
    events: list[str]
    owner: str | None
    failures: int
    not_before_epoch: float
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """News that are to be sent, or were."""

    id: int
    webhook_id: str
    event: str
    experiment_id: str
    body: str
    state: str
    attempts: int
    error: str | None
    created_at: datetime
    ended_at: datetime | None
