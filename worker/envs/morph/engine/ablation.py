"""Which on/off configurations a validation needs, and what is read from them (environment.md 7).

A mask is an integer whose bit i says that player i (execution order) is on. A ``BranchPlan`` runs all
unique masks in one pass that branches only at players; ``Contrasts`` turns per-item losses into
contributions, interactions and Shapley values with standard errors. v(S) = -(mean loss with S on).
Nothing is invented: a statistic whose masks were not run is absent. Axes: M masks, N items, n players.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

EXACT_PLAYERS = 4
ANTITHETIC_PAIRS = 16


@dataclass(frozen=True)
class Branching:
    """What happens at one player: rows of the next stack as indices into [off | on] of this one.

    Attributes:
        off: parents that continue with the player off.
        on: parents that continue with the player on.
        prefixes: the new prefixes, off before on.
    """

    off: tuple[int, ...]
    on: tuple[int, ...]
    prefixes: tuple[int, ...]


def required_masks(num_players: int, fossils: int, extra: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the unique masks of a validation, ascending.

    Args:
        num_players: n. Up to 4 players give the full table; more give all, none, each single off, each
            single on and fossils only.
        fossils: mask of the fossilised players.
        extra: further masks (coalitions of sampled Shapley values).
    """
    full = (1 << num_players) - 1
    if num_players <= EXACT_PLAYERS:
        return tuple(range(full + 1))
    singles = [1 << i for i in range(num_players)]
    wanted = {0, full, fossils, *extra, *singles, *(full ^ single for single in singles)}
    return tuple(sorted(wanted))


@lru_cache(maxsize=1024)
def branchings(num_players: int, masks: tuple[int, ...]) -> tuple[Branching, ...]:
    """Return, player by player, how the stack of prefixes grows until it holds every mask once."""
    prefixes: tuple[int, ...] = (0,)
    steps: list[Branching] = []
    for player in range(num_players):
        bit, below = 1 << player, (1 << (player + 1)) - 1
        wanted = {mask & below for mask in masks}
        off = tuple(i for i, prefix in enumerate(prefixes) if prefix in wanted)
        on = tuple(i for i, prefix in enumerate(prefixes) if prefix | bit in wanted)
        new = tuple(prefixes[i] for i in off) + tuple(prefixes[i] | bit for i in on)
        steps.append(Branching(off, on, new))
        prefixes = new
    return tuple(steps)


def final_order(num_players: int, masks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the masks in the order in which the rows of the last stack hold them."""
    steps = branchings(num_players, masks)
    return steps[-1].prefixes if steps else (0,)


@dataclass(frozen=True)
class Contrasts:
    """Linear combinations of v over masks, one per row of ``matrix``.

    Attributes:
        masks: column order.
        matrix: [R, M] float64.
        contribution: rows c_i = v(N) - v(N minus i).
        pairs: (i, j) of each interaction row.
        interaction: rows I_ij; empty unless 2 <= n <= 4.
        total: row of v(N) - v(empty).
        shapley: rows of exact Shapley values, or of pair means (16 for player 0, 16 for player 1, ..).
        sampled: whether ``shapley`` holds pair means.
    """

    masks: tuple[int, ...]
    matrix: Tensor
    contribution: slice
    pairs: tuple[tuple[int, int], ...]
    interaction: slice
    total: int
    shapley: slice
    sampled: bool
    _placed: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def matrix_on(self, device: torch.device) -> Tensor:
        """Return ``matrix`` on a device; it is copied there once, so a captured step copies nothing."""
        if device not in self._placed:
            self._placed[device] = self.matrix.to(device)
        return self._placed[device]

    @property
    def num_players(self) -> int:
        """Return n."""
        return int(self.contribution.stop)


Orders = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def contrasts(num_players: int, masks: tuple[int, ...], shapley: bool, orders: Orders = ()) -> Contrasts:
    """Return the contrasts that ``masks`` can answer.

    Args:
        num_players: n.
        masks: masks in column order (the order of the stack).
        shapley: whether to add Shapley rows.
        orders: permutations of sampled Shapley values (n >= 5), each followed by its reverse.

    Raises:
        ValueError: a needed mask was not measured.
    """
    build = _Builder(masks)
    full, players = (1 << num_players) - 1, range(num_players)
    rows = [build.row({full: 1.0, full ^ (1 << i): -1.0}) for i in players]
    pairs: tuple[tuple[int, int], ...] = ()
    if 2 <= num_players <= EXACT_PLAYERS:
        pairs = tuple(combinations(players, 2))
        for i, j in pairs:
            a, b = 1 << i, 1 << j
            rows.append(build.sum([(a | b, 1.0), (a, -1.0), (b, -1.0), (0, 1.0)]))
    rows.append(build.sum([(full, 1.0), (0, -1.0)]))
    total = len(rows) - 1
    sampled = num_players > EXACT_PLAYERS
    if shapley:
        rows += _sampled_rows(build, orders) if sampled else _exact_rows(build, num_players)
    matrix = torch.from_numpy(np.stack(rows))
    first = num_players
    return Contrasts(
        masks,
        matrix,
        slice(0, first),
        pairs,
        slice(first, total),
        total,
        slice(total + 1, len(rows)),
        sampled,
    )


class _Builder:
    """Rows over measured masks."""

    def __init__(self, masks: tuple[int, ...]) -> None:
        self.column = {mask: i for i, mask in enumerate(masks)}

    def row(self, weights: dict[int, float]) -> np.ndarray:
        return self.sum(list(weights.items()))

    def sum(self, terms: Sequence[tuple[int, float]]) -> np.ndarray:
        row = np.zeros(len(self.column))
        for mask, weight in terms:
            if mask not in self.column:
                raise ValueError(f"mask {mask:b} was not measured; no value is invented for it")
            row[self.column[mask]] += weight
        return row


def _exact_rows(build: _Builder, num_players: int) -> list[np.ndarray]:
    # Shapley 1953: phi_i = sum over S without i of |S|! (n-|S|-1)! / n! (v(S + i) - v(S))
    rows = []
    for player in range(num_players):
        terms: list[tuple[int, float]] = []
        for mask in range(1 << num_players):
            if mask >> player & 1:
                continue
            size = mask.bit_count()
            weight = math.factorial(size) * math.factorial(num_players - size - 1)
            share = weight / math.factorial(num_players)
            terms += [(mask | 1 << player, share), (mask, -share)]
        rows.append(build.sum(terms))
    return rows


def _sampled_rows(build: _Builder, orders: Orders) -> list[np.ndarray]:
    num_players = len(orders[0])
    marginals = [_marginals(order) for order in orders]
    rows = []
    for player in range(num_players):
        for pair in range(0, len(orders), 2):
            terms = [
                (mask, sign * 0.5)
                for marginal in marginals[pair : pair + 2]
                for mask, sign in ((marginal[player][0], 1.0), (marginal[player][1], -1.0))
            ]
            rows.append(build.sum(terms))
    return rows


def _marginals(order: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    found, before = {}, 0
    for player in order:
        found[player] = (before | 1 << player, before)
        before |= 1 << player
    return found


def antithetic_orders(num_players: int, generator: np.random.Generator) -> Orders:
    """Return 16 keyed permutations of the players, each followed by its reverse."""
    orders: list[tuple[int, ...]] = []
    for _ in range(ANTITHETIC_PAIRS):
        order = tuple(int(i) for i in generator.permutation(num_players))
        orders += [order, order[::-1]]
    return tuple(orders)


def coalitions(orders: Orders) -> tuple[int, ...]:
    """Return the masks which the permutations visit."""
    visited = {mask for order in orders for pair in _marginals(order).values() for mask in pair}
    return tuple(sorted(visited))


@dataclass
class Table:
    """Per-item results of one validation.

    Attributes:
        loss: [M, N] mean cross-entropy of each item.
        correct: [M, N] share of the item's predictions that are right.
    """

    loss: Tensor
    correct: Tensor


def item_stats(values: Tensor, ddof: int) -> Tensor:
    """Return [2, R]: mean over items and standard error sd / sqrt(N) of values [R, N] (float64)."""
    count = values.shape[-1]
    mean = values.mean(-1)
    error = ((values - mean[..., None]).square().sum(-1) / max(count - ddof, 1) / count).sqrt()
    return torch.stack([mean, error])


def measure(table: Table, wanted: Contrasts) -> Tensor:
    """Return [4, R]: loss mean and SE, accuracy mean and SE of every contrast.

    Losses in nats with sd over N - 1; accuracies in pp with the population variance, which for right or
    wrong items is ((b + w) - (b - w)^2 / N) / N, b / w the items only right with / without.
    """
    matrix = wanted.matrix_on(table.loss.device)
    loss = item_stats(-(matrix @ table.loss), 1)
    correct = item_stats(100.0 * (matrix @ table.correct), 0)
    return torch.cat([loss, correct])


def sampled_shapley(pair_means: np.ndarray, num_players: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values and standard errors [n] from pair means [n * 16]."""
    means = pair_means.reshape(num_players, -1)
    return means.mean(1), means.std(1, ddof=1) / math.sqrt(means.shape[1])
