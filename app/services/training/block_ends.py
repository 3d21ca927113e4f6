"""What follows when a block stops or ends: its next state, by cause and budget (control-plane.md 4.5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.training.causes import account_of, fault_of, same_as
from app.store import experiment_cache, experiments
from app.store.database.engine import utc
from app.store.queue import blocks, leases, scheduling
from app.store.queue.blocks import Why
from app.store.records import events
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import BlockRow, StoppedBlock
from lockstep.status import (
    OF_THE_JOB,
    REQUEUE_BUDGET,
    AssignmentState,
    BlockStatus,
    Cause,
    Desired,
    RunStatus,
    WorkerStatus,
)

#: A failure this soon after the start may be the device's fault (control-plane.md 7.4).
FAST_FAILURE_SECONDS = 60.0


def move_stopped(ctx: Context, session: Session, now: float, block_id: str) -> bool:
    """Move a stopping block that holds no device, whose row is held, to its next state; return whether it moved."""
    block = blocks.stopped(session, block_id)
    if block is None:
        return False
    moved = _move(ctx, session, now, block)
    if moved and block.not_before_epoch > now:
        blocks.let_go_together(session, now, block)
    return moved


def keep_together(session: Session, now: float, row: AssignmentRow, grace_seconds: float) -> None:
    """Let a pack whose worker ends be assigned when the last of it has come in, or after the grace of a stop.

    The worker's row is held, so that one of several that come in at once is the last.
    """
    if leases.ends_beside(session, row).count(None):
        blocks.change(session, row.block_id, not_before_epoch=now + grace_seconds)
    else:
        blocks.let_go_beside(session, now, row)


def _move(ctx: Context, session: Session, now: float, block: StoppedBlock) -> bool:
    cause = Cause(block.cause) if block.cause else None
    why = Why("system", cause, block.cause_text or "")
    if block.desired == Desired.CANCEL:
        return _end(session, now, block, BlockStatus.CANCELLED, RunStatus.CANCELLED, Why("system", Cause.USER))
    if not block.trains:  # the last results came in while it was stopping
        done = Why("system", None, "every run had finished when it stopped")
        return blocks.move(session, now, block, BlockStatus.SUCCEEDED, done, cause=None, cause_text=None)
    if block.desired == Desired.PAUSE:
        moved = blocks.move(session, now, block, BlockStatus.PAUSED, why)
        blocks.move_runs(session, now, block, RunStatus.PAUSED, Why("system"))
        return moved
    if cause is Cause.USER:  # a pause that was taken back before it took effect
        return blocks.requeue(session, now, block, Why("system", None, "resumed before it had stopped"))
    return _by_cause(ctx, session, now, block, cause)


def _by_cause(ctx: Context, session: Session, now: float, block: BlockRow, cause: Cause | None) -> bool:
    used: dict[str, Any] = dict(block.budget_used)
    count = int(used.get(str(cause), 0))
    budget = REQUEUE_BUDGET.get(cause, 0) if cause else 0
    if cause is None or (block.counts_against_budget and count >= budget) or cause not in REQUEUE_BUDGET:
        text = block.cause_text or ""
        if count:
            text = f"{text} (already requeued {'once' if count == 1 else f'{count} times'} for this cause)"
        ended = _end(session, now, block, BlockStatus.FAILED, RunStatus.FAILED, Why("system", cause, text))
        if ended and (cause is Cause.CONFIG or (cause in OF_THE_JOB and block.open_round == 0)):
            _fail_queued(session, now, block, Why("system", cause, text))
        return ended
    if cause is Cause.ENVIRONMENT and (others := _alike(session, block)):
        return _fail_alike(session, now, block, others)
    values: dict[str, Any] = {}
    if block.counts_against_budget:
        used[str(cause)] = count + 1
    if cause in OF_THE_JOB:
        values["not_before_epoch"] = now + ctx.settings.backoff_seconds * 2**count
    text = f"back in the queue after {cause.value}: {block.cause_text or ''}".rstrip(": ")
    return blocks.requeue(session, now, block, Why("system", cause, text), budget_used=used, **values)


def _alike(session: Session, block: BlockRow) -> dict[str, int]:
    """Return {block id: replicate} of the other blocks that the same fault of the user's code has stopped.

    Their seeds differ, so that it is no luck of one replicate, and trying again would only show it later.
    """
    fault = fault_of(block.cause_text or "")
    stopped = events.stops(session, block.experiment_id, [Cause.ENVIRONMENT])
    alike = [event for event in stopped if event.block_id != block.id and fault_of(account_of(event)) == fault]
    return {str(event.block_id): int(event.replicate or 0) for event in alike}


def _fail_alike(session: Session, now: float, block: BlockRow, others: Mapping[str, int]) -> bool:
    """Fail a block for a fault that has stopped others, and those of them that wait to be tried again."""
    text = f"{block.cause_text} (replicate {min(others.values())} failed in the same way)"
    ended = _end(session, now, block, BlockStatus.FAILED, RunStatus.FAILED, Why("system", Cause.ENVIRONMENT, text))
    if ended:
        why = Why("system", Cause.ENVIRONMENT, block.cause_text or "")
        _fail_queued(session, now, block, why, None if block.open_round == 0 else set(others))
    return ended


def _end(session: Session, now: float, block: BlockRow, target: BlockStatus, run_target: RunStatus, why: Why) -> bool:
    moved = blocks.move(session, now, block, target, why)
    if moved:
        blocks.move_runs(session, now, block, run_target, why)
    return moved


def _fail_queued(session: Session, now: float, block: BlockRow, why: Why, only: Collection[str] | None = None) -> None:
    """The job is at fault, not its luck: what else of the experiment is queued would fail in the same way.

    ``only``: ids of the blocks of which that is known; None: of all.
    """
    same = Why(why.actor, why.cause, same_as(block, why.sentence()))
    for other in blocks.lock_queued(session, block.experiment_id):
        if only is None or other.id in only:
            _end(session, now, other, BlockStatus.FAILED, RunStatus.FAILED, same)


def blame_device(session: Session, now: float, worker_id: str) -> None:
    """A device gave a signal that it is at fault: blocks that have just failed on it spend the budget for that."""
    for row in leases.failed_since(session, worker_id, now - 2 * FAST_FAILURE_SECONDS):
        block = blocks.get(session, row.block_id, lock=True)
        used = dict(block.budget_used) if block is not None else {}
        if block is None or block.status not in (BlockStatus.QUEUED, BlockStatus.STOPPING):
            continue
        if row.cause is None or not used.get(row.cause):
            continue
        spent = int(used.get(Cause.DEVICE.value, 0))
        if row.cause != Cause.DEVICE and spent < REQUEUE_BUDGET[Cause.DEVICE]:
            used |= {row.cause: used[row.cause] - 1, Cause.DEVICE.value: spent + 1}
            blocks.change(session, block.id, budget_used=used, not_before_epoch=now)


def finish_if_complete(session: Session, now: float, block_id: str) -> bool:
    """Let a running block, whose row is held, succeed once every run has finished; release its devices."""
    block = blocks.get(session, block_id)
    if block is None or blocks.live_runs(session, block_id):
        return False
    return finish(session, now, block)


def finish(session: Session, now: float, block: BlockRow, **changed: Any) -> bool:
    """Let a running block succeed of which no run trains any more, with further fields; release its devices."""
    if block.status != BlockStatus.RUNNING:
        return False
    if not blocks.move(session, now, block, BlockStatus.SUCCEEDED, Why("system"), **changed):
        return False
    for row in leases.end_of_block(session, now, block, AssignmentState.RELEASED, outcome="completed"):
        _count_use(session, now, block, row, row.num_given)
        text = "its block has ended"
        if row.num_given > 1:
            leases.free_worker(session, now, row.worker_id, text)
        else:  # what a worker holds it was given in one go: it held nothing else
            leases.move_worker(session, now, row.worker_id, WorkerStatus.CLEANING, text)
    return True


def end_assignment(
    session: Session, now: float, block: BlockRow, row: AssignmentRow, target: AssignmentState, **values: Any
) -> bool:
    """End a live assignment of a block; its device time, by the database clock, counts for owner and runs, once.

    Blocks that the worker was given together share each of its seconds.
    """
    if not leases.move(session, now, row.id, target, **values):
        return False
    _count_use(session, now, block, row)
    return True


def _count_use(session: Session, now: float, block: BlockRow, row: AssignmentRow, num_given: int | None = None) -> None:
    """Count the device time of an assignment that has ended; ``num_given``: blocks given together, None: unknown."""
    # rounded as what is stored, so that no time is no use
    ends = [utc(now).timestamp()] if num_given == 1 else leases.ends_beside(session, row)
    seconds = shared_seconds(row.offered_at.timestamp(), now, ends)
    scheduling.add_usage(session, now, experiment_cache.of(session, block.experiment_id).owner, seconds)
    experiments.add_device_seconds(session, row.id, seconds)


def shared_seconds(began: float, now: float, ends: Sequence[float | None]) -> float:
    """Return the seconds of a device since ``began`` that one of its holders has used, each shared by all who held it.

    Args:
        began: when all were given the device.
        now: when the one ends.
        ends: of all, it among them; None for who holds the device still.
    """
    borders = sorted(min(now, now if end is None else end) for end in ends)
    seconds, at = 0.0, began
    for passed, border in enumerate(borders):
        seconds += max(0.0, border - at) / (len(borders) - passed)
        at = max(at, border)
    return seconds
