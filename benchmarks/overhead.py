"""What the control plane costs: the same block trained bare and through the whole service, in turn.

    python -m benchmarks.overhead --out benchmarks/results/overhead_cpu.json
    python -m benchmarks.overhead --match reference --device gpu --precision bf16 --rounds 10 --out FILE

Bare is the training loop in a process of its own that reports to nobody. The service is the API, a
supervisor with its child, leases, heartbeats, barrier and every metric stored. Both train the same runs
from the same keys; timed is the span from the end of the first round to the end of the last but one (start,
warm-up and the final evaluation are left out; through the service by its receipts), in the order bare, service,
service, bare for each repeat. Prints the seconds and the ratio of medians, bare / service, to be at least 0.99
(performance.md 7), and writes after every leg what is known (``"complete": false`` until the last).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.lockstep_ab import runs_of
from benchmarks.machine import facts_alone, images, save, set_up, work_unit
from benchmarks.served import config_of, end_after, parser, train
from lockstep.keys import replicate_seed
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from worker.train.block import BlockTrainer
from worker.train.plan import BlockPlan

SEED = 42


def spec_of(match: str, rounds: int, num_arms: int, n_envs: int | None = None) -> dict[str, Any]:
    """Return an A/A specification of one replicate that is evaluated and saved at its end only."""
    own = {
        "experiment": {"name": "overhead", "kind": "aa", "replicates": 1, "seed": SEED},
        "arms": [{"label": f"arm{index}"} for index in range(num_arms)],
        "budget": {"rounds": rounds},
        "eval": {"every_rounds": rounds, "episodes": 1, "xeval": False},
        "checkpoint": {"every_rounds": rounds},
    }
    return merge(work_unit(match, n_envs), own)


def bare(spec: dict[str, Any], data_dir: Path | None) -> float:
    """Train the block with nobody to report to; return the seconds of the timed rounds."""
    resolved = parse(spec)
    runs = runs_of(resolved)
    rounds = resolved.spec.budget.rounds
    seed = replicate_seed(SEED, 0)
    device = set_up(tf32=False)
    torch.set_num_threads(1)
    plan = BlockPlan("bench", "block", 1, 0, seed, rounds, resolved.hash, runs, len(runs))
    trainer = BlockTrainer(plan, device, data_dir=data_dir)
    trainer.warm_up()
    ends = []
    for record in trainer.rounds(0):
        ends.append(time.perf_counter())
        if record.round == rounds - 2:
            break
    return ends[-1] - ends[0]


def alone(arguments: Sequence[str]) -> float:
    """Run the bare leg in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.overhead", "--leg", "bare", *arguments]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(found.stdout.split()[-1])


def ratio_of(seconds: Mapping[str, Sequence[float]]) -> float | None:
    """Return the ratio of medians, None before both ways have been timed."""
    return statistics.median(seconds["bare"]) / statistics.median(seconds["service"]) if all(seconds.values()) else None


def wanted(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line asks for as a specification."""
    own = {"precision": {"host": options.precision}, "engine": {"path": options.path}}
    return merge(spec_of(options.match, options.rounds, options.arms), own)


def compare(options: argparse.Namespace, data_dir: Path | None) -> None:
    """Time the legs in turn; print and save after each."""
    spec = wanted(options)
    given = ["--match", options.match, "--arms", str(options.arms), "--rounds", str(options.rounds)]
    given += ["--precision", options.precision, "--path", options.path]
    given += ["--data-dir", str(data_dir)] if data_dir else []
    report = facts_alone() | {"config": config_of(options)}
    seconds: dict[str, list[float]] = {"bare": [], "service": []}
    legs = ["bare", "service", "service", "bare"] * options.repeats
    for number, leg in enumerate(legs, start=1):
        if leg == "bare":
            seconds[leg].append(alone(given))
        else:
            seconds[leg].append(train(spec, [options.device], options.port, data_dir)["seconds"])
        print(f"{leg:8s} {seconds[leg][-1]:8.2f} s for {options.rounds - 2} rounds", flush=True)
        known = {"complete": number == len(legs), "seconds": seconds, "ratio": ratio_of(seconds)}
        save(options.out, report | known)
    print(f"throughput with the service / bare: {ratio_of(seconds):.4f}")


def options_of() -> argparse.Namespace:
    """Read the command line."""
    options = parser(__doc__, 7492)
    options.add_argument("--match", default="digits_cpu", help="a preset, or the work unit: reference, tiny")
    options.add_argument("--arms", type=int, default=2)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    options.add_argument("--path", choices=("auto", "eager", "captured", "fused"), default="auto")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--leg", choices=("bare",), help=argparse.SUPPRESS)
    return options.parse_args()


def main() -> None:
    options = options_of()
    if options.leg:
        print(bare(wanted(options), options.data_dir))
        return
    end_after(options.limit)
    with images(options.match, options.data_dir) as data_dir:
        compare(options, data_dir)


if __name__ == "__main__":
    main()
