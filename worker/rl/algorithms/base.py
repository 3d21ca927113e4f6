"""What the lockstep loop asks of a learning algorithm: the record each one fills.

The loop gives the rollout of a round, and one generator; everything else is the algorithm's own. Nothing here or in an
algorithm reduces over runs. Axes: T step, E environment, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from worker.rl.heads import Floors
from worker.rl.learner import Learner
from worker.rl.rollout import Rollout

_STREAK = 3
_CLEAR = 1.5


@dataclass(frozen=True)
class Reading:
    """One detector's value against its threshold.

    Attributes:
        name: detector.
        value: what was measured.
        threshold: bound.
        above: True when values above the bound are bad.
        streak: bad rounds in a row that raise it.
    """

    name: str
    value: float
    threshold: float
    above: bool = True
    streak: int = _STREAK

    @property
    def is_bad(self) -> bool:
        """Whether the value lies beyond the threshold; NaN counts as bad."""
        return not (self.value <= self.threshold if self.above else self.value >= self.threshold)

    @property
    def is_clear(self) -> bool:
        """Whether the value is back by a factor of 1.5."""
        if self.threshold < 0:
            return not self.is_bad
        return self.value <= self.threshold / _CLEAR if self.above else self.value >= self.threshold * _CLEAR


class Prepared(Protocol):
    """A rollout ready for its update, with what the loop reports of it.

    Attributes:
        summary: [K] of ``Heads.summary``, with the entropies of the policy that acted.
    """

    @property
    def summary(self) -> Tensor:
        """Return the summary [K] of ``Heads.summary``."""
        ...


@dataclass(frozen=True)
class Due:
    """An update that is due: what ``Algorithm.update`` is given, of one of several runs."""

    learner: Learner
    rollout: Rollout
    prepared: Prepared
    round_index: int
    order: np.random.Generator


@dataclass(frozen=True)
class Played:
    """A round that is to be made ready for its update: what ``Algorithm.prepare`` is given, of one of several runs."""

    learner: Learner
    rollout: Rollout
    round_index: int
    floors: Floors | None


@dataclass(frozen=True)
class Stacking:
    """How an algorithm updates several runs at once, each with the numbers that it has alone, bit for bit.

    Attributes:
        key: what runs must have in common for that, given learner and T; None for a run that is updated alone.
        prepare: make the rollouts ready, as ``Algorithm.prepare`` does one by one, and return them by index. What
            concerns one run is done in the context that it is given for that index; where that keeps an error, the
            run is left out.
        update: change the learners in place and return the metrics of each, without prefix.
    """

    key: Callable[[Learner, int], Hashable | None]
    prepare: Callable[[Sequence[Played], Callable[[int], AbstractContextManager[object]]], Mapping[int, Prepared]]
    update: Callable[[Sequence[Due]], list[dict[str, float]]]


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, the worker's half; the control plane's is in ``lockstep.spec.algorithms``.

    Attributes:
        name: the ``policy`` of an arm, and the prefix of its metrics.
        floors: least probabilities of choices in a round, given those that floors must not touch; None = no floor.
        prepare: make a rollout ready for the update of a round; raise ``PolicyError`` when it cannot be.
        update: change the learner in place and return metrics without prefix. ``steps_skipped`` and
            ``steps_non_finite`` among them count what was left out.
        detectors: readings of a round's metrics, given its number; they inform and block nothing.
        essential: metrics that the least level of telemetry keeps, without prefix.
        stacking: how several runs are updated at once; None = one by one.
    """

    name: str
    floors: Callable[[Learner, int, Mapping[str, tuple[int, ...]]], Floors | None]
    prepare: Callable[[Learner, Rollout, int, Floors | None], Prepared]
    update: Callable[[Learner, Rollout, Prepared, int, np.random.Generator], dict[str, float]]
    detectors: Callable[[int, Mapping[str, float]], Iterator[Reading]]
    essential: tuple[str, ...]
    stacking: Stacking | None = None
