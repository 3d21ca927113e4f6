"""Runs of a block or of several, worked on together where that changes no number: acting and updates.

Runs are stacked when their networks have one shape and everything that a batched call shares is equal; every other
run, and one that finds no companion, goes the plain way. Which runs are stacked is told at the start of a block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from torch import Tensor

from worker.envs.base import Seen, Taken
from worker.rl.algorithms.base import Played
from worker.rl.rollout import PolicyError, no_usable_action
from worker.rl.stacks import RolloutStack, acting_key
from worker.train.plan import owned
from worker.train.runs import Run, TrainedRun

RunT = TypeVar("RunT")


class ActingStack:
    """Runs that are acted for in one forward, and what they see.

    Args:
        runs: of one ``acting_key``, each with all its environments in one part.
    """

    def __init__(self, runs: Sequence[TrainedRun]) -> None:
        self.runs = list(runs)
        self._stack = RolloutStack([run.learner for run in runs], [run.rollouts[0] for run in runs])

    def begin(self) -> None:
        """Start the round that every run has begun."""
        self._stack.begin([run.draws for run in self.runs])

    def act(self, t: int) -> list[Tensor | None]:
        """Return the actions of step ``t`` of each run, None once it has failed."""
        actions = self._stack.act(t)
        self._note_failures(t)
        return actions

    def act_for_all(self, t: int) -> Tensor | None:
        """Act in step ``t``; return the actions of all runs [R, E, C], None once one has failed."""
        actions = self._stack.choose(t)
        if actions is None:
            self._note_failures(t)
        return actions

    def acted(self, t: int) -> list[Tensor | None]:
        """Return the actions of step ``t`` of each run, once they have been chosen; None of one that has failed."""
        return self._stack.chosen(t)

    def _note_failures(self, t: int) -> None:
        for run, failed in zip(self.runs, self._stack.failed, strict=True):
            if failed is not None and run.diverged is None:
                run.fail(no_usable_action(t))

    def see_all(self, t: int, taken: Taken) -> None:
        """Store what step ``t`` led to and paid, of all runs in one piece."""
        self._stack.see_all(t, taken)

    def see(self, t: int, results: Sequence[Seen | None]) -> None:
        """Store what step ``t`` led to for each run."""
        self._stack.see(t, results)

    def pay(self, t: int, rewards: Sequence[Tensor | None]) -> None:
        """Store what step ``t`` paid each run."""
        self._stack.pay(t, rewards)

    def end(self) -> None:
        """Hand every run what was recorded of it."""
        self._stack.end()


def acting_stacks(runs: Iterable[Run]) -> list[list[TrainedRun]]:
    """Return the live runs that can be acted for together, two or more at a time."""
    keyed = [(_acting_key(run), run) for run in runs if isinstance(run, TrainedRun)]
    return [group for _, group in _by_key(keyed) if len(group) > 1]


def _acting_key(run: TrainedRun) -> Hashable | None:
    if run.diverged is not None or run.algorithm.stacking is None or len(run.rollouts) > 1:
        return None
    return acting_key(run.learner)


def update_all(
    runs: Sequence[Run], *, stacked: bool, guard: Callable[[Run], AbstractContextManager[object]]
) -> Iterator[tuple[Run, dict[str, float]]]:
    """Update runs in their order, those of one stack together; yield each with its metrics once it is done.

    Args:
        runs: live runs, of one block or several.
        stacked: whether runs are updated together where they can be.
        guard: context of what a run does alone; where it keeps an error, the run is not yielded.
    """
    keyed = ((_update_key(run) if stacked else None, run) for run in runs)
    for key, group in _by_key(keyed):
        if key is None or len(group) == 1:
            for run in group:
                with guard(run), owned(run.plan, "update"):
                    yield run, run.update()
        else:
            yield from _update_together([run for run in group if isinstance(run, TrainedRun)], guard)


def _update_key(run: Run) -> Hashable | None:
    if not isinstance(run, TrainedRun) or run.algorithm.stacking is None:
        return None
    key = run.algorithm.stacking.key(run.learner, run.num_steps)
    return None if key is None else (run.algorithm.name, key)


def _update_together(
    runs: Sequence[TrainedRun], guard: Callable[[Run], AbstractContextManager[object]]
) -> Iterator[tuple[Run, dict[str, float]]]:
    stacking = runs[0].algorithm.stacking
    if stacking is None:
        raise TypeError("runs whose algorithm updates one at a time are no stack")
    began = time.perf_counter()

    @contextmanager
    def alone(index: int) -> Iterator[None]:
        run = runs[index]
        with guard(run), owned(run.plan, "update"):
            try:
                yield
            except PolicyError as error:
                run.fail(error)

    played = [Played(run.learner, run.rollout, run.round, run.floors) for run in runs]
    prepared = stacking.prepare(played, alone)
    yield from ((run, {}) for run in runs if run.diverged is not None)
    due = {index: runs[index].ready(prepared[index]) for index in sorted(prepared)}
    if not due:
        return
    found = stacking.update(list(due.values()))
    share = (time.perf_counter() - began) / len(due)
    for index, metrics in zip(due, found, strict=True):
        with guard(runs[index]), owned(runs[index].plan, "update"):
            yield runs[index], runs[index].updated(metrics, time.perf_counter() - share)


def _by_key(keyed: Iterable[tuple[Hashable | None, RunT]]) -> list[tuple[Hashable | None, list[RunT]]]:
    """Return what has one key together, in the order of the first; what has none on its own."""
    groups: dict[Hashable, list[RunT]] = {}
    for position, (key, run) in enumerate(keyed):
        groups.setdefault((position,) if key is None else (key,), []).append(run)
    return [(None if len(group) == 1 else key, group) for key, group in groups.items()]
