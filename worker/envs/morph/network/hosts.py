"""The two hosts: a small CNN and a small causal transformer (environment.md 2).

A host is a list of segments; slot k lies between segment k and segment k + 1, so a composed network
runs segments and blends grafts in between, and without grafts it is the plain host bit for bit. Axes:
B items, C channels or model width, L tokens, K classes. A host knows nothing of grafts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor, nn

from lockstep.spec.tasks import CnnShape, HostShape, LmShape, SlotSpec
from worker.envs.morph.kernels import Kernels, StagedGraft, Tap
from worker.envs.morph.network.conv import conv2d
from worker.envs.morph.network.params import Init, default_init

Mode = Literal["train", "shadow", "eval"]
_META = torch.device("meta")
_BN_MOMENTUM = 0.1


@dataclass
class Pass:
    """How a forward pass treats state.

    Attributes:
        mode: train updates running statistics and drops out; shadow uses batch statistics, touches no
            buffer and drops nothing, and with kernels convolutions take no gradient; eval uses running statistics.
        dropout: generator of dropout masks, needed in train mode of a host with dropout.
    """

    mode: Mode
    dropout: torch.Generator | None = None


EVAL = Pass("eval")
SHADOW = Pass("shadow")


class Host(nn.Module):
    """Base of both hosts: routing between slots over ``segment``."""

    def __init__(self, shape: HostShape) -> None:
        super().__init__()
        self.slot_specs = shape.slots()
        self.position = {slot.id: slot.position for slot in self.slot_specs}

    @property
    def num_segments(self) -> int:
        """Number of segments, one more than there are slots."""
        return len(self.slot_specs) + 1

    def slots(self) -> list[SlotSpec]:
        """Return every slot in execution order."""
        return list(self.slot_specs)

    def segment(self, index: int, x: Tensor, how: Pass) -> Tensor:
        """Run one segment."""
        raise NotImplementedError

    def inits(self) -> dict[str, Init]:
        """Return the initialisation of every parameter."""
        return default_init(self)

    def loss(self, x: Tensor, y: Tensor, how: Pass, dtype: torch.dtype) -> Tensor:
        """Return the mean cross-entropy in nats from the input of the last segment."""
        logits = self.segment(self.num_segments - 1, x, how)
        return F.cross_entropy(logits.flatten(0, -2).to(dtype), y.flatten())

    def run(self, x: Tensor, start: int, stop: int, how: Pass) -> Tensor:
        """Run segments start .. stop - 1."""
        for index in range(start, stop):
            x = self.segment(index, x, how)
        return x

    def forward_to(self, slot: str, x: Tensor, from_slot: str | None = None, how: Pass = EVAL) -> Tensor:
        """Return the input of a slot, from the host's input or from the output of ``from_slot``.

        Raises:
            ValueError: unknown slot, or ``from_slot`` is not before ``slot``.
        """
        start = 0 if from_slot is None else self._index(from_slot) + 1
        stop = self._index(slot) + 1
        if start >= stop:
            raise ValueError(f"cannot route backward from slot {from_slot} to {slot}")
        return self.run(x, start, stop, how)

    def forward_from(self, slot: str, x: Tensor, how: Pass = EVAL) -> Tensor:
        """Return the logits from the output of a slot."""
        return self.run(x, self._index(slot) + 1, self.num_segments, how)

    def forward(self, x: Tensor, how: Pass = EVAL) -> Tensor:
        """Return the logits of the plain host."""
        return self.run(x, 0, self.num_segments, how)

    def _index(self, slot: str) -> int:
        if slot not in self.position:
            raise ValueError(f"slot {slot!r} does not exist; use one of {', '.join(self.position)}")
        return self.position[slot]


class CnnHost(Host):
    """Blocks of Conv - BatchNorm - ReLU - MaxPool, then mean over the map and a linear head.

    Input [B, C_in, H, W]; logits [B, K].

    Attributes:
        kernels: fused operations, or None for the plain ones.
    """

    kernels: Kernels | None = None

    def __init__(self, shape: CnnShape) -> None:
        super().__init__(shape)
        channels = [shape.in_channels, *(shape.channels(i) for i in range(shape.blocks))]
        self.convs = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], shape.kernel, bias=False, device=_META) for i in range(shape.blocks)
        )
        self.norms = nn.ModuleList(BatchStats(channels[i + 1]) for i in range(shape.blocks))
        self.head = nn.Linear(channels[-1], shape.num_classes, device=_META)
        self._plan = [("block", slot.column) if slot.row == 0 else ("pool", 0) for slot in self.slot_specs]

    def loss(self, x: Tensor, y: Tensor, how: Pass, dtype: torch.dtype) -> Tensor:
        """Return the mean cross-entropy in nats from the input of the head."""
        if self.kernels is None:
            return super().loss(x, y, how, dtype)
        return self.kernels.head_loss(x, self.head, y)

    def run(self, x: Tensor, start: int, stop: int, how: Pass) -> Tensor:
        """Run segments start .. stop - 1; with kernels, a block takes the pool behind it along."""
        if self.kernels is None:
            return super().run(x, start, stop, how)
        index = start
        while index < stop:
            kind, block = self._plan[index] if index < len(self._plan) else ("head", 0)
            if kind != "block":
                x = self.kernels.pool(x) if kind == "pool" else self.segment(index, x, how)
                index += 1
                continue
            pools = index + 1 < min(stop, len(self._plan)) and self._plan[index + 1][0] == "pool"
            weight, norm = self.convs[block].weight, self.norms[block]
            if how.mode == "shadow":
                weight = weight.detach()  # type: ignore[operator]
            if how.mode == "eval":
                x = self.kernels.block_eval(x, weight, norm, pool=pools)  # type: ignore[arg-type]
            else:
                x = self.kernels.block(x, weight, norm, update=how.mode == "train", pool=pools)  # type: ignore[arg-type]
            index += 2 if pools else 1
        return x

    def can_stage(self, x: Tensor, span: tuple[int, int], until: int, how: Pass) -> bool:
        """Say whether kernels run the first block, a graft behind it and the pool behind both as one.

        Args:
            x: input of segment ``span[0]``.
            span: segments before the graft, from and to.
            until: what is asked for next: the segment behind another graft, or the last one.
            how: as ``run`` takes it.
        """
        first = span == (0, 1) and [kind for kind, _ in self._plan[:2]] == ["block", "pool"]
        if self.kernels is None or not first or until < 2:
            return False
        fits = self.kernels.fits_eval if how.mode == "eval" else self.kernels.fits_stage
        return fits(x, self.convs[0].weight)  # type: ignore[arg-type]

    def stage(self, x: Tensor, graft: StagedGraft, how: Pass) -> Tensor:
        """Return what the pool behind a graft gives, where ``can_stage``."""
        update = how.mode == "train"
        return self._fused.stage(x, self.convs[0].weight, self.norms[0], graft, update=update)  # type: ignore[arg-type]

    def stage_tapped(self, x: Tensor, how: Pass) -> tuple[Tensor, Tap]:
        """Return what the first pool gives and what a graft in the shadow reads, where ``can_stage``."""
        update = how.mode == "train"
        return self._fused.stage_tapped(x, self.convs[0].weight, self.norms[0], update=update)  # type: ignore[arg-type]

    def stage_eval(self, x: Tensor, graft: StagedGraft, *, plain: bool) -> Tensor:
        """Return what the first pool gives by running statistics with a graft, and before it without if ``plain``."""
        return self._fused.stage_eval(x, self.convs[0].weight, self.norms[0], graft, plain=plain)  # type: ignore[arg-type]

    @property
    def _fused(self) -> Kernels:
        if self.kernels is None:
            raise RuntimeError("this host has no kernels; use engine.path fused")
        return self.kernels

    def segment(self, index: int, x: Tensor, how: Pass) -> Tensor:
        """Run block, pool or head, whichever leads to slot ``index``."""
        if index == len(self._plan):
            # mean, not adaptive pooling: the backward of the latter is not deterministic on CUDA
            return F.linear(x.mean((2, 3)), self.head.weight, self.head.bias)
        kind, block = self._plan[index]
        if kind == "pool":
            return F.max_pool2d(x, 2)
        x = conv2d(x, self.convs[block].weight)  # type: ignore[arg-type]
        norm: BatchStats = self.norms[block]  # type: ignore[assignment]
        return F.relu(norm.normalise(x, how))


class BatchStats(nn.Module):
    """BatchNorm2d whose use of statistics is an argument, not a hidden mode."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, device=_META))
        self.bias = nn.Parameter(torch.empty(channels, device=_META))
        self.register_buffer("running_mean", torch.empty(channels, device=_META))
        self.register_buffer("running_var", torch.empty(channels, device=_META))

    def normalise(self, x: Tensor, how: Pass) -> Tensor:
        """Normalise [B, C, H, W] by batch or running statistics."""
        if how.mode == "shadow":
            return F.batch_norm(x, None, None, self.weight, self.bias, True, _BN_MOMENTUM)
        mean, var = self._buffers["running_mean"], self._buffers["running_var"]
        return F.batch_norm(x, mean, var, self.weight, self.bias, how.mode == "train", _BN_MOMENTUM)


class LmBlock(nn.Module):
    """Pre-norm transformer block with fused qkv; [B, L, C] to [B, L, C]."""

    def __init__(self, shape: LmShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(width, device=_META)
        self.qkv = nn.Linear(width, 3 * width, device=_META)
        self.proj = nn.Linear(width, width, device=_META)
        self.norm2 = nn.LayerNorm(width, device=_META)
        self.fc1 = nn.Linear(width, shape.hidden, device=_META)
        self.fc2 = nn.Linear(shape.hidden, width, device=_META)
        self.dropout = shape.dropout

    def run(self, x: Tensor, how: Pass) -> Tensor:
        """Apply attention and MLP with residuals."""
        attended = causal_attention(self.qkv(self.norm1(x)), self.heads)
        x = x + drop(self.proj(attended), self.dropout, how)
        hidden = F.gelu(self.fc1(self.norm2(x)))
        return x + drop(self.fc2(hidden), self.dropout, how)


class LmHost(Host):
    """Byte-level causal transformer with tied head. Input int64 [B, L]; logits [B, L, V]."""

    def __init__(self, shape: LmShape) -> None:
        if shape.layers % shape.segments:
            raise ValueError(f"layers {shape.layers} must be a multiple of num_segments {shape.segments}")
        super().__init__(shape)
        self.shape = shape
        self.token = nn.Embedding(shape.vocab, shape.width, device=_META)
        self.place = nn.Embedding(shape.block_len, shape.width, device=_META)
        self.blocks = nn.ModuleList(LmBlock(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, device=_META)

    def segment(self, index: int, x: Tensor, how: Pass) -> Tensor:
        """Run one share of the layers; the first embeds, the last is norm and head."""
        if index == self.shape.segments:
            return F.linear(self.norm(x), self.token.weight)
        if index == 0:
            x = self.token.weight[x] + self.place.weight[: x.shape[1]]
            x = drop(x, self.shape.dropout, how)
        share = self.shape.layers // self.shape.segments
        for layer in range(index * share, (index + 1) * share):
            block: LmBlock = self.blocks[layer]  # type: ignore[assignment]
            x = block.run(x, how)
        return x

    def inits(self) -> dict[str, Init]:
        """Return N(0, 0.02^2) for all weights; residual outputs N(0, (0.02/sqrt(2L))^2), biases 0."""
        inits = default_init(self)
        residual = 0.02 / math.sqrt(2 * self.shape.layers)
        for name in inits:
            if "norm" in name:
                continue
            std = residual if name.endswith(("proj.weight", "fc2.weight")) else 0.02
            inits[name] = Init() if name.endswith("bias") else Init(std=std)
        return inits


def build_host(shape: HostShape) -> Host:
    """Return a host without storage (meta device)."""
    return CnnHost(shape) if isinstance(shape, CnnShape) else LmHost(shape)


def causal_attention(qkv: Tensor, heads: int) -> Tensor:
    """Return causal self-attention of fused [B, L, 3C] projections, [B, L, C]."""
    batch, length, triple = qkv.shape
    width = triple // 3
    q, k, v = qkv.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return attended.transpose(1, 2).reshape(batch, length, width)


def drop(x: Tensor, rate: float, how: Pass) -> Tensor:
    """Apply inverted dropout in train mode, with masks from the pass's own generator."""
    if rate == 0.0 or how.mode != "train":
        return x
    if how.dropout is None:
        raise ValueError("a host with dropout needs a keyed generator in train mode")
    keep = torch.empty_like(x).bernoulli_(1.0 - rate, generator=how.dropout)
    return x * keep.div_(1.0 - rate)
