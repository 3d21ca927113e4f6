"""The graft architectures (environment.md 4): cores f(x) that preserve shape at any resolution.

Every layer begins with its ordinary initialisation; what makes a newborn graft the identity is the
zero output scale of the blend, never a zero layer inside. Ids are action and embedding indices.
Nothing falls back: an unknown id, a wrong topology or a reserved id raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor, nn

from lockstep.spec.tasks import BLUEPRINT_NAMES, BLUEPRINTS, Topology
from worker.envs.morph.kernels import Kernels
from worker.envs.morph.network.conv import conv2d
from worker.envs.morph.network.hosts import causal_attention

_META = torch.device("meta")

NUM_BLUEPRINTS = len(BLUEPRINT_NAMES)
ALLOWED: Mapping[Topology, frozenset[int]] = {
    topology: frozenset(BLUEPRINT_NAMES.index(name) for name in names) for topology, names in BLUEPRINTS.items()
}


def blueprint_id(name: str) -> int:
    """Return the id of a blueprint name; an unknown name raises ValueError."""
    if name not in BLUEPRINT_NAMES:
        raise ValueError(f"blueprint {name!r} is unknown; use one of {', '.join(BLUEPRINT_NAMES)}")
    return BLUEPRINT_NAMES.index(name)


def groups(channels: int) -> int:
    """Return GroupNorm groups: largest g in 32..2 dividing C with at least 16 channels each, else 1."""
    for count in (32, 16, 8, 4, 2):
        if channels % count == 0 and channels // count >= 16:
            return count
    return 1


def build_core(blueprint: int, topology: Topology, channels: int) -> nn.Module:
    """Return the core of a blueprint, without storage.

    Raises:
        ValueError: unknown or reserved id, or one of the other topology.
    """
    if not 0 <= blueprint < NUM_BLUEPRINTS:
        raise ValueError(f"blueprint id {blueprint} is unknown; ids are 0..{NUM_BLUEPRINTS - 1}")
    if blueprint not in ALLOWED[topology]:
        allowed = ", ".join(BLUEPRINT_NAMES[i] for i in sorted(ALLOWED[topology]))
        raise ValueError(
            f"blueprint {BLUEPRINT_NAMES[blueprint]} cannot grow in a {topology} host; use one of {allowed}"
        )
    return _BUILDERS[topology][blueprint](channels)


def check_input(x: Tensor, channels: int, topology: Topology) -> None:
    """Raise ValueError unless x is [B, C, H, W] (CNN) or [B, L, C] (LM)."""
    wanted, axis = (4, 1) if topology == "cnn" else (3, 2)
    if x.ndim != wanted or x.shape[axis] != channels:
        raise ValueError(f"a {topology} graft of {channels} channels cannot take input {tuple(x.shape)}")


class ConvNorm(nn.Module):
    """ReLU(GN(Conv)), ``times`` in a row."""

    kernels: Kernels | None = None

    def __init__(self, channels: int, kernel: int, times: int = 1) -> None:
        super().__init__()
        self.groups = groups(channels)
        self.convs = nn.ModuleList(_conv(channels, channels, kernel) for _ in range(times))
        self.norms = nn.ModuleList(_gn(channels) for _ in range(times))
        #: One convolution of 3 x 3 with one group behind it.
        self.is_single = times == 1 and kernel == 3 and self.groups == 1

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        if self._fuses(x):
            return self.fused(x, None)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv2d(x, conv.weight)  # type: ignore[arg-type]
            x = F.relu(F.group_norm(x, self.groups, norm.weight, norm.bias))  # type: ignore[arg-type]
        return x

    def blend(self, h: Tensor, x: Tensor, gamma: Tensor, alpha: Tensor) -> Tensor | None:
        """Return h + alpha gamma f(x) in one pass where kernels take it, else None."""
        return self.fused(x, (h, gamma, alpha)) if self._fuses(x) else None

    def fused(self, x: Tensor, blend: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
        """Return f(x) by kernels, or with (h, gamma, alpha) h + alpha gamma f(x)."""
        if self.kernels is None:
            raise RuntimeError("this graft has no kernels; use engine.path fused")
        last = len(self.convs) - 1
        if blend is not None and blend[0] is x and not last:
            h, *scale = blend
            return self.kernels.conv_group(h, self.convs[0].weight, self.norms[0], self.groups, *scale)  # type: ignore[arg-type]
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = self.kernels.conv2d(x, conv.weight)  # type: ignore[arg-type]
            x = self.kernels.group_relu(x, norm, self.groups, blend if index == last else None)
        return x

    def _fuses(self, x: Tensor) -> bool:
        return self.kernels is not None and self.kernels.fits_group(x, self.groups)


class SqueezeExcite(nn.Module):
    """x * tanh(W2 SiLU(W1 mean(x)) + b), m = max(1, C // 4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        middle = max(1, channels // 4)
        self.down = nn.Linear(channels, middle, bias=False, device=_META)
        self.up = nn.Linear(middle, channels, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        weights = torch.tanh(self.up(F.silu(self.down(x.mean((2, 3))))))
        return x * weights[:, :, None, None]


class NormResidual(nn.Module):
    """Norm(x) - x, with GroupNorm (CNN) or LayerNorm (LM)."""

    def __init__(self, channels: int, topology: Topology) -> None:
        super().__init__()
        self.norm = _gn(channels) if topology == "cnn" else nn.LayerNorm(channels, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        normed: Tensor = self.norm(x)
        return normed - x


class Depthwise(nn.Module):
    """ReLU(GN(PW1x1(DW3x3)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False, device=_META)
        self.point = _conv(channels, channels, 1)
        self.norm = _gn(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return F.relu(self.norm(self.point(self.depth(x))))


class Bottleneck(nn.Module):
    """GN(Up1x1(ReLU(Conv3x3(ReLU(Down1x1))))), mid = max(8, C // 4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        middle = max(8, channels // 4)
        self.down = _conv(channels, middle, 1)
        self.conv = nn.Conv2d(middle, middle, 3, padding=1, bias=False, device=_META)
        self.up = _conv(middle, channels, 1)
        self.norm = _gn(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        middle = F.relu(conv2d(F.relu(self.down(x)), self.conv.weight))
        normed: Tensor = self.norm(self.up(middle))
        return normed


class CausalAttention(nn.Module):
    """Proj(SDPA causal, 4 heads) with biases."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels, device=_META)
        self.proj = nn.Linear(channels, channels, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        projected: Tensor = self.proj(causal_attention(self.qkv(x), 4))
        return projected


class LowRank(nn.Module):
    """Up(Down(x)) without biases."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, rank, bias=False, device=_META)
        self.up = nn.Linear(rank, channels, bias=False, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        raised: Tensor = self.up(self.down(x))
        return raised


class Mlp(nn.Module):
    """fc2(GELU(fc1)), hidden width a multiple of C."""

    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, factor * channels, device=_META)
        self.fc2 = nn.Linear(factor * channels, channels, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


def _conv(inner: int, outer: int, kernel: int) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, kernel, bias=False, device=_META)


def _gn(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups(channels), channels, device=_META)


_BUILDERS: Mapping[Topology, Mapping[int, Callable[[int], nn.Module]]] = {
    "cnn": {
        1: lambda c: ConvNorm(c, 3),
        2: SqueezeExcite,
        3: lambda c: NormResidual(c, "cnn"),
        4: Depthwise,
        5: Bottleneck,
        6: lambda c: ConvNorm(c, 1),
        7: lambda c: ConvNorm(c, 3, times=2),
    },
    "lm": {
        2: CausalAttention,
        3: lambda c: NormResidual(c, "lm"),
        8: lambda c: LowRank(c, 8),
        9: lambda c: LowRank(c, 32),
        10: lambda c: Mlp(c, 2),
        11: lambda c: Mlp(c, 4),
    },
}


def core_params(blueprint: int, topology: Topology, channels: int) -> int:
    """Return the number of parameters of a core."""
    return sum(math.prod(p.shape) for p in build_core(blueprint, topology, channels).parameters())


@lru_cache(maxsize=64)
def graft_sizes(topology: Topology, channels: int) -> tuple[int, ...]:
    """Return by blueprint the parameters of a graft with gamma and the largest gate; 0 if not allowed."""
    middle = max(8, channels // 4)
    extra = channels + (channels * middle + 2 * middle + 1)
    return tuple(
        core_params(i, topology, channels) + extra if i in ALLOWED[topology] else 0 for i in range(NUM_BLUEPRINTS)
    )
