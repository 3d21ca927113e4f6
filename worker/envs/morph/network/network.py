"""One environment's network: host plus grafts, their optimisers, and the training step.

Storage is allocated once per (slot, blueprint, operator) and re-initialised in place, so addresses
never change between episodes. The step has no Python branch on a tensor: alpha, learning rate and
freezing are tensors; which slots are blended or shadowed is a ``StepPlan``. Axes: B items of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lockstep.spec.tasks import HostShape, LmShape, Optim, SlotSpec
from worker.envs.morph.kernels import Tap, load_kernels, unit
from worker.envs.morph.network.blend import Graft, Operator, isolated
from worker.envs.morph.network.hosts import SHADOW, CnnHost, Pass, build_host
from worker.envs.morph.network.optim import Stepper
from worker.envs.morph.network.params import ParamStore
from worker.envs.morph.task.config import EnvConfig, resolve_path

VANISHING, EXPLODING = 1e-7, 10.0


@dataclass(frozen=True)
class SlotPlan:
    """What one slot does in the training step.

    Attributes:
        slot: index in action order.
        how: blend = in the main forward; shadow = trained beside it; ste = straight-through ablation.
        detach: whether the graft's input is cut off from the host.
    """

    slot: int
    how: Literal["blend", "shadow", "ste"]
    detach: bool = False


#: Slots taking part in a step, in execution order; the rest are absent from the forward pass.
StepPlan = tuple[SlotPlan, ...]


@dataclass
class Cell:
    """Storage of one graft: module, parameters, optimiser state, alpha and freezing."""

    graft: Graft
    store: ParamStore
    alpha: Tensor
    active: Tensor
    #: What alpha and active hold, so that they are written only when they change.
    _held: tuple[float, bool] | None = None

    def hold(self, alpha: float, active: bool) -> None:
        """Set alpha and whether the graft learns, in place."""
        if self._held != (alpha, active):
            self.alpha.fill_(alpha)
            self.active.fill_(active)
            self._held = (alpha, active)


@dataclass
class EpochStats:
    """What training an epoch measured, all on the device.

    Attributes:
        losses: one scalar per batch, main loss.
        norms: one gradient norm per batch and network.
        grads: slot index to [3]: total gradient norm, share of vanishing and of exploding tensors, of
            the last batch, before clipping.
    """

    losses: list[Tensor] = field(default_factory=list)
    norms: list[list[Tensor]] = field(default_factory=list)
    grads: dict[int, Tensor] = field(default_factory=dict)

    def packed(self, num_slots: int) -> Tensor:
        """Return [2 + 3 S] float64: mean loss, batches with a non-finite norm, gradient figures or NaN."""
        norms = torch.stack([torch.stack(row) for row in self.norms])
        return packed_stats(torch.stack(self.losses), norms, self.grads, num_slots)


class Network:
    """Host and grafts of one environment.

    Args:
        config: settings.
        slots: enabled slots in action order.
        device: where everything lives.
        shape: host shape if it differs from the task's (widened controls).
    """

    def __init__(
        self,
        config: EnvConfig,
        slots: Sequence[SlotSpec],
        device: torch.device,
        shape: HostShape | None = None,
    ) -> None:
        shape = shape or config.task.host
        self.config, self.slots, self.device = config, tuple(slots), device
        self.is_text = isinstance(shape, LmShape)
        self.topology: Literal["cnn", "lm"] = "lm" if self.is_text else "cnn"
        self.kernels = load_kernels(resolve_path(config, device))
        self.host = build_host(shape)
        if isinstance(self.host, CnnHost):
            self.host.kernels = self.kernels
        self.store = ParamStore(self.host, self.host.inits(), adam=self.is_text, device=device, dtype=config.dtype)
        self.live: list[Cell | None] = [None] * len(self.slots)
        self._cells: dict[tuple[int, int, Operator], Cell] = {}
        self.one = unit(device, config.dtype)
        self._true = torch.ones((), device=device, dtype=torch.bool)
        self._host_step = self._stepper(config.host)
        self._graft_step = self._stepper(config.graft)

    @property
    def host_params(self) -> int:
        """Number of host parameters, tied weights once."""
        return self.store.size

    def reset(self, generator: np.random.Generator) -> None:
        """Re-initialise the host in place for a new episode.

        Raises:
            RuntimeError: a graft of the last episode is still alive.
        """
        if any(cell is not None for cell in self.live):
            raise RuntimeError("reset with live grafts; remove them first")
        self.store.initialise(generator)

    def germinate(self, slot: int, blueprint: int, operator: Operator, generator: np.random.Generator) -> int:
        """Put a new graft into an empty slot and return its number of parameters.

        Raises:
            ValueError: the slot is occupied, or the blueprint cannot grow here.
        """
        if self.live[slot] is not None:
            raise ValueError(f"slot {self.slots[slot].id} already holds a graft")
        key = (slot, blueprint, operator)
        if key not in self._cells:
            self._cells[key] = self._allocate(slot, blueprint, operator)
        cell = self._cells[key]
        cell.store.initialise(generator)
        cell.hold(0.0, active=True)
        self.live[slot] = cell
        return cell.store.size

    def remove(self, slot: int) -> None:
        """Free a slot: module, gate and optimiser state leave together."""
        cell = self.cell(slot)
        cell.store.clear_optimiser()
        self.live[slot] = None

    def clear(self) -> None:
        """Remove every graft."""
        for slot, cell in enumerate(self.live):
            if cell is not None:
                self.remove(slot)

    def cell(self, slot: int) -> Cell:
        """Return the graft of a slot; an empty slot raises ValueError."""
        cell = self.live[slot]
        if cell is None:
            raise ValueError(f"slot {self.slots[slot].id} is empty")
        return cell

    def set_blend(self, slot: int, alpha: float, active: bool) -> None:
        """Set alpha and whether the graft learns, in place."""
        self.cell(slot).hold(alpha, active)

    def in_execution_order(self, slots: Sequence[int]) -> list[int]:
        """Return slot indices sorted by their place in the host."""
        return sorted(slots, key=lambda slot: self.slots[slot].position)

    def train_epoch(self, x: Tensor, y: Tensor, plan: StepPlan, how: Pass) -> EpochStats:
        """Train one epoch over batches x [n, B, ..], y [n, B, ..]."""
        stats = EpochStats()
        last = x.shape[0] - 1
        for batch in range(x.shape[0]):
            self.train_batch(x[batch], y[batch], plan, how, stats, measure=batch == last)
        return stats

    def stores(self, plan: StepPlan) -> list[ParamStore]:
        """Return what a training step updates: host, grafts of the main forward, shadowed grafts."""
        shadowed = [item.slot for item in plan if item.how == "shadow"]
        main = [item.slot for item in plan if item.how != "shadow"]
        return [self.store, *(self.cell(slot).store for slot in (*main, *shadowed))]

    def train_batch(
        self, x: Tensor, y: Tensor, plan: StepPlan, how: Pass, stats: EpochStats, *, measure: bool = False
    ) -> None:
        """Take one optimiser step on a batch; both gradients are taken on the weights before the step."""
        shadowed = [item.slot for item in plan if item.how == "shadow"]
        features, taps = self._features(x, plan, how)
        loss = self.host.loss(features, y, how, self.config.dtype)
        stores = [self.store, *(self.cell(item.slot).store for item in plan if item.how != "shadow")]
        # without kernels nothing is saved by it, and PyTorch would import sympy to look at it
        begin = None if self.kernels is None else self.one
        grads = _gradients(loss, stores, begin)
        slots = [-1, *(item.slot for item in plan if item.how != "shadow"), *shadowed]
        for slot in shadowed:
            stores.append(self.cell(slot).store)
            tail = self._shadow_features(taps[slot], slot, plan)
            shadow = self.host.loss(tail, y, SHADOW, self.config.dtype)
            grads += _gradients(shadow, stores[-1:], begin)
        with torch.no_grad():
            stats.losses.append(loss.detach())
            if measure:
                for slot, parts in zip(slots[1:], grads[1:], strict=True):
                    stats.grads[slot] = gradient_figures(parts)
            stats.norms.append([self._update(*item) for item in zip(slots, stores, grads, strict=True)])

    @torch.no_grad()
    def magnitude(self, plan: StepPlan) -> Tensor:
        """Return [1] float64, finite exactly when every parameter that a training step updates is."""
        return torch.stack([store.flat.abs().max() for store in self.stores(plan)]).sum()[None].double()

    def _update(self, slot: int, store: ParamStore, parts: Sequence[Tensor]) -> Tensor:
        flat = torch.cat([part.reshape(-1) for part in parts], out=store.grad)
        if slot < 0:
            return self._host_step.step(store, flat, self._true)
        return self._graft_step.step(store, flat, self.cell(slot).active)

    def _features(self, x: Tensor, plan: StepPlan, how: Pass) -> tuple[Tensor, dict[int, Tensor | Tap]]:
        """Return the input of the last segment and the detached inputs of shadowed slots."""
        taps: dict[int, Tensor | Tap] = {}
        done = 0
        for place, item in enumerate(plan):
            stop = self.slots[item.slot].position + 1
            staged = self._staged(x, (done, stop), plan[place:], how)
            if staged is not None:
                x, tap = staged
                done = stop + 1
                if tap is not None:
                    taps[item.slot] = tap
                continue
            x = self.host.run(x, done, stop, how)
            done = stop
            cell = self.cell(item.slot)
            if item.how == "blend":
                x = cell.graft.blend(x, cell.alpha, item.detach)
            elif item.how == "ste":
                x = cell.graft.straight_through(x)
            else:
                taps[item.slot] = x.detach() if self.kernels is not None else isolated(x)
        return self.host.run(x, done, self.host.num_segments - 1, how), taps

    def _staged(self, x: Tensor, span: tuple[int, int], plan: StepPlan, how: Pass) -> tuple[Tensor, Tap | None] | None:
        """Return what lies behind the first graft of a plan and the pool after it, where kernels run both as one.

        Beside it comes the input of a graft in the shadow.
        """
        until = self.slots[plan[1].slot].position + 1 if len(plan) > 1 else self.host.num_segments - 1
        if not isinstance(self.host, CnnHost) or not self.host.can_stage(x, span, until, how):
            return None
        item, cell = plan[0], self.cell(plan[0].slot)
        if item.how == "shadow":
            return self.host.stage_tapped(x, how)
        graft = cell.graft.staged(cell.alpha, detach=item.detach) if item.how == "blend" else None
        return None if graft is None else (self.host.stage(x, graft, how), None)

    def _shadow_features(self, x: Tensor | Tap, slot: int, plan: StepPlan) -> Tensor:
        """Return the input of the last segment with the graft on at alpha 1 from its detached input."""
        x, done = self._shadowed(x, slot)
        for item in plan:
            stop = self.slots[item.slot].position + 1
            if item.how != "blend" or stop <= self.slots[slot].position + 1:
                continue
            x = self.host.run(x, done, stop, SHADOW)
            done = stop
            cell = self.cell(item.slot)
            x = cell.graft.blend(x, cell.alpha)
        return self.host.run(x, done, self.host.num_segments - 1, SHADOW)

    def _shadowed(self, x: Tensor | Tap, slot: int) -> tuple[Tensor, int]:
        """Return what a graft at alpha 1 makes of its detached input, and which segment is next."""
        graft, following = self.cell(slot).graft, self.slots[slot].position + 1
        if not isinstance(x, Tap) or self.kernels is None:
            return graft.blend(x, self.one), following  # type: ignore[arg-type]
        staged = graft.staged(self.one, detach=True)
        if staged is None:
            return graft.blend(self.kernels.tapped(x), self.one), following
        return self.kernels.stage_beside(x, staged), following + 1

    def _stepper(self, optim: Optim) -> Stepper:
        lr = torch.tensor(optim.lr, device=self.device, dtype=self.config.dtype)
        return Stepper(self.is_text, lr, optim, self.kernels)

    def _allocate(self, slot: int, blueprint: int, operator: Operator) -> Cell:
        graft = Graft(blueprint, self.topology, self.slots[slot].channels, operator)
        if self.topology == "cnn":
            graft.core.kernels = self.kernels
        dtype, device = self.config.dtype, self.device
        store = ParamStore(graft, graft.inits(), adam=self.is_text, device=device, dtype=dtype)
        active = torch.ones((), dtype=torch.bool, device=device)
        return Cell(graft, store, torch.zeros((), dtype=dtype, device=device), active)


def packed_stats(losses: Tensor, norms: Tensor, grads: Mapping[int, Tensor], num_slots: int) -> Tensor:
    """Return ``EpochStats.packed`` from losses [n], norms [n, networks] and gradient figures [3] by slot."""
    head = torch.stack([losses.mean(), torch.isfinite(norms).all(1).logical_not().sum()])
    missing = head.new_full((3,), float("nan"))
    return torch.cat([head, *(grads.get(slot, missing) for slot in range(num_slots))]).double()


def gradient_figures(parts: Sequence[Tensor]) -> Tensor:
    """Return [3]: total norm, share of tensors below 1e-7, share above 10 or non-finite."""
    norms = torch.stack(torch._foreach_norm([part.float() for part in parts]))
    exploding = (norms > EXPLODING) | ~torch.isfinite(norms)
    total = torch.linalg.vector_norm(norms)
    return torch.stack([total, (norms < VANISHING).to(norms.dtype).mean(), exploding.to(norms.dtype).mean()])


def gradient_health(total: float, vanishing: float, exploding: float) -> float:
    """Return clamp(1 - 0.5 vanishing - 0.8 exploding, 0, 1); 0 if the total norm is non-finite."""
    if not math.isfinite(total):
        return 0.0
    return float(min(max(1.0 - 0.5 * vanishing - 0.8 * exploding, 0.0), 1.0))


def _gradients(loss: Tensor, stores: Sequence[ParamStore], begin: Tensor | None) -> list[tuple[Tensor, ...]]:
    """Return the gradients of ``loss``, one tuple per store."""
    params = [param for store in stores for param in store.params]
    flat = torch.autograd.grad(loss, params, grad_outputs=begin)
    parts, start = [], 0
    for store in stores:
        parts.append(flat[start : start + len(store.params)])
        start += len(store.params)
    return parts
