"""A whole valid experiment on one device: two arms x ten replicates, from submission to the final report.

    python -m benchmarks.whole_experiment --device gpu --rounds 8 --path fused --precision bf16 --out FILE

The reference compares two arms by one run each. Its time for the same rounds and episode length is derived from
its published measurement (performance.md 2): 29.4 s a round of 40 epochs of 4 environments, for two arms one
after the other, and 27 s of set-up once. The ratio of ours to that is to be at most 1.2.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from app.domain.presets import merge
from benchmarks.machine import MATCHES, machine, set_up, versions, write_cifar_shaped
from benchmarks.served import service

#: Seconds of the reference on an H100: a round of one arm with 4 environments, and set-up.
REFERENCE_ROUND_S, REFERENCE_SETUP_S = 29.4, 27.0


def spec_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return two reward functions, ten replicates, judged by the accuracy of a frozen policy on test images."""
    own = {
        "experiment": {"name": "two rewards, ten replicates", "replicates": options.replicates},
        "env": dict(MATCHES[options.match]),
        "precision": {"host": options.precision},
        "engine": {"path": options.path},
        "ppo": {"minibatches": min(4, int(MATCHES[options.match]["n_envs"]))},
        "budget": {"rounds": options.rounds},
        "eval": {"every_rounds": options.rounds, "episodes": 4},
        "arms": [{"label": "shaped", "reward": "shaped"}, {"label": "simplified", "reward": "simplified"}],
        "analysis": {
            "primary": {"metric": "eval/accuracy", "aggregate": "final_mean", "direction": "max"},
            "sesoi": 2.0,
            "failure": {"floor": 0.0},
        },
    }
    return merge({}, own)


def conduct(options: argparse.Namespace, data_dir: Path | None) -> dict[str, Any]:
    """Run the experiment through API and one worker; return its seconds and what the report says."""
    with service(options.port) as running:
        running.start_workers([options.device], data_dir)
        began = time.perf_counter()
        experiment_id = running.client.submit(spec_of(options))["id"]
        for _ in running.client.watch(experiment_id, metrics=["none"]):
            pass
        report = running.client.report(experiment_id)
        seconds = time.perf_counter() - began
        runs = running.client.runs(experiment_id)
    done = sum(run["status"] == "succeeded" for run in runs)
    return {"seconds": seconds, "runs": len(runs), "runs_succeeded": done, "verdict": report["verdict"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", choices=sorted(MATCHES), default="reference")
    parser.add_argument("--replicates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    parser.add_argument("--path", choices=("auto", "eager", "captured", "fused"), default="auto")
    parser.add_argument("--device", default="cpu", help="of the worker: cpu or gpu")
    parser.add_argument("--port", type=int, default=7494)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) if options.match == "reference" else None
        if data_dir is not None:
            write_cifar_shaped(data_dir)
        found = conduct(options, data_dir)
    found["reference_s"] = REFERENCE_SETUP_S + 2 * options.rounds * REFERENCE_ROUND_S
    found["ratio"] = found["seconds"] / found["reference_s"]
    print(json.dumps(found, indent=1))
    if options.out is not None:
        config = {name: value for name, value in vars(options).items() if name not in ("out", "port")}
        report = {"schema": 1, "config": config, "machine": machine(set_up(tf32=False)), "versions": versions()}
        options.out.write_text(json.dumps(report | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
