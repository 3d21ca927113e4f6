"""The orphan sweep: what nobody reports any more leaves its state by the server's own clock.

Idempotent: each step moves rows by guarded statements, so any number of sweepers yields one event
for each expiry. Time in which the control plane could not receive heartbeats expires nothing.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.domain.status import AssignmentState, BlockStatus, Cause, WorkerStatus
from app.services.context import Context
from app.services.fencing import grace
from app.services.settling import finish_if_complete, settle
from app.services.worker_calls import stop_for_loss
from app.store import blocks, experiments, leases, results, scheduling
from app.store.blocks import Why
from app.store.tables import Record


def sweep(ctx: Context) -> int:
    """Do one sweep; return how many things changed."""
    with ctx.store.write() as session:
        if not scheduling.try_singleton(ctx.store, session):
            return 0
        now = ctx.store.now(session)
        _forgive_absence(ctx, session, now)
        changed = _expire(ctx, session, now)
        changed += _lose_workers(ctx, session, now)
        changed += _deadlines(ctx, session, now)
        changed += _stalls(ctx, session, now)
        for block in leases.stopping_blocks_without_lease(session):
            changed += settle(ctx, session, now, block)
        scheduling.set_meta(session, "swept_epoch", repr(now))
    if changed:
        ctx.bell.ring()
    return changed


def _forgive_absence(ctx: Context, session: Session, now: float) -> None:
    """After a gap between sweeps (restart, database away, clock jump) every lease gets a new term."""
    last = float(scheduling.get_meta(session, "swept_epoch") or now)
    if now - last > 3 * ctx.settings.sweep_seconds + ctx.settings.heartbeat_seconds:
        leases.postpone_all(session, now + ctx.settings.lease_ttl_seconds)
        leases.see_all(session, now)


def _expire(ctx: Context, session: Session, now: float) -> int:
    expired = leases.expire(session, now, now - ctx.settings.heartbeat_seconds)
    for row in sorted(expired, key=lambda row: str(row.block_id)):
        text = f"the lease on {row.device_uid} expired"
        leases.move_worker(session, now, row.worker_id, WorkerStatus.LOST, text)
        block = blocks.get(session, row.block_id, lock=True)
        if block is not None and block.attempt == row.attempt:
            stop_for_loss(ctx, session, now, block, text)
    return len(expired)


def _lose_workers(ctx: Context, session: Session, now: float) -> int:
    before = now - ctx.settings.lease_ttl_seconds - ctx.settings.heartbeat_seconds
    lost = 0
    for worker in leases.silent_workers(session, before):
        lost += leases.move_worker(session, now, worker.id, WorkerStatus.LOST, "no heartbeat within its time")
    return lost


def _deadlines(ctx: Context, session: Session, now: float) -> int:
    changed = 0
    for block in blocks.in_states(session, [BlockStatus.RESERVED]):
        changed += _reservation(ctx, session, now, block)
    for block in blocks.in_states(session, [BlockStatus.STOPPING]):
        if block.stop_deadline_epoch is not None and block.stop_deadline_epoch < now:
            changed += _revoke(session, now, block)
    for block in blocks.in_states(session, [BlockStatus.RUNNING]):
        changed += finish_if_complete(session, now, block.id) or _late_round(ctx, session, now, block)
    return changed


def _reservation(ctx: Context, session: Session, now: float, block: Record) -> int:
    rows = leases.of_block(session, block.id, block.attempt)
    missing = [row.device_uid for row in rows if not row.collected]
    late = block.reserve_deadline_epoch is not None and block.reserve_deadline_epoch < now and bool(missing)
    if not late and block.ready_deadline_epoch is not None and block.ready_deadline_epoch < now:
        missing = [row.device_uid for row in rows if not row.ready]
        late = bool(missing)
    if not late:
        return 0
    text = f"not ready in time: {', '.join(missing)}"
    why = Why("system", Cause.WORKER_LOST, text)
    return int(blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block), counts=False))


def _revoke(session: Session, now: float, block: Record) -> int:
    revoked = 0
    for row in leases.of_block(session, block.id, block.attempt):
        if leases.move(session, now, row.id, AssignmentState.REVOKED, detail="stop deadline passed"):
            leases.move_worker(session, now, row.worker_id, WorkerStatus.CLEANING, "its lease was revoked")
            revoked += 1
    return revoked


def _late_round(ctx: Context, session: Session, now: float, block: Record) -> int:
    """A gang whose barrier waits too long stops; the sentence names the late runs."""
    experiment = experiments.get(session, block.experiment_id)
    if experiment is None or block.round_opened_epoch is None:
        return 0
    have = results.runs_with_round(session, block.id, block.attempt, block.open_round)
    late = [run.id for run in blocks.live_runs(session, block.id) if run.id not in have]
    limit = float(experiment.spec["lockstep"]["barrier_timeout_seconds"])
    if not have or not late or now - block.round_opened_epoch < limit:
        return 0
    text = f"round {block.open_round} waited over {limit:g} s for {', '.join(late)}"
    why = Why("system", Cause.TIMEOUT, text)
    return int(blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block)))


def _stalls(ctx: Context, session: Session, now: float) -> int:
    changed = 0
    for row in leases.live(session):
        if row.block_status != BlockStatus.RUNNING:
            continue
        stalled = row.frame_age_seconds >= ctx.settings.stall_after_seconds
        changed += experiments.mark_stalled(session, leases.run_ids(session, row.id), stalled)
        if row.frame_age_seconds >= ctx.settings.stall_kill_seconds:
            block = blocks.get(session, row.block_id, lock=True)
            text = f"no sign of progress from the child on {row.device_uid} for {row.frame_age_seconds:.0f} s"
            if block is not None:
                why = Why("system", Cause.TIMEOUT, text)
                changed += blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block))
    return changed
