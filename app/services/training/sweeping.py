"""The orphan sweep: what nobody reports any more leaves its state by the server's own clock.

Each thing that is due is done in a transaction of its own that locks its block first and looks again,
so that any number of sweepers yields one event for each expiry and none waits for a lock while it
holds another. Time in which the control plane could not receive heartbeats expires nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.fencing import grace
from app.services.training.block_ends import end_assignment, finish_if_complete, keep_together, move_stopped
from app.services.training.workers import stop_for_loss
from app.store import experiment_cache, experiments
from app.store.queue import blocks, leases, scheduling, workers
from app.store.queue.blocks import Why
from app.store.records import results
from app.store.rows.assignments import AssignmentRow, LiveAssignment
from app.store.rows.experiments import BlockRow
from lockstep.status import LIVE_ASSIGNMENT, AssignmentState, BlockStatus, Cause, WorkerStatus

_Step = Callable[[Session, float], int]


def sweep(ctx: Context) -> int:
    """Do one sweep; return how many things changed."""
    with ctx.store.write() as session:
        if not scheduling.try_singleton(ctx.store, session):
            return 0
        now = ctx.store.now(session)
        _forgive_absence(ctx, session, now)
        scheduling.set_meta(session, "swept_epoch", repr(now))
    changed = sum(_done(ctx, step) for step in _due(ctx))
    with ctx.store.read() as session:
        stopped = [row.id for row in leases.stopping_blocks_without_lease(session)]
    changed += sum(_done(ctx, partial(_move_stopped, ctx, block_id=block_id)) for block_id in stopped)
    if changed:
        ctx.bell.ring()
    return changed


def _done(ctx: Context, step: _Step) -> int:
    with ctx.store.write() as session:
        return int(step(session, ctx.store.now(session)))


def _due(ctx: Context) -> list[_Step]:
    """Return what may be due, as steps that look again under their locks."""
    settings = ctx.settings
    with ctx.store.read() as session:
        now = ctx.store.now(session)
        silent_since = now - settings.lease_ttl_seconds - settings.heartbeat_seconds
        overdue = leases.overdue(session, now - settings.heartbeat_seconds)
        silent = leases.silent_workers(session, silent_since)
        active = blocks.in_states(session, [BlockStatus.RESERVED, BlockStatus.RUNNING, BlockStatus.STOPPING])
        # asked once for all: a question for each block took half of the interpreter where a thousand trained
        spent, stalled = blocks.without_live_runs(session), leases.with_stalled_runs(session)
        due = [row.id for row in active if row.id in spent or _is_late(session, now, row)]
        ages = [row for row in leases.live(session) if _stall_matters(ctx, row, row.id in stalled)]
    return [
        *(partial(_expire, ctx, row=row) for row in overdue),
        *(partial(_lose_worker, ctx, worker_id=row.id) for row in silent),
        *(partial(_deadline, ctx, block_id=block_id) for block_id in due),
        *(partial(_stall, ctx, row=row) for row in ages),
    ]


def _is_late(session: Session, now: float, block: BlockRow) -> bool:
    if block.status == BlockStatus.RUNNING:
        return _late_runs(session, now, block)[0] != []
    if block.status == BlockStatus.STOPPING:
        return block.stop_deadline_epoch is not None and block.stop_deadline_epoch < now
    deadlines = (block.reserve_deadline_epoch, block.ready_deadline_epoch)
    return any(deadline is not None and deadline < now for deadline in deadlines)


def _forgive_absence(ctx: Context, session: Session, now: float) -> None:
    """After a gap between sweeps (restart, database away, clock jump) every term begins anew."""
    gap = now - float(scheduling.get_meta(session, "swept_epoch") or now)
    normal = 3 * ctx.settings.sweep_seconds + ctx.settings.heartbeat_seconds
    if not -ctx.settings.heartbeat_seconds <= gap <= normal:
        leases.shift_clocks(session, now, gap, ctx.settings.lease_ttl_seconds)


def _move_stopped(ctx: Context, session: Session, now: float, block_id: str) -> int:
    block = blocks.get(session, block_id, lock=True)
    return int(block is not None and move_stopped(ctx, session, now, block_id))


def _expire(ctx: Context, session: Session, now: float, row: AssignmentRow) -> int:
    block = blocks.get(session, row.block_id, lock=True)
    if block is None or not leases.is_overdue(session, row.id, now - ctx.settings.heartbeat_seconds):
        return 0
    end_assignment(session, now, block, row, AssignmentState.EXPIRED)
    text = f"the lease on {row.device_uid} expired"
    worker = workers.get(session, row.worker_id)
    heard = worker is not None and worker.seen_epoch > now - ctx.settings.lease_ttl_seconds
    if heard:
        leases.free_worker(session, now, row.worker_id, text)
    else:
        leases.move_worker(session, now, row.worker_id, WorkerStatus.LOST, text)
    if block.attempt == row.attempt:
        stop_for_loss(ctx, session, now, block, row, text)
        keep_together(session, now, row, grace(ctx, session, block))
    return 1


def _lose_worker(ctx: Context, session: Session, now: float, worker_id: str) -> int:
    worker = workers.get(session, worker_id)
    before = now - ctx.settings.lease_ttl_seconds - ctx.settings.heartbeat_seconds
    if worker is None or worker.seen_epoch >= before:
        return 0
    return int(leases.move_worker(session, now, worker_id, WorkerStatus.LOST, "no heartbeat within its time"))


def _deadline(ctx: Context, session: Session, now: float, block_id: str) -> int:
    block = blocks.get(session, block_id, lock=True)
    if block is None:
        return 0
    if block.status == BlockStatus.RUNNING:
        return int(finish_if_complete(session, now, block.id)) or _late_round(ctx, session, now, block)
    if not _is_late(session, now, block):
        return 0
    act = _reservation if block.status == BlockStatus.RESERVED else _revoke
    return act(ctx, session, now, block)


def _reservation(ctx: Context, session: Session, now: float, block: BlockRow) -> int:
    rows = leases.of_block(session, block.id, block.attempt)
    missing = [row.device_uid for row in rows if not row.collected]
    late = block.reserve_deadline_epoch is not None and block.reserve_deadline_epoch < now and bool(missing)
    if not late and block.ready_deadline_epoch is not None and block.ready_deadline_epoch < now:
        missing = [row.device_uid for row in rows if not row.ready]
        late = bool(missing)
    if not late:
        return 0
    why = _not_ready(ctx, [row for row in rows if row.device_uid in missing])
    # a child that was started and never got ready would hold its devices again and again if that were free
    counts = all(row.collected for row in rows)
    return int(blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block), counts=counts))


def _not_ready(ctx: Context, late: Sequence[AssignmentRow]) -> Why:
    """Return what made these assignments late: code of the user's that hangs, if any."""
    hung = next((row for row in late if _hangs(ctx, row)), None)
    if hung is not None:
        limit = f"and the limit until ready is {ctx.settings.warmup_seconds:g} s"
        return Why("system", Cause.ENVIRONMENT, f"{_hang(hung)} {limit}")
    return Why("system", Cause.WORKER_LOST, f"not ready in time: {', '.join(row.device_uid for row in late)}")


def _revoke(ctx: Context, session: Session, now: float, block: BlockRow) -> int:
    """Take the leases of workers that heard of the stop and do not obey; who is silent expires instead.

    A worker that has not been heard since may train until it fences itself, which its lease outlasts.
    """
    asked = (block.stop_deadline_epoch or now) - grace(ctx, session, block)
    revoked = 0
    for row in leases.of_block(session, block.id, block.attempt):
        heard = row.expires_epoch - ctx.settings.lease_ttl_seconds > asked
        if not (heard or not row.collected):
            continue
        if end_assignment(session, now, block, row, AssignmentState.REVOKED, detail="stop deadline passed"):
            leases.free_worker(session, now, row.worker_id, "its lease was revoked")
            revoked += 1
    return revoked


def _late_runs(session: Session, now: float, block: BlockRow) -> tuple[list[str], float]:
    """Return the runs that the barrier has waited for longer than the spec allows, and that limit."""
    if block.round_opened_epoch is None:
        return [], 0.0
    section = experiment_cache.of(session, block.experiment_id).lockstep
    limit = float(section["barrier_timeout_seconds"])
    if section["barrier"] == "none" or now - block.round_opened_epoch < limit:
        return [], limit
    have = results.round_digests(session, block.id, block.attempt, block.open_round)
    late = [run.id for run in blocks.live_runs(session, block.id) if run.id not in have]
    return (late if have else []), limit


def _late_round(ctx: Context, session: Session, now: float, block: BlockRow) -> int:
    """A block of several devices whose barrier waits too long stops; the sentence names the late runs."""
    late, limit = _late_runs(session, now, block)
    if not late:
        return 0
    text = f"round {block.open_round} waited over {limit:g} s for {', '.join(late)}"
    assigned = leases.of_block(session, block.id, block.attempt)
    waited_for = [row for row in assigned if not set(late).isdisjoint(leases.run_ids(session, row.id))]
    hung = next((row for row in waited_for if _hangs(ctx, row)), None)
    why = Why("system", Cause.TIMEOUT, text)
    if hung is not None:
        why = Why("system", Cause.ENVIRONMENT, f"{_hang(hung)} and {text}")
    return int(blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block)))


def _stall_matters(ctx: Context, row: LiveAssignment, is_noted: bool) -> bool:
    is_stalled = row.frame_age_seconds >= ctx.settings.stall_after_seconds
    return _may_stall(row.block_status, row) and (is_stalled or is_noted)


def _may_stall(block_status: str, row: AssignmentRow) -> bool:
    """Whether silence counts as a stall: our own code has until the child must be ready, the user's has the limit."""
    return block_status == BlockStatus.RUNNING or (block_status == BlockStatus.RESERVED and bool(_inside(row)))


def _stall(ctx: Context, session: Session, now: float, row: AssignmentRow) -> int:
    block = blocks.get(session, row.block_id, lock=True)
    newest = leases.get(session, row.id)  # a frame may have come since
    if block is None or newest is None or newest.state not in LIVE_ASSIGNMENT or block.attempt != newest.attempt:
        return 0
    if not _may_stall(block.status, newest):
        return 0
    stalled = newest.frame_age_seconds >= ctx.settings.stall_after_seconds
    changed = experiments.mark_stalled(session, leases.run_ids(session, newest.id), stalled)
    if newest.frame_age_seconds >= ctx.settings.stall_kill_seconds:
        why = _no_progress(ctx, newest)
        changed += blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block))
    return changed


def _no_progress(ctx: Context, row: AssignmentRow) -> Why:
    limit = f"the limit is {ctx.settings.stall_kill_seconds:g} s"
    if _inside(row):
        return Why("system", Cause.ENVIRONMENT, f"{_hang(row)} {limit}; where it stands is in the log")
    told = f"no sign of progress from the child on {row.device_uid} for {row.frame_age_seconds:.0f} s"
    return Why("system", Cause.TIMEOUT, f"{told}, {limit}; where it stands is in the log")


def _hangs(ctx: Context, row: AssignmentRow) -> bool:
    """Whether an assignment has stood in code of the user's for so long that nothing else can be at fault."""
    limit = min(ctx.settings.stall_after_seconds, ctx.settings.warmup_seconds / 2)
    return bool(_inside(row)) and row.frame_age_seconds >= limit


def _hang(row: AssignmentRow) -> str:
    return f"{_inside(row)} has not returned for {row.frame_age_seconds:.0f} s,"


def _inside(row: AssignmentRow) -> str:
    """Return which code of the user's an assignment is in, in words; empty when it is in none."""
    return str(row.progress.get("inside", ""))
