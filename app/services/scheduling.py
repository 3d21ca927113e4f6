"""The scheduling tick and the claim (control-plane.md 4): one transaction, all or nothing."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.orm import Session

from app.errors import NotFoundError
from app.services.context import Context
from app.services.fencing import refuse_gone
from app.services.placement import Fit, Need, Pack, Wait, WorkerView, class_to_hold, device_order, fit, pack_size
from app.settings import Settings
from app.store import blocks, experiment_cache, experiments, leases, results, scheduling, workers
from app.store.blocks import Why
from app.store.events import NewEvent, add_events
from app.store.rows import (
    ArmRow,
    AssignmentRow,
    BlockRow,
    IdleWorker,
    RunOfArm,
    RunRow,
    SchedulableWorker,
    WaitingBlock,
)
from app.store.scheduling import NewAssignment
from lockstep.protocol import AssignedRun, Assignment, CheckpointRef, RewardRef
from lockstep.spec.arms import discount_of
from lockstep.status import BlockStatus, Cause, RunStatus, WorkerStatus

_BATCH = 200
_MAX_BLOCKS = 2_000  # looked at in one tick while devices are idle
#: How often a block must have ended for a cause to train alone from then on; for any other cause, once.
_ENDS_ALONE: Mapping[Cause, float] = {Cause.PREEMPTED: math.inf, Cause.WORKER_LOST: 3}
_HEALTHY = (
    WorkerStatus.STARTING,
    WorkerStatus.IDLE,
    WorkerStatus.RESERVED,
    WorkerStatus.BUSY,
    WorkerStatus.CLEANING,
)


def tick(ctx: Context) -> int:
    """Give idle workers the next eligible blocks; return how many blocks were assigned."""
    with ctx.store.write() as session:
        assigned = _tick(ctx, session)
    if assigned:
        ctx.bell.ring()
    return assigned


def called(ctx: Context, worker_ids: Set[str]) -> set[str]:
    """Give out work, and return those of these workers that have something to ask for: an offer, a drain, an end."""
    tick(ctx)
    with ctx.store.read() as session:
        return set(worker_ids) - workers.waiting(session, worker_ids)


def _tick(ctx: Context, session: Session) -> int:
    if not scheduling.try_singleton(ctx.store, session) or scheduling.queue_paused(session):
        return 0
    return _assign_all(ctx, session, ctx.store.now(session))


def _assign_all(ctx: Context, session: Session, now: float) -> int:
    idle = {row.id: row for row in scheduling.idle_workers(session, now, ctx.settings.lease_ttl_seconds)}
    if not idle:
        return 0
    views = {row.id: worker_view(row, idle=row.id in idle) for row in scheduling.registered_workers(session)}
    queue_pass = _Tick(ctx.settings, now, views, scheduling.devices_in_use(session), _ready_of(session, now))
    shares = scheduling.owner_shares(session, now, queue_pass.in_use)
    assigned = seen = 0
    size = len(idle) + 1  # one page serves, unless blocks do not fit or are packed
    while seen < _MAX_BLOCKS and queue_pass.goes_on():
        full = queue_pass.full_owners()
        # blocks assigned in this transaction have left the queue, hence the offset without them
        page = scheduling.eligible_blocks(session, now, shares, limit=size, skip=seen - assigned, without=full)
        live = blocks.count_live_runs(session, [block.id for block in page])
        for block in page:
            if not queue_pass.goes_on():
                return assigned  # each further block would cost queries for nothing
            choice = queue_pass.choose(block, live.get(block.id, 0))
            if isinstance(choice, Fit) and _assign(ctx, session, now, block, choice, idle):
                assigned += 1
        seen += len(page)
        if len(page) < size:
            break
        size = _BATCH
    return assigned


def _ready_of(session: Session, now: float) -> Callable[[str], int]:
    """Return what counts the blocks of an experiment that may be assigned."""
    return lambda experiment_id: scheduling.count_ready(session, now, experiment_id)


@dataclass
class _Tick:
    """What one pass over the queue has given away and holds back; the explanation makes the same pass."""

    settings: Settings
    now: float
    views: dict[str, WorkerView]
    in_use: dict[str, int]
    ready_of: Callable[[str], int]
    packs: dict[str, Pack] = field(default_factory=dict)  # by experiment
    owners: dict[str, str] = field(default_factory=dict)  # of the experiments in packs
    held: frozenset[str] = frozenset()
    frozen: dict[str, str] = field(default_factory=dict)  # placements resolved in this pass, by experiment

    def choose(self, block: WaitingBlock, num_live: int) -> Fit | Wait:
        """Return the workers of a block and count them as given, or why it waits.

        A block takes a device of its own where one is free; else it joins one of its experiment given in this pass.
        """
        need = need_of(block, self._placement(block), num_live)
        choice = self._alone(block, need)
        pack = self.packs.get(block.experiment_id)
        if pack is not None:
            pack.left -= 1
        if isinstance(choice, Wait):
            joined = pack.join(need, self.views) if pack is not None and may_pack(block) else None
            if joined is None or pack is None:
                return choice
            pack.held[joined.workers[0].id] += 1
            return joined
        if need.pack > 1 and choice.placement == "shared_device" and may_pack(block):
            self._open(block, need).held[choice.workers[0].id] = 1
        for worker in choice.workers:
            self.views[worker.id] = replace(self.views[worker.id], idle=False)
        return choice

    def goes_on(self) -> bool:
        """Return whether any worker may be given more."""
        return any(view.idle for view in self.views.values()) or any(
            p.has_room(self.views) for p in self.packs.values()
        )

    def full_owners(self) -> list[str]:
        """Return the owners whose blocks can get nothing more."""
        joins = {self.owners[name] for name, pack in self.packs.items() if pack.has_room(self.views)}
        limit = self.settings.owner_device_limit
        return [owner for owner, count in self.in_use.items() if count >= limit and owner not in joins]

    def _open(self, block: WaitingBlock, need: Need) -> Pack:
        """Return the pack of an experiment whose first block, or first on a further worker, this is."""
        known = self.packs.get(block.experiment_id)
        if known is None:
            waiting = self.ready_of(block.experiment_id)
            known = Pack(pack_size(need, waiting, list(self.views.values())), waiting - 1)
            self.packs[block.experiment_id], self.owners[block.experiment_id] = known, block.owner
        return known

    def _alone(self, block: WaitingBlock, need: Need) -> Fit | Wait:
        """Return free workers for a block, or why it waits for some."""
        limit = self.settings.owner_device_limit
        if self.in_use.get(block.owner, 0) >= limit:
            return Wait("owner_limit", f"{block.owner_name} already uses {limit} devices, the limit", {"limit": limit})
        choice = fit(need, list(self.views.values()), self.held)
        if isinstance(choice, Wait):
            self._hold(block, need)
            return choice
        self.frozen.setdefault(block.experiment_id, choice.placement)
        self.in_use[block.owner] = self.in_use.get(block.owner, 0) + len(choice.workers)
        return choice

    def _placement(self, block: WaitingBlock) -> str:
        """Return the placement that the experiment of a block has by now."""
        return block.placement_resolved or self.frozen.get(block.experiment_id) or block.placement

    def _hold(self, block: WaitingBlock, need: Need) -> None:
        """The first block of several devices in order that has waited long enough keeps its class from later blocks."""
        if self.now - block.waiting_since_epoch >= self.settings.gang_patience_seconds:
            name = class_to_hold(need, list(self.views.values()))
            self.held |= {name} if name else frozenset()


def explain_in_order(
    ctx: Context, session: Session, now: float, views: Mapping[str, WorkerView], limit: int
) -> list[tuple[WaitingBlock, Fit | Wait]]:
    """Return the eligible blocks in order with what the next tick would decide; writes nothing."""
    queue_pass = _Tick(ctx.settings, now, dict(views), scheduling.devices_in_use(session), _ready_of(session, now))
    rows = scheduling.eligible_blocks(
        session, now, scheduling.owner_shares(session, now, queue_pass.in_use), limit=limit
    )
    live = blocks.count_live_runs(session, [row.id for row in rows])
    return [(row, queue_pass.choose(row, live.get(row.id, 0))) for row in rows]


def unused(ctx: Context, session: Session, now: float) -> list[WorkerView]:
    """Return the free workers that the next tick would give nothing; none while the queue is paused."""
    idle = scheduling.idle_ids(session, now, ctx.settings.lease_ttl_seconds)
    if not idle or scheduling.queue_paused(session):
        return []
    views = {row.id: worker_view(row, idle=row.id in idle) for row in scheduling.registered_workers(session)}
    queue_pass = _Tick(ctx.settings, now, views, scheduling.devices_in_use(session), _ready_of(session, now))
    shares = scheduling.owner_shares(session, now, queue_pass.in_use)
    rows = scheduling.eligible_blocks(session, now, shares, limit=_MAX_BLOCKS)
    live = blocks.count_live_runs(session, [row.id for row in rows])
    for row in rows:
        queue_pass.choose(row, live.get(row.id, 0))
    return [v for v in queue_pass.views.values() if v.idle and v.healthy and v.device_class not in queue_pass.held]


def may_pack(block: WaitingBlock) -> bool:
    """Return whether a block may share a process: not where what ended it before may be its own doing."""
    return all(count < _ENDS_ALONE.get(Cause(cause), 1) for cause, count in block.budget_used.items())


def worker_view(row: SchedulableWorker, *, idle: bool) -> WorkerView:
    """Return a worker as the pure scheduler sees it."""
    status = WorkerStatus(row.status)
    return WorkerView(
        id=row.id,
        device_uid=row.device_uid,
        device_class=row.device_class,
        kind=row.device_kind,
        memory_bytes=row.memory_bytes,
        idle=idle,
        healthy=status in _HEALTHY and not row.drain,
        quarantined=status is WorkerStatus.QUARANTINED,
        max_blocks=row.max_blocks,
        datasets=row.datasets,
        rewards=frozenset(name for name, facts in row.rewards.items() if "defect" not in facts),
        environments=frozenset(name for name, facts in row.environments.items() if "defect" not in facts),
    )


def need_of(block: WaitingBlock, placement: str, num_live: int) -> Need:
    """Return what a block needs; a row of ``eligible_blocks``."""
    return need_from(block.needs, placement, num_live, block.min_memory_bytes)


def need_from(needs: Mapping[str, Any], placement: str, num_live: int, min_memory_bytes: float = 0.0) -> Need:
    """Return what a block of an experiment with these ``needs`` needs."""
    return Need(
        num_arms=num_live,
        placement=placement,
        memory_bytes=float(needs.get("memory_bytes", 0.0)),
        min_memory_bytes=min_memory_bytes,
        dataset=needs.get("dataset"),
        fingerprint=needs.get("fingerprint"),
        rewards=frozenset(needs.get("rewards", ())),
        environment=needs.get("environment"),
        pack=int(needs.get("pack", 1)),
        pack_evenly=bool(needs.get("pack_evenly", False)),
    )


def _assign(
    ctx: Context, session: Session, now: float, block: WaitingBlock, choice: Fit, idle: Mapping[str, IdleWorker]
) -> bool:
    settings = ctx.settings
    blocks.lock(session, block.id)
    live = blocks.live_runs(session, block.id)
    resume = resume_round(session, [run.id for run in live]) if block.attempt else 0
    attempt = block.attempt + 1
    workers_text = ", ".join(worker.device_uid for worker in choice.workers)
    moved = blocks.move(
        session,
        now,
        block,
        BlockStatus.RESERVED,
        Why("scheduler", None, f"assigned to {workers_text}"),
        attempt=attempt,
        resume_round=resume,
        open_round=resume,
        reserve_deadline_epoch=now + settings.reservation_seconds,
        ready_deadline_epoch=now + settings.warmup_seconds,
    )
    if not moved:
        return False
    assignments = _new_assignments(block, choice, live, idle)
    scheduling.insert_assignments(ctx.store, session, now, block.id, attempt, settings.lease_ttl_seconds, assignments)
    for assignment in assignments:
        leases.move_worker(
            session,
            now,
            assignment.worker.id,
            WorkerStatus.RESERVED,
            f"is to train replicate {block.replicate}",
            actor="scheduler",
        )
    _open_attempts(session, now, block, attempt, resume, live, assignments)
    if block.placement_resolved is None:
        _freeze(session, block, choice)
    return True


def _freeze(session: Session, block: WaitingBlock, choice: Fit) -> None:
    """The first assignment fixes placement and data fingerprint for all replicates."""
    needs = dict(block.needs)
    if needs.get("dataset"):
        needs["fingerprint"] = choice.workers[0].datasets[needs["dataset"]]
    experiments.freeze_placement(session, block.experiment_id, choice.placement, needs)


def _new_assignments(
    block: BlockRow, choice: Fit, live: Sequence[RunRow], idle: Mapping[str, IdleWorker]
) -> list[NewAssignment]:
    def assignment(index: int, run_ids: Sequence[str]) -> NewAssignment:
        token = leases.token_hash(secrets.token_hex(16))
        return NewAssignment(idle[choice.workers[index].id], index, choice.slot, tuple(run_ids), token)

    if choice.placement == "shared_device":
        return [assignment(0, [run.id for run in live])]
    order = device_order(choice.workers, len(live), block.replicate)
    return [assignment(order[position], [run.id]) for position, run in enumerate(live)]


def _open_attempts(
    session: Session,
    now: float,
    block: BlockRow,
    attempt: int,
    resume: int,
    live: Sequence[RunRow],
    assignments: Sequence[NewAssignment],
) -> None:
    """Open the new attempt of every run; what an older one has beyond the resume round is superseded."""
    device_of = {run_id: assignment.worker.device_uid for assignment in assignments for run_id in assignment.run_ids}
    scheduling.open_attempts(session, now, attempt, resume, {run.no: device_of[run.id] for run in live})
    for assignment in assignments:
        device, resumed = assignment.worker.device_uid, attempt > 1 and resume > 0
        experiments.start_runs(session, assignment.run_ids, device, resumed=resumed, rounds=resume)
    older = live if attempt > 1 else []
    cut = [run for run in older if scheduling.end_older_attempts(session, run.no, attempt, resume)]
    add_events(session, now, block.experiment_id, [_truncation(block, run, attempt, resume) for run in cut])


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


def resume_round(session: Session, run_ids: Sequence[str]) -> int:
    """Return the last common checkpoint: the largest round before which every live run has one."""
    committed = results.committed_checkpoints(session, run_ids)
    common = set.intersection(*({*rounds} for rounds in committed.values())) if committed else set()
    return max(common, default=0)


@dataclass(frozen=True)
class Claimed:
    """A claim's answer: the assignment, with those beside it, or None to be asked again."""

    assignment: Assignment | None


def claim(ctx: Context, worker_id: str) -> Claimed:
    """Hand the worker what it was offered, after a tick where that is nothing; repeating it hands the same again.

    Raises:
        NotFoundError: for an unknown worker.
        GoneError: when the worker is drained (end), or retired or lost (register again).
    """
    with ctx.store.write() as session:
        worker = workers.get(session, worker_id)
        if worker is None:
            raise NotFoundError(f"no worker {worker_id}", code="unknown_worker")
        refuse_gone(session, worker, WorkerStatus.RETIRED, WorkerStatus.LOST)
        offered = leases.offered_to(session, worker)
        assigned = 0
        if not offered and worker.status == WorkerStatus.IDLE:
            assigned = _tick(ctx, session)
            offered = leases.offered_to(session, worker)
        collected = [held for row in offered if (held := _collect(ctx, session, row)) is not None]
    if assigned:
        ctx.bell.ring()
    return Claimed(collected[0].model_copy(update={"beside": collected[1:]}) if collected else None)


def _collect(ctx: Context, session: Session, offered: AssignmentRow) -> Assignment | None:
    token = secrets.token_hex(16)
    expires = ctx.store.now(session) + ctx.settings.lease_ttl_seconds
    values = {"token": leases.token_hash(token), "collected": True, "expires_epoch": expires}
    # a claim sent twice must not replace the token of what has been accepted meanwhile
    held = leases.collect(session, offered.id, **values)
    return assignment_document(session, offered, token) if held else None


def assignment_document(session: Session, row: AssignmentRow, token: str) -> Assignment:
    """Return all that a supervisor and its child need to train their assignment."""
    block = blocks.with_experiment(session, row.block_id)
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
        runs=_assigned_runs(session, block, arms, experiments.runs_of_assignment(session, row.id)),
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
    session: Session, block: BlockRow, arms: Mapping[int, ArmRow], runs: Sequence[RunOfArm]
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
