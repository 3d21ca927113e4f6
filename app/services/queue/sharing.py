"""A free worker that nothing in the queue suits takes its even share of what another trains side by side.

Who registers first is given all replicates that wait. Those beyond its even share are given back when another worker
that could train them stays free: each stops at its next round border, loses nothing, and costs no budget. They are
assigned again when the last of them has come in, so that whoever takes them can train them side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.fencing import grace
from app.services.queue import forecast
from app.services.queue.placement import Fit, WorkerView, even_share, fit, most_blocks
from app.services.queue.scheduling import need_from, unused
from app.store import experiments
from app.store.queue import blocks, leases, scheduling
from app.store.queue.blocks import Why
from app.store.rows.assignments import LiveAssignment
from app.store.rows.experiments import BlockRow, ListedExperiment
from lockstep.status import BlockStatus, Cause, Desired

#: What has less to train than so many seconds stays where it is: moving it takes a heartbeat, a border and a start.
WORTH_SECONDS = 60.0
_HELD = (BlockStatus.RESERVED, BlockStatus.RUNNING)


@dataclass(frozen=True)
class Held:
    """What one worker holds of an experiment.

    Attributes:
        number: blocks that it trains.
        movable: ids of those that may be given back, in that order.
    """

    number: int
    movable: Sequence[str]


def to_give_back(held: Sequence[Held], rooms: Sequence[int]) -> list[str]:
    """Return the blocks beyond each holder's even share, no more than the shares of the free workers.

    Args:
        held: what the workers hold that train them.
        rooms: how many blocks each free worker can hold.
    """
    numbers = [one.number for one in held]
    share = even_share(sum(numbers), [*numbers, *rooms])
    beyond = [block for one in held for block in one.movable[: max(0, one.number - share)]]
    return beyond[: sum(min(share, room) for room in rooms)]


@dataclass(frozen=True)
class _Move:
    """A block to give back in its attempt, why, and when it is assigned again at the latest if others are not back."""

    block: BlockRow
    text: str
    not_before: float


def share(ctx: Context) -> int:
    """Give back what free workers could train; return how many blocks begin to stop."""
    with ctx.store.read() as session:
        moves = _moves(ctx, session)
    changed = 0
    for move in moves:
        with ctx.store.write() as session:
            changed += _give_back(ctx, session, ctx.store.now(session), move)
    if changed:
        ctx.bell.ring()
    return changed


def _give_back(ctx: Context, session: Session, now: float, move: _Move) -> int:
    block = blocks.get(session, move.block.id, lock=True)
    if (
        block is None
        or block.attempt != move.block.attempt
        or block.status not in _HELD
        or block.desired != Desired.RUN
    ):
        return 0
    blocks.change(session, block.id, not_before_epoch=move.not_before)
    why = Why("scheduler", Cause.PREEMPTED, move.text)
    return int(blocks.stop(session, now, block, why, grace_seconds=grace(ctx, session, block), counts=False))


def _moves(ctx: Context, session: Session) -> list[_Move]:
    """Return what to give back of the first experiment of which anything should be."""
    now = ctx.store.now(session)
    packed = _packed(session)
    free = unused(ctx, session, now) if packed else []
    if not free:
        return []
    in_use, listed = scheduling.owner_use(session, now).in_use, experiments.listed(session, packed)
    states = experiments.block_states(session, packed)
    rows = {row.id: row for row in blocks.in_states(session, _HELD)}
    for name, held in packed.items():
        if any(state.status == BlockStatus.QUEUED for state in states[name]):
            continue  # what was given back waits for others, or what failed to be tried again: that comes first
        experiment = listed[name]
        room = ctx.settings.owner_device_limit - in_use.get(experiment.owner, 0)
        able = _able(experiment, free)[: max(0, room)]
        pace = forecast.seconds_a_round(experiment.rounds, states[name], now)
        found = to_give_back(
            [_held(of, rows, experiment, pace) for of in held.values()], [number for _, number in able]
        )
        if able and found:
            names = ", ".join(sorted(device for device, _ in able))
            text = f"shared with {names}, which had nothing to train"
            # one instant for all: by it they are known to belong together
            not_before = now + grace(ctx, session, rows[found[0]])
            return [_Move(rows[block], text, not_before) for block in found]
    return []


def _packed(session: Session) -> dict[str, dict[str, list[LiveAssignment]]]:
    """Return {experiment: {worker: leases}} where a worker trains several blocks and none is on its way back."""
    held: dict[str, dict[str, list[LiveAssignment]]] = {}
    for lease in leases.live(session):
        held.setdefault(lease.experiment_id, {}).setdefault(lease.worker_id, []).append(lease)
    return {
        name: of
        for name, of in held.items()
        if any(len(rows) > 1 for rows in of.values())
        and all(row.block_status in _HELD for rows in of.values() for row in rows)
    }


def _able(experiment: ListedExperiment, free: Sequence[WorkerView]) -> list[tuple[str, int]]:
    """Return device and room of each free worker that may train blocks of an experiment whose packs share evenly."""
    if not experiment.needs.get("pack_evenly") or experiment.desired != Desired.RUN:
        return []
    need = need_from(experiment.needs, "shared_device", experiment.num_arms)
    return [(view.device_uid, most_blocks(need, view)) for view in free if isinstance(fit(need, [view]), Fit)]


def _held(
    of: Sequence[LiveAssignment], rows: Mapping[str, BlockRow], experiment: ListedExperiment, pace: float | None
) -> Held:
    """Return what a worker holds; the last replicate is the first to go."""
    mine = sorted((rows[lease.block_id] for lease in of if lease.block_id in rows), key=lambda row: -row.replicate)
    worth = [row.id for row in mine if pace is None or pace * (experiment.rounds - row.open_round) >= WORTH_SECONDS]
    return Held(len(mine), worth)
