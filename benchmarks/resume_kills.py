"""Kill training processes at random moments, resume them, and compare with an uninterrupted run bit for bit.

    python -m benchmarks.resume_kills [--kills 20] [--out FILE]

Each attempt trains a block of two arms in a process of its own, checkpointing after every round, and ends it by
SIGKILL after a random part of the time that the whole run takes: in a rollout, in an update, while a checkpoint
is written. A second process goes on from the newest checkpoint. The records of all rounds (metrics, episodes,
digests over parameters, optimiser, normalisers and actions) must then equal those of a run that nobody killed.
Half of the attempts train CartPole with an LSTM, half the morphogenesis task.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from worker.checkpoint import NoCheckpoint
from worker.train.block import BlockPlan, BlockTrainer, RoundRecord, RunPlan

ROUNDS = 12
_SMALL = {"net": {"hidden": 16, "lstm_hidden": 16}, "budget": {"rounds": ROUNDS}, "obs_norm": {"enabled": True}}
TASKS: dict[str, dict[str, Any]] = {
    "gym": {
        "preset": "gym_lstm",
        "env": {"id": "CartPole-v1", "rollout_steps": 64},
        "eval": {"every_rounds": 5, "episodes": 4},
        "arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 1e-3, "ppo.clip": 0.1}}],
    },
    "morph": {
        "preset": "digits_cpu",
        "env": {"n_envs": 2, "horizon": 8, "batches_per_step": 1, "val_images": 200, "min_prune_age": 1},
        "ppo": {"minibatches": 2, "epochs": 2},
        "eval": {"every_rounds": 5, "episodes": 2},
        "arms": [{"label": "A", "reward": "shaped"}, {"label": "B", "reward": "simplified"}],
    },
}
_CLOCKS = ("sys/", "ppo/update_seconds")
_CLOCK_COLUMNS = ("started_at", "wall_seconds", "device_seconds")


def plan_of(task: str, seed: int) -> BlockPlan:
    """Plan the block of a task with replicate seed ``seed``."""
    raw = merge({"experiment": {"name": "kills", "kind": "ab", "replicates": 1}, **_SMALL}, TASKS[task])
    resolved = parse(raw)
    runs = tuple(RunPlan(f"run-{a.label}", a.label, i, "ppo", None, a.config) for i, a in enumerate(resolved.arms))
    modes = tuple((a.reward_mode, a.config["reward"], float(a.config["ppo"]["gamma"])) for a in resolved.arms)
    return BlockPlan("kills", "kills", 1, 0, seed, ROUNDS, resolved.hash, runs, len(runs), modes)


def told(record: RoundRecord) -> str:
    """Return everything that a round hands back, without clocks, as text (NaN equals NaN there)."""
    rows = []
    for run in record.runs:
        metrics = {k: v for k, v in run.metrics.items() if not k.startswith(_CLOCKS)}
        episodes = [
            {k: v for k, v in row.items() if k not in _CLOCK_COLUMNS} for row in run.episodes + run.eval_episodes
        ]
        rows.append([run.run_id, run.digest, metrics, episodes])
    return json.dumps([record.round, record.update_order, rows], sort_keys=True, default=str)


def train(task: str, seed: int, root: Path) -> None:
    """Train to the end from the newest checkpoint in ``root``, if any; each round's record is a file there."""
    torch.set_num_threads(1)
    trainer = BlockTrainer(plan_of(task, seed), torch.device("cpu"))
    try:
        start = trainer.load_checkpoint(root / "checkpoints")
    except NoCheckpoint:
        start = 0
    print("ready", start, flush=True)
    for record in trainer.rounds(start):
        (root / f"record-{record.round:03d}.json").write_text(told(record))
        trainer.save_checkpoint(root / "checkpoints", record.round + 1)


def start(task: str, seed: int, root: Path) -> tuple[subprocess.Popen[str], int]:
    """Start ``train`` in a process; return it and the round from which it goes on."""
    command = [sys.executable, "-m", "benchmarks.resume_kills", "--train", task, str(seed), str(root)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if child.stdout is None:
        raise RuntimeError("no pipe to the training process")
    words = child.stdout.readline().split()
    if not words:
        raise RuntimeError("the training process ended before it was ready")
    return child, int(words[1])


def finished(child: subprocess.Popen[str]) -> None:
    """Wait for the end of a training process; a failure of it is ours."""
    if child.wait() != 0:
        raise RuntimeError(f"the training process ended with {child.returncode}")


def records(root: Path) -> list[str]:
    """Return the records of all rounds."""
    return [(root / f"record-{r:03d}.json").read_text() for r in range(ROUNDS)]


def attempt(task: str, seed: int, folder: Path, share: float) -> dict[str, Any]:
    """Train once in peace and once with a kill after ``share`` of that time; compare the records."""
    whole, cut = folder / "whole", folder / "cut"
    for root in (whole, cut):
        root.mkdir(parents=True)
    child, _ = start(task, seed, whole)
    began = time.monotonic()
    finished(child)
    seconds = time.monotonic() - began
    child, _ = start(task, seed, cut)
    time.sleep(share * seconds)
    child.send_signal(signal.SIGKILL)
    killed = child.wait() == -signal.SIGKILL
    written = len(list(cut.glob("record-*.json")))
    child, resumed_at = start(task, seed, cut)
    finished(child)
    return {
        "task": task,
        "seed": seed,
        "killed": killed,
        "records_at_the_kill": written,
        "resumed_at_round": resumed_at,
        "equal": records(whole) == records(cut),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--train", nargs=3, metavar=("TASK", "SEED", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train[0], int(args.train[1]), Path(args.train[2]))
        return 0
    rng, rows = np.random.default_rng(args.seed), []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(args.kills):
            rows.append(attempt(sorted(TASKS)[k % 2], 1000 + k, Path(folder) / str(k), float(rng.uniform(0.02, 0.95))))
            print(rows[-1], flush=True)
    equal, killed = sum(row["equal"] for row in rows), sum(row["killed"] for row in rows)
    print(f"{killed} of {len(rows)} killed while training; {equal} of {len(rows)} equal the uninterrupted run")
    if args.out is not None:
        args.out.write_text(json.dumps({"rounds": ROUNDS, "arms": 2, "attempts": rows}, indent=1) + "\n")
    return int(equal < len(rows) or killed < len(rows))


if __name__ == "__main__":
    sys.exit(main())
