"""What workers that ask for work are told, many of them in one go: an offer, that they have gone, or nothing yet.

A claim of its own for each of a thousand workers would make a thousand transactions, each of a dozen ways to the
database, and they would keep heartbeats from their turn.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from sqlalchemy.orm import Session

from app.errors import AppError, NotFoundError
from app.services import scheduling
from app.services.context import Context
from app.services.fencing import refuse_gone
from app.store import blocks, experiment_cache, experiments, leases, results, workers
from app.store.rows import ArmRow, AssignmentRow, BlockOfExperiment, RunOfArm, WorkerRow
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
        free = workers.free_ids(session)
        others = [worker_id for worker_id in worker_ids if worker_id not in free]
        given = scheduling.give(ctx, session) if len(others) < len(worker_ids) else []
        mine = sorted({*worker_ids}.intersection(chain.from_iterable(given)))
        answers: Answers = {**_hand_out(ctx, session, workers.some(session, mine))} if mine else {}
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
    documents = _documents(session, [row for row in offered if row.id in held], tokens)
    answers = {}
    for worker_id, rows in groupby((row for row in offered if row.id in held), lambda row: row.worker_id):
        first, *beside = (documents[row.id] for row in rows)
        answers[worker_id] = first.model_copy(update={"beside": beside})
    return answers


def _documents(session: Session, rows: Sequence[AssignmentRow], tokens: Mapping[str, str]) -> dict[str, Assignment]:
    """Return by assignment all that a supervisor and its child need to train it."""
    of_blocks = blocks.with_experiments(session, [row.block_id for row in rows])
    runs = experiments.runs_of_assignments(session, [row.id for row in rows])
    return {row.id: _document(session, row, of_blocks[row.block_id], runs[row.id], tokens[row.id]) for row in rows}


def _document(
    session: Session, row: AssignmentRow, block: BlockOfExperiment, runs: Sequence[RunOfArm], token: str
) -> Assignment:
    fixed = experiment_cache.of(session, block.experiment_id)
    arms = {arm.arm_index: arm for arm in fixed.arms}
    return Assignment(
        assignment_id=row.id,
        lease=token,
        experiment_id=block.experiment_id,
        experiment_name=block.name,
        block_id=block.id,
        attempt=row.attempt,
        replicate=block.replicate,
        root_seed=fixed.seed,
        rounds=fixed.rounds,
        resume_round=block.resume_round,
        placement=block.placement_resolved,
        device_index=row.device_index,
        num_arms=fixed.num_arms,
        barrier=fixed.lockstep["barrier"],
        spec_hash=fixed.spec_hash,
        runs=_assigned_runs(session, block, arms, runs),
        reward_modes=[
            RewardRef(mode=arm.reward_mode, config=arm.config["reward"], gamma=discount_of(arm.config))
            for arm in fixed.arms
        ],
        checkpoint_every_rounds=fixed.checkpoint["every_rounds"],
        checkpoint_keep=fixed.checkpoint["keep"],
        grace_seconds=fixed.grace_seconds,
        barrier_timeout_seconds=fixed.lockstep["barrier_timeout_seconds"],
    )


def _assigned_runs(
    session: Session, block: BlockOfExperiment, arms: Mapping[int, ArmRow], runs: Sequence[RunOfArm]
) -> list[AssignedRun]:
    resumes = [run.id for run in runs] if block.resume_round else []
    checkpoints = results.committed_checkpoints(session, resumes) if resumes else {}
    assigned = []
    for run in runs:
        arm = arms[run.arm_index]
        stored = checkpoints[run.id].get(block.resume_round) if resumes else None
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
