"""Small blocks of real runs, planned from real specifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import tests.worker.envs.kit  # noqa: F401 - registers the task
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from worker.train.block import BlockPlan, BlockTrainer, RoundRecord, RunPlan

CPU = torch.device("cpu")

GYM: dict[str, Any] = {
    "preset": "gym_classic",
    "budget": {"rounds": 3},
    "env": {"kind": "gymnasium", "id": "CartPole-v1", "n_envs": 3, "rollout_steps": 24},
    "net": {"hidden": 16},
    "ppo": {"minibatches": 3, "lr": 3e-3},
    "eval": {"episodes": 2},
}
#: Real-numbered actions; episodes of 10 steps are truncated inside a round.
GYM_BOX: dict[str, Any] = {
    **GYM,
    "preset": "gym_continuous",
    "env": {
        **GYM["env"],
        "id": "Pendulum-v1",
        "kwargs": {"max_episode_steps": 10},
    },
    "ppo": {"minibatches": 3, "epochs": 4},
}
#: An image, choices, flags and numbers in; a choice and a Box out.
GYM_KIT: dict[str, Any] = {
    **GYM_BOX,
    "env": {**GYM["env"], "id": "Kit-v0"},
    "obs_norm": {"enabled": True, "sharing": "shared_frozen", "calibration_episodes": 2},
    "eval": {"episodes": 2, "mode": "both"},
}
GYM_LSTM: dict[str, Any] = {**GYM, "preset": "gym_lstm", "net": {"hidden": 8, "lstm_hidden": 12}}
MORPH: dict[str, Any] = {
    "preset": "digits_cpu",
    "budget": {"rounds": 2},
    "env": {"n_envs": 2, "horizon": 8, "batches_per_step": 1, "val_images": 200, "min_prune_age": 1},
    "net": {"hidden": 16, "lstm_hidden": 16},
    "ppo": {"minibatches": 2, "epochs": 2},
    "eval": {"every_rounds": 2, "episodes": 2},
}

Arms = Sequence[Mapping[str, Any]]
#: Two arms that differ in something that any environment has.
GYM_ARMS: Arms = [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e-3, "ppo.clip": 0.1}}]
BOX_ARMS: Arms = [{"label": "A"}, {"label": "B", "overrides": {"action.bounds": "tanh"}}]
MORPH_ARMS: Arms = [{"label": "A", "reward": "shaped"}, {"label": "B", "reward": "simplified"}]


def block(
    base: Mapping[str, Any],
    arms: Arms,
    *,
    replicate: int = 0,
    seed: int = 321,
    only: tuple[int, ...] | None = None,
    **changes: Mapping[str, Any],
) -> BlockPlan:
    """Plan one block; ``changes`` are sections laid over the base, ``only`` keeps some arms of it."""
    kind = "ab" if any(a.get("reward") or a.get("overrides") or a.get("policy") for a in arms) else "aa"
    raw = merge(base, {"experiment": {"name": "t", "kind": kind, "replicates": 1}, "arms": arms})
    resolved = parse(merge(raw, changes))
    runs = tuple(
        RunPlan(f"run-{arm.label}", arm.label, i, arm.policy, arm.static_set, arm.config, tuple(map(vars, arm.diff)))
        for i, arm in enumerate(resolved.arms)
        if only is None or i in only
    )
    modes = tuple((arm.reward_mode, arm.config["reward"], float(arm.config["ppo"]["gamma"])) for arm in resolved.arms)
    return BlockPlan(
        experiment_id="exp",
        block_id="blk",
        attempt=1,
        replicate=replicate,
        replicate_seed=seed,
        rounds=int(runs[0].config["budget"]["rounds"]),
        spec_hash=resolved.hash,
        runs=runs,
        num_arms=len(resolved.arms),
        reward_modes=modes,
    )


def trainer(plan: BlockPlan, *, stacked: bool = True) -> BlockTrainer:
    return BlockTrainer(plan, CPU, stacked=stacked)


def train(plan: BlockPlan) -> list[RoundRecord]:
    return list(trainer(plan).rounds(0))


def digests(records: list[RoundRecord], run_id: str) -> list[str]:
    return [run.digest for record in records for run in record.runs if run.run_id == run_id]


def policy_bits(block_trainer: BlockTrainer) -> dict[str, bytes]:
    """The parameters of every trained run."""
    from worker.train.runs import TrainedRun

    return {
        run.plan.arm: run.learner.flat.data.numpy().tobytes()
        for run in block_trainer.runs
        if isinstance(run, TrainedRun)
    }
