"""Operations that the fused path replaces, and the one door through which they are loaded.

A CPU build of torch has no Triton, so the kernels cannot be imported where they are only named: they are loaded
by name when ``engine.path`` asks for them, and everything else is handed the loaded module.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

#: What follows GroupNorm: ``relu`` ReLU(GN(x)), ``plain`` GN(x), ``residual`` GN(x) - x.
GroupKind = Literal["relu", "plain", "residual"]

_FUSED = "worker.envs.morph.network.fused.step"


class StagedGraft(NamedTuple):
    """ReLU(GN(conv)) with its blend: h + alpha gamma of it.

    Attributes:
        weight: [8, 8, 3, 3] of the convolution.
        norm: with weight and bias [8], one group.
        gamma: [8].
        alpha: scalar.
        detach: whether it is cut off from what it reads.
    """

    weight: Tensor
    norm: Any
    gamma: Tensor
    alpha: Tensor
    detach: bool


class Tap(NamedTuple):
    """What a graft behind the first block reads, ReLU(BN(y)), cut off from the host.

    Attributes:
        y: [B, 8, 32, 32] behind the convolution.
        moments: [2, 8] of its channels, mean and 1 / sd.
        norm: with weight and bias [8].
    """

    y: Tensor
    moments: Tensor
    norm: Any


class Kernels(Protocol):
    """Operations that the fused path replaces; ``fused`` has them, for CUDA."""

    def block(self, x: Tensor, weight: Tensor, norm: Any, *, update: bool, pool: bool) -> Tensor:
        """Return pool(ReLU(BN(conv(x)))) with batch statistics."""
        ...

    def block_eval(self, x: Tensor, weight: Tensor, norm: Any, *, pool: bool) -> Tensor:
        """Return pool(ReLU(BN(conv(x)))) with running statistics."""
        ...

    def conv2d(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution, stride 1, padding k // 2, no bias."""
        ...

    def pool(self, x: Tensor) -> Tensor:
        """Return 2x2 maxima."""
        ...

    def fits_group(self, x: Tensor, groups: int) -> bool:
        """Say whether ``group`` can take x."""
        ...

    def group(
        self, x: Tensor, norm: Any, groups: int, kind: GroupKind, blend: tuple[Tensor, Tensor, Tensor] | None = None
    ) -> Tensor:
        """Return f(x) of a kind, or with (h, gamma, alpha) h + alpha gamma f(x)."""
        ...

    def conv_group(self, h: Tensor, weight: Tensor, norm: Any, groups: int, gamma: Tensor, alpha: Tensor) -> Tensor:
        """Return h + alpha gamma ReLU(GN(conv(h)))."""
        ...

    def blend(self, h: Tensor, f: Tensor, scale: Tensor, alpha: Tensor, *, multiply: bool) -> Tensor:
        """Return h + alpha s f with s [C] or [B, C], or if ``multiply`` h + alpha h tanh(s f)."""
        ...

    def fits_stage(self, x: Tensor, weight: Tensor) -> bool:
        """Say whether ``stage`` can take a first block with ``weight`` over images x."""
        ...

    def stage(self, x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft | None, *, update: bool) -> Tensor:
        """Return pool(blend(ReLU(BN(conv(x)))))."""
        ...

    def stage_tapped(self, x: Tensor, weight: Tensor, norm: Any, *, update: bool) -> tuple[Tensor, Tap]:
        """Return pool(ReLU(BN(conv(x)))) and what a graft beside it reads."""
        ...

    def stage_beside(self, tap: Tap, graft: StagedGraft) -> Tensor:
        """Return pool(blend(ReLU(BN(y)))); only the graft takes gradients."""
        ...

    def tapped(self, tap: Tap) -> Tensor:
        """Return ReLU(BN(y)); nothing takes a gradient."""
        ...

    def fits_eval(self, x: Tensor, weight: Tensor) -> bool:
        """Say whether ``stage_eval`` can take a first block with ``weight`` over images x."""
        ...

    def stage_eval(self, x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft | None, *, plain: bool) -> Tensor:
        """Return pool(ReLU(BN(conv(x)))) by running statistics if ``plain``, and behind it the same blended."""
        ...

    def head_loss(self, x: Tensor, layer: Any, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of the head."""
        ...

    def note(self, row: Tensor, measured: Tensor, batch: Tensor) -> None:
        """Write row [W] to the first W columns of measured [n, M], in row ``batch`` [1], which goes up by one."""
        ...

    def sgd(self, store: Any, active: Tensor, lr: Tensor, optim: Any) -> Tensor:
        """Clip ``store.grad``, step, and return its norm before clipping."""
        ...

    def padded(self, images: Tensor) -> Tensor:
        """Return images [B, C, H, W] laid out as the kernels read them, channels padded."""
        ...

    def augment(
        self,
        images: Tensor,
        labels: Tensor,
        draws: Tensor,
        batch: Tensor,
        norm: tuple[Tensor, Tensor, float],
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Return x and y of one batch of crops and flips, normalised by (mean, std, scale) and laid out as above."""
        ...


@lru_cache(maxsize=64)
def unit(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the one that gradients of a loss begin with; told apart by its address, it needs no product with it."""
    return torch.ones((), device=device, dtype=dtype)


def load_kernels(path: str) -> Kernels | None:
    """Return the fused operations where ``path`` is ``fused``, else None; only then is Triton loaded."""
    if path != "fused":
        return None
    fused: Kernels = importlib.import_module(_FUSED)
    return fused
