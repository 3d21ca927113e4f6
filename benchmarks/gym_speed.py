"""CartPole-v1 beside Stable-Baselines3's PPO: env steps per processor second and per second of wall time.

    python -m benchmarks.gym_speed [--steps 40960] [--repeats 5] [--out FILE]

Stable-Baselines3 is no dependency of the project: run this with an interpreter that has both. Both sides use
the same network (tanh 64-64, actor and critic apart), 4 environments x 128 steps, 4 epochs of 4 minibatches,
annealed learning rate, clip and value clip 0.2, one thread, and take turns within one process. Two shapes are
timed: one run on each side, and two arms in lockstep against two trained one after the other. Both count
training only: no evaluation, and Stable-Baselines3 with the episode monitor that it adds itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.gym_classic import ROOT_SEED
from lockstep.keys import replicate_seed
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from worker.train.block import BlockPlan, BlockTrainer, RunPlan

ENVS, ROLLOUT = 4, 128
TARGET = 2.0


def ours(arms: int, steps: int, seed: int) -> Callable[[], None]:
    """Return the training of ``arms`` arms in lockstep for ``steps`` env steps each, ready to be timed."""
    rounds = steps // (ENVS * ROLLOUT)
    raw = {"experiment": {"name": "speed", "kind": "aa", "seed": ROOT_SEED}, "arms": [{"label": "a"}, {"label": "b"}]}
    # one round more than is timed: the last one would be evaluated
    raw |= {"preset": "gym_classic", "env": {"id": "CartPole-v1"}, "budget": {"rounds": rounds + 1}}
    resolved = parse(merge(raw, {"eval": {"every_rounds": rounds + 1}}))
    runs = tuple(RunPlan(a.label, a.label, i, "ppo", None, a.config) for i, a in enumerate(resolved.arms[:arms]))
    root = replicate_seed(ROOT_SEED, seed)
    plan = BlockPlan("speed", "speed", 1, seed, root, rounds + 1, resolved.hash, runs, arms)
    trainer = BlockTrainer(plan, torch.device("cpu"))
    trainer.warm_up()

    def train() -> None:
        for _ in islice(trainer.rounds(0), rounds):
            pass

    return train


def theirs(runs: int, steps: int, seed: int) -> Callable[[], None]:
    """Return the training of ``runs`` models of Stable-Baselines3 one after the other, ready to be timed."""
    models = [_model(steps, seed + i) for i in range(runs)]

    def train() -> None:
        for model in models:
            model.learn(steps)

    return train


def _model(steps: int, seed: int) -> Any:
    rounds = steps // (ENVS * ROLLOUT)
    return PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVS, seed=seed),
        n_steps=ROLLOUT,
        batch_size=ENVS * ROLLOUT // 4,
        n_epochs=4,
        learning_rate=lambda left: 2.5e-4 * max(left, 1.0 / rounds),
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        clip_range_vf=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        seed=seed,
        device="cpu",
    )


def timed(train: Callable[[], None]) -> dict[str, float]:
    """Return the processor and wall seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    train()
    return {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}


def compare(runs: int, steps: int, repeats: int) -> dict[str, Any]:
    """Time ``repeats`` pairs, the side that begins alternating; return rates and the ratios of the pairs."""
    pairs = []
    for seed in range(repeats):
        sides = {"lockstep": ours, "stable_baselines3": theirs}
        order = list(sides) if seed % 2 == 0 else list(sides)[::-1]
        pair = {name: timed(sides[name](runs, steps, seed)) for name in order}
        pairs.append(pair)
        print(f"{runs} run(s), pair {seed}:", {name: {k: round(v, 2) for k, v in pair[name].items()} for name in sides})
    result: dict[str, Any] = {"runs": runs, "env_steps": runs * steps, "pairs": pairs}
    for clock in ("cpu_seconds", "wall_seconds"):
        ratios = [p["stable_baselines3"][clock] / p["lockstep"][clock] for p in pairs]
        rates = {
            s: runs * steps / statistics.median(p[s][clock] for p in pairs) for s in ("lockstep", "stable_baselines3")
        }
        result[clock] = {"steps_per_second": rates, "ratios": ratios, "median_ratio": statistics.median(ratios)}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=40_960)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    compare(1, 2 * ENVS * ROLLOUT, 1)
    names = ("torch", "gymnasium", "numpy", "stable-baselines3")
    shapes = [compare(runs, args.steps, args.repeats) for runs in (1, 2)]
    for shape in shapes:
        ratio = {clock: round(shape[clock]["median_ratio"], 2) for clock in ("cpu_seconds", "wall_seconds")}
        print(f"{shape['runs']} run(s): median ratio {ratio}, target {TARGET} of processor time")
    if args.out is not None:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), **{n: version(n) for n in names}}
        args.out.write_text(json.dumps({"machine": machine, "threads": 1, "shapes": shapes}, indent=1) + "\n")
    return int(shapes[0]["cpu_seconds"]["median_ratio"] < TARGET)


if __name__ == "__main__":
    sys.exit(main())
