"""Why a block waits, in one sentence with numbers, from the scheduler's own predicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, cast

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.queue import forecast
from app.services.queue.placement import Fit, Wait, WorkerView
from app.services.queue.scheduling import explain_in_order, may_pack, need_of, worker_view
from app.store import experiments
from app.store.queue import scheduling, workers
from app.store.rows.experiments import BlockRow, BlockState, ExperimentRow, ListedExperiment, WaitingBlock
from app.store.rows.workers import HoldingWorker
from lockstep.status import OF_THE_JOB, BlockStatus, Desired

_LIMIT = 500


def why_waiting(
    ctx: Context, session: Session, experiment: ExperimentRow, states: Sequence[BlockRow]
) -> dict[str, Any] | None:
    """Explain why the first queued block of an experiment is not running, or None."""
    queued = [row for row in states if row.status == BlockStatus.QUEUED]
    if not queued:
        return None
    queue = explain_queue(ctx, session)
    waiting = [item for item in queue if item["block_id"] in {row.id for row in queued}]
    if waiting:
        return cast(dict[str, Any], waiting[0]["why_waiting"])
    now = ctx.store.now(session)
    later = min(row.not_before_epoch for row in queued)
    if experiment.desired != Desired.RUN:
        return _why("paused", "the experiment is paused")
    seconds = max(0.0, later - now)
    if not any({*row.budget_used} & OF_THE_JOB for row in queued):
        text = f"waits for others that a free worker is given with it, at most {seconds:.0f} s"
        return _why("shared", text, seconds=seconds)
    return _why("backoff", f"waits {seconds:.0f} s after a failure", seconds=seconds)


def _why(code: str, text: str, **numbers: float) -> dict[str, Any]:
    return {"code": code, "text": text, "numbers": numbers}


def explain_queue(ctx: Context, session: Session) -> list[dict[str, Any]]:
    """Return the eligible blocks in order with the reason why each one waits."""
    return _explained(session, *_decided(ctx, session))


def _decided(ctx: Context, session: Session) -> tuple[list[WorkerView], list[tuple[WaitingBlock, Fit | Wait]]]:
    now = ctx.store.now(session)
    idle = scheduling.idle_ids(session, now, ctx.settings.lease_ttl_seconds)
    views = [worker_view(row, idle=row.id in idle) for row in scheduling.registered_workers(session)]
    return views, explain_in_order(ctx, session, now, {view.id: view for view in views}, _LIMIT)


def _explained(
    session: Session, views: Sequence[WorkerView], decided: Sequence[tuple[WaitingBlock, Fit | Wait]]
) -> list[dict[str, Any]]:
    paused = scheduling.queue_paused(session)
    return [
        {
            "position": position + 1,
            "block_id": block.id,
            "experiment_id": block.experiment_id,
            "replicate": block.replicate,
            "owner": block.owner_name,
            "owner_id": block.owner,
            "priority": block.priority,
            "why_waiting": _reason(choice, views, paused, position),
        }
        for position, (block, choice) in enumerate(decided)
    ]


def _reason(choice: Fit | Wait, views: Sequence[WorkerView], paused: bool, position: int) -> dict[str, Any]:
    if paused:
        return _why("paused", "the queue is paused by an operator")
    if isinstance(choice, Fit):
        return _why("starting", "a device is free; it is assigned at the next tick")
    if choice.code == "needs_devices" and position and any(view.idle for view in views):
        text = f"{position} blocks are ahead in the queue and take the idle devices; it {choice.text}"
        return {"code": "behind_in_order", "text": text, "numbers": {**choice.numbers, "ahead": position}}
    ahead = f"; {position} blocks ahead" if position else ""
    return {
        "code": choice.code,
        "text": choice.text + ahead,
        "numbers": {**choice.numbers, "ahead": position},
    }


def queue_document(ctx: Context) -> dict[str, Any]:
    """Return the queue in order: what waits and why, when it will start at the rates measured so far, and what runs."""
    with ctx.store.read() as session:
        views, decided = _decided(ctx, session)
        items = _explained(session, views, decided)
        holding = [row for row in workers.listing(session) if row.experiment_id is not None]
        ids = {item["experiment_id"] for item in items} | {str(row.experiment_id) for row in holding}
        listed = experiments.listed(session, ids)
        blocks = experiments.block_states(session, ids)
        paused, now = scheduling.queue_paused(session), ctx.store.now(session)
    states = {name: experiments.newest_blocks(rows) for name, rows in blocks.items()}
    held, shares = _seconds_held(listed, states, holding, now), forecast.Shares(ctx.settings.owner_device_limit)
    for worker_id, experiment_id in {row.id: str(row.experiment_id) for row in holding}.items():
        shares.add(listed[experiment_id].owner, 0.0, held[worker_id])
    expected = _starts(views, decided, held, _durations(listed, states, now), shares)
    return {
        "paused": paused,
        "items": [
            {
                **item,
                "name": listed[item["experiment_id"]].name,
                "tags": listed[item["experiment_id"]].tags,
                "starts_in_seconds": None if paused or start is None else round(start, 1),
            }
            for item, start in zip(items, expected, strict=True)
        ],
        "running": [_running(listed[name], states[name], holding, now) for name in sorted(_names(holding))],
    }


def _names(holding: Sequence[HoldingWorker]) -> set[str]:
    return {str(row.experiment_id) for row in holding}


def _durations(
    listed: Mapping[str, ListedExperiment], states: Mapping[str, Sequence[BlockState]], now: float
) -> dict[str, float | None]:
    """Return how many seconds a replicate of each experiment takes, None before a round of it is complete."""
    seconds: dict[str, float | None] = {}
    for name, row in listed.items():
        pace = forecast.seconds_a_round(row.rounds, states[name], now)
        seconds[name] = None if pace is None else pace * row.rounds
    return seconds


def _seconds_held(
    listed: Mapping[str, ListedExperiment],
    states: Mapping[str, Sequence[BlockState]],
    holding: Sequence[HoldingWorker],
    now: float,
) -> dict[str, float]:
    """Return in how many seconds each busy worker is free, infinite where that is unknown."""
    free: dict[str, float] = {}
    for worker in holding:
        name = str(worker.experiment_id)
        rounds = listed[name].rounds
        pace = forecast.seconds_a_round(rounds, states[name], now)
        mine = [state for state in states[name] if state.replicate == worker.replicate]
        left = rounds - max((forecast.done_of(rounds, state) for state in mine), default=0)
        free[worker.id] = max(free.get(worker.id, 0.0), inf if pace is None else pace * left)
    return free


def _starts(
    views: Sequence[WorkerView],
    decided: Sequence[tuple[WaitingBlock, Fit | Wait]],
    held: Mapping[str, float],
    durations: Mapping[str, float | None],
    shares: forecast.Shares,
) -> list[float | None]:
    free = {view.id: held.get(view.id, 0.0 if view.idle else inf) for view in views}
    waiting = []
    for block, _ in decided:
        live = max(1, block.num_arms - block.num_diverged)
        need = need_of(block, block.placement_resolved or block.placement, live)
        seconds, experiment_id = durations[block.experiment_id], block.experiment_id
        waiting.append(forecast.Waiting(need, seconds, experiment_id, block.owner, may_pack(block)))
    return forecast.starts(views, free, waiting, shares)


def _running(
    row: ListedExperiment, states: Sequence[BlockState], holding: Sequence[HoldingWorker], now: float
) -> dict[str, Any]:
    mine = [worker for worker in holding if worker.experiment_id == row.id]
    return {
        "experiment_id": row.id,
        "name": row.name,
        "owner": row.owner_name,
        "owner_id": row.owner,
        "priority": row.priority,
        "tags": row.tags,
        "replicates": sorted({worker.replicate for worker in mine if worker.replicate is not None}),
        "workers": len({worker.id for worker in mine}),
        "seconds_left": forecast.seconds_left(row.rounds, states, now),
    }
