"""The scheduling tick (control-plane.md 4): passes over the queue, each one transaction, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.queue.granting import Choice, Grant, Takers, grant
from app.services.queue.placement import Fit, Need, Pack, Wait, WorkerView, class_to_hold, fit, pack_size
from app.settings import Settings
from app.store.queue import blocks, scheduling, workers
from app.store.rows.experiments import WaitingBlock
from app.store.rows.workers import PresentWorker, SchedulableWorker
from lockstep.status import Cause, WorkerStatus

#: Blocks that one pass assigns at most; those that share processes are assigned together, however many.
AT_ONCE = 50
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
    assigned = 0
    while True:
        with ctx.store.write() as session:
            given = give(ctx, session, scheduling.registered_workers(session))
        assigned += len(given)
        if given:
            ctx.bell.ring()
        if len(given) < AT_ONCE:
            return assigned


def give(ctx: Context, session: Session, present: Sequence[PresentWorker], told: Set[str] = frozenset()) -> list[Grant]:
    """Make one pass over the queue, unless somebody else does; return what it has given away.

    It ends with ``AT_ONCE`` blocks, so that nobody waits long for its locks; there may be more for the next one.

    Args:
        ctx: of the process.
        session: a writing transaction.
        present: the registered workers, as just read.
        told: ids of those that are told in this transaction what they are given.
    """
    now = scheduling.begin_pass(ctx.store, session)
    if now is None:
        return []
    idle = {row.id: row for row in scheduling.idle_workers(session, now, ctx.settings.lease_ttl_seconds)}
    if not idle:
        return []
    views = {row.id: worker_view(row, idle=row.id in idle) for row in present}
    queue_pass = _pass(ctx, session, now, views)
    return grant(ctx, session, now, _choose(session, queue_pass, len(idle)), Takers(idle, told))


def _pass(ctx: Context, session: Session, now: float, views: dict[str, WorkerView]) -> _Tick:
    use = scheduling.owner_use(session, now)
    return _Tick(ctx.settings, now, views, dict(use.in_use), use.shares, _ready_of(session, now))


def _choose(session: Session, queue_pass: _Tick, num_idle: int) -> list[Choice]:
    """Return what a pass over the queue gives to whom, in order."""
    chosen: list[Choice] = []
    seen = 0
    size = min(num_idle, AT_ONCE) + 1  # one page serves, unless blocks do not fit or are packed
    while seen < _MAX_BLOCKS and queue_pass.goes_on():
        full = queue_pass.full_owners()
        shares = queue_pass.shares
        page = scheduling.eligible_blocks(session, queue_pass.now, shares, limit=size, skip=seen, without=full)
        live = _num_live(session, page)
        for block in page:
            if not queue_pass.goes_on() or (len(chosen) >= AT_ONCE and not queue_pass.packs):
                return chosen  # each further block would cost queries for nothing
            choice = queue_pass.choose(block, live[block.id])
            if isinstance(choice, Fit):
                chosen.append(Choice(block, choice))
        seen += len(page)
        if len(page) < size:
            break
        size = _BATCH
    return chosen


def _num_live(session: Session, page: Sequence[WaitingBlock]) -> dict[str, int]:
    """Return by block how many of its runs still train; of one that was never assigned that is all."""
    again = [block.id for block in page if block.attempt > 0]
    counts = blocks.count_live_runs(session, again) if again else {}
    return {block.id: counts.get(block.id, 0) if block.attempt > 0 else block.num_arms for block in page}


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
    shares: Mapping[str, float]
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
            joined = pack.join(self.views) if pack is not None and may_pack(block) else None
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
            free = [view for view in self.views.values() if view.device_class not in self.held]
            most = self.settings.owner_device_limit - self.in_use[block.owner] + 1  # this block's worker is counted
            known = Pack(pack_size(need, waiting, free, most), waiting - 1, need)
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
    queue_pass = _pass(ctx, session, now, dict(views))
    rows = scheduling.eligible_blocks(session, now, queue_pass.shares, limit=limit)
    live = _num_live(session, rows)
    return [(row, queue_pass.choose(row, live[row.id])) for row in rows]


def unused(ctx: Context, session: Session, now: float) -> list[WorkerView]:
    """Return the free workers that the next tick would give nothing; none while the queue is paused."""
    idle = scheduling.idle_ids(session, now, ctx.settings.lease_ttl_seconds)
    if not idle or scheduling.queue_paused(session):
        return []
    views = {row.id: worker_view(row, idle=row.id in idle) for row in scheduling.registered_workers(session)}
    queue_pass = _pass(ctx, session, now, views)
    rows = scheduling.eligible_blocks(session, now, queue_pass.shares, limit=_MAX_BLOCKS)
    live = _num_live(session, rows)
    for row in rows:
        queue_pass.choose(row, live[row.id])
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
        rewards=_sound(workers.usable_rewards(row.rewards)),
        environments=_sound(workers.usable_environments(row.environments)),
    )


def _sound(usable: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, facts in usable.items() if "defect" not in facts)


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
        at_home=bool(needs.get("at_home", False)),
    )
