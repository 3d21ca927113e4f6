"""CartPole-v1: the arms of a block acted for and updated together, against one by one.

    python -m benchmarks.stacking [--arms 2 4 8] [--rounds 4] [--repeats 5] [--out FILE]

Both ways train the same block, round by round in turns within one process on one thread, so that what else the machine
does meets both; that their numbers are equal bit for bit is checked in the same run. Quoted beside them is what the
environments alone take for as many steps: the floor of any way. Only training is counted, no evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import torch

from benchmarks.gym_classic import ROOT_SEED
from lockstep.keys import replicate_seed
from lockstep.spec.resolve import parse
from worker.train.block import BlockPlan, BlockTrainer, RoundRecord, RunPlan

_CLOCKS = ("cpu_seconds", "wall_seconds")


def trainer(arms: int, rounds: int, *, stacked: bool) -> BlockTrainer:
    """Return a block of ``arms`` arms that differ in their learning rate, ready to be timed."""
    labels = [{"label": f"a{i}", "overrides": {"ppo.lr": 2.5e-4 * (1 + i)}} for i in range(arms)]
    # one round more than is timed: the last one would be evaluated
    raw: dict[str, Any] = {
        "experiment": {"name": "stacking", "seed": ROOT_SEED, "replicates": 6},
        "preset": "gym_classic",
        "env": {"id": "CartPole-v1"},
        "budget": {"rounds": rounds + 1},
        "eval": {"every_rounds": rounds + 1},
        "arms": labels,
        "analysis": {"sesoi": 25.0, "failure": {"floor": 0.0}},
    }
    resolved = parse(raw)
    runs = tuple(RunPlan(a.label, a.label, i, "ppo", None, a.config) for i, a in enumerate(resolved.arms))
    seed = replicate_seed(ROOT_SEED, 0)
    plan = BlockPlan("stacking", "stacking", 1, 0, seed, rounds + 1, resolved.hash, runs, arms)
    return BlockTrainer(plan, torch.device("cpu"), stacked=stacked)


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Return processor and wall seconds of a call, and what it returned."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}, found


def bare_steps(runs: int, steps: int) -> None:
    """Step one environment for each run as often as the run does, by a fixed rule; reset it where an episode ends."""
    for _ in range(runs):
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        for index in range(steps):
            _, _, terminated, truncated, _ = env.step(index % 2)
            if terminated or truncated:
                env.reset(seed=index)


def compare(arms: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Time ``repeats`` stretches of ``rounds`` rounds both ways, the way that begins alternating."""
    planned = 1 + rounds * repeats
    ways: dict[str, Iterator[RoundRecord]] = {
        "together": trainer(arms, planned, stacked=True).rounds(0),
        "one_by_one": trainer(arms, planned, stacked=False).rounds(0),
    }
    for way in ways.values():
        next(way)  # what is tried out and allocated once is not counted
    steps = rounds * 4 * 128
    stretches = []
    for repeat in range(repeats):
        order = list(ways) if repeat % 2 == 0 else list(ways)[::-1]
        stretch: dict[str, Any] = {}
        digests = {}
        for name in order:
            stretch[name], records = timed(lambda way=ways[name]: [next(way) for _ in range(rounds)])  # type: ignore[misc]
            digests[name] = [run.digest for record in records for run in record.runs]
        if digests["together"] != digests["one_by_one"]:
            raise SystemExit(f"{arms} arms: the numbers of the two ways differ in stretch {repeat}")
        stretch["environments"], _ = timed(lambda: bare_steps(arms, steps))
        stretches.append(stretch)
    return {"arms": arms, "env_steps": arms * steps, "stretches": stretches, **_ratios(stretches)}


def _ratios(stretches: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for clock in _CLOCKS:
        ratios = [item["one_by_one"][clock] / item["together"][clock] for item in stretches]
        shares = [item["environments"][clock] / item["together"][clock] for item in stretches]
        found[clock] = {
            "ratios": ratios,
            "median_ratio": statistics.median(ratios),
            "environments_share": statistics.median(shares),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arms", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    blocks = [compare(arms, args.rounds, args.repeats) for arms in args.arms]
    for block in blocks:
        cpu, wall = (block[clock] for clock in _CLOCKS)
        print(
            f"{block['arms']} arms: together {cpu['median_ratio']:.2f} times as fast as one by one by processor time, "
            f"{wall['median_ratio']:.2f} by wall time; of its time the environments alone take "
            f"{100 * cpu['environments_share']:.0f} %"
        )
    if args.out is not None:
        names = ("torch", "gymnasium", "numpy")
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), **{n: version(n) for n in names}}
        args.out.write_text(json.dumps({"machine": machine, "threads": 1, "blocks": blocks}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
