"""Gymnasium tasks through the whole service: submit specifications, tabulate the last 100 training returns.

    python -m benchmarks.gym_service --out docs/results examples/{cartpole,acrobot,cartpole-masked}.yaml
    python -m benchmarks.gym_service --replicates 2 --steps 100000 --out /tmp/short examples/cartpole.yaml

Adds to ``gym-classic.json`` and ``gym-classic.md`` one row per arm beside the published figures of
training.md 8.5, and each report. ``--replicates`` and ``--steps`` shorten a specification; the learning
rate then anneals over the shorter run, so that such a table shows the path, not the score.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.gym_classic import LAST, interval
from benchmarks.run_experiments import save
from benchmarks.served import end_after, service, wait
from lockstep.client import Client
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from lockstep.spec.text.reading import load_text

ANCHORS = {
    "CartPole-v1": "CleanRL 490.0 +- 6.1, baselines 497.5 +- 4.0, SB3 zoo 500 +- 0",
    "Acrobot-v1": "CleanRL -86.4 +- 1.3, baselines -81.8 +- 5.6, SB3 zoo -73.5 +- 18.2 (1M steps)",
    "Pendulum-v1": "SB3 zoo -172.2 +- 104.2 (100,000 steps, one run; the spread is that of its episodes)",
    "CartPole-v1 without velocities": "SB3 ppo_lstm 500 +- 0, another upload 401.6 +- 51.6",
}


def shortened(path: Path, replicates: int | None, steps: int | None) -> dict[str, Any]:
    """Return the specification of a file, with fewer replicates and env steps a run where asked."""
    raw = load_text(path.read_text())
    if replicates is not None:
        raw = merge(raw, {"experiment": {"replicates": replicates}})
        if replicates < 6:
            raw = merge(raw, {"analysis": {"inference": "none"}})
    if steps is not None:
        env = parse(raw).spec.env
        rounds = max(1, steps // (env.n_envs * env.rollout_steps))
        raw = merge(raw, {"budget": {"rounds": rounds}, "eval": {"every_rounds": rounds}})
    return raw


def rows_of(client: Client, experiment_id: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per arm: the mean of the last 100 training returns of every run, and the greedy scores."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "episodes.csv"
        client.download(f"experiments/{experiment_id}/export", file, format="csv")
        text = file.read_text()
    returns: dict[tuple[str, int], list[tuple[int, int, int, float]]] = defaultdict(list)
    for row in csv.DictReader(io.StringIO(text)):
        when = int(row["round"]), int(row["env_id"]), int(row["episode_idx"])
        returns[row["group_id"], int(row["replicate"])].append((*when, float(row["episode_reward"])))
    greedy: dict[str, list[float]] = defaultdict(list)
    for curve in client.series(experiment_id, ["eval/native_return_mean"], x="round"):
        greedy[curve.arm].append(float(curve.mean[-1]))
    task = spec["env"]["id"] + (" without velocities" if spec["env"].get("wrappers") else "")
    found = []
    for arm in dict.fromkeys(label for label, _ in returns):
        runs = [sorted(rows)[-LAST:] for (label, _), rows in sorted(returns.items()) if label == arm]
        means = [fmean(row[-1] for row in rows) for rows in runs]
        scores = {"last": means, "mean": fmean(means), "interval": interval(means), "greedy": greedy[arm]}
        found.append({"task": task, "arm": arm, **scores})
    return found


def added(store: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put rows into a file, in place of rows of the same task and arm, and return all of it."""
    kept = json.loads(store.read_text()) if store.exists() else []
    found = {(row["task"], row["arm"]): row for row in [*kept, *rows]}
    store.write_text(json.dumps(list(found.values()), indent=1) + "\n")
    return list(found.values())


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown, beside the published figures."""
    lines = ["| task | arm | runs | last 100 returns: mean | 95 % interval | lowest run | greedy mean | published |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        low, high = row["interval"]
        numbers = f"{len(row['last'])} | {row['mean']:.1f} | [{low:.1f}, {high:.1f}] | {min(row['last']):.1f}"
        lines.append(
            f"| {row['task']} | {row['arm']} | {numbers} | {fmean(row['greedy']):.1f} |"
            f" {ANCHORS.get(row['task'], '-')} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="+", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of every worker: cpu or gpu")
    parser.add_argument("--port", type=int, default=7491)
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end then, with what is known")
    parser.add_argument("--replicates", type=int, help="fewer replicates than the file asks for")
    parser.add_argument("--steps", type=int, help="fewer env steps a run")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end_after(options.limit)
    specs = {path: shortened(path, options.replicates, options.steps) for path in options.specs}
    with service(options.port) as running:
        client = running.client
        running.start_workers([options.device] * options.workers)
        running.wait_for_workers(options.workers)
        submitted = {path: client.submit(spec)["id"] for path, spec in specs.items()}
        for path, experiment_id in submitted.items():
            with running.explained(experiment_id):
                wait(client, experiment_id)
            save(client, experiment_id, path.stem, options.out)
            rows = added(options.out / "gym-classic.json", rows_of(client, experiment_id, specs[path]))
            (options.out / "gym-classic.md").write_text(table(rows))
            print(table(rows), flush=True)


if __name__ == "__main__":
    main()
