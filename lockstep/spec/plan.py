"""From a resolved spec to blocks and runs: pure arithmetic, no identifiers, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.spec import tasks
from lockstep.spec.resolve import ResolvedSpec

#: Seconds of one env step of one environment on one CPU thread, by task; only for estimates.
_CPU_STEP_SECONDS = {"digits_tiny": 0.006, "digits_small": 0.008, "synth_small": 0.05, "lm_tiny": 1.0}
_PER_HOST_BYTES = 160 * 2**20


@dataclass(frozen=True)
class PlannedBlock:
    """All arms of one replicate."""

    replicate: int
    arms: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What a spec would run.

    Attributes:
        blocks: one per replicate, in order.
        env_steps_per_run: the budget of a run.
        memory_bytes: estimated device memory of one worker's share.
        seconds_per_block: rough estimate on one CPU slot; None where nothing is known.
    """

    blocks: tuple[PlannedBlock, ...]
    env_steps_per_run: int
    memory_bytes: int
    seconds_per_block: float | None


def make_plan(resolved: ResolvedSpec) -> Plan:
    """Return the blocks of a specification and what they cost."""
    labels = tuple(arm.label for arm in resolved.arms)
    replicates = resolved.spec.experiment.replicates
    steps = env_steps_per_run(resolved)
    return Plan(
        blocks=tuple(PlannedBlock(index, labels) for index in range(replicates)),
        env_steps_per_run=steps,
        memory_bytes=_memory_bytes(resolved),
        seconds_per_block=_seconds(resolved, steps * len(labels)),
    )


def env_steps_per_run(resolved: ResolvedSpec) -> int:
    """Return rounds x n_envs x steps of a round."""
    spec = resolved.spec
    steps = spec.env.rollout_steps if spec.env.kind == "gymnasium" else int(spec.env.horizon or 0)
    return spec.budget.rounds * spec.env.n_envs * steps


def _memory_bytes(resolved: ResolvedSpec) -> int:
    spec = resolved.spec
    if spec.env.kind == "gymnasium":
        return 2**28
    hosts = len(resolved.arms) * spec.env.n_envs
    return 2**30 + hosts * _PER_HOST_BYTES


def _seconds(resolved: ResolvedSpec, env_steps: int) -> float | None:
    env = resolved.spec.env
    if env.kind == "gymnasium":
        return round(env_steps / 4_000 + 5, 1)
    unit = _CPU_STEP_SECONDS.get(env.task)
    if unit is None:
        return None
    share = int(env.batches_per_step or 1) / tasks.TASKS[env.task].batches_per_step
    return round(env_steps * unit * max(0.3, share) + 6, 1)


def as_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data for the API."""
    return {
        "num_blocks": len(plan.blocks),
        "num_runs": sum(len(block.arms) for block in plan.blocks),
        "env_steps_per_run": plan.env_steps_per_run,
        "memory_estimate_bytes": plan.memory_bytes,
        "seconds_per_block_estimate": plan.seconds_per_block,
        "blocks": [{"replicate": block.replicate, "arms": list(block.arms)} for block in plan.blocks],
    }
