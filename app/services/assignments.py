"""Calls for an assignment: ready, rounds, barrier, release. Every write is fenced by the lease.

One function is one transaction. A lost lease stores nothing and raises ``LeaseLostError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy.orm import Session

from app.errors import ConflictError, InvalidError, LeaseLostError, NotFoundError
from app.services import ingest
from app.services.block_ends import FAST_FAILURE_SECONDS, end_assignment, finish_if_complete, move_stopped
from app.services.comparison import compare_runs, log_line
from app.services.context import Context
from app.services.fencing import fenced, grace
from app.services.granting import resume_round
from app.store import blocks, experiment_cache, experiments, leases, results, workers
from app.store.blocks import Why
from app.store.engine import utc
from app.store.events import NewEvent, add_events
from app.store.rows import AssignmentRow, BlockRow, RunOfArm, WorkerRow
from lockstep.protocol import BarrierReply, ReadyReply, ReadyRequest, ReleaseRequest, RoundReply, RoundRequest, RunRound
from lockstep.report.inputs import codes_of, one_after_another
from lockstep.spec.metrics import shown_of
from lockstep.status import PERHAPS_OF_THE_DEVICE, AssignmentState, BlockStatus, Cause, RunStatus, WorkerStatus


def ready(ctx: Context, assignment_id: str, token: str, request: ReadyRequest) -> ReadyReply:
    """Record that the child is up, or refused; open the start barrier when all are ready."""
    with ctx.store.write() as session:
        row, block = fenced(session, assignment_id, token)
        now = ctx.store.now(session)
        if request.refused is not None:
            refused = ingest.storable(request.refused.model_dump())
            text = f"{refused['field']}: {refused['message']}. {refused['remedy']}".strip()
            why = Why("worker", Cause.CONFIG, text)
            blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block))
            return ReadyReply(start=False)
        if request.device_uid != row.device_uid:
            _mismatch(ctx, session, now, row, block, request.device_uid)
            started = None
        else:
            if not row.ready:
                _mark_ready(session, now, row, block, request)
            started = _start_if_all_ready(session, now, block)
    if started is None:
        raise ConflictError(
            f"the child sees device {request.device_uid}, the assignment is for {row.device_uid}",
            code="device_mismatch",
        )
    if started:
        ctx.bell.ring()
    return ReadyReply(start=started)


def _mismatch(
    ctx: Context, session: Session, now: float, row: AssignmentRow, block: BlockRow, seen: str | None
) -> None:
    text = f"identity mismatch: assigned {row.device_uid}, the child sees {seen}"
    blocks.stop(
        session,
        now,
        block,
        Why("worker", Cause.DEVICE, text),
        grace_seconds=grace(ctx, session, block),
    )
    end_assignment(session, now, block, row, AssignmentState.RELEASED, outcome="error", detail=text)
    leases.free_worker(session, now, row.worker_id, text)
    leases.move_worker(session, now, row.worker_id, WorkerStatus.QUARANTINED, text)


def _mark_ready(session: Session, now: float, row: AssignmentRow, block: BlockRow, request: ReadyRequest) -> None:
    warm_up = ingest.storable(request.warm_up)
    record = warm_up.get("record")
    if isinstance(record, dict):
        trained = experiments.runs_of_assignment(session, row.id)
        before = trained[0].record if request.resume_round else experiments.last_record(session, block)
        former, present = before.get("plugins"), record.get("plugins")
        if isinstance(former, dict) and isinstance(present, dict):  # else nothing to compare, whatever a trainer says
            _tell_changed_code(session, now, block, former, present)
        for run in trained:
            told = record
            if request.resume_round and "plugins" in record:
                told = {**record, "plugins": one_after_another(run.record.get("plugins") or {}, record["plugins"])}
            experiments.change_run(session, run.id, record=told)
    leases.move(session, now, row.id, AssignmentState.ACTIVE, ready=True, ready_at=utc(now))
    leases.move_worker(session, now, row.worker_id, WorkerStatus.BUSY, f"trains replicate {block.replicate}")
    event = NewEvent(
        type="warmup_completed",
        text=f"the child on {row.device_uid} is ready at round {request.resume_round}",
        actor="worker",
        block_id=block.id,
        worker_id=row.worker_id,
        replicate=block.replicate,
        device=row.device_uid,
        round=request.resume_round,
        payload=warm_up,
    )
    add_events(session, now, block.experiment_id, [event])


def _tell_changed_code(
    session: Session, now: float, block: BlockRow, before: Mapping[str, str], present: Mapping[str, str]
) -> None:
    """Say once of each change that a plug-in's code is another than before: a report over both is void, hours later."""
    changed = [name for name in sorted(before.keys() & present.keys()) if codes_of(before[name])[-1] != present[name]]
    experiment = experiments.get(session, block.experiment_id, lock=True) if changed else None
    if experiment is None:
        return
    remedy = "a report over both is invalid: clone the experiment to train all with one"
    texts = [
        f"the code of plug-in {name!r} changed from {codes_of(before[name])[-1]} to {present[name]}; {remedy}"
        for name in changed
    ]
    fresh = [text for text in texts if text not in experiment.warnings]
    if not fresh:
        return
    experiments.change(session, experiment.id, warnings=[*experiment.warnings, *fresh])
    told = [
        NewEvent("plugin_changed", text, severity="warning", block_id=block.id, replicate=block.replicate)
        for text in fresh
    ]
    add_events(session, now, experiment.id, told)


def _start_if_all_ready(session: Session, now: float, block: BlockRow) -> bool:
    if block.status == BlockStatus.RUNNING:
        return True
    if block.status != BlockStatus.RESERVED:
        return False
    if not all(row.ready for row in leases.of_block(session, block.id, block.attempt)):
        return False
    values: dict[str, Any] = {"round_opened_epoch": now}
    if block.started_at is None:
        values["started_at"] = utc(now)
    blocks.move(session, now, block, BlockStatus.RUNNING, Why("worker", None, "every child is ready"), **values)
    blocks.move_runs(session, now, block, RunStatus.RUNNING, Why("worker"))
    return True


def put_round(ctx: Context, assignment_id: str, token: str, index: int, request: RoundRequest) -> RoundReply:
    """Store the results of one round of the assignment; idempotent by (run, attempt, round)."""
    with ctx.store.write() as session:
        row, block = fenced(session, assignment_id, token)
        now = ctx.store.now(session)
        runs = experiments.runs(session, block.experiment_id, block_id=block.id)
        new, conflict = _sort_out(session, row, _of_assignment(session, row, runs, request), index)
        if conflict is not None:
            text = f"round {index} of run {conflict} was handed in twice with different results"
            blocks.stop(session, now, block, Why("worker", Cause.BUG, text), grace_seconds=grace(ctx, session, block))
        else:
            _check_open(session, block, index, [run for _, run in new])
            items = [ingest.RoundOf(row, run, index, request, result) for result, run in new]
            ingest.store_rounds(ctx, session, now, items)
            for result, run in new:
                _apply_outcome(session, now, block, run, index, result)
            reply = _close_round(session, now, _Held(row, block, runs), index)
    if conflict is not None:
        raise ConflictError(text, code="round_conflict")
    ctx.bell.ring()
    return reply


def _of_assignment(
    session: Session, row: AssignmentRow, runs: Sequence[RunOfArm], request: RoundRequest
) -> list[tuple[RunRound, RunOfArm]]:
    mine = set(leases.run_ids(session, row.id))
    by_id = {run.id: run for run in runs}
    for result in request.runs:
        if result.run_id not in mine:
            raise InvalidError(f"run {result.run_id} is not part of this assignment", code="foreign_run")
    return [(result, by_id[result.run_id]) for result in request.runs]


def _sort_out(
    session: Session, row: AssignmentRow, runs: Sequence[tuple[RunRound, RunOfArm]], index: int
) -> tuple[list[tuple[RunRound, RunOfArm]], str | None]:
    """Return (results not stored yet, id of a run whose stored digest differs)."""
    new = []
    stored = results.round_digests(session, row.block_id, row.attempt, index)
    for result, run in runs:
        if run.id not in stored:
            new.append((result, run))
        elif stored[run.id] != result.digest:
            return [], run.id
    return new, None


def _check_open(session: Session, block: BlockRow, index: int, runs: Sequence[RunOfArm]) -> None:
    """A round is open when it is the block's next one; without a barrier, when it is the run's next one."""
    if not runs:
        return
    free = experiment_cache.of(session, block.experiment_id).lockstep["barrier"] == "none"
    expected = {run.rounds_done for run in runs} if free else {block.open_round}
    if expected != {index} or block.status not in (BlockStatus.RUNNING, BlockStatus.STOPPING):
        raise ConflictError(
            f"round {index} is not open; the open round of this block is {block.open_round}",
            code="round_not_open",
        )


def _apply_outcome(session: Session, now: float, block: BlockRow, run: RunOfArm, index: int, result: RunRound) -> None:
    experiments.change_run(session, run.id, rounds_done=index + 1, env_steps=float(result.env_steps), stalled=False)
    if result.diverged is None:
        return
    why = Why("worker", Cause.DIVERGED, result.diverged)
    if blocks.move_runs(session, now, block, RunStatus.FAILED, why, run_ids=[run.id]):
        blocks.change(session, block.id, num_diverged=block.num_diverged + 1)


@dataclass(frozen=True)
class _Held:
    """An assignment with its block and all runs of the block."""

    assignment: AssignmentRow
    block: BlockRow
    runs: Sequence[RunOfArm]


def _close_round(session: Session, now: float, held: _Held, index: int) -> RoundReply:
    block = held.block
    live = blocks.live_runs(session, block.id)
    for opened in range(block.open_round, max(index, block.open_round) + 1):
        have = results.round_digests(session, block.id, held.assignment.attempt, opened)
        missing = [run.id for run in live if run.id not in have]
        if missing or not have:
            return RoundReply(complete=index < opened, missing=missing if index >= opened else [])
        _complete(session, now, held, opened)
    if not live:
        finish_if_complete(session, now, block.id)
    return RoundReply(complete=True)


def _complete(session: Session, now: float, held: _Held, index: int) -> None:
    block = held.block
    blocks.change(session, block.id, open_round=index + 1, round_opened_epoch=now)
    shown = shown_of(experiment_cache.of(session, block.experiment_id).primary)
    comparison = compare_runs(session, held.runs, index)
    event = NewEvent(
        type="round_completed",
        text=f"round {index} of replicate {block.replicate}: {log_line(comparison, shown)}",
        actor="worker",
        block_id=block.id,
        replicate=block.replicate,
        round=index,
        payload={"attempt": held.assignment.attempt, **comparison},
    )
    add_events(session, now, block.experiment_id, [event])


def barrier(ctx: Context, block_id: str, attempt: int, index: int) -> BarrierReply:
    """Return whether a round of an attempt is complete, waiting, or the attempt is aborted.

    Raises:
        NotFoundError: for an unknown block.
    """
    with ctx.store.read() as session:
        block = blocks.get(session, block_id)
        if block is None:
            raise NotFoundError(f"no block {block_id}", code="unknown_block")
        live = blocks.live_runs(session, block_id)
        if block.attempt != attempt or block.status not in (BlockStatus.RUNNING, BlockStatus.SUCCEEDED):
            resume = resume_round(session, [run.id for run in live])
            return BarrierReply(state="aborted", resume_round=resume)
        if index < block.open_round:
            return BarrierReply(state="complete")
        have = results.round_digests(session, block_id, attempt, index)
        return BarrierReply(state="waiting", missing=[run.id for run in live if run.id not in have])


def release(ctx: Context, assignment_id: str, token: str, request: ReleaseRequest) -> None:
    """Record how an assignment ended on the worker; idempotent.

    Raises:
        ConflictError: ``not_completed`` when it says completed and the store does not hold its last round and final
            checkpoint; the assignment has ended with cause bug then.
    """
    with ctx.store.write() as session:
        try:
            row, block = fenced(session, assignment_id, token)
        except LeaseLostError:
            known = _released(session, assignment_id, token)
            if known is None:
                raise
            leases.change(session, assignment_id, cleanup_status=request.cleanup)
            if request.outcome == "completed" and known.outcome != "completed":
                raise ConflictError(known.detail or "", code="not_completed") from None
            return
        now = ctx.store.now(session)
        unearned = _unearned(session, row, block) if request.outcome == "completed" else None
        if unearned is not None:
            request = request.model_copy(update={"outcome": "error", "cause": Cause.BUG, "detail": unearned})
        ending = _Ending(row, block, cast(WorkerRow, workers.get(session, row.worker_id)), request)
        _stop_for_release(ctx, session, now, ending)
        end_assignment(
            session,
            now,
            block,
            row,
            AssignmentState.RELEASED,
            outcome=request.outcome,
            cause=request.cause,
            detail=ingest.storable(request.detail),
            cleanup_status=ingest.storable(request.cleanup),
        )
        _clean_worker(session, now, ending)
        move_stopped(ctx, session, now, block.id)
    ctx.bell.ring()
    if unearned is not None:
        raise ConflictError(unearned, code="not_completed")


def _released(session: Session, assignment_id: str, token: str) -> AssignmentRow | None:
    """Return the assignment if the holder of this token has released it before."""
    known = leases.get(session, assignment_id)
    if known is None or known.state != AssignmentState.RELEASED or known.token != leases.token_hash(token):
        return None
    return known


def _unearned(session: Session, row: AssignmentRow, block: BlockRow) -> str | None:
    """Return what is missing for an assignment to be completed, None when nothing is; the store decides that."""
    mine = set(leases.run_ids(session, row.id))
    training = [run for run in blocks.live_runs(session, block.id) if run.id in mine]
    if not training:
        return None
    held, rounds = min(run.rounds_done for run in training), experiment_cache.of(session, block.experiment_id).rounds
    if held >= rounds:
        return f"the trainer said that it is done, but the checkpoint after the last round, {rounds - 1}, is not stored"
    last = f"the last round held is {held - 1}" if held else "no round is held"
    return f"the trainer said that it is done, but {last}; the last one planned is {rounds - 1}"


@dataclass(frozen=True)
class _Ending:
    """An assignment that its worker releases, as it was before."""

    assignment: AssignmentRow
    block: BlockRow
    worker: WorkerRow
    request: ReleaseRequest


def _stop_for_release(ctx: Context, session: Session, now: float, ending: _Ending) -> None:
    """An assignment that ends while its block goes on stops the block, with the cause as observed."""
    row, block, worker, request = ending.assignment, ending.block, ending.worker, ending.request
    if block.status not in (BlockStatus.RESERVED, BlockStatus.RUNNING):
        return
    if not blocks.share_trains(session, row.id):
        return  # its runs have ended; its peers on other devices go on
    cause = _cause(request)
    counts = True
    if cause is Cause.OOM and _oom_before(block) and request.pinned_run in leases.run_ids(session, row.id):
        why = Why("worker", Cause.DIVERGED, "out of memory twice, pinned on this arm")
        moved = blocks.move_runs(session, now, block, RunStatus.FAILED, why, run_ids=[request.pinned_run])
        counts = not moved  # the repeat is an outcome of this arm; the others go on
        blocks.change(session, block.id, num_diverged=block.num_diverged + len(moved))
    detail = ingest.storable(request.detail).strip().splitlines()
    text = detail[-1][:500] if detail else ""
    if cause is Cause.OOM:
        blocks.change(session, block.id, min_memory_bytes=worker.memory_bytes)
    blocks.stop(
        session,
        now,
        block,
        Why("worker", cause, text),
        grace_seconds=grace(ctx, session, block),
        counts=counts,
    )


def _cause(request: ReleaseRequest) -> Cause:
    """Return why an assignment ended that nobody had asked to stop; each such end spends a budget."""
    if request.cause is None:
        return Cause.PREEMPTED if request.outcome == "stopped" else Cause.BUG
    return Cause.PREEMPTED if request.cause == "user" else Cause(request.cause)


def _oom_before(block: BlockRow) -> bool:
    return int(block.budget_used.get(Cause.OOM.value, 0)) > 0


def _clean_worker(session: Session, now: float, ending: _Ending) -> None:
    row, request = ending.assignment, ending.request
    leases.free_worker(
        session, now, row.worker_id, f"replicate {ending.block.replicate} has left it: {request.outcome}"
    )
    fast = now - row.offered_at.timestamp() < FAST_FAILURE_SECONDS
    if request.outcome != "error" or request.cause not in PERHAPS_OF_THE_DEVICE or not fast:
        return
    count = workers.count_fast_failure(session, row.worker_id)
    suspicious = _suspicious_experiments(session, row, count)
    if len(suspicious) >= 2:
        text = (
            f"{len(suspicious)} different experiments failed within {FAST_FAILURE_SECONDS:g} s of their start here, "
            f"and on no other worker; last: {request.detail[-300:]}"
        )
        leases.move_worker(session, now, row.worker_id, WorkerStatus.QUARANTINED, text)


def _suspicious_experiments(session: Session, row: AssignmentRow, count: int) -> set[str]:
    """Return the experiments that failed fast on a worker since its last success, and on no other device.

    Args:
        session: where the ending assignment is stored.
        row: that assignment.
        count: fast failures of the worker since an operator last cleared it.
    """
    failed: list[str] = []
    for past in leases.ended_lately(session, row.worker_id):
        if past.ended_at is None or past.outcome == "completed" or len(failed) == count:
            break
        fast = past.ended_at.timestamp() - past.offered_at.timestamp() < FAST_FAILURE_SECONDS
        if past.outcome == "error" and past.cause in PERHAPS_OF_THE_DEVICE and fast:
            failed.append(past.experiment_id)
    return set(failed) - leases.failed_elsewhere(session, set(failed), row.device_uid)
