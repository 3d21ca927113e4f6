"""Episodes on the GPU that are played twice and compared bit by bit.

``python -m tests.gpu.lives FOLDER PATH STEPS`` plays one on the card that the process sees and prints its digest.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import set_up
from tests.worker.envs.morph.factories import SEED, AccuracyGain
from worker.envs.family import RunEnv
from worker.envs.morph.episode.controls import make_control
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import Setup
from worker.envs.morph.task.config import EnvConfig

CUDA = torch.device("cuda", 0)


def config(**overrides: Any) -> EnvConfig:
    """cifar_baseline at a size for tests."""
    small = {"horizon": 60, "batch_size": 128, "batches_per_step": 4, "val_images": 500, "pace": "quick"}
    return EnvConfig.for_task("cifar_baseline", **{**small, **overrides})


def build(
    wanted: EnvConfig,
    data_dir: Path,
    runs: Sequence[str] = ("A",),
    num_envs: int = 2,
    device: torch.device = CUDA,
    seed: int = SEED,
) -> MorphEnvs:
    """Environments of runs by name; equal names are equal runs."""
    specs = [RunEnv(f"run-{name}", name, "random", None, 0.995) for name in runs]
    setup = Setup(wanted, seed, device, num_envs, "train", data_dir)
    return MorphEnvs(setup, specs, [AccuracyGain() for _ in specs], {})


def state(envs: MorphEnvs, run: int) -> list[Tensor]:
    """Parameters, momenta, statistics and measurements of a run."""
    world = envs.runs[run].world
    found: list[Tensor] = []
    for network in world.networks:
        for cell in (network.store, *(cell.store for cell in network.live if cell is not None)):
            found += [cell.flat, cell.momentum, cell.buffers]
    tracker = world.tracker
    measured = [tracker.loss, tracker.accuracy, tracker.train_loss, tracker.accuracy_gain]
    return [*found, *(torch.from_numpy(values.copy()) for values in measured)]


def digest(envs: MorphEnvs, run: int) -> str:
    """The bits of a run."""
    found = hashlib.sha256()
    for tensor in state(envs, run):
        found.update(tensor.cpu().numpy().tobytes())
    return found.hexdigest()


def play(envs: MorphEnvs, steps: int, *, episode: int = 0, disturb: Callable[[int], None] | None = None) -> list[str]:
    """Play an episode of random legal actions and return each run's digest over all steps."""
    envs.begin_round(episode)
    controls = [make_control("random", envs, run) for run in range(len(envs.runs))]
    found = [hashlib.sha256() for _ in envs.runs]
    for step in range(steps):
        if disturb is not None:
            disturb(step)
        envs.step([control.act(step) for control in controls])
        for run, bits in enumerate(found):
            bits.update(digest(envs, run).encode())
    return [bits.hexdigest() for bits in found]


if __name__ == "__main__":
    folder, path, steps = sys.argv[1:]
    set_up(tf32=False)
    sys.stdout.write(" ".join(play(build(config(path=path, precision="bf16"), Path(folder)), int(steps))))
