"""What workers that ask for work are told, many of them in one go: an offer, that they have gone, or nothing yet.

A claim of its own for each of a thousand workers would make a thousand transactions, each of a dozen ways to the
database, and they would keep heartbeats from their turn.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy.orm import Session

from app.errors import AppError, NotFoundError
from app.services.context import Context
from app.services.fencing import refuse_gone
from app.services.queue import scheduling
from app.services.queue.granting import Grant
from app.store import experiment_cache, experiments
from app.store.queue import blocks, leases, workers
from app.store.queue import scheduling as queue
from app.store.queue.scheduling import NewAssignment
from app.store.records import results
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import ArmRow, BlockOfExperiment, RunRow
from app.store.rows.workers import WorkerRow
from lockstep.protocol import AssignedRun, Assignment, CheckpointRef, RewardRef
from lockstep.spec.arms import discount_of
from lockstep.status import RunStatus, WorkerStatus

#: What a worker is told: its assignment, with those beside it, or why it is to go.
Answer = Assignment | AppError
Answers = dict[str, Answer]


@dataclass(frozen=True)
class Look:
    """What one look at the queue found for workers that wait.

    Attributes:
        answers: by worker; who was assigned something in this pass.
        others: those that are not free, and so may have been offered something before, or have gone.
        goes_on: whether another look may find more at once.
    """

    answers: Answers
    others: list[str]
    goes_on: bool


def look(ctx: Context, worker_ids: Sequence[str]) -> Look:
    """Give out work, and hand what these workers are given to them in the same transaction."""
    with ctx.store.write() as session:
        present = queue.registered_workers(session)
        free = {worker.id for worker in present if worker.is_free}
        others = [worker_id for worker_id in worker_ids if worker_id not in free]
        given = scheduling.give(ctx, session, present, {*worker_ids}) if len(others) < len(worker_ids) else []
        answers: Answers = {**_hand_out_new(session, given)}
    if given:
        ctx.bell.ring()
    return Look(answers, others, len(given) >= scheduling.AT_ONCE)


def tell(ctx: Context, worker_ids: Sequence[str]) -> Answers:
    """Return what there is for these workers, nothing for the others; repeating it hands the same out again."""
    answers: Answers = {}
    with ctx.store.write() as session:
        known = {worker.id: worker for worker in workers.some(session, worker_ids)}
        for worker_id in worker_ids:
            try:
                if worker_id not in known:
                    raise NotFoundError(f"no worker {worker_id}", code="unknown_worker")
                refuse_gone(session, known[worker_id], WorkerStatus.RETIRED, WorkerStatus.LOST)
            except AppError as error:
                answers[worker_id] = error
        present = [worker for worker in known.values() if worker.id not in answers]
        if present:
            leases.lock_offered(session, present)
            answers |= _hand_out(ctx, session, present)
    return answers


def _hand_out(ctx: Context, session: Session, asking: Sequence[WorkerRow]) -> dict[str, Assignment]:
    """Return by worker what it is offered; the caller holds the blocks of these offers.

    A claim sent twice must not replace the token of what has been accepted meanwhile.
    """
    offered = leases.offered_to(session, asking)
    if not offered:
        return {}
    tokens = {row.id: secrets.token_hex(16) for row in offered}
    until = ctx.store.now(session) + ctx.settings.lease_ttl_seconds
    held = leases.collect(session, {name: leases.token_hash(token) for name, token in tokens.items()}, until)
    mine = [row for row in offered if row.id in held]
    of_blocks = blocks.with_experiments(session, [row.block_id for row in mine])
    runs = experiments.runs_of_assignments(session, [row.id for row in mine])
    shares = [_share(row, of_blocks[row.block_id], runs[row.id], tokens[row.id]) for row in mine]
    return _answers(session, shares)


@dataclass(frozen=True)
class _Share:
    """What a worker is to train of a block, and what is told of it; ``slot``: its place among the worker's blocks."""

    worker_id: str
    slot: int
    assignment_id: str
    lease: str
    device_index: int
    attempt: int
    experiment_id: str
    experiment_name: str
    block_id: str
    replicate: int
    resume_round: int
    placement: str | None
    runs: Sequence[RunRow]


def _share(row: AssignmentRow, block: BlockOfExperiment, runs: Sequence[RunRow], lease: str) -> _Share:
    return _Share(
        worker_id=row.worker_id,
        slot=row.slot,
        assignment_id=row.id,
        lease=lease,
        device_index=row.device_index,
        attempt=row.attempt,
        experiment_id=block.experiment_id,
        experiment_name=block.name,
        block_id=block.id,
        replicate=block.replicate,
        resume_round=block.resume_round,
        placement=block.placement_resolved,
        runs=runs,
    )


def _hand_out_new(session: Session, given: Sequence[Grant]) -> dict[str, Assignment]:
    """Return by worker what it was given in this transaction and is told of at once."""
    return _answers(session, [_new_share(grant, one) for grant in given for one in grant.assignments if one.collected])


def _new_share(grant: Grant, assignment: NewAssignment) -> _Share:
    return _Share(
        worker_id=assignment.worker.id,
        slot=assignment.slot,
        assignment_id=assignment.id,
        lease=assignment.lease,
        device_index=assignment.device_index,
        attempt=grant.attempt,
        experiment_id=grant.block.experiment_id,
        experiment_name=grant.block.name,
        block_id=grant.block.id,
        replicate=grant.block.replicate,
        resume_round=grant.resume,
        placement=grant.placement,
        runs=[run for run in grant.live if run.id in assignment.run_ids],
    )


def _answers(session: Session, shares: Sequence[_Share]) -> dict[str, Assignment]:
    """Return by worker the documents of its shares, in one."""
    answers = {}
    in_order = sorted(shares, key=lambda share: (share.worker_id, share.slot))
    for worker_id, mine in groupby(in_order, lambda share: share.worker_id):
        first, *beside = (_document(session, share) for share in mine)
        answers[worker_id] = first.model_copy(update={"beside": beside})
    return answers


def _document(session: Session, share: _Share) -> Assignment:
    """Return all that a supervisor and its child need to train a share."""
    fixed = experiment_cache.of(session, share.experiment_id)
    return Assignment(
        assignment_id=share.assignment_id,
        lease=share.lease,
        experiment_id=share.experiment_id,
        experiment_name=share.experiment_name,
        block_id=share.block_id,
        attempt=share.attempt,
        replicate=share.replicate,
        root_seed=fixed.seed,
        rounds=fixed.rounds,
        resume_round=share.resume_round,
        placement=share.placement,
        device_index=share.device_index,
        num_arms=fixed.num_arms,
        barrier=fixed.lockstep["barrier"],
        spec_hash=fixed.spec_hash,
        runs=_assigned_runs(session, share, {arm.arm_index: arm for arm in fixed.arms}),
        reward_modes=[
            RewardRef(mode=arm.reward_mode, config=arm.config["reward"], gamma=discount_of(arm.config))
            for arm in fixed.arms
        ],
        checkpoint_every_rounds=fixed.checkpoint["every_rounds"],
        checkpoint_keep=fixed.checkpoint["keep"],
        grace_seconds=fixed.grace_seconds,
        barrier_timeout_seconds=fixed.lockstep["barrier_timeout_seconds"],
    )


def _assigned_runs(session: Session, share: _Share, arms: Mapping[int, ArmRow]) -> list[AssignedRun]:
    resumes = [run.id for run in share.runs] if share.resume_round else []
    checkpoints = results.committed_checkpoints(session, resumes) if resumes else {}
    assigned = []
    for run in share.runs:
        arm = arms[run.arm_index]
        stored = checkpoints[run.id].get(share.resume_round) if resumes else None
        reference = stored and CheckpointRef(
            checkpoint_id=stored.id,
            next_round=stored.next_round,
            sha256=stored.sha256,
            size_bytes=int(stored.size_bytes),
        )
        assigned.append(
            AssignedRun(
                run_id=run.id,
                arm=arm.label,
                arm_index=arm.arm_index,
                policy=arm.policy,
                static_set=arm.static_set,
                config=arm.config,
                diff=arm.diff,
                checkpoint=reference,
                diverged=run.status == RunStatus.FAILED,
            )
        )
    return assigned
