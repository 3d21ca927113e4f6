"""From a resolved spec to blocks and runs: pure arithmetic, no identifiers, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.spec.environments.families import family_of
from lockstep.spec.resolve import ResolvedSpec


@dataclass(frozen=True)
class PlannedBlock:
    """All arms of one replicate."""

    replicate: int
    arms: tuple[str, ...]


#: How frozen policies choose, by ``eval.mode``; in training every action is sampled.
ACTING = {
    "greedy": "acting greedily",
    "sample": "sampling its actions as in training",
    "both": "acting greedily, and again sampling its actions as in training",
}


@dataclass(frozen=True)
class Plan:
    """What a spec would run.

    Attributes:
        blocks: one per replicate, in order.
        env_steps_per_run: the budget of a run.
        memory_bytes: estimated device memory of one worker's share.
        evaluation: how many episodes judge a policy and when one is cut, for people.
        seconds_per_block: rough estimate on one CPU slot; None where nothing is known.
    """

    blocks: tuple[PlannedBlock, ...]
    env_steps_per_run: int
    memory_bytes: int
    evaluation: str
    seconds_per_block: float | None


def make_plan(resolved: ResolvedSpec) -> Plan:
    """Return the blocks of a specification and what they cost."""
    labels = tuple(arm.label for arm in resolved.arms)
    env, steps = resolved.spec.env, env_steps_per_run(resolved)
    family = family_of(env.kind)
    return Plan(
        blocks=tuple(PlannedBlock(index, labels) for index in range(resolved.spec.experiment.replicates)),
        env_steps_per_run=steps,
        evaluation=_evaluation(resolved),
        memory_bytes=family.memory_bytes(env, len(labels)),
        seconds_per_block=family.seconds(env, steps * len(labels)),
    )


def env_steps_per_run(resolved: ResolvedSpec) -> int:
    """Return rounds x n_envs x steps of a round."""
    spec = resolved.spec
    return spec.budget.rounds * spec.env.n_envs * family_of(spec.env.kind).steps_per_round(spec.env)


def _evaluation(resolved: ResolvedSpec) -> str:
    section, last = resolved.spec.eval, family_of(resolved.spec.env.kind).eval_max_steps
    text = f"evaluation: {section.episodes} episode{'s' if section.episodes != 1 else ''} of each policy"
    text += f", {ACTING[section.mode]} (eval.mode)"
    if last is None:
        return text
    if section.max_steps is not None:
        return f"{text}, cut after {section.max_steps} steps (eval.max_steps)"
    if resolved.spec.env.max_episode_steps is not None:
        return f"{text}, cut after {resolved.spec.env.max_episode_steps} steps (env.max_episode_steps)"
    return f"{text}, cut at the environment's own limit, where it has none after {last:,} steps (eval.max_steps)"


def as_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data for the API."""
    return {
        "num_blocks": len(plan.blocks),
        "num_runs": sum(len(block.arms) for block in plan.blocks),
        "env_steps_per_run": plan.env_steps_per_run,
        "evaluation": plan.evaluation,
        "memory_estimate_bytes": plan.memory_bytes,
        "seconds_per_block_estimate": plan.seconds_per_block,
        "blocks": [{"replicate": block.replicate, "arms": list(block.arms)} for block in plan.blocks],
    }
