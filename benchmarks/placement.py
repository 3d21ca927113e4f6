"""Two arms through the whole service: both on one GPU (or CPU slot), and each on its own, in turn.

    python -m benchmarks.placement --match reference --n-envs 16 --device gpu --out FILE
    python -m benchmarks.placement --match tiny --device cpu --rounds 5

The order is shared, split, split, shared for each repeat. Timed is the span between the receipts of the first
round and of the last but one, by the server's clock: barriers, uploads and storing are in it; start, warm-up
and the final evaluation are not. An arm that is split trains alone on its device, so that

- ``shared / split`` is the gain of a second device (performance.md 7: at least 1.9 with 16 environments), and
- ``shared / (2 split)`` is what two arms on one device cost beside the sum of the arms alone (at most 1.10).

Every round's digest (parameters, optimiser, normalisers, actions) must be the same in all legs: gate I4.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from app.client import Client
from app.domain.presets import merge
from benchmarks.machine import MATCHES, machine, set_up, versions, write_cifar_shaped
from benchmarks.overhead import spec_of
from benchmarks.served import service

PLACEMENTS = {"shared": "shared_device", "split": "one_per_device"}


def leg(spec: dict[str, Any], placement: str, options: argparse.Namespace, data_dir: Path | None) -> dict[str, Any]:
    """Train the block once; return the seconds of the timed rounds and the digests of all."""
    wanted = merge(spec, {"lockstep": {"placement": PLACEMENTS[placement]}})
    with service(options.port) as running:
        running.start_workers([options.device] * (2 if placement == "split" else 1), data_dir)
        experiment_id = running.client.submit(wanted)["id"]
        for _ in running.client.watch(experiment_id, metrics=["none"]):
            pass
        return measured(running.client, experiment_id)


def measured(client: Client, experiment_id: str) -> dict[str, Any]:
    """Read the receipts and digests of an experiment that has ended."""
    exported = client.call("GET", f"experiments/{experiment_id}/export")
    rows = [dict(zip(exported["columns"]["rounds"], row, strict=True)) for row in exported["tables"]["rounds"]]
    runs = [dict(zip(exported["columns"]["runs"], row, strict=True)) for row in exported["tables"]["runs"]]
    labels = {run["run_id"]: run["group_id"] for run in runs}
    ends: dict[int, float] = {}
    for row in rows:
        ends[row["round"]] = max(ends.get(row["round"], 0.0), datetime.fromisoformat(row["received_at"]).timestamp())
    digests = {f"{labels[row['run_id']]}/{row['round']}": row["digest"] for row in rows}
    return {"seconds": ends[max(ends) - 1] - ends[0], "digests": digests}


def summary(legs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians, both ratios, and whether every leg gave the same bits."""
    shared, split = (statistics.median(leg["seconds"] for leg in legs[name]) for name in ("shared", "split"))
    first, *others = [leg["digests"] for found in legs.values() for leg in found]
    return {
        "shared_s": shared,
        "split_s": split,
        "gain_of_second_device": shared / split,
        "cost_of_sharing": shared / (2.0 * split),
        "rounds_compared": len(first),
        "bits_equal": all(other == first for other in others),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="reference", help="a preset, or the work unit: reference, tiny")
    parser.add_argument("--n-envs", type=int)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    parser.add_argument("--path", choices=("auto", "eager", "captured", "fused"), default="auto")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="of every worker: cpu or gpu")
    parser.add_argument("--port", type=int, default=7493)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    n_envs = options.n_envs or int(MATCHES.get(options.match, {}).get("n_envs", 4))
    own = {
        "env": {"n_envs": n_envs},
        "ppo": {"minibatches": min(4, n_envs)},
        "precision": {"host": options.precision},
        "engine": {"path": options.path},
    }
    spec = merge(spec_of(options.match, options.rounds, 2), own)
    legs: dict[str, list[dict[str, Any]]] = {name: [] for name in PLACEMENTS}
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) if options.match == "reference" else None
        if data_dir is not None:
            write_cifar_shaped(data_dir)
        for name in ["shared", "split", "split", "shared"] * options.repeats:
            legs[name].append(leg(spec, name, options, data_dir))
            print(f"{name:7s} {legs[name][-1]['seconds']:8.2f} s for {options.rounds - 2} rounds", flush=True)
            if all(legs.values()):
                print(json.dumps(summary(legs)), flush=True)
    found = summary(legs)
    if options.out is not None:
        config = {name: value for name, value in vars(options).items() if name not in ("out", "port")}
        report = {"schema": 1, "config": config | {"n_envs": n_envs}, "machine": machine(set_up(tf32=False))}
        report |= {"versions": versions(), "seconds": {n: [leg["seconds"] for leg in legs[n]] for n in legs}}
        options.out.write_text(json.dumps(report | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
