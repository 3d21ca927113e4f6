"""Tables of access and operation: tokens, tickets, idempotency keys, audit, use, key-value."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from app.store.schema.columns import Json, UtcDateTime, metadata

token = Table(
    "token",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("identity", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
)

browser_session = Table(
    "browser_session",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("token_id", String(40), nullable=False, index=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_epoch", Float, nullable=False),
)

live_ticket = Table(
    "live_ticket",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("principal", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("experiment_id", String(40), nullable=False),
    Column("expires_epoch", Float, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("principal", String(200), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("request_sha256", String(64), nullable=False),
    Column("status", Integer),
    Column("body", Text),
    Column("created_epoch", Float, nullable=False),
    Column("request_id", String(64)),
    Column("effect", Text),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("actor_id", String(200)),
    Column("action", String(64), nullable=False),
    Column("target", String(200), nullable=False, index=True),
    Column("before", Json),
    Column("after", Json),
    Column("request_id", String(64), nullable=False),
)

webhook = Table(
    "webhook",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("url", Text, nullable=False),
    Column("secret", String(200), nullable=False),
    Column("events", Json, nullable=False),
    Column("owner", String(200)),
    Column("failures", Integer, nullable=False),
    Column("not_before_epoch", Float, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

#: What is to be sent, or was: the body is fixed when it is noted, in the transaction of what it tells.
delivery = Table(
    "delivery",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("webhook_id", ForeignKey("webhook.id", ondelete="CASCADE"), nullable=False),
    Column("event", String(16), nullable=False),
    Column("experiment_id", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Index("ix_delivery_webhook_id_state", "webhook_id", "state", "id"),
)

usage = Table(
    "usage",
    metadata,
    Column("owner", String(200), primary_key=True),
    Column("device_seconds", Float, nullable=False),
    Column("updated_epoch", Float, nullable=False),
)

meta = Table(
    "meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
