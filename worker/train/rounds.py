"""One round of a block, or of several blocks step by step together: roll out, update, evaluate, record.

Blocks of one experiment that a process trains side by side need not stand at the same round: what is stacked is a step.
Runs of all of them whose networks have one shape are acted for and updated together where that changes no number
(``worker.train.stacking``). What a block does alone is guarded: when it fails there, its round ends with that error and
the others' go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worker.envs.base import LockstepEnvs
from worker.train.cohort_runs import CohortRuns, Guard, Wave, Whole, companions_of, take_steps
from worker.train.evaluate import Evaluation
from worker.train.plan import RoundRecord, owned
from worker.train.runs import Run, TrainedRun
from worker.train.stacking import ActingStack, acting_stacks, update_all


class Block(Protocol):
    """What a round asks of a block."""

    runs: list[Run]
    envs: LockstepEnvs

    def enter(self) -> None:
        """Note that work of this block begins."""
        ...

    def reached(self, round_index: int, step: int) -> None:
        """Note that a step has been taken."""
        ...

    def alive(self) -> None:
        """Note that the work goes on."""
        ...

    def begin_round(self, round_index: int) -> None:
        """Begin the round in every live run."""
        ...

    def arms_in_order(self, round_index: int) -> list[int]:
        """Return the arm indices in the order of their updates."""
        ...

    def evaluate(self, round_index: int) -> dict[str, Evaluation]:
        """Return the evaluation of every live run by run id; none where it is not due."""
        ...

    def record(self, done: Done) -> RoundRecord:
        """Return the record of a finished round."""
        ...


@dataclass
class Done:
    """What a round has come to for one block.

    Attributes:
        round: index.
        live: which runs began it.
        order: arm indices in the order of their updates.
        updates: metrics of the algorithm by arm index.
        evaluations: by run id.
        seconds: wall time of rollout, update and evaluation, of all blocks that were trained together.
    """

    round: int
    live: list[bool]
    order: list[int] = field(default_factory=list)
    updates: dict[int, dict[str, float]] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Rounds:
    """Trains rounds of blocks of one process.

    Args:
        stacked: whether runs are acted for and updated together where they can be; no number depends on it.
    """

    def __init__(self, *, stacked: bool) -> None:
        self._stacked, self._stacks = stacked, list[ActingStack]()

    def train(self, due: Sequence[tuple[Block, int]]) -> list[RoundRecord | Exception]:
        """Train one round of each block and return its record, or what ended it.

        Args:
            due: blocks, each with the index of its round.
        """
        parts = [_Part(block, index) for block, index in due]
        try:
            self._train(parts)
        except Exception as error:  # in what the blocks have in common
            for part in parts:
                part.guard.fault = part.guard.fault or error
        return [part.outcome() for part in parts]

    def groups(self, blocks: Sequence[Block]) -> list[list[TrainedRun]]:
        """Return the live runs that are acted for together; none where environments step out of phase."""
        if not self._stacked or any(len(block.envs.cohorts) > 1 for block in blocks):
            return []
        return acting_stacks(run for block in blocks for run in block.runs)

    def _train(self, parts: Sequence[_Part]) -> None:
        began = time.perf_counter()
        for part in parts:
            with part.guard:
                part.block.begin_round(part.done.round)
        self._roll([part for part in parts if part.guard.fault is None])
        rolled = time.perf_counter()
        self._update([part for part in parts if part.guard.fault is None])
        updated = time.perf_counter()
        for part in parts:
            if part.guard.fault is None:
                with part.guard:
                    part.done.evaluations = part.block.evaluate(part.done.round)
        ended = time.perf_counter()
        for part in parts:
            part.done.seconds = rolled - began, updated - rolled, ended - updated

    def _roll(self, parts: Sequence[_Part]) -> None:
        """Step every cohort through the round."""
        if not parts:
            return

        def reached(t: int) -> bool:
            for part in parts:
                part.block.reached(part.done.round, t)
            return any(part.guard.fault is None for part in parts)

        steps, stacks = parts[0].block.envs.steps_per_round, self._stacks_of([part.block for part in parts])
        waves = _waves(parts, stacks)
        for stack in stacks:
            stack.begin()
        take_steps(waves, steps, reached)
        for stack in stacks:
            stack.end()
        for part in parts:
            part.end_rollout()

    def _stacks_of(self, blocks: Sequence[Block]) -> list[ActingStack]:
        """Return what acts for several live runs at once; it is kept while the same runs live."""
        groups = self.groups(blocks)
        if [stack.runs for stack in self._stacks] != groups:
            self._stacks = [ActingStack(group) for group in groups]
        return self._stacks

    def _update(self, parts: Sequence[_Part]) -> None:
        part_of: dict[int, _Part] = {}
        runs: list[Run] = []
        for part in parts:
            part.done.order = part.block.arms_in_order(part.done.round)
            by_arm = {run.plan.arm_index: run for run in part.block.runs if run.diverged is None}
            mine = [by_arm[arm] for arm in part.done.order if arm in by_arm]
            part_of |= {id(run): part for run in mine}
            runs += mine
        for run, metrics in update_all(runs, stacked=self._stacked, guard=lambda run: part_of[id(run)].guard):
            part = part_of[id(run)]
            part.done.updates[run.plan.arm_index] = metrics
            part.block.alive()


class _Part:
    """A block in a round."""

    def __init__(self, block: Block, round_index: int) -> None:
        self.block, self.guard = block, Guard(block.enter)
        self.done = Done(round_index, [run.diverged is None for run in block.runs])

    def cohorts(self) -> list[CohortRuns]:
        """Return the cohorts of the block with their runs."""
        runs = self.block.runs
        return [
            CohortRuns(cohort.envs, [runs[i] for i in cohort.runs], cohort.part, self.guard)
            for cohort in self.block.envs.cohorts
        ]

    def end_rollout(self) -> None:
        """Hand every run that began the round what was recorded of it."""
        for run, live in zip(self.block.runs, self.done.live, strict=True):
            if live and self.guard.fault is None:
                with self.guard, owned(run.plan, "rollout"):
                    run.end()

    def outcome(self) -> RoundRecord | Exception:
        """Return the record of the round, or what ended it."""
        if self.guard.fault is None:
            with self.guard:
                return self.block.record(self.done)
        if self.guard.fault is None:
            raise RuntimeError("a round without a record or an error")
        return self.guard.fault


def _waves(parts: Sequence[_Part], stacks: Sequence[ActingStack]) -> list[Wave | Whole]:
    cohorts = [cohort for part in parts for cohort in part.cohorts()]
    if all(len(part.block.envs.cohorts) == 1 for part in parts):
        return [Whole.of(Wave(cohorts, stacks, companions_of(cohorts)))]
    return [Wave([cohort]) for cohort in cohorts]
