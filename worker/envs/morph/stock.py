"""What environments are made of besides their runs: the settings of a set, and what all of a device share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from worker.envs.morph import data
from worker.envs.morph.config import EnvConfig
from worker.envs.morph.data import Items, TrainingData
from worker.envs.morph.draws import Draws
from worker.envs.morph.engine import StepEngine, make_engine
from worker.envs.morph.streams import Phase, Streams


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


@dataclass(frozen=True)
class Stock:
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
    def load(cls, setup: Setup) -> Stock:
        """Read the data set and make the engine; raises as ``make_envs``."""
        config, device, seed = setup.config, setup.device, setup.replicate_seed
        arrays = data.load(config.task.dataset, setup.data_dir)
        training = TrainingData(config, arrays, device, seed)
        test = None if setup.phase == "train" else data.split_items(config, arrays, "test", device, seed)
        draws = Draws(training, Streams(seed, setup.phase), device)
        return cls(training, test, make_engine(config, training, device), draws)
