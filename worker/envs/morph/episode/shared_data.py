"""What environments are made of besides their runs: the settings of a set, and what all of a device share.

While a block evaluates, its training networks are idle, and a round begins with new weights: evaluation takes the same
networks and the same engine, which finds the graphs that training has captured.
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
    """Networks of one setting, lent in the same order to all who use them in turn, so that each finds its graphs."""

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

    def anew(self) -> Networks:
        """Return the same networks for somebody else, who begins with the first."""
        return Networks(self._made)


@dataclass
class SharedData:
    """What the environments of a block on a device share, all runs alike; no run writes to it.

    Attributes:
        data: train and val.
        engine: trains and validates.
        draws: choices of epochs.
        networks: that the engine has seen.
        test: the test split, once evaluation has asked for it; graphs read it as long as there is the engine.
    """

    data: TrainingData
    engine: StepEngine
    draws: Draws
    networks: Networks
    test: Items | None = None

    @classmethod
    def load(cls, setup: Setup) -> SharedData:
        """Read the data set and make the engine, or take up in training what rests; raises as ``make_envs``."""
        if setup.phase == "train":
            return _kept.load(setup)
        return _made(setup).for_evaluation(setup)

    def for_evaluation(self, setup: Setup) -> SharedData:
        """Return what evaluation shares with training environments that begin a round before they step again."""
        if self.test is None:
            arrays = data.load(setup.config.task.dataset, setup.data_dir)
            self.test = data.split_items(setup.config, arrays, "test", setup.device, setup.replicate_seed)
        return self._drawing(setup)

    def for_replicate(self, setup: Setup) -> SharedData:
        """Return the same for the training of another replicate; the environments that used it are closed."""
        self.data.renew(setup.replicate_seed)
        return self._drawing(setup)

    def _drawing(self, setup: Setup) -> SharedData:
        draws = Draws(self.data, Streams(setup.replicate_seed, setup.phase), setup.device)
        return replace(self, draws=draws, networks=self.networks.anew())


def _made(setup: Setup) -> SharedData:
    arrays = data.load(setup.config.task.dataset, setup.data_dir)
    training = TrainingData(setup.config, arrays, setup.device, setup.replicate_seed)
    path, precision = resolve_path(setup.config, setup.device), resolve_precision(setup.config, setup.device)
    engine = make_engine(path, precision, training, setup.device)
    draws = Draws(training, Streams(setup.replicate_seed, setup.phase), setup.device)
    return SharedData(training, engine, draws, Networks())


class _Kept:
    """What was made last for training."""

    def __init__(self) -> None:
        self._place: object = None
        self._shared: SharedData | None = None
        #: Whether nobody uses it any more.
        self._rests = False

    def rest(self) -> None:
        self._rests = True

    def load(self, setup: Setup) -> SharedData:
        resting = self._shared if self._rests and self._place == setup.place else None
        self._shared = None  # what is of another place goes before more is made
        self._shared = _made(setup) if resting is None else resting.for_replicate(setup)
        self._place, self._rests = setup.place, False
        return self._shared


_kept = _Kept()


def rest() -> None:
    """Let what is shared wait for the next replicate; the environments that used it are closed."""
    _kept.rest()
