"""Calls for an assignment: ready, rounds, barrier, release. Every write is fenced by the lease.

One function is one transaction. A lost lease stores nothing and raises ``LeaseLostError``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy.orm import Session

from app.errors import ConflictError, InvalidError, LeaseLostError, NotFoundError
from app.services.context import Context
from app.services.fencing import fenced, grace
from app.services.queue.granting import resume_round
from app.services.queue.scheduling import need_from
from app.services.training import ingest
from app.services.training.block_ends import FAST_FAILURE_SECONDS, end_assignment, finish, keep_together, move_stopped
from app.services.training.comparison import compare_runs, log_line
from app.store import experiment_cache, experiments
from app.store.database.engine import utc
from app.store.queue import blocks, leases, workers
from app.store.queue.blocks import Why
from app.store.records import results
from app.store.records.events import NewEvent, add_events
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import BlockRow, RunInRound, RunOfArm
from app.store.rows.workers import WorkerRow
from lockstep.protocol import BarrierReply, ReadyReply, ReadyRequest, ReleaseRequest, RoundReply, RoundRequest, RunRound
from lockstep.quoting import shortened
from lockstep.report.inputs import codes_of, one_after_another
from lockstep.spec.metrics import shown_of
from lockstep.status import (
    PERHAPS_OF_THE_DEVICE,
    TERMINAL_RUN,
    AssignmentState,
    BlockStatus,
    Cause,
    RunStatus,
    WorkerStatus,
)


def ready(ctx: Context, assignment_id: str, token: str, request: ReadyRequest) -> ReadyReply:
    """Record that the child is up, or refused; open the start barrier when all are ready."""
    with ctx.store.write() as session:
        row, block, now = fenced(ctx, session, assignment_id, token)
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
    if not blocks.start(session, now, block):
        return False
    blocks.move_runs(session, now, block, RunStatus.RUNNING, Why("worker"))
    return True


def put_round(ctx: Context, assignment_id: str, token: str, index: int, request: RoundRequest) -> RoundReply:
    """Store the results of one round of the assignment; idempotent by (run, attempt, round)."""
    with ctx.store.write() as session:
        row, block, now = fenced(ctx, session, assignment_id, token)
        runs = experiments.runs_in_round(session, row, index)
        new, conflict = _sort_out(request, runs)
        if conflict is not None:
            text = f"round {index} of run {conflict} was handed in twice with different results"
            blocks.stop(session, now, block, Why("worker", Cause.BUG, text), grace_seconds=grace(ctx, session, block))
        else:
            _check_open(session, block, index, [run for _, run in new])
            items = [ingest.RoundOf(row, run, index, request, result) for result, run in new]
            ingest.store_rounds(ctx, session, now, items)
            diverged = _apply_outcomes(session, now, block, index, new)
            reply = _close_round(session, now, _Round(block, index, runs, {run.id for _, run in new}, diverged))
    if conflict is not None:
        raise ConflictError(text, code="round_conflict")
    ctx.bell.ring()
    return reply


def _sort_out(
    request: RoundRequest, runs: Sequence[RunInRound]
) -> tuple[list[tuple[RunRound, RunInRound]], str | None]:
    """Return (results not stored yet, id of a run whose stored digest differs)."""
    mine = {run.id: run for run in runs if run.is_mine}
    for result in request.runs:
        if result.run_id not in mine:
            raise InvalidError(f"run {shortened(result.run_id)} is not part of this assignment", code="foreign_run")
    new = []
    for result in request.runs:
        run = mine[result.run_id]
        if run.digest is None:
            new.append((result, run))
        elif run.digest != result.digest:
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


def _apply_outcomes(
    session: Session, now: float, block: BlockRow, index: int, new: Sequence[tuple[RunRound, RunInRound]]
) -> set[str]:
    """Note that runs have done a round; return the ids of those that have diverged in it."""
    if not new:
        return set()
    experiments.note_round(session, {run.id: result.env_steps for result, run in new}, index + 1)
    why: dict[str, list[str]] = defaultdict(list)
    for result, run in new:
        if result.diverged is not None:
            why[result.diverged].append(run.id)
    ended: set[str] = set()
    for text, run_ids in why.items():
        told = Why("worker", Cause.DIVERGED, text)
        ended.update(blocks.move_runs(session, now, block, RunStatus.FAILED, told, run_ids=run_ids))
    return ended


@dataclass(frozen=True)
class _Round:
    """A round of a block that has just come in, whole or in part.

    Attributes:
        runs: all runs of the block, as they were before.
        new: ids of those whose results have come in now.
        diverged: ids of those that have ended by that.
    """

    block: BlockRow
    index: int
    runs: Sequence[RunInRound]
    new: Set[str]
    diverged: Set[str]

    @property
    def live(self) -> list[str]:
        """Ids of the runs that still train; who moves one holds the block's row, as we do."""
        return [run.id for run in self.runs if run.status not in TERMINAL_RUN and run.id not in self.diverged]

    def handed_in(self, session: Session, index: int) -> Set[str]:
        """Ids of the runs that have handed in a round in this attempt."""
        if index == self.index:
            return self.new | {run.id for run in self.runs if run.digest is not None}
        return results.round_digests(session, self.block.id, self.block.attempt, index).keys()


def _close_round(session: Session, now: float, came: _Round) -> RoundReply:
    """Close the rounds that are complete by now, and the block with the last of its runs."""
    block, index, live = came.block, came.index, came.live
    changed: dict[str, Any] = {"num_diverged": block.num_diverged + len(came.diverged)} if came.diverged else {}
    reply = RoundReply(complete=True)
    for opened in range(block.open_round, max(index, block.open_round) + 1):
        have = came.handed_in(session, opened)
        missing = [run_id for run_id in live if run_id not in have]
        if missing or not have:
            reply = RoundReply(complete=index < opened, missing=missing if index >= opened else [])
            break
        _tell_complete(session, now, came, opened)
        changed |= {"open_round": opened + 1, "round_opened_epoch": now}
    else:
        if not live and finish(session, now, block, **changed):
            return reply
    if changed:
        blocks.change(session, block.id, **changed)
    return reply


def _tell_complete(session: Session, now: float, came: _Round, index: int) -> None:
    block = came.block
    shown = shown_of(experiment_cache.of(session, block.experiment_id).primary)
    comparison = compare_runs(session, came.runs, index)
    event = NewEvent(
        type="round_completed",
        text=f"round {index} of replicate {block.replicate}: {log_line(comparison, shown)}",
        actor="worker",
        block_id=block.id,
        replicate=block.replicate,
        round=index,
        payload={"attempt": block.attempt, **comparison},
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
            row, block, now = fenced(ctx, session, assignment_id, token)
        except LeaseLostError:
            known = _released(session, assignment_id, token)
            if known is None:
                raise
            leases.change(session, assignment_id, cleanup_status=request.cleanup)
            if request.outcome == "completed" and known.outcome != "completed":
                raise ConflictError(known.detail or "", code="not_completed") from None
            return
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
        if request.outcome == "stopped" and block.status in (BlockStatus.RESERVED, BlockStatus.RUNNING):
            keep_together(session, now, row, grace(ctx, session, block))
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
    if cause is Cause.OOM and _had_all_memory(session, ending):
        blocks.change(session, block.id, min_memory_bytes=worker.memory_bytes)
    blocks.stop(
        session,
        now,
        block,
        Why("worker", cause, text),
        grace_seconds=grace(ctx, session, block),
        counts=counts,
    )


def _had_all_memory(session: Session, ending: _Ending) -> bool:
    """Return whether what a block ran out of was its worker's memory, and no other block had any of it.

    The memory of a worker with a GPU is that of the GPU, which small policies do not use; and alone a block has more.
    """
    experiment = experiments.get(session, ending.block.experiment_id)
    is_at_home = experiment is not None and need_from(experiment.needs, "auto", 1).at_home
    is_alone = leases.ends_beside(session, ending.assignment).count(None) == 1
    return is_alone and not (is_at_home and ending.worker.device_kind == "gpu")


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
