"""What environments are made of besides their runs: the settings of a set, and what all of a device share.

What is shared outlasts its environments where the process goes on to another replicate (``rest``): data that differs
by replicate is written in place and networks are lent anew, so that graphs which read them stay good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from lockstep.spec.tasks import HostShape, SlotSpec
from worker.envs.morph.engine import make_engine
from worker.envs.morph.engine.eager import StepEngine
from worker.envs.morph.network.network import Network
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

    @property
    def place(self) -> tuple[EnvConfig, Path | None, torch.device]:
        """What decides what may be shared."""
        return self.config, self.data_dir, self.device


@dataclass
class Networks:
    """Networks of one setting, lent in the same order in every replicate, so that each finds its graphs again."""

    _made: dict[HostShape | None, list[Network]] = field(default_factory=dict)
    _lent: Counter[HostShape | None] = field(default_factory=Counter)

    def lend(
        self, config: EnvConfig, slots: Sequence[SlotSpec], device: torch.device, shape: HostShape | None
    ) -> Network:
        """Return a network that nobody uses; it holds whatever it held and must be reset."""
        made = self._made.setdefault(shape, [])
        if self._lent[shape] == len(made):
            made.append(Network(config, slots, device, shape))
        self._lent[shape] += 1
        return made[self._lent[shape] - 1]

    def take_back(self) -> None:
        """Take all networks back."""
        self._lent.clear()


@dataclass(frozen=True)
class SharedData:
    """What the environments of a device share, all runs alike: data and engine; no run writes to it.

    Attributes:
        data: train and val.
        test: the test split, in evaluation only.
        engine: trains and validates.
        draws: choices of epochs.
        networks: that the engine has seen.
    """

    data: TrainingData
    test: Items | None
    engine: StepEngine
    draws: Draws
    networks: Networks

    @classmethod
    def load(cls, setup: Setup) -> SharedData:
        """Read the data set and make the engine, or take up those that rest; raises as ``make_envs``."""
        return _kept.load(setup)


class _Kept:
    """What was made last for training and for evaluation of one setting."""

    def __init__(self) -> None:
        self._place: object = None
        self._seed = 0
        self._data: TrainingData | None = None
        self._shared: dict[Phase, SharedData] = {}
        #: What nobody uses any more.
        self._resting: set[Phase] = set()
        self._data_rests = False

    def rest(self) -> None:
        self._resting, self._data_rests = set(self._shared), self._data is not None

    def load(self, setup: Setup) -> SharedData:
        training, phase = self._training(setup), setup.phase
        draws = Draws(training, Streams(setup.replicate_seed, phase), setup.device)
        if phase in self._resting:
            self._resting.discard(phase)
            shared = replace(self._shared[phase], draws=draws)
            shared.networks.take_back()
        else:
            test = None if phase == "train" else self._test(setup)
            path, precision = resolve_path(setup.config, setup.device), resolve_precision(setup.config, setup.device)
            engine = make_engine(path, precision, training, setup.device)
            shared = SharedData(training, test, engine, draws, Networks())
        self._shared[phase] = shared
        return shared

    def _training(self, setup: Setup) -> TrainingData:
        """Return train and val: evaluation reads what training reads, and nothing writes to it."""
        seed = setup.replicate_seed
        if self._data is not None and self._place == setup.place and (self._seed == seed or self._data_rests):
            if self._seed != seed:
                self._data.renew(seed)
        else:
            self._shared.clear()
            self._resting.clear()
            arrays = data.load(setup.config.task.dataset, setup.data_dir)
            self._data = TrainingData(setup.config, arrays, setup.device, seed)
        self._place, self._seed, self._data_rests = setup.place, seed, False
        return self._data

    @staticmethod
    def _test(setup: Setup) -> Items:
        arrays = data.load(setup.config.task.dataset, setup.data_dir)
        return data.split_items(setup.config, arrays, "test", setup.device, setup.replicate_seed)


_kept = _Kept()


def rest() -> None:
    """Let what is shared wait for the next replicate; the environments that used it are closed."""
    _kept.rest()
