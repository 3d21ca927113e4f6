"""Health, readiness, server epoch and the numbers of /metrics."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.errors import StartupError
from app.services.context import Context
from app.store.database import migrate
from app.store.queue import blocks, scheduling
from lockstep.status import BlockStatus


@dataclass
class Numbers:
    """Process-wide counters; one registry per process."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"registry": self.registry}
        self.blocks = Gauge("lockstep_blocks", "Blocks by status", ["status"], **options)
        self.claim_seconds = Histogram("lockstep_claim_seconds", "Time to answer a claim's first check", **options)
        self.heartbeat_seconds = Histogram("lockstep_heartbeat_seconds", "Time to store a heartbeat", **options)
        self.lease_expiries = Counter("lockstep_lease_expiries", "Changes made by the sweep", **options)
        self.ingest_rows = Counter("lockstep_ingest_rows", "Metric rows accepted", **options)
        self.sockets = Gauge("lockstep_live_readers", "Live readers", **options)
        self.lagged_frames = Counter("lockstep_lagged", "Readers that lost deltas", **options)
        self.sweep_age = Gauge("lockstep_sweep_age_seconds", "Seconds since the last sweep", **options)
        self.freed_bytes = Counter("lockstep_freed_bytes", "Bytes of files that nobody names any more", **options)
        self.pool_size = Gauge("lockstep_pool_size", "Connections to the database at most", ["lane"], **options)
        self.pool_in_use = Gauge("lockstep_pool_in_use", "Connections that are in use", ["lane"], **options)
        self.database_errors = Counter("lockstep_database_errors", "Requests that met a database error", **options)


METRICS = Numbers()


def server_epoch(ctx: Context) -> str:
    """Return the epoch of this database: new after a restore, kept otherwise."""
    with ctx.store.read() as session:
        return scheduling.get_meta(session, "server_epoch") or ""


def ensure_epoch(ctx: Context) -> None:
    """Give a new database its epoch."""
    with ctx.store.write() as session:
        if scheduling.get_meta(session, "server_epoch") is None:
            scheduling.add_meta(session, "server_epoch", secrets.token_hex(8))  # another process may do so, too


def renew_epoch(ctx: Context) -> None:
    """Change the epoch (after a restore), so that every live reader starts anew."""
    with ctx.store.write() as session:
        scheduling.set_meta(session, "server_epoch", secrets.token_hex(8))


#: Parts of /readyz that must be ``ok``.
PARTS = ("database", "schema", "files", "sweep")
#: A sweep older than so many of its periods is late.
_LATE_SWEEPS = 10


def readiness(ctx: Context) -> dict[str, Any]:
    """Return what /readyz shows; raises when the database does not answer."""
    with ctx.store.read() as session:
        now = ctx.store.now(session)
        swept = scheduling.get_meta(session, "swept_epoch")
    pools, in_use = ctx.settings.pools.by_lane, ctx.store.in_use()
    age = now - float(swept) if swept else None
    schema, head = migrate.current_revision(ctx.store), migrate.head_revision()
    files = "ok"
    try:
        ctx.files.check()
    except StartupError as error:
        files = str(error)
    is_late = age is None or age > _LATE_SWEEPS * ctx.settings.sweep_seconds
    return {
        "database": "ok",
        "schema": "ok" if schema == head else f"at revision {schema}, not {head}: `lockstep db upgrade`",
        "files": files,
        "sweep": "late" if is_late else "ok",
        "sweep_age_seconds": round(age, 1) if age is not None else None,
        "pools": {lane: {"size": size, "in_use": in_use[lane]} for lane, size in pools.items()},
    }


def is_ready(document: Mapping[str, Any]) -> bool:
    """Return whether requests should be sent to a server that shows this."""
    return all(document[part] == "ok" for part in PARTS)


def render_metrics(ctx: Context, readers: int) -> bytes:
    """Return the Prometheus text."""
    with ctx.store.read() as session:
        counts = blocks.counts(session)
        swept = scheduling.get_meta(session, "swept_epoch")
        now = ctx.store.now(session)
    for status in BlockStatus:
        METRICS.blocks.labels(status.value).set(counts.get(status.value, 0))
    in_use = ctx.store.in_use()
    for lane, size in ctx.settings.pools.by_lane.items():
        METRICS.pool_size.labels(lane).set(size)
        METRICS.pool_in_use.labels(lane).set(in_use[lane])
    METRICS.sockets.set(readers)
    if swept:
        METRICS.sweep_age.set(max(0.0, now - float(swept)))
    return generate_latest(METRICS.registry)
