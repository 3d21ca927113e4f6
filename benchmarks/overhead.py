"""What the control plane costs: the same block trained bare and through the whole service, in turn.

    python -m benchmarks.overhead --out benchmarks/results/overhead_cpu.json
    python -m benchmarks.overhead --match reference --device gpu --rounds 10 --out FILE

Bare is the training loop in a process of its own that reports to nobody. The service is the API, a
supervisor with its child, leases, heartbeats, barrier and every metric stored. Both train the same runs
from the same keys; timed is the span from the end of the first round to the end of the last but one (start,
warm-up and the final evaluation are left out), in the order bare, service, service, bare for each repeat.
Prints the seconds and the ratio of medians, bare / service, to be at least 0.99 (performance.md 7).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from app.domain.presets import merge
from app.domain.spec import parse
from benchmarks.lockstep_ab import runs_of
from benchmarks.machine import MATCHES, machine, set_up, versions, write_cifar_shaped
from benchmarks.served import service
from worker.keys import replicate_seed
from worker.train.block import BlockTrainer
from worker.train.plan import BlockPlan

SEED = 42


def spec_of(match: str, rounds: int, num_arms: int) -> dict[str, Any]:
    """Return an A/A specification of one replicate that is evaluated and saved at its end only."""
    base: dict[str, Any] = {"env": dict(MATCHES[match])} if match in MATCHES else {"preset": match}
    own = {
        "experiment": {"name": "overhead", "kind": "aa", "replicates": 1, "seed": SEED},
        "arms": [{"label": f"arm{index}"} for index in range(num_arms)],
        "budget": {"rounds": rounds},
        "eval": {"every_rounds": rounds, "episodes": 1, "xeval": False},
        "checkpoint": {"every_rounds": rounds},
    }
    if match in MATCHES:
        own["ppo"] = {"minibatches": min(4, int(MATCHES[match]["n_envs"]))}
    return merge(base, own)


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


def through(spec: dict[str, Any], device: str, port: int, data_dir: Path | None) -> float:
    """Train the block through API and worker; return the seconds between the same two round ends."""
    with service(port) as running:
        running.start_workers([device], data_dir)
        submitted = running.client.submit(spec)
        ends: dict[int, float] = {}
        for frame in running.client.watch(submitted["id"], metrics=["none"]):
            for item in frame.get("rounds", []):
                ends.setdefault(int(item["round"]), time.perf_counter())
        last = max(ends)
        return ends[last - 1] - ends[0]


def alone(arguments: list[str]) -> float:
    """Run the bare leg in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.overhead", "--leg", "bare", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(found.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="digits_cpu", help="a preset, or the work unit: reference, tiny")
    parser.add_argument("--arms", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--port", type=int, default=7492)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--leg", choices=("bare",), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spec = spec_of(options.match, options.rounds, options.arms)
    if options.leg:
        print(bare(spec, options.data_dir))
        return
    with tempfile.TemporaryDirectory() as folder:
        data_dir = options.data_dir
        if options.match == "reference" and data_dir is None:
            data_dir = Path(folder)
            write_cifar_shaped(data_dir)
        given = ["--match", options.match, "--arms", str(options.arms), "--rounds", str(options.rounds)]
        given += ["--data-dir", str(data_dir)] if data_dir else []
        seconds: dict[str, list[float]] = {"bare": [], "service": []}
        for leg in ["bare", "service", "service", "bare"] * options.repeats:
            took = alone(given) if leg == "bare" else through(spec, options.device, options.port, data_dir)
            seconds[leg].append(took)
            print(f"{leg:8s} {took:8.2f} s for {options.rounds - 2} rounds", flush=True)
    ratio = statistics.median(seconds["bare"]) / statistics.median(seconds["service"])
    print(f"throughput with the service / bare: {ratio:.4f}")
    if options.out is not None:
        config = {name: getattr(options, name) for name in ("match", "arms", "rounds", "repeats", "device")}
        here = machine(set_up(tf32=False))
        report = {"schema": 1, "config": config, "machine": here, "versions": versions()}
        options.out.write_text(json.dumps(report | {"seconds": seconds, "ratio": ratio}, indent=1) + "\n")


if __name__ == "__main__":
    main()
