"""Writing down what a pass over the queue has chosen: all its blocks together, in a dozen statements.

Each statement is a way to the database, and on a busy server each way waits for its turn; with nine for each block a
thousand workers that begin would wait for minutes.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.queue.placement import Fit, device_order
from app.store import experiments
from app.store.queue import blocks, leases, scheduling
from app.store.queue.blocks import Why
from app.store.queue.scheduling import NewAssignment
from app.store.records import results
from app.store.records.events import NewEvent, add_events
from app.store.rows.experiments import BlockRow, RunRow, WaitingBlock
from app.store.rows.workers import IdleWorker


@dataclass(frozen=True)
class Choice:
    """A queued block and the workers that it gets."""

    block: WaitingBlock
    fit: Fit


@dataclass(frozen=True)
class Takers:
    """Who may be given blocks.

    Attributes:
        idle: by id.
        told: ids of those that are told in this transaction what they are given.
    """

    idle: Mapping[str, IdleWorker]
    told: Set[str]


@dataclass(frozen=True)
class Grant:
    """What is written of a choice: the new attempt of a block, where it resumes, its runs and who trains them."""

    choice: Choice
    attempt: int
    resume: int
    live: Sequence[RunRow]
    assignments: Sequence[NewAssignment]

    @property
    def block(self) -> WaitingBlock:
        """Of what."""
        return self.choice.block

    @property
    def placement(self) -> str:
        """The placement of the experiment from now on."""
        return self.block.placement_resolved or self.choice.fit.placement


def grant(ctx: Context, session: Session, now: float, chosen: Sequence[Choice], takers: Takers) -> list[Grant]:
    """Reserve blocks and workers for each other; return what was given of the blocks that were still queued.

    Holds the blocks first, in the order of their ids, and workers after them, as everybody does.
    """
    if not chosen:
        return []
    live = blocks.lock_with_runs(session, [choice.block.id for choice in chosen])
    wanted = [_grant_of(ctx, session, choice, live[choice.block.id], takers) for choice in chosen]
    moved = _reserve(ctx, session, now, wanted)
    grants = [granted for granted in wanted if granted.block.id in moved]
    assignments = [assignment for granted in grants for assignment in granted.assignments]
    scheduling.insert_assignments(session, now, ctx.settings.lease_ttl_seconds, assignments)
    tasks: dict[str, str] = {}
    for granted in grants:  # of several blocks of one worker the first is told
        for assignment in granted.assignments:
            tasks.setdefault(assignment.worker.id, f"is to train replicate {granted.block.replicate}")
    leases.reserve_workers(session, now, tasks, actor="scheduler")
    _open_attempts(session, now, grants)
    _freeze(session, grants)
    return grants


def resume_round(session: Session, run_ids: Sequence[str]) -> int:
    """Return the last common checkpoint: the largest round before which every live run has one."""
    committed = results.committed_checkpoints(session, run_ids)
    common = set.intersection(*({*rounds} for rounds in committed.values())) if committed else set()
    return max(common, default=0)


def _grant_of(ctx: Context, session: Session, choice: Choice, live: Sequence[RunRow], takers: Takers) -> Grant:
    block, fit = choice.block, choice.fit
    attempt = block.attempt + 1
    resume = resume_round(session, [run.id for run in live]) if block.attempt else 0

    def assignment(index: int, run_ids: Sequence[str]) -> NewAssignment:
        worker = takers.idle[fit.workers[index].id]
        name, lease, told = ctx.store.new_id("asg"), secrets.token_hex(16), worker.id in takers.told
        return NewAssignment(name, block.id, attempt, worker, index, fit.slot, tuple(run_ids), lease, told)

    if fit.placement == "shared_device":
        return Grant(choice, attempt, resume, live, [assignment(0, [run.id for run in live])])
    order = device_order(fit.workers, len(live), block.replicate)
    each = [assignment(order[position], [run.id]) for position, run in enumerate(live)]
    return Grant(choice, attempt, resume, live, each)


def _reserve(ctx: Context, session: Session, now: float, wanted: Sequence[Grant]) -> set[str]:
    """Move the blocks; return the ids of those that were still queued."""
    alike: dict[tuple[int, int], list[Grant]] = defaultdict(list)
    for granted in wanted:
        alike[granted.attempt, granted.resume].append(granted)
    moved: set[str] = set()
    for (attempt, resume), grants in sorted(alike.items()):
        whys = {}
        for granted in grants:
            devices = ", ".join(worker.device_uid for worker in granted.choice.fit.workers)
            whys[granted.block.id] = Why("scheduler", None, f"assigned to {devices}")
        moved |= blocks.reserve(
            session,
            now,
            [(granted.block, whys[granted.block.id]) for granted in grants],
            attempt=attempt,
            resume_round=resume,
            open_round=resume,
            reserve_deadline_epoch=now + ctx.settings.reservation_seconds,
            ready_deadline_epoch=now + ctx.settings.warmup_seconds,
        )
    return moved


def _freeze(session: Session, grants: Sequence[Grant]) -> None:
    """The first assignment fixes placement and data fingerprint for all replicates."""
    fixed: set[str] = set()
    for granted in grants:
        block, fit = granted.block, granted.choice.fit
        if block.placement_resolved is not None or block.experiment_id in fixed:
            continue
        needs = dict(block.needs)
        if needs.get("dataset"):
            needs["fingerprint"] = fit.workers[0].datasets[needs["dataset"]]
        experiments.freeze_placement(session, block.experiment_id, fit.placement, needs)
        fixed.add(block.experiment_id)


def _open_attempts(session: Session, now: float, grants: Sequence[Grant]) -> None:
    """Open the new attempt of every run; what an older one has beyond the resume round is superseded."""
    rows: list[scheduling.NewAttempt] = []
    starts: dict[tuple[bool, int], dict[str, str]] = defaultdict(dict)
    for granted in grants:
        each = granted.assignments
        device_of = {run_id: assignment.worker.device_uid for assignment in each for run_id in assignment.run_ids}
        rows += [
            scheduling.NewAttempt(run.no, granted.attempt, granted.resume, device_of[run.id]) for run in granted.live
        ]
        starts[granted.attempt > 1 and granted.resume > 0, granted.resume] |= device_of
    scheduling.open_attempts(session, now, rows)
    for (resumed, rounds), devices in sorted(starts.items()):
        experiments.start_runs(session, devices, resumed=resumed, rounds=rounds)
    for granted in grants:
        older = granted.live if granted.attempt > 1 else []
        attempt, resume = granted.attempt, granted.resume
        cut = [run for run in older if scheduling.end_older_attempts(session, run.no, attempt, resume)]
        told = [_truncation(granted.block, run, attempt, resume) for run in cut]
        add_events(session, now, granted.block.experiment_id, told)


def _truncation(block: BlockRow, run: RunRow, attempt: int, resume: int) -> NewEvent:
    return NewEvent(
        type="truncate",
        text=f"rounds from {resume} on of earlier attempts are superseded",
        block_id=block.id,
        run_id=run.id,
        replicate=block.replicate,
        round=resume,
        payload={"run": run.id, "attempt": attempt, "from_round": resume},
    )
