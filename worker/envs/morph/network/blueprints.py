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
from worker.envs.morph.kernels import GroupKind, Kernels
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


def build_core(blueprint: int, topology: Topology, channels: int) -> Core:
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


class Core(nn.Module):
    """f of a graft: ``forward`` is the plain way; where kernels take a map, the graft is blended by them."""

    kernels: Kernels | None = None

    def fuses(self, x: Tensor) -> bool:  # noqa: ARG002
        """Say whether kernels run f on x."""
        return self.kernels is not None

    def fused(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return y and a scale [B, C], or None for 1: f(x) is their product."""
        return self(x), None

    def added(self, h: Tensor, x: Tensor, gamma: Tensor, alpha: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return h + alpha gamma f(x) where kernels have a way of their own for it."""
        return None


class Normed(Core):
    """A core that ends in GroupNorm and what ``kind`` says."""

    kind: GroupKind = "relu"
    groups: int
    norm: nn.Module

    def before(self, kernels: Kernels, x: Tensor) -> Tensor:
        """Return what the last GroupNorm reads."""
        raise NotImplementedError

    def single(self) -> Tensor | None:
        """Return the weight [C, C, k, k] where the core is ReLU(GN(conv(x)))."""
        return None

    def fuses(self, x: Tensor) -> bool:
        """Say whether kernels run f on x."""
        return self.kernels is not None and self.kernels.fits_group(x, self.groups)

    def fused(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return f(x)."""
        kernels = self._own()
        return kernels.group(self.before(kernels, x), self.norm, self.groups, self.kind), None

    def added(self, h: Tensor, x: Tensor, gamma: Tensor, alpha: Tensor) -> Tensor:
        """Return h + alpha gamma f(x)."""
        kernels, weight = self._own(), self.single()
        if weight is not None and h is x:
            return kernels.conv_group(h, weight, self.norm, self.groups, gamma, alpha)
        return kernels.group(self.before(kernels, x), self.norm, self.groups, self.kind, (h, gamma, alpha))

    def _own(self) -> Kernels:
        if self.kernels is None:
            raise RuntimeError("this graft has no kernels; use engine.path fused")
        return self.kernels


class ConvNorm(Normed):
    """ReLU(GN(Conv)), ``times`` in a row."""

    def __init__(self, channels: int, kernel: int, times: int = 1) -> None:
        super().__init__()
        self.groups = groups(channels)
        self.convs = nn.ModuleList(_conv(channels, channels, kernel) for _ in range(times))
        self.norms = nn.ModuleList(_gn(channels) for _ in range(times))

    @property
    def norm(self) -> nn.Module:  # type: ignore[override]
        """The last GroupNorm."""
        return self.norms[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv2d(x, conv.weight)  # type: ignore[arg-type]
            x = F.relu(F.group_norm(x, self.groups, norm.weight, norm.bias))  # type: ignore[arg-type]
        return x

    def before(self, kernels: Kernels, x: Tensor) -> Tensor:
        """Return what the last GroupNorm reads."""
        for conv, norm in zip(self.convs[:-1], self.norms, strict=False):
            x = kernels.group(kernels.conv2d(x, conv.weight), norm, self.groups, "relu")  # type: ignore[arg-type]
        return kernels.conv2d(x, self.convs[-1].weight)  # type: ignore[arg-type]

    def single(self) -> Tensor | None:
        """Return the weight of the only convolution."""
        return self.convs[0].weight if len(self.convs) == 1 else None  # type: ignore[return-value]


class SqueezeExcite(Core):
    """x * tanh(W2 SiLU(W1 mean(x)) + b), m = max(1, C // 4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        middle = max(1, channels // 4)
        self.down = nn.Linear(channels, middle, bias=False, device=_META)
        self.up = nn.Linear(middle, channels, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return x * self._weights(x)[:, :, None, None]

    def fused(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return x and what it is multiplied by."""
        return x, self._weights(x)

    def _weights(self, x: Tensor) -> Tensor:
        return torch.tanh(self.up(F.silu(self.down(x.mean((2, 3))))))


class NormResidual(Normed):
    """Norm(x) - x, with GroupNorm (CNN) or LayerNorm (LM)."""

    kind: GroupKind = "residual"

    def __init__(self, channels: int, topology: Topology) -> None:
        super().__init__()
        self.groups = groups(channels)
        self.norm = _gn(channels) if topology == "cnn" else nn.LayerNorm(channels, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        normed: Tensor = self.norm(x)
        return normed - x

    def before(self, kernels: Kernels, x: Tensor) -> Tensor:  # noqa: ARG002
        """Return x."""
        return x


class Depthwise(Normed):
    """ReLU(GN(PW1x1(DW3x3)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = groups(channels)
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False, device=_META)
        self.point = _conv(channels, channels, 1)
        self.norm = _gn(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return F.relu(self.norm(self.point(self.depth(x))))

    def before(self, kernels: Kernels, x: Tensor) -> Tensor:
        """Return what the GroupNorm reads."""
        return kernels.conv2d(x, self.single())

    def single(self) -> Tensor:
        """Return both convolutions as one: nothing lies between them, and a product of small weights costs less."""
        return self.point.weight * self.depth.weight.transpose(0, 1)


class Bottleneck(Normed):
    """GN(Up1x1(ReLU(Conv3x3(ReLU(Down1x1))))), mid = max(8, C // 4)."""

    kind: GroupKind = "plain"

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = groups(channels)
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

    def before(self, kernels: Kernels, x: Tensor) -> Tensor:
        """Return what the GroupNorm reads."""
        middle = F.relu(kernels.conv2d(F.relu(kernels.conv2d(x, self.down.weight)), self.conv.weight))
        return kernels.conv2d(middle, self.up.weight)


class CausalAttention(Core):
    """Proj(SDPA causal, 4 heads) with biases."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels, device=_META)
        self.proj = nn.Linear(channels, channels, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        projected: Tensor = self.proj(causal_attention(self.qkv(x), 4))
        return projected


class LowRank(Core):
    """Up(Down(x)) without biases."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, rank, bias=False, device=_META)
        self.up = nn.Linear(rank, channels, bias=False, device=_META)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        raised: Tensor = self.up(self.down(x))
        return raised


class Mlp(Core):
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


_BUILDERS: Mapping[Topology, Mapping[int, Callable[[int], Core]]] = {
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
