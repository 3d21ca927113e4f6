"""Cohorts of environments in the lockstep loop, with the runs whose environments they hold.

What one block alone does is done under its guard, so that a failure of it reaches no other block of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from worker.envs.base import Companion, LockstepEnvs, Seen
from worker.train.plan import owned
from worker.train.runs import Run
from worker.train.stacking import ActingStack

FoundT = TypeVar("FoundT")


class InPhase(Protocol):
    """What takes each step together, out of phase with others."""

    def act(self, t: int, /) -> None:
        """Act in step ``t`` and start it."""
        ...

    def collect(self, t: int, /) -> None:
        """Wait for step ``t`` and take in what it led to."""
        ...

    def pay(self, t: int, /) -> None:
        """Take in what step ``t`` paid."""
        ...


def take_steps(waves: Sequence[InPhase], steps: int, reached: Callable[[int], bool]) -> None:
    """Take steps with all waves: the next one of each is issued before others are waited for.

    Args:
        waves: in the order in which they act.
        steps: at most so many.
        reached: called when all have taken a step, with its number; says whether there is more to do.
    """
    for wave in waves:
        wave.act(0)
    for t in range(steps):
        for wave in waves:
            wave.collect(t)
            if t + 1 < steps:
                wave.act(t + 1)
            wave.pay(t)  # worked out while a device trains
        if not reached(t):
            return


class Guard:
    """Context of what one block alone does in a round; its failure is kept for whoever trains it.

    Args:
        entered: called when the work of this block begins.

    Attributes:
        fault: what ended the block's round; nothing more is done for it then.
    """

    def __init__(self, entered: Callable[[], None]) -> None:
        self._entered = entered
        self.fault: Exception | None = None

    def __enter__(self) -> None:
        self._entered()

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.fault = self.fault or error
        return True


@dataclass(frozen=True)
class CohortRuns:
    """A cohort of one block in the loop, with its runs and which part of each it holds."""

    envs: LockstepEnvs
    runs: Sequence[Run]
    part: int
    guard: Guard

    def choose(self, t: int, chosen: Mapping[int, Tensor | None]) -> None:
        """Begin to act in step ``t`` for every run that has no actions yet."""
        for run in self.runs:
            if self.guard.fault is None and id(run) not in chosen:
                with self.guard, owned(run.plan, "acting"):
                    run.choose(t, self.part)

    def issue(self, t: int, chosen: dict[int, Tensor | None]) -> None:
        """Start step ``t`` with the actions chosen."""
        if self.guard.fault is None:
            with self.guard:
                for run in self.runs:
                    if id(run) not in chosen:
                        with owned(run.plan, "acting"):
                            chosen[id(run)] = run.chosen(t, self.part)
                self.envs.issue([chosen[id(run)] for run in self.runs])

    def collect(self) -> dict[int, Seen | None]:
        """Wait for the step and return what each run saw; nothing where the block has failed."""
        return self._of_runs(self.envs.collect)

    def see(self, t: int, found: dict[int, Seen | None]) -> None:
        """Store what step ``t`` led to for the runs in ``found``."""
        for run in self.runs:
            if self.guard.fault is None and (seen := found.get(id(run))) is not None:
                with self.guard, owned(run.plan, "rollout"):
                    run.see(t, seen, self.part)

    def paid(self) -> dict[int, Tensor | None]:
        """Return what the step paid each run; nothing where the block has failed."""
        return self._of_runs(self.envs.pay)

    def pay(self, t: int, found: dict[int, Tensor | None]) -> None:
        """Store what step ``t`` paid the runs in ``found``."""
        for run in self.runs:
            if self.guard.fault is None and (reward := found.get(id(run))) is not None:
                with self.guard, owned(run.plan, "rollout"):
                    run.pay(t, reward, self.part)

    def _of_runs(self, ask: Callable[[], Sequence[FoundT]]) -> dict[int, FoundT]:
        if self.guard.fault is None:
            with self.guard:
                return {id(run): found for run, found in zip(self.runs, ask(), strict=True)}
        return {}


@dataclass(frozen=True)
class Wave:
    """Cohorts that take each step together, some of their runs acted for in stacks, some stepped in one call."""

    cohorts: Sequence[CohortRuns]
    stacks: Sequence[ActingStack] = ()
    companions: Sequence[Sequence[tuple[Companion, Guard]]] = ()

    def act(self, t: int) -> None:
        """Act for every run in step ``t`` and start it; acting is begun for all before the first choice is read."""
        chosen: dict[int, Tensor | None] = {}
        for stack in self.stacks:
            chosen |= zip(map(id, stack.runs), stack.act(t), strict=True)
        for cohort in self.cohorts:
            cohort.choose(t, chosen)
        self.issue(t, chosen)

    def issue(self, t: int, chosen: dict[int, Tensor | None]) -> None:
        """Start step ``t`` with the actions chosen, by run; those of runs acted for alone are read."""
        for cohort in self.cohorts:
            cohort.issue(t, chosen)

    def collect(self, t: int) -> None:
        """Wait for step ``t`` and store what it led to."""
        for group in self.companions:
            live = [envs for envs, guard in group if guard.fault is None]
            if len(live) > 1:
                live[0].take_with(live[1:])
        found: dict[int, Seen | None] = {}
        for cohort in self.cohorts:
            found |= cohort.collect()
        for stack in self.stacks:
            stack.see(t, [found.pop(id(run), None) for run in stack.runs])
        for cohort in self.cohorts:
            cohort.see(t, found)

    def pay(self, t: int) -> None:
        """Store what step ``t`` paid."""
        found: dict[int, Tensor | None] = {}
        for cohort in self.cohorts:
            found |= cohort.paid()
        for stack in self.stacks:
            stack.pay(t, [found.pop(id(run), None) for run in stack.runs])
        for cohort in self.cohorts:
            cohort.pay(t, found)


class Whole:
    """A wave of which all runs are one stack and all environments step in one call: nothing is asked of each alone.

    Where a run or a block fails, the wave takes the rest of the round.

    Args:
        wave: as it would be taken.
    """

    def __init__(self, wave: Wave) -> None:
        self._wave, (self._stack,), (group,) = wave, wave.stacks, wave.companions
        self._envs, self._guards = [envs for envs, _ in group], [guard for _, guard in group]
        self._is_whole, self._is_paid = True, True
        self._actions: Tensor | None = None

    @staticmethod
    def of(wave: Wave) -> Wave | Whole:
        """Return a wave so if it can be taken so."""
        runs = [run for cohort in wave.cohorts for run in cohort.runs]
        if len(wave.stacks) != 1 or wave.stacks[0].runs != runs or len(wave.companions) != 1:
            return wave
        together = [envs for envs, _ in wave.companions[0]]
        is_all = list(map(id, together)) == [id(cohort.envs) for cohort in wave.cohorts]
        return Whole(wave) if is_all and all(envs.is_whole for envs in together) else wave

    def act(self, t: int) -> None:
        """Act for every run in step ``t``; where one fails, start it with the actions of each."""
        if not self._is_whole:
            self._wave.act(t)
            return
        self._actions = self._stack.act_for_all(t)
        if self._actions is None:
            self._is_whole = False
            self._wave.issue(t, dict(zip(map(id, self._stack.runs), self._stack.acted(t), strict=True)))

    def collect(self, t: int) -> None:
        """Take step ``t`` and store what it led to."""
        self._is_paid = self._is_whole
        if not self._is_whole or self._actions is None:
            self._wave.collect(t)
            return
        taken = self._envs[0].take_all(self._envs[1:], self._actions, self._guards.__getitem__)
        self._stack.see_all(t, taken)
        self._is_whole = all(guard.fault is None for guard in self._guards)

    def pay(self, t: int) -> None:
        """Store what step ``t`` paid."""
        if not self._is_paid:
            self._wave.pay(t)


def companions_of(cohorts: Sequence[CohortRuns]) -> list[list[tuple[Companion, Guard]]]:
    """Return the environments that can take their steps in one call, each with the guard of its block."""
    groups: dict[Hashable, list[tuple[Companion, Guard]]] = {}
    for cohort in cohorts:
        if isinstance(cohort.envs, Companion):
            groups.setdefault(cohort.envs.kind, []).append((cohort.envs, cohort.guard))
    return [group for group in groups.values() if len(group) > 1]
