"""A cohort of environments in the lockstep loop, with the runs whose environments it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from worker.envs.base import LockstepEnvs
from worker.train.plan import owned
from worker.train.runs import Run
from worker.train.stacking import ActingStack


@dataclass(frozen=True)
class CohortRuns:
    """A cohort in the loop, with its runs and which part of each it holds; some are acted for in stacks."""

    envs: LockstepEnvs
    runs: Sequence[Run]
    part: int
    stacks: Sequence[ActingStack] = ()

    def issue(self, t: int) -> None:
        """Act for every run and start step ``t``."""
        chosen: dict[int, Tensor | None] = {}
        for stack in self.stacks:
            chosen |= zip(map(id, stack.runs), stack.act(t), strict=True)
        for run in self.runs:
            if id(run) not in chosen:
                with owned(run.plan, "acting"):
                    chosen[id(run)] = run.act(t, self.part)
        self.envs.issue([chosen[id(run)] for run in self.runs])

    def collect(self, t: int) -> None:
        """Wait for step ``t`` and store what it led to."""
        found = {id(run): seen for run, seen in zip(self.runs, self.envs.collect(), strict=True)}
        for stack in self.stacks:
            stack.see(t, [found.pop(id(run)) for run in stack.runs])
        for run in self.runs:
            if (seen := found.get(id(run))) is not None:
                with owned(run.plan, "rollout"):
                    run.see(t, seen, self.part)

    def pay(self, t: int) -> None:
        """Store what step ``t`` paid."""
        found = {id(run): reward for run, reward in zip(self.runs, self.envs.pay(), strict=True)}
        for stack in self.stacks:
            stack.pay(t, [found.pop(id(run)) for run in stack.runs])
        for run in self.runs:
            if (reward := found.get(id(run))) is not None:
                with owned(run.plan, "rollout"):
                    run.pay(t, reward, self.part)
