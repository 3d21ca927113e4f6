"""Classic control to a score: the bars of training.md 8.5, with the trainer that every run uses.

    python -m benchmarks.gym_classic cartpole [--steps 500000] [--seeds 10] [--out FILE]
    python -m benchmarks.gym_classic cartpole --spec      # print the specification to submit instead

Tasks: ``cartpole`` (mean of the last 100 training returns >= 475 in 9 of 10, greedy evaluation 500 in
9 of 10), ``acrobot`` (mean in [-95, -78], none below -110), ``memory`` (CartPole without velocities,
LSTM, mean >= 400) and ``memory_mlp`` (the same with an MLP, which must stay below 200). Each RNG seed
is a replicate seed. ``--spec`` prints the same settings as an experiment of two equal arms, for the service.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from scipy import stats

from lockstep.keys import replicate_seed
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from worker.train.block import BlockPlan, BlockTrainer, RunPlan

ROOT_SEED = 42
LAST = 100


@dataclass(frozen=True)
class Task:
    """A benchmark: its specification and its bar.

    Attributes:
        spec: sections of the specification.
        bar: (mean of the last returns, greedy evaluation) of every seed to whether the bar is met.
        words: the bar in words.
    """

    spec: dict[str, Any]
    bar: Callable[[Sequence[float], Sequence[float]], bool]
    words: str


def _share(values: Sequence[float], least: float) -> float:
    return sum(v >= least for v in values) / len(values)


def _cartpole(returns: Sequence[float], greedy: Sequence[float]) -> bool:
    return _share(returns, 475) >= 0.9 and _share(greedy, 500) >= 0.9


def _acrobot(returns: Sequence[float], _greedy: Sequence[float]) -> bool:
    return -95 <= sum(returns) / len(returns) <= -78 and min(returns) >= -110


_MASKED = {"env": {"id": "CartPole-v1", "wrappers": ["mask_velocity"]}}
TASKS: dict[str, Task] = {
    "cartpole": Task(
        {"preset": "gym_classic", "env": {"id": "CartPole-v1"}}, _cartpole, ">= 475 and greedy 500, each in 9 of 10"
    ),
    "acrobot": Task(
        {"preset": "gym_classic", "env": {"id": "Acrobot-v1"}}, _acrobot, "mean in [-95, -78], none below -110"
    ),
    "memory": Task({"preset": "gym_lstm", **_MASKED}, lambda r, _g: sum(r) / len(r) >= 400, "mean >= 400"),
    "memory_mlp": Task({"preset": "gym_classic", **_MASKED}, lambda r, _g: sum(r) / len(r) < 200, "mean < 200"),
}


def specification(task: str, steps: int) -> dict[str, Any]:
    """Return an experiment of two equal arms with the task's settings and ``steps`` env steps a run."""
    arms = [{"label": "a"}, {"label": "b"}]
    raw = merge(
        TASKS[task].spec, {"experiment": {"name": f"gym {task}", "kind": "aa", "seed": ROOT_SEED}, "arms": arms}
    )
    env = parse(raw).arms[0].config["env"]
    rounds = max(1, steps // (env["n_envs"] * env["rollout_steps"]))
    return merge(raw, {"budget": {"rounds": rounds}, "eval": {"every_rounds": rounds, "episodes": 20}})


def run_seed(task: str, steps: int, seed: int) -> dict[str, float]:
    """Train one run and return its scores and speed."""
    resolved = parse(specification(task, steps))
    arm = resolved.arms[0]
    run = RunPlan("run", arm.label, 0, "ppo", None, arm.config)
    rounds = int(arm.config["budget"]["rounds"])
    plan = BlockPlan("bench", "bench", 1, seed, replicate_seed(ROOT_SEED, seed), rounds, resolved.hash, (run,), 1)
    trainer = BlockTrainer(plan, torch.device("cpu"))
    returns: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    record = None
    for record in trainer.rounds(0):
        returns += [float(e["episode_reward"]) for e in record.runs[0].episodes]
    if record is None:
        raise RuntimeError("no round was trained")
    last = returns[-LAST:]
    return {
        "seed": float(seed),
        "last_mean": sum(last) / len(last),
        "greedy": record.runs[0].metrics["eval/native_return_mean"],
        "steps_per_second": steps / (time.perf_counter() - began),
        "steps_per_cpu_second": steps / (time.process_time() - cpu),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % t interval of the mean over seeds; NaN for a single one."""
    if len(values) < 2:
        return math.nan, math.nan
    mean, error = sum(values) / len(values), float(stats.sem(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean - half, mean + half


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--spec", action="store_true", help="print the specification and exit")
    args = parser.parse_args()
    if args.spec:
        print(yaml.safe_dump(specification(args.task, args.steps), sort_keys=False))
        return 0
    torch.set_num_threads(1)
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        rows.append(run_seed(args.task, args.steps, seed))
        print({k: round(v, 2) for k, v in rows[-1].items()}, flush=True)
    returns, greedy = [r["last_mean"] for r in rows], [r["greedy"] for r in rows]
    met = TASKS[args.task].bar(returns, greedy)
    low, high = interval(returns)
    mean = sum(returns) / len(returns)
    print(f"{args.task}: mean {mean:.2f}, 95 % interval [{low:.2f}, {high:.2f}], bar ({TASKS[args.task].words}): {met}")
    if args.out is not None:
        result = {
            "task": args.task,
            "steps": args.steps,
            "mean": mean,
            "interval": [low, high],
            "met": met,
            "seeds": rows,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
