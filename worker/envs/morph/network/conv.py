"""Convolution of very small maps on the CPU as one dense product.

For a few channels of 8x8 or 4x4 pixels a library convolution is mostly overhead; the same linear map as
a matrix of (O H W) x (C H W), gathered from the kernel, is two to four times faster. The rule depends on
shapes and device only, so all arms take the same path. Elsewhere this is ``conv2d``, which is also the
oracle of the test. Axes: B items, C in, O out, H = W edge, k kernel edge.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor

#: Largest (C H W)(O H W) that is run as a dense product.
_DENSE_LIMIT = 1 << 14


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of [B, C, H, W] with [O, C, k, k], stride 1, padding k // 2, no bias."""
    if is_dense(x, weight):
        dense: Tensor = _DenseConv.apply(x, weight)  # type: ignore[no-untyped-call]
        return dense
    return F.conv2d(x, weight, None, padding=weight.shape[2] // 2)


def is_dense(x: Tensor, weight: Tensor) -> bool:
    """Say whether a convolution is run as a dense product."""
    out, channels, kernel, _ = weight.shape
    area = x.shape[2] * x.shape[3]
    small = channels * out * area * area <= _DENSE_LIMIT
    return small and kernel > 1 and x.device.type == "cpu" and x.shape[2] == x.shape[3]


class _DenseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out, channels, kernel, _ = weight.shape
        batch, _, edge, _ = x.shape
        spread, collect = _tables(out, channels, kernel, edge)
        taps = torch.cat([weight.reshape(-1), weight.new_zeros(1)])
        matrix = taps.index_select(0, spread).view(out * edge * edge, channels * edge * edge)
        flat = x.reshape(batch, -1)
        ctx.save_for_backward(flat, matrix, collect)
        ctx.shape = weight.shape
        return (flat @ matrix.t()).view(batch, out, edge, edge)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        flat, matrix, collect = ctx.saved_tensors
        out, channels, kernel, _ = ctx.shape
        edge = grads[0].shape[2]
        grad = grads[0].reshape(flat.shape[0], -1)
        to_input = (grad @ matrix).view(-1, channels, edge, edge) if ctx.needs_input_grad[0] else None
        products = torch.cat([(grad.t() @ flat).view(-1), grad.new_zeros(1)])
        to_weight = products.index_select(0, collect).view(out * channels * kernel * kernel, -1).sum(1)
        return to_input, to_weight.view(out, channels, kernel, kernel)


@lru_cache(maxsize=64)
def _tables(out: int, channels: int, kernel: int, edge: int) -> tuple[Tensor, Tensor]:
    """Return where the matrix reads the kernel, and where each kernel tap reads the matrix.

    Entries outside the map point to one appended zero.
    """
    area, taps = edge * edge, kernel * kernel
    row, column = np.divmod(np.arange(area), edge)
    # tap of the kernel that links output pixel p to input pixel q, or -1
    dy = row[None, :] - row[:, None] + kernel // 2
    dx = column[None, :] - column[:, None] + kernel // 2
    inside = (dy >= 0) & (dy < kernel) & (dx >= 0) & (dx < kernel)
    tap = np.where(inside, dy * kernel + dx, -1)
    pair = np.arange(out * channels).reshape(out, 1, channels, 1) * taps
    spread = np.where(tap[None, :, None, :] >= 0, pair + tap[None, :, None, :], out * channels * taps)
    collect = np.full((out, channels, taps, area), out * area * channels * area, dtype=np.int64)
    position = np.arange(spread.size).reshape(out, area, channels, area)
    for p, q in np.argwhere(inside):
        collect[:, :, tap[p, q], p] = position[:, p, :, q]
    return torch.from_numpy(spread.reshape(-1)), torch.from_numpy(collect.reshape(-1))
