"""The fence every write of a worker passes: the lease must hold, and its rows are locked in one order."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.errors import ConflictError, GoneError, LeaseLostError, NotFoundError
from app.services.context import Context
from app.store import experiment_cache
from app.store.queue import leases, workers
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import BlockRow
from app.store.rows.workers import WorkerRow
from lockstep.status import WorkerStatus

_STOP_MARGIN_SECONDS = 10.0


def fenced(ctx: Context, session: Session, assignment_id: str, token: str) -> tuple[AssignmentRow, BlockRow, float]:
    """Return (assignment, its block, now), both rows locked, if the lease holds.

    Raises:
        NotFoundError: for an unknown assignment.
        LeaseLostError: when the lease does not hold.
    """
    # lock order is block, then assignment, everywhere: a sweep and a round cannot deadlock
    held = leases.fence(ctx.store, session, assignment_id, token)
    if held is not None:
        return held
    if leases.get(session, assignment_id) is None:
        raise NotFoundError(f"no assignment {assignment_id}", code="unknown_assignment")
    raise LeaseLostError(f"the lease of assignment {assignment_id} does not hold any more")


def refuse_gone(session: Session, worker: WorkerRow, *gone: WorkerStatus) -> None:
    """Refuse a worker in one of the states ``gone``.

    Raises:
        GoneError: ``worker_drained`` when it was asked to drain (it ends), else ``worker_gone`` (it registers again).
        ConflictError: ``device_in_use`` when a newer process has its device (it ends: two would oust each other).
    """
    if worker.status not in gone:
        return
    if worker.status == WorkerStatus.RETIRED and worker.drain:
        raise GoneError(f"worker {worker.id} has been drained", code="worker_drained")
    newer = workers.live_on_device(session, worker.device_uid) if worker.status == WorkerStatus.RETIRED else None
    if newer is not None:
        raise ConflictError(
            f"a newer process of worker {newer.name} on {newer.host} has taken over device {worker.device_uid}; "
            "run one worker on a device",
            code="device_in_use",
        )
    raise GoneError(f"worker {worker.id} is {worker.status}; register again", code="worker_gone")


def grace(ctx: Context, session: Session, block: BlockRow) -> float:
    """Return the seconds a child gets to stop: of the spec, capped by the operator, plus a margin."""
    wanted = experiment_cache.of(session, block.experiment_id).grace_seconds
    return min(wanted, ctx.settings.grace_seconds) + _STOP_MARGIN_SECONDS
