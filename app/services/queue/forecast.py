"""When what waits will start and what runs will end, from measured rates: pure, so that tests set the clock.

A guess, and shown as one: the scheduler's own choice of workers is played forward in the order of the queue, each
replicate as long as those of its experiment have been so far. What has not been measured yet is unknown, never guessed
from the specification; so is all that depends on it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

from app.services.queue.placement import Fit, Need, Pack, WorkerView, fit, pack_size
from app.store.rows.experiments import BlockState
from lockstep.status import TERMINAL_BLOCK, BlockStatus


def seconds_a_round(rounds: int, states: Sequence[BlockState], now: float) -> float | None:
    """Return how long a round of an experiment has taken per replicate, or None before the first is complete."""
    begun = [(state, done_of(rounds, state)) for state in states if state.started_at is not None]
    elapsed = sum(_elapsed(state, now) for state, done in begun if done)
    done = sum(done for _, done in begun)
    return elapsed / done if done else None


def done_of(rounds: int, state: BlockState) -> int:
    """Return the complete rounds of a replicate."""
    return rounds if state.status == BlockStatus.SUCCEEDED else state.open_round


def _elapsed(state: BlockState, now: float) -> float:
    if state.started_at is None:
        return 0.0
    end = state.finished_at.timestamp() if state.finished_at else now
    return max(0.0, end - state.started_at.timestamp())


def seconds_left(rounds: int, states: Sequence[BlockState], now: float) -> float | None:
    """Return when an experiment will end at the rate since its first replicate began, or None where none is known."""
    started = [state.started_at.timestamp() for state in states if state.started_at is not None]
    total, done = rounds * len(states), sum(done_of(rounds, state) for state in states)
    if not started or not done or all(BlockStatus(state.status) in TERMINAL_BLOCK for state in states):
        return None
    return max(0.0, now - min(started)) / done * (total - done)


@dataclass(frozen=True)
class Waiting:
    """A block that waits.

    Attributes:
        need: what it needs.
        seconds: how long it will train, None where that is not known.
        experiment_id: whose it is.
        owner: whose that is.
        packs: whether it may share a process with others of its experiment.
    """

    need: Need
    seconds: float | None
    experiment_id: str
    owner: str
    packs: bool


class Shares:
    """Which owner uses how many workers at what time, of those that each may use at once.

    Args:
        limit: workers of one owner.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spans: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, owner: str, start: float, end: float) -> None:
        """An owner uses a worker between two times."""
        self._spans[owner].append((start, end))

    def left(self, owner: str, at: float) -> int:
        """Return how many more workers an owner may use at a time."""
        return self._limit - sum(start <= at < end for start, end in self._spans[owner])

    def ends(self, owner: str) -> set[float]:
        """Return when an owner will have done with a worker."""
        return {end for _, end in self._spans[owner]}


def starts(
    views: Sequence[WorkerView], free: Mapping[str, float], waiting: Sequence[Waiting], shares: Shares
) -> list[float | None]:
    """Return in how many seconds each waiting block will start, None where that is unknown.

    Args:
        views: the registered workers.
        free: in how many seconds each worker is free; infinite where unknown.
        waiting: in the order of the queue.
        shares: what owners use by then; what the waiting blocks will use joins it.
    """
    known, workers = dict(free), {view.id: view for view in views}
    packs: dict[tuple[str, float], Pack] = {}
    ahead = Counter(block.experiment_id for block in waiting)
    found: list[float | None] = []
    for block in waiting:
        start, chosen = _first_fit(block, views, known, shares)
        joined = _join(block, packs, workers, start) if block.packs else None
        if joined is None and start is not None and block.packs and block.need.pack > 1 and len(chosen) == 1:
            free_then = [replace(view, idle=known.get(view.id, inf) <= start) for view in views]
            size = pack_size(block.need, ahead[block.experiment_id], free_then, shares.left(block.owner, start))
            pack = packs.setdefault((block.experiment_id, start), Pack(size, ahead[block.experiment_id], block.need))
            pack.held[chosen[0].id] = 1
        ahead[block.experiment_id] -= 1
        found.append(start if joined is None else joined)
        for worker in chosen if joined is None else ():
            known[worker.id] = inf if start is None or block.seconds is None else start + block.seconds
            shares.add(block.owner, start or 0.0, known[worker.id])
    return found


def _join(
    block: Waiting, packs: Mapping[tuple[str, float], Pack], workers: Mapping[str, WorkerView], start: float | None
) -> float | None:
    """Return when a block starts beside another of its experiment, if that is before it has a worker of its own."""
    for (experiment_id, at), pack in sorted(packs.items()):
        if experiment_id == block.experiment_id and (start is None or at < start):
            choice = pack.join(workers)
            if choice is not None:
                pack.held[choice.workers[0].id] += 1
                return at
    return None


def _first_fit(
    block: Waiting, views: Sequence[WorkerView], free: Mapping[str, float], shares: Shares
) -> tuple[float | None, tuple[WorkerView, ...]]:
    for at in sorted(filter(isfinite, {*free.values(), *shares.ends(block.owner)})):
        if shares.left(block.owner, at) <= 0:
            continue
        choice = fit(block.need, [replace(view, idle=free.get(view.id, inf) <= at) for view in views])
        if isinstance(choice, Fit):
            return at, choice.workers
    return None, ()
