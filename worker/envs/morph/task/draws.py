"""The choices of epochs, made once for all runs, and ahead of time where a device computes meanwhile."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from worker.envs.morph.task.data import TrainingData
from worker.envs.morph.task.streams import Streams

#: Epochs of an environment that are kept: runs are out of phase by one at most.
_KEPT = 2


class Draws:
    """Draws the epochs of every environment; which run asks, and when, changes nothing.

    Args:
        data: what is drawn from.
        streams: keys; environments are named by their number in a run.
        device: where hosts train; where that is the CPU, nothing is gained by drawing ahead.
    """

    def __init__(self, data: TrainingData, streams: Streams, device: torch.device) -> None:
        self._data, self._streams = data, streams
        self._drawer = None if device.type == "cpu" else ThreadPoolExecutor(1, "draws")
        self._made: dict[int, dict[tuple[int, int], Future[Tensor]]] = {}

    def take(self, number: int, episode: int, epoch: int) -> Tensor:
        """Return the choices of an epoch, [n, B, W] int64 on the CPU; the same tensor for every run."""
        made = self._made.setdefault(number, {})
        if (episode, epoch) not in made:
            found: Future[Tensor] = Future()
            found.set_result(self._draw(number, episode, epoch))
            self._keep(number, episode, epoch, found)
        return made[episode, epoch].result()

    def ahead(self, number: int, episode: int, epoch: int) -> None:
        """Have a thread draw an epoch that will be asked for."""
        if self._drawer is not None and (episode, epoch) not in self._made.setdefault(number, {}):
            self._keep(number, episode, epoch, self._drawer.submit(self._draw, number, episode, epoch))

    def _keep(self, number: int, episode: int, epoch: int, drawn: Future[Tensor]) -> None:
        made = self._made[number]
        made[episode, epoch] = drawn
        while len(made) > _KEPT:
            del made[next(iter(made))]

    def _draw(self, number: int, episode: int, epoch: int) -> Tensor:
        order = self._streams.generator("data_order", number, episode, epoch=epoch)
        crops = self._data.config.augment
        augment = self._streams.generator("augment", number, episode, epoch=epoch) if crops else None
        return self._data.draw(order, augment)
