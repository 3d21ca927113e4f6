"""What environments are made of besides their runs: the settings of a set, and what all of a device share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from worker.envs.morph.engine import make_engine
from worker.envs.morph.engine.eager import StepEngine
from worker.envs.morph.task import data
from worker.envs.morph.task.config import EnvConfig, resolve_path, resolve_precision
from worker.envs.morph.task.data import Items, TrainingData
from worker.envs.morph.task.draws import Draws
from worker.envs.morph.task.streams import Phase, Streams


@dataclass(frozen=True)
class Setup:
    """Everything but the runs: settings, keys, place and size; the environments are numbered from ``first_env``."""

    config: EnvConfig
    replicate_seed: int
    device: torch.device
    num_envs: int
    phase: Phase
    data_dir: Path | None = None
    first_env: int = 0


# evaluation and the twin of a block read what training reads, and nothing writes to it
@lru_cache(maxsize=1)
def _training(config: EnvConfig, data_dir: Path | None, device: torch.device, seed: int) -> TrainingData:
    return TrainingData(config, data.load(config.task.dataset, data_dir), device, seed)


@lru_cache(maxsize=1)
def _test(config: EnvConfig, data_dir: Path | None, device: torch.device, seed: int) -> Items:
    return data.split_items(config, data.load(config.task.dataset, data_dir), "test", device, seed)


@dataclass(frozen=True)
class SharedData:
    """What the environments of a device share, all runs alike: data and engine; no run writes to it.

    Attributes:
        data: train and val.
        test: the test split, in evaluation only.
        engine: trains and validates.
        draws: choices of epochs.
    """

    data: TrainingData
    test: Items | None
    engine: StepEngine
    draws: Draws

    @classmethod
    def load(cls, setup: Setup) -> SharedData:
        """Read the data set and make the engine; raises as ``make_envs``."""
        config, device, seed = setup.config, setup.device, setup.replicate_seed
        training = _training(config, setup.data_dir, device, seed)
        test = None if setup.phase == "train" else _test(config, setup.data_dir, device, seed)
        draws = Draws(training, Streams(seed, setup.phase), device)
        path, precision = resolve_path(config, device), resolve_precision(config, device)
        return cls(training, test, make_engine(path, precision, training, device), draws)
