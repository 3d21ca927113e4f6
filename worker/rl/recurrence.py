"""LSTMs of policies: one step of several runs at once, and a sequence in which episodes begin and end.

A step is written out, because a library's call for one prepares the weights anew each time, which takes several times
as long as the step. A sequence is the library's: a product of several runs' weights in each of 128 steps is not faster,
since what limits both is reading the weights. Axes: R run, T step, E environment, D input, N hidden unit, L layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

from worker.rl.affine import affine, at_own_address, exact_parts

#: What a call of the library costs besides its rows, in rows of one step (measured on a processor with 128 units).
_CALL = 40
#: Names of the parameters of a layer, in the order of ``Cell`` and of ``torch.nn.LSTM``.
CELL = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
#: (t, keep) in increasing t > 0; ``keep`` [E] is 0 where an episode begins at t, else 1.
Resets = Sequence[tuple[int, Tensor]]
#: Outputs [T, E, N] and the state after for inputs [T, E, D] and a state, two of [L, E, N].
Library = Callable[[Tensor, tuple[Tensor, Tensor]], tuple[Tensor, tuple[Tensor, Tensor]]]


class Cell(NamedTuple):
    """Parameters of one layer, in the order of gates (i, f, g, o) of ``torch.nn.LSTM``.

    Attributes:
        weight_ih, weight_hh: [R, 4 N, D] and [R, 4 N, N].
        bias_ih, bias_hh: [R, 4 N].
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


def step(x: Tensor, cell: Cell, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden state and memory [R, E, N] after a step with inputs [R, E, D]; nothing is differentiated."""
    gates = affine(x, (cell.weight_ih, cell.bias_ih + cell.bias_hh))
    columns, hidden = cell.weight_hh.transpose(1, 2), at_own_address(hidden)
    if "forward" in exact_parts(*hidden.shape, gates.shape[2]):
        gates.baddbmm_(hidden, columns)
    else:
        for entering, rows, weight in zip(gates.unbind(), hidden.unbind(), columns.unbind(), strict=True):
            entering.copy_(torch.addmm(at_own_address(entering), at_own_address(rows), weight))
    enters, forgets, new, leaves = gates.chunk(4, dim=-1)
    # c_t = f c_(t-1) + i g,  h_t = o tanh c_t
    memory = (forgets.sigmoid() * memory).addcmul_(enters.sigmoid(), new.tanh())
    return leaves.sigmoid() * memory.tanh(), memory


def through_layers(
    x: Tensor, cells: Sequence[Cell], hidden: Tensor, memory: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the outputs [R, E, N] of a step with inputs [R, E, D], and the state after it, two of [R, L, E, N]."""
    after = []
    for cell, h, c in zip(cells, hidden.unbind(1), memory.unbind(1), strict=True):
        x, kept = step(x, cell, h, c)
        after.append((x, kept))
    hidden, memory = (torch.stack(parts, dim=1) for parts in zip(*after, strict=True))
    return x, (hidden, memory)


def resets_of(resets: Resets, runs: int) -> list[Resets]:
    """Return of resets with ``keep`` [R, E] those of each run in which an episode of it begins."""
    found: list[list[tuple[int, Tensor]]] = [[] for _ in range(runs)]
    if resets:
        begins = (torch.stack([keep for _, keep in resets]).amin(-1) == 0).tolist()
        for (t, keep), of_runs in zip(resets, begins, strict=True):
            for run, begun in enumerate(of_runs):
                if begun:
                    found[run].append((t, keep[run]))
    return list(found)


def over_episodes(library: Library, x: Tensor, state: tuple[Tensor, Tensor], resets: Resets) -> Tensor:
    """Return the outputs [T, E, N] of a sequence of inputs [T, E, D] whose state is zero where an episode begins.

    Either every episode is a row of one batch, padded to the longest, or the sequence is cut where an episode begins;
    what is chosen depends on this run's episodes alone. On a GPU it is always cut: where is known there already.
    """
    if not resets:
        return library(x, state)[0]
    if not x.is_cuda:
        episodes = _Episodes.of(resets, len(x), x.shape[1])
        if episodes.cheaper_than(len(resets) + 1):
            return episodes.run(library, x, state)
    edges, parts = [0, *(t for t, _ in resets), len(x)], []
    for index, (start, stop) in enumerate(pairwise(edges)):
        if index:
            keep = resets[index - 1][1].view(1, -1, 1)
            state = state[0] * keep, state[1] * keep
        outputs, state = library(x[start:stop], state)
        parts.append(outputs)
    return torch.cat(parts)


class _Episodes(NamedTuple):
    """The parts of a sequence between resets, as rows; the first E rows are those that begin at step 0.

    Attributes:
        size: T and E of the sequence.
        spans: (environment, first step, step after the last) of each row.
    """

    size: tuple[int, int]
    spans: list[tuple[int, int, int]]

    @classmethod
    def of(cls, resets: Resets, steps: int, envs: int) -> _Episodes:
        """Find where episodes begin and end."""
        kept = torch.stack([keep for _, keep in resets], dim=1).tolist()
        begins = [[0, *(t for (t, _), keep in zip(resets, of_env, strict=True) if keep == 0)] for of_env in kept]
        spans = [(env, *span) for env, starts in enumerate(begins) for span in pairwise([*starts, steps])]
        return cls((steps, envs), sorted(spans, key=lambda span: span[1] > 0))

    @property
    def longest(self) -> int:
        """Return the steps of the longest."""
        return max(stop - start for _, start, stop in self.spans)

    def cheaper_than(self, num_parts: int) -> bool:
        """Guess whether one padded batch costs less than so many parts of all environments, each a call."""
        steps, envs = self.size
        return self.longest * (1 + len(self.spans)) < steps * (1 + envs) + _CALL * (num_parts - 1)

    def run(self, library: Library, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        """Return the outputs of the sequence."""
        (steps, envs), longest, (env, start, stop) = self.size, self.longest, np.array(self.spans).T
        rows, t = len(env), np.arange(longest)[:, None]
        # beyond its end an episode repeats its last input; what comes of that is not read
        source = np.minimum(start + t, stop - 1) * envs + env
        place, read = np.empty(steps * envs, dtype=np.int64), t < stop - start
        place[source[read]] = np.flatnonzero(read)
        entering = x.flatten(0, 1).index_select(0, torch.from_numpy(source.reshape(-1)))
        first = [F.pad(part, (0, 0, 0, rows - envs)) for part in state]
        outputs, _ = library(entering.view(longest, rows, -1), (first[0], first[1]))
        return outputs.flatten(0, 1).index_select(0, torch.from_numpy(place)).view(steps, envs, -1)
