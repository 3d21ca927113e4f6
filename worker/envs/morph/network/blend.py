"""Grafts and the operators that blend them into the host (environment.md 3.5).

A graft is core f, output scale gamma (zero at birth) and, for GATE, a gate. Whatever the operator,
the host path has weight 1 at every alpha and a newborn graft leaves the output bitwise unchanged.
Axes: B items, C channels; maps are [B, C, H, W] (CNN) or [B, L, C] (LM).
"""

from __future__ import annotations

from enum import IntEnum

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor, nn

from lockstep.spec.tasks import Topology
from worker.envs.morph.kernels import Kernels, StagedGraft
from worker.envs.morph.network.blueprints import Normed, build_core, check_input
from worker.envs.morph.network.params import Init, default_init

_META = torch.device("meta")
_GATE_STD, _GATE_BIAS = 0.1, 2.0


class Operator(IntEnum):
    """How a graft's output meets the host's."""

    ADD = 0
    MULTIPLY = 1
    GATE = 2


class Gate(nn.Module):
    """sigmoid(Linear(m, 1)(SiLU(Linear(C, m)(p(x))))), m = max(8, C // 4).

    p is the mean over the map for CNN and the identity for LM: pooling over tokens would leak the future.
    """

    def __init__(self, channels: int, topology: Topology) -> None:
        super().__init__()
        middle = max(8, channels // 4)
        self.pools = topology == "cnn"
        self.fc1 = nn.Linear(channels, middle, device=_META)
        self.fc2 = nn.Linear(middle, 1, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 1, 1, 1] (CNN) or [B, L, 1] (LM)."""
        gate = self.each(x)
        return gate[:, :, None, None] if self.pools else gate

    def each(self, x: Tensor) -> Tensor:
        """Return [B, 1] (CNN) or [B, L, 1] (LM)."""
        pooled = x.mean((2, 3)) if self.pools else x
        return torch.sigmoid(self.fc2(F.silu(self.fc1(pooled))))


class Graft(nn.Module):
    """A blueprint instance with its output scale and operator."""

    def __init__(self, blueprint: int, topology: Topology, channels: int, operator: Operator) -> None:
        super().__init__()
        self.blueprint, self.topology, self.channels, self.operator = blueprint, topology, channels, operator
        self.core = build_core(blueprint, topology, channels)
        self.gamma = nn.Parameter(torch.empty(channels, device=_META))
        self.gate = Gate(channels, topology) if operator is Operator.GATE else None

    def inits(self) -> dict[str, Init]:
        """Return ordinary initialisation inside, gamma 0, gate output weight N(0, 0.1^2) and bias 2."""
        inits = default_init(self)
        inits["gamma"] = Init()
        if self.gate is not None:
            inits["gate.fc2.weight"] = Init(std=_GATE_STD)
            inits["gate.fc2.bias"] = Init(offset=_GATE_BIAS)
        return inits

    def delta(self, x: Tensor) -> Tensor:
        """Return r(x) = gamma * f(x), of the shape of x."""
        scale = self.gamma[:, None, None] if self.topology == "cnn" else self.gamma
        out, weights = self.core.fused(x) if self.core.fuses(x) else (self.core(x), None)
        out = out if weights is None else out * weights[:, :, None, None]
        return out * scale

    def contribution(self, h: Tensor, x: Tensor) -> Tensor:
        """Return what is added to h at alpha = 1, computed from x (h, or h detached)."""
        delta = self.delta(x)
        if self.operator is Operator.MULTIPLY:
            return h * torch.tanh(delta)
        return delta if self.gate is None else self.gate(x) * delta

    def blend(self, h: Tensor, alpha: Tensor, detach: bool = False) -> Tensor:
        """Return y = h + alpha * contribution; ``detach`` isolates the host from the graft's input.

        A detached input is a contiguous copy: channels_last plus detach breaks convolution backward.
        """
        check_input(h, self.channels, self.topology)
        if self.core.fuses(h):
            return self._fused(h, h.detach() if detach else h, alpha)
        return h + alpha * self.contribution(h, isolated(h) if detach else h)

    def _fused(self, h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
        """Blend by kernels."""
        added = self.core.added(h, x, self.gamma, alpha) if self.operator is Operator.ADD else None
        if added is not None:
            return added
        y, scale = self.core.fused(x)
        scale = self.gamma if scale is None else self.gamma * scale
        if self.gate is not None:
            scale = self.gate.each(x) * scale
        kernels: Kernels = self.core.kernels  # type: ignore[assignment]
        return kernels.blend(h, y, scale, alpha, multiply=self.operator is Operator.MULTIPLY)

    def staged(self, alpha: Tensor, *, detach: bool) -> StagedGraft | None:
        """Return the graft as ``Kernels.stage`` takes one, or None where it is of another kind."""
        if self.operator is not Operator.ADD or not isinstance(self.core, Normed) or self.core.groups > 1:
            return None
        weight = self.core.single()
        if weight is None or weight.shape[2] != 3:
            return None
        return StagedGraft(weight, self.core.norm, self.gamma, alpha, detach)

    def straight_through(self, h: Tensor) -> Tensor:
        """Return h in value, with the gradient of the graft at alpha = 1 from a detached input."""
        x = h.detach() if self.core.fuses(h) else isolated(h)
        added = self.contribution(x, x)
        return h + (added - added.detach())


def isolated(h: Tensor) -> Tensor:
    """Return h cut off from its graph, with the strides of a contiguous tensor.

    ``contiguous()`` is not enough: a map of one pixel counts as contiguous with the strides of channels_last too, and
    PyTorch's GroupNorm backward on the CPU then reads a gradient of its input that nobody asked for (crash in 2.13).
    """
    return h.detach().reshape(-1).view(h.shape)


def graft_params(blueprint: int, topology: Topology, channels: int, operator: Operator) -> int:
    """Return the parameters of a graft with gamma and gate."""
    return sum(p.numel() for p in Graft(blueprint, topology, channels, operator).parameters())
