"""Use cases of a worker outside of an assignment: register, heartbeat; and of its operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any, Literal

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.errors import ConflictError, GoneError, NotFoundError, UpgradeError
from app.services.audit import record
from app.services.context import Actor, Context
from app.services.fencing import grace, refuse_gone
from app.services.training import catalog
from app.services.training.block_ends import blame_device, end_assignment, move_stopped
from app.services.training.ingest import storable
from app.store.queue import blocks, leases, scheduling, workers
from app.store.queue.blocks import Why
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import BlockRow
from app.store.rows.workers import WorkerRow
from lockstep.protocol import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaseState,
    Progress,
    RegisterReply,
    RegisterRequest,
    version_problem,
)
from lockstep.status import AssignmentState, BlockStatus, Cause, Desired, WorkerStatus

_STILL_QUARANTINED = "in quarantine since before its restart: "
#: Heartbeats that a process must miss before a new one of the same worker takes its device.
_MISSED_BEATS = 3


def register(ctx: Context, request: RegisterRequest) -> RegisterReply:
    """Enter a supervisor; an older incarnation of the same name on the device is superseded once it is silent.

    Raises:
        UpgradeError: when the worker speaks another protocol.
        ConflictError: ``device_in_use`` when another live worker holds the device, or, with the seconds after which
            to ask again (``Retry-After``), an older process of this one that was heard lately.
    """
    problem = version_problem(request.protocol, peer="worker", side="server")
    if problem is not None:
        raise UpgradeError(problem)
    tasks = {kind: catalog.keep(ctx, groups) for kind, groups in request.tasks.items()}
    try:
        with ctx.store.write() as session:
            worker_id = _enter(ctx, session, request, tasks)
            epoch = scheduling.get_meta(session, "server_epoch") or ""
    except IntegrityError as error:
        raise _in_use(request.device.uid) from error
    ctx.bell.ring()
    return RegisterReply(
        worker_id=worker_id,
        heartbeat_seconds=ctx.settings.heartbeat_seconds,
        lease_ttl_seconds=ctx.settings.lease_ttl_seconds,
        server_epoch=epoch,
    )


def _in_use(device_uid: str, holder: str = "another worker", *, again_in: int | None = None) -> ConflictError:
    return ConflictError(
        f"device {device_uid} is in use by {holder}; stop that worker first, or choose another device; where two hosts "
        "have one name, give each its own with --host",
        code="device_in_use",
        headers={"Retry-After": str(again_in)} if again_in is not None else {},
    )


def _enter(ctx: Context, session: Session, request: RegisterRequest, tasks: Mapping[str, str]) -> str:
    now = ctx.store.now(session)
    known = workers.same_incarnation(session, request.device.uid, request.incarnation)
    if known is not None:
        return str(known.id)
    quarantined = False
    known = workers.live_on_device(session, request.device.uid)
    held = leases.lock_held_by(session, known.id) if known is not None else set()
    holder = workers.live_on_device(session, request.device.uid, lock=True)
    if holder is not None:
        if holder.name != request.name or holder.host != request.host:
            raise _in_use(request.device.uid, f"worker {holder.name} on {holder.host}")
        _refuse_while_heard(ctx, now, holder)
        _supersede(ctx, session, now, holder, held)
        quarantined = holder.status == WorkerStatus.QUARANTINED
    for lost in workers.lost_on_device(session, request.device.uid):
        leases.move_worker(session, now, lost.id, WorkerStatus.RETIRED, "superseded by a new incarnation")
    worker_id = ctx.store.new_id("wrk")
    environments = {**request.environments, **{kind: {"tasks": key} for kind, key in tasks.items()}}
    workers.insert_worker(session, now, {"id": worker_id, **_columns(request), "environments": storable(environments)})
    if quarantined and holder is not None:  # a restart does not clear a quarantine; an operator does
        text = (holder.status_text or "").removeprefix(_STILL_QUARANTINED)
        leases.move_worker(session, now, worker_id, WorkerStatus.QUARANTINED, _STILL_QUARANTINED + text)
    return worker_id


def _refuse_while_heard(ctx: Context, now: float, holder: WorkerRow) -> None:
    """Of two processes of one worker the one that beats keeps the device: a newcomer that won would be ousted in turn.

    One that has ended is silent by the time that the newcomer is told to ask again.
    """
    term = _MISSED_BEATS * ctx.settings.heartbeat_seconds
    silent = max(0.0, now - holder.seen_epoch)
    if silent < term:
        seconds = math.ceil(term - silent)
        raise ConflictError(
            f"another process of worker {holder.name} on {holder.host} was heard on device {holder.device_uid} "
            f"{silent:.0f} s ago; run one worker on a device. If that process has ended, start again in {seconds} s",
            code="device_in_use",
            headers={"Retry-After": str(seconds)},
        )


def _columns(request: RegisterRequest) -> dict[str, object]:
    device = request.device
    return {
        "name": request.name,
        "host": request.host,
        "incarnation": request.incarnation,
        "device_uid": device.uid,
        "device_kind": device.kind,
        "device_class": device.device_class,
        "device_model": device.model,
        "memory_bytes": float(device.memory_bytes),
        "max_blocks": request.max_blocks,
        "versions": storable(request.versions),
        "datasets": storable(request.datasets),
        "rewards": storable(request.rewards),
    }


def _supersede(ctx: Context, session: Session, now: float, holder: WorkerRow, locked: Set[str]) -> None:
    """The older process is silent, and the host lock of the device was free: its leases end now.

    They were locked before its row; where it was given one since, the newcomer asks again.
    """
    text = "superseded by a new start of the same worker"
    mine = [row for row in leases.live(session) if row.worker_id == holder.id]
    if not locked >= {row.id for row in mine}:
        raise _in_use(holder.device_uid, f"worker {holder.name} on {holder.host}", again_in=1)
    for row in mine:
        lose_assignment(ctx, session, now, row, text)
    leases.move_worker(session, now, holder.id, WorkerStatus.LOST, text)
    if not leases.move_worker(session, now, holder.id, WorkerStatus.RETIRED, text):
        raise _in_use(holder.device_uid, f"worker {holder.name}, which is {holder.status}")


def lose_assignment(ctx: Context, session: Session, now: float, row: AssignmentRow, text: str) -> None:
    """End a live assignment whose worker is gone and stop its block (cause worker_lost)."""
    block = blocks.get(session, row.block_id, lock=True)
    if block is not None and end_assignment(session, now, block, row, AssignmentState.EXPIRED):
        stop_for_loss(ctx, session, now, block, row, text)


def stop_for_loss(ctx: Context, session: Session, now: float, block: BlockRow, row: AssignmentRow, text: str) -> None:
    """Stop a block that has lost the worker of an assignment; only an offer that was not taken up costs no budget.

    A job that brings its supervisor down while it starts would otherwise do so again and again.
    """
    blocks.stop(
        session,
        now,
        block,
        Why("system", Cause.WORKER_LOST, text),
        grace_seconds=grace(ctx, session, block),
        counts=row.collected,
    )
    move_stopped(ctx, session, now, block.id)


def heartbeat(ctx: Context, worker_id: str, request: HeartbeatRequest) -> HeartbeatReply:
    """Renew leases, take note of progress and health, tell what is wanted.

    Raises:
        NotFoundError: for an unknown worker.
        GoneError: for another incarnation, or a retired worker: register again.
    """
    with ctx.store.write(urgent=True) as session:
        found = workers.get_at(ctx.store, session, worker_id)
        if found is None:
            raise NotFoundError(f"no worker {worker_id}", code="unknown_worker")
        worker, now = found
        refuse_gone(session, worker, WorkerStatus.RETIRED)
        if worker.incarnation != request.incarnation:
            raise GoneError(f"worker {worker_id} has started anew; register again", code="worker_gone")
        states: list[LeaseState] = []
        if request.state == "leaving":
            status = _leave(ctx, session, now, worker)
        else:
            if worker.drain_now:
                leases.lock_held_by(session, worker.id)  # before the renewals, because a drain stops the blocks
            held = sorted(request.progress, key=lambda item: item.assignment_id)
            states = [_renew(ctx, session, now, worker, item) for item in held]
            if worker.status == WorkerStatus.RESERVED:
                leases.keep_uncollected(session, worker, now + ctx.settings.lease_ttl_seconds)
            status = workers.note_beat(session, now, worker_id, storable(request.health.model_dump()))
            status = _follow(session, now, worker, WorkerStatus(status), request)
    if status != worker.status:
        ctx.bell.ring()
    return HeartbeatReply(leases=states, drain=worker.drain, status=status)


def _leave(ctx: Context, session: Session, now: float, worker: WorkerRow) -> str:
    """The supervisor ends: what it still holds goes back at once, and it is given nothing more; return its status.

    A worker in quarantine stays there, because a restart does not clear a quarantine.
    """
    text = "its supervisor has ended"
    leases.lock_held_by(session, worker.id)
    for row in leases.live(session):
        if row.worker_id == worker.id:
            lose_assignment(ctx, session, now, row, text)
    if worker.status in (WorkerStatus.RESERVED, WorkerStatus.BUSY):
        leases.move_worker(session, now, worker.id, WorkerStatus.CLEANING, text)
    if worker.status == WorkerStatus.STARTING:  # the table lets it retire by way of lost only
        leases.move_worker(session, now, worker.id, WorkerStatus.LOST, text)
    if worker.status != WorkerStatus.QUARANTINED:
        leases.move_worker(session, now, worker.id, WorkerStatus.RETIRED, text)
    return workers.status(session, worker.id)


def _renew(ctx: Context, session: Session, now: float, worker: WorkerRow, item: Progress) -> LeaseState:
    renewed = leases.renew(
        session,
        item.assignment_id,
        item.lease,
        now + ctx.settings.lease_ttl_seconds,
        _told(item),
        item.frame_age_seconds,
    )
    block = blocks.get(session, renewed.block_id) if renewed is not None else None
    if renewed is None or block is None or renewed.attempt != block.attempt:
        return LeaseState(assignment_id=item.assignment_id, valid=False, desired="abort")
    if worker.drain_now and block.status in (BlockStatus.RESERVED, BlockStatus.RUNNING):
        why, seconds = Why("operator", Cause.PREEMPTED, f"worker {worker.name} drains now"), grace(ctx, session, block)
        blocks.change(session, block.id, not_before_epoch=now + seconds)  # those of a pack are assigned together
        blocks.stop(session, now, block, why, grace_seconds=seconds)
        block = blocks.get(session, block.id) or block
    within = block.stop_deadline_epoch - now if block.stop_deadline_epoch is not None else None
    return LeaseState(
        assignment_id=item.assignment_id, valid=True, desired=desired_of(block), stop_within_seconds=within
    )


def _told(item: Progress) -> dict[str, Any]:
    """Return what is stored of an assignment's progress."""
    told: dict[str, Any] = {"round": item.round, "step": item.step}
    if item.inside:
        told["inside"] = storable(item.inside)
    if item.evaluation is not None:
        told["evaluation"] = item.evaluation.model_dump()
    return told


def _follow(
    session: Session, now: float, worker: WorkerRow, status: WorkerStatus, request: HeartbeatRequest
) -> WorkerStatus:
    """Let the status, whose row is held, follow what the supervisor reports of its device; return it."""
    if status is WorkerStatus.LOST:
        leases.move_worker(session, now, worker.id, WorkerStatus.CLEANING, "answers again; it holds no lease")
        status = WorkerStatus.CLEANING
    if not request.health.ok and status in (WorkerStatus.STARTING, WorkerStatus.IDLE, WorkerStatus.CLEANING):
        leases.move_worker(session, now, worker.id, WorkerStatus.QUARANTINED, storable(request.health.detail))
        blame_device(session, now, worker.id)
        return WorkerStatus.QUARANTINED
    if request.state == "idle" and status in (WorkerStatus.STARTING, WorkerStatus.CLEANING):
        leases.move_worker(session, now, worker.id, WorkerStatus.IDLE, "device check passed")
        status = WorkerStatus.IDLE
    if worker.drain and status in (WorkerStatus.IDLE, WorkerStatus.CLEANING, WorkerStatus.QUARANTINED):
        leases.move_worker(session, now, worker.id, WorkerStatus.RETIRED, "drained")
        status = WorkerStatus.RETIRED
    return status


def desired_of(block: BlockRow) -> Literal["run", "pause", "cancel", "drain", "abort"]:
    """Return what the heartbeat tells a worker about its block."""
    wanted = Desired(block.desired)
    if block.status != BlockStatus.STOPPING:
        return "run"
    if wanted is not Desired.RUN:
        return "cancel" if wanted is Desired.CANCEL else "pause"
    return "drain" if block.cause == Cause.PREEMPTED else "abort"


def drain(ctx: Context, worker_id: str, actor: Actor, *, now: bool) -> None:
    """Ask a worker to take no more work and retire; ``now`` stops its block at the next round border."""
    with ctx.store.write() as session:
        worker = _steerable(session, worker_id)
        at = ctx.store.now(session)
        workers.change(session, worker_id, drain=True, drain_now=worker.drain_now or now)
        record(ctx, session, actor, "worker.drain", worker_id, None, {"now": now})
        if worker.status in (WorkerStatus.IDLE, WorkerStatus.CLEANING, WorkerStatus.QUARANTINED):
            leases.move_worker(session, at, worker_id, WorkerStatus.RETIRED, "drained", actor=actor.name)
    ctx.bell.ring()


def clear(ctx: Context, worker_id: str, actor: Actor) -> None:
    """Take a worker out of quarantine; it must pass its device check again."""
    with ctx.store.write() as session:
        worker = _steerable(session, worker_id)
        if worker.status != WorkerStatus.QUARANTINED:
            raise ConflictError(f"worker {worker.name} is {worker.status}, not quarantined", code="not_quarantined")
        at = ctx.store.now(session)
        workers.change(session, worker_id, fast_failures=0)
        leases.move_worker(session, at, worker_id, WorkerStatus.IDLE, "quarantine cleared", actor=actor.name)
        record(ctx, session, actor, "worker.clear", worker_id, None, None)
    ctx.bell.ring()


def _steerable(session: Session, worker_id: str) -> WorkerRow:
    worker = workers.get(session, worker_id)
    if worker is None:
        raise NotFoundError(f"no worker {worker_id}", code="unknown_worker")
    if worker.status == WorkerStatus.RETIRED:
        raise ConflictError(f"worker {worker.name} is retired", code="worker_retired")
    return worker
