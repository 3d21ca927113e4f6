"""The fused validation: every needed on/off configuration in one branching forward pass.

Rows branch only at a player's slot, so what lies before the first player runs once. One packed vector
per environment holds all that is read from it, and ``Measured`` gives it names on the host. Axes: N
validation items, M masks, R stacked rows, n players.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor

from worker.envs.morph.engine import ablation
from worker.envs.morph.engine.ablation import Contrasts, Orders, Table
from worker.envs.morph.network.hosts import EVAL, CnnHost
from worker.envs.morph.network.network import Network


@dataclass(frozen=True)
class ValPlan:
    """What a validation evaluates.

    Attributes:
        players: slots in execution order that are switched on and off.
        fossils: mask of the fossilised players.
        prospective: slots of TRAINING grafts, each tried at alpha 1 beside main, execution order.
        shapley: whether Shapley values are wanted.
        orders: sampled permutations when n > 4 and Shapley values are wanted.
        fixed: slots that stay on in every configuration (fossils that are not ablated).
    """

    players: tuple[int, ...]
    fossils: int = 0
    prospective: tuple[int, ...] = ()
    shapley: bool = False
    orders: Orders = ()
    fixed: tuple[int, ...] = ()

    @property
    def slots(self) -> tuple[int, ...]:
        """Return the slots whose grafts are run."""
        return (*self.players, *self.fixed, *self.prospective)

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """Return the masks in stack order."""
        extra = ablation.coalitions(self.orders) if self.orders else ()
        wanted = ablation.required_masks(len(self.players), self.fossils, extra)
        return ablation.final_order(len(self.players), wanted)

    @cached_property
    def places(self) -> tuple[int, int]:
        """Return where in ``masks`` all players are on, and where only the fossils are."""
        return self.masks.index((1 << len(self.players)) - 1), self.masks.index(self.fossils)

    @cached_property
    def contrasts(self) -> Contrasts:
        """Return the contrasts read from the table."""
        return ablation.contrasts(len(self.players), self.masks, self.shapley, self.orders)


@dataclass
class Measured:
    """Results of one validation, on the host (float64).

    Attributes:
        plan: what was evaluated.
        loss, accuracy: of main, nats and pp; ``accuracy_se`` in pp.
        committed_loss, committed_accuracy: only fossils on.
        mask_loss, mask_accuracy: [M] in the order of ``plan.masks``.
        contrast: [4, R] loss mean, loss SE, accuracy mean (pp), accuracy SE (pp).
        prospective: slot to [4], paired difference of a TRAINING graft to main, same order.
    """

    plan: ValPlan
    loss: float
    accuracy: float
    accuracy_se: float
    committed_loss: float
    committed_accuracy: float
    mask_loss: np.ndarray
    mask_accuracy: np.ndarray
    contrast: np.ndarray
    prospective: dict[int, np.ndarray]


@dataclass(frozen=True)
class Visit:
    """What a validation does at one slot.

    Attributes:
        slot: index in action order.
        part: tried = one configuration more, at alpha 1 beside main; fixed = on in all; player = on and off.
        rows: configurations in the stack before it.
        main: which of them has all players so far on.
        tail: how many of them, the last ones, are tried.
        step: of a player: which configurations go on without it and with it.
    """

    slot: int
    part: Literal["tried", "fixed", "player"]
    rows: int
    main: int
    tail: int
    step: ablation.Branching | None = None


class Validator:
    """Runs validation plans on one network.

    Args:
        network: the network.
        max_rows: items times configurations that one forward pass may hold.

    Attributes:
        forward_rows: items run through a segment so far, summed over segments.
    """

    def __init__(self, network: Network, max_rows: int) -> None:
        self.network = network
        self.max_rows = max_rows
        self.forward_rows = 0

    @torch.no_grad()
    def run(self, x: Tensor, y: Tensor, plan: ValPlan) -> Tensor:
        """Evaluate a plan on all items and return the packed float64 vector."""
        table, prospect = self.tables(x, y, plan)
        wanted = plan.contrasts
        main = wanted.masks.index((1 << len(plan.players)) - 1)
        spread = ablation.item_stats(100.0 * table.correct[main : main + 1], 0)
        parts = [spread[1], table.loss.mean(1), 100.0 * table.correct.mean(1)]
        parts.append(ablation.measure(table, wanted).flatten())
        if plan.prospective:
            gain = ablation.item_stats(table.loss[main] - prospect.loss, 1)
            better = ablation.item_stats(100.0 * (prospect.correct - table.correct[main]), 0)
            parts.append(torch.cat([gain, better]).flatten())
        return torch.cat(parts)

    def parts(self, items: int, plan: ValPlan) -> list[tuple[int, Hashable]]:
        """Return what decides which kernels a validation of ``items`` items runs, each with its slot, or -1.

        No two parts together bring in another kernel: a kernel is chosen by the rows that it is given.
        """
        masks, trials = len(plan.masks), len(plan.prospective)
        chunk = min(items, max(1, self.max_rows // (masks + trials)))
        found: list[tuple[int, Hashable]] = [(-1, ("measured", chunk, masks, trials, len(plan.contrasts.matrix)))]
        done = 0
        for visit in self._visits(plan):
            stop, step = self.network.slots[visit.slot].position + 1, visit.step
            found.append((-1, ("run", chunk, visit.rows, done, stop)))
            branches = None if step is None else (len(step.off), len(step.on), visit.tail)
            found.append((visit.slot, (visit.part, chunk, visit.rows, visit.main, branches)))
            done = stop
        found.append((-1, ("run", chunk, masks + trials, done, self.network.host.num_segments)))
        return found

    @torch.no_grad()
    def tables(self, x: Tensor, y: Tensor, plan: ValPlan) -> tuple[Table, Table]:
        """Return per-item results of every mask, and of every prospective configuration."""
        masks = plan.masks
        rows = len(masks) + len(plan.prospective)
        chunk = max(1, self.max_rows // rows)
        parts = [self._chunk(x[i : i + chunk], y[i : i + chunk], plan, rows) for i in range(0, x.shape[0], chunk)]
        loss = torch.cat([part.loss for part in parts], 1) if len(parts) > 1 else parts[0].loss
        correct = torch.cat([part.correct for part in parts], 1) if len(parts) > 1 else parts[0].correct
        count = len(masks)
        return Table(loss[:count], correct[:count]), Table(loss[count:], correct[count:])

    def _chunk(self, x: Tensor, y: Tensor, plan: ValPlan, rows: int) -> Table:
        logits = self._stack(x, plan)
        items = x.shape[0]
        labels = y.flatten().repeat(rows)
        logits = logits.flatten(0, -2)
        loss = F.cross_entropy(logits, labels, reduction="none").view(rows, items, -1)
        correct = (logits.argmax(-1) == labels).view(rows, items, -1)
        if loss.shape[2] == 1:
            return Table(loss[:, :, 0].double(), correct[:, :, 0].double())
        return Table(loss.double().mean(2), correct.double().mean(2))

    def _stack(self, x: Tensor, plan: ValPlan) -> Tensor:
        """Return logits of [masks.., prospective..] stacked along the items."""
        network, items = self.network, x.shape[0]
        stack, done = x, 0
        for visit in self._visits(plan):
            stop = network.slots[visit.slot].position + 1
            staged = self._staged(stack, visit, (done, stop))
            if staged is not None:
                stack, done = staged, stop + 1
                continue
            stack = self._segments(stack, done, stop)
            done = stop
            cell = network.cell(visit.slot)
            if visit.step is not None:
                stack = self._branch(stack, visit.step, items, visit.slot, visit.tail)
            elif visit.part == "tried":
                here = stack[visit.main * items : (visit.main + 1) * items]
                stack = torch.cat([stack, cell.graft.blend(here, network.one)])
            else:
                stack = cell.graft.blend(stack, cell.alpha)
        return self._segments(stack, done, network.host.num_segments)

    def _staged(self, x: Tensor, visit: Visit, span: tuple[int, int]) -> Tensor | None:
        """Return the stack behind the first slot and its pool, where kernels run block, graft and pool as one."""
        network, step = self.network, visit.step
        host, cell = network.host, network.cell(visit.slot)
        if not isinstance(host, CnnHost) or not host.can_stage(x, span, span[1] + 1, EVAL):
            return None
        tried = visit.part == "tried"
        graft = cell.graft.staged(network.one if tried else cell.alpha, detach=False)
        if graft is None or (step is not None and not step.on):
            return None
        out = host.stage_eval(x, graft, plain=tried or (step is not None and bool(step.off)))
        self.forward_rows += x.shape[0] + out.shape[0]
        return out

    def _visits(self, plan: ValPlan) -> Iterator[Visit]:
        """Yield what a validation does at each of its slots, in execution order."""
        steps = iter(ablation.branchings(len(plan.players), plan.masks))
        prefixes: tuple[int, ...] = (0,)
        tail = num_players = 0
        for slot in self.network.in_execution_order(plan.slots):
            main, rows = prefixes.index((1 << num_players) - 1), len(prefixes) + tail
            if slot in plan.prospective:
                yield Visit(slot, "tried", rows, main, tail)
                tail += 1
            elif slot in plan.fixed:
                yield Visit(slot, "fixed", rows, main, tail)
            else:
                step = next(steps)
                yield Visit(slot, "player", rows, main, tail, step)
                prefixes, num_players = step.prefixes, num_players + 1

    def _branch(self, stack: Tensor, step: ablation.Branching, items: int, slot: int, tail: int) -> Tensor:
        cell = self.network.cell(slot)
        rows = stack.shape[0] // items
        every = tuple(range(rows - tail))
        if step.off == every and step.on == every:
            return torch.cat([stack[: len(every) * items], cell.graft.blend(stack, cell.alpha)])
        # slices, not an index list: under capture nothing may come up from the host
        part = torch.split(stack, items)
        on = torch.cat([part[row] for row in (*step.on, *range(rows - tail, rows))])
        return torch.cat([*(part[row] for row in step.off), cell.graft.blend(on, cell.alpha)])

    def _segments(self, stack: Tensor, start: int, stop: int) -> Tensor:
        self.forward_rows += (stop - start) * stack.shape[0]
        return self.network.host.run(stack, start, stop, EVAL)


def decode(packed: np.ndarray, plan: ValPlan) -> Measured:
    """Give names to the packed vector of ``Validator.run``."""
    masks = plan.masks
    count, rows = len(masks), plan.contrasts.matrix.shape[0]
    loss, accuracy = packed[1 : 1 + count], packed[1 + count : 1 + 2 * count]
    rest = packed[1 + 2 * count :]
    main, committed = plan.places
    trials = rest[4 * rows :].reshape(4, len(plan.prospective))
    return Measured(
        plan=plan,
        loss=float(loss[main]),
        accuracy=float(accuracy[main]),
        accuracy_se=float(packed[0]),
        committed_loss=float(loss[committed]),
        committed_accuracy=float(accuracy[committed]),
        mask_loss=loss,
        mask_accuracy=accuracy,
        contrast=rest[: 4 * rows].reshape(4, rows),
        prospective={slot: trials[:, i] for i, slot in enumerate(plan.prospective)},
    )
