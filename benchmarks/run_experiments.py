"""Run specifications through the whole service and keep their reports: server, N workers, real data.

    python -m benchmarks.run_experiments --workers 2 --out docs/results examples/digits-controls.yaml
    python -m benchmarks.run_experiments --device gpu --pairs /tmp/pairs --out docs/results examples/FILE.yaml

Writes ``<name>.json``, ``.md``, ``.html`` and ``.csv`` for each specification, and prints each verdict;
``<name>.learning.json`` holds the mean episode return of every learning run by round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.gratings import write_pairs
from benchmarks.served import service, wait
from lockstep.client import ApiError, Client

FORMS = ("json", "md", "html", "csv")


def save(client: Client, experiment_id: str, name: str, out: Path) -> None:
    for form in FORMS:
        found = client.report(experiment_id, form)
        text = json.dumps(found, indent=1, sort_keys=True) if form == "json" else found
        (out / f"{name}.{form}").write_text(text)


def learning(client: Client, experiment_id: str) -> list[dict[str, object]]:
    """Return for each learning run its mean return by round, and that of the first and of the last quarter."""
    policies = {run["id"]: run["policy"] for run in client.runs(experiment_id)}
    rows: list[dict[str, object]] = []
    for curve in client.series(experiment_id, ["train/return_mean"], x="round"):
        values = curve.mean[~np.isnan(curve.mean)].tolist()
        quarter = max(1, len(values) // 4)
        if policies[curve.run_id] == "ppo" and values:
            first, last = fmean(values[:quarter]), fmean(values[-quarter:])
            row = {"arm": curve.arm, "replicate": curve.replicate, "first": first, "last": last}
            rows.append({**row, "improved": last > first, "rounds": [round(value, 4) for value in values]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="+", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of every worker: cpu or gpu")
    parser.add_argument("--pairs", type=Path, help="write pairs of gratings there, in CIFAR-10's format, and use them")
    parser.add_argument("--port", type=int, default=7490)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="folder for database and logs (default: a temporary one)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.pairs:
        write_pairs(options.pairs)
    with service(options.port, options.keep) as running:
        client = running.client
        submitted = {path: client.submit(path.read_text())["id"] for path in options.specs}
        running.start_workers([options.device] * options.workers, options.pairs)
        began = time.monotonic()
        for path, experiment_id in submitted.items():
            wait(client, experiment_id)
            with contextlib.suppress(ApiError):
                save(client, experiment_id, path.stem, options.out)
                rows = learning(client, experiment_id)
                (options.out / f"{path.stem}.learning.json").write_text(json.dumps(rows, indent=1))
                print(f"{path.stem}: return grew in {sum(bool(row['improved']) for row in rows)} of {len(rows)} runs")
                verdict = client.report(experiment_id)["verdict"]
                print(f"{path.stem}: {verdict['code']}: {verdict['sentence']} ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
