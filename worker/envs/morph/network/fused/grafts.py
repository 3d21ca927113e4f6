"""Grafts by kernels: GroupNorm and what lies around it, and how a graft of any kind meets the host.

Axes: B images, C channels, G groups; maps are channels-last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from worker.envs.morph.kernels import GroupKind
from worker.envs.morph.network.fused import kernels, launch
from worker.envs.morph.network.fused.launch import EPS, add_rows, last

#: Largest number of elements of one image and group that a program holds.
_GROUP_LIMIT = 1 << 14
#: Elements that a program of a blend's backward pass holds.
_TILE = 1 << 13


def fits_group(x: Tensor, groups: int) -> bool:
    """Say whether ``group`` holds an image and group of x [B, C, H, W] in one program."""
    size = x.shape[1] // groups * x.shape[2] * x.shape[3]
    return size <= _GROUP_LIMIT and size & (size - 1) == 0


def group(
    x: Tensor, norm: Any, groups: int, kind: GroupKind, blend: tuple[Tensor, Tensor, Tensor] | None = None
) -> Tensor:
    """Return f(x), or with ``blend`` (h, gamma, alpha) h + alpha gamma f(x).

    Args:
        x: [B, C, H, W].
        norm: with weight and bias [C].
        groups: G.
        kind: f is ``relu`` ReLU(GN(x)), ``plain`` GN(x), ``residual`` GN(x) - x.
        blend: map, scale [C] and scalar.
    """
    h, gamma, alpha = (None, None, None) if blend is None else blend
    given = (norm.weight, norm.bias, groups, kind, h, gamma, alpha)
    found: Tensor = _Group.apply(x, *given)  # type: ignore[no-untyped-call]
    return found


def conv_group(h: Tensor, weight: Tensor, norm: Any, groups: int, gamma: Tensor, alpha: Tensor) -> Tensor:
    """Return h + alpha gamma ReLU(GN(conv(h))); the gradients of both ways to h meet in one kernel."""
    given = (norm.weight, norm.bias, gamma, alpha)
    found: Tensor = _ConvGroup.apply(h, weight, groups, *given)  # type: ignore[no-untyped-call]
    return found


def blend(h: Tensor, f: Tensor, scale: Tensor, alpha: Tensor, *, multiply: bool) -> Tensor:
    """Return h + alpha s f, or if ``multiply`` h + alpha h tanh(s f).

    Args:
        h: [B, C, H, W], what the graft meets.
        f: [B, C, H, W], what it gives.
        scale: s, [C] or [B, C], float32.
        alpha: scalar; takes no gradient.
        multiply: how they meet.
    """
    found: Tensor = _Blend.apply(h, f, scale, alpha, multiply)  # type: ignore[no-untyped-call]
    return found


class _Group(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, kind: GroupKind, *blend: Any) -> Tensor:
        h, gamma, alpha = blend
        x = last(x)
        ctx.kind, ctx.blends = kind, h is not None
        given = (weight, bias, gamma, alpha) if ctx.blends else (weight, bias, weight, weight)
        out, moments = _group(x, last(h) if ctx.blends else x, given, groups, kind, blends=ctx.blends)
        ctx.save_for_backward(x, moments, *given)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, *given = ctx.saved_tensors
        grad = last(grads[0])
        dx, sums = _group_back(x, grad, moments, given, ctx.kind, blends=ctx.blends)
        through = (grad, sums[2]) if ctx.blends else (None, None)
        return dx, sums[0], sums[1], None, None, *through, None


class _ConvGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, kernel: Tensor, groups: int, *given: Tensor) -> Tensor:
        h = last(h)
        x = launch.conv(h, kernel)
        out, moments = _group(x, h, given, groups, "relu", blends=True)
        ctx.save_for_backward(h, kernel, x, moments, *given)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, kernel, x, moments, *given = ctx.saved_tensors
        grad = last(grads[0])
        dx, sums = _group_back(x, grad, moments, given, "relu", blends=True)
        dh, dw = launch.conv_back(h, kernel, dx, grad)
        return dh, dw, None, sums[0], sums[1], sums[2], None


class _Blend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, f: Tensor, scale: Tensor, alpha: Tensor, multiply: bool) -> Tensor:
        h, f, scale = last(h), last(f), scale.contiguous()
        out = torch.empty_like(h)
        shape = _blend_shape(h, scale, multiply)
        kernels.blend[(triton.cdiv(h.numel(), 1024),)](h, f, out, scale, alpha, h.numel(), BLOCK=1024, **shape)
        ctx.save_for_backward(h if multiply else f, f, scale, alpha)
        ctx.multiply = multiply
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, f, scale, alpha = ctx.saved_tensors
        grad, df = last(grads[0]), torch.empty_like(f)
        dh = torch.empty_like(h) if ctx.multiply else grad
        images, channels = f.shape[:2]
        padded, parts = triton.next_power_of_2(channels), torch.empty(images, channels, device=f.device)
        shape = _blend_shape(f, scale, ctx.multiply)
        rows = min(triton.next_power_of_2(shape["HW"]), max(16, _TILE // padded))
        kernels.blend_back[(images,)](h, f, grad, dh, df, scale, alpha, parts, CP=padded, BP=rows, **shape)
        return dh, df, parts if shape["EACH"] else add_rows(parts), None, None


def _blend_shape(x: Tensor, scale: Tensor, multiply: bool) -> dict[str, Any]:
    return {"HW": x.shape[2] * x.shape[3], "C": x.shape[1], "EACH": scale.ndim == 2, "MULTIPLY": multiply}


def _group(
    x: Tensor, base: Tensor, tensors: Sequence[Tensor], groups: int, kind: GroupKind, *, blends: bool
) -> tuple[Tensor, Tensor]:
    """Return f(x), blended into ``base`` or alone, and moments [B, G, 2]; given: weight, bias, gamma, alpha."""
    out = torch.empty_like(base)
    moments = torch.empty(x.shape[0], groups, 2, device=x.device)
    shape = _group_shape(x, moments, kind, blends)
    kernels.group[(x.shape[0], groups)](x, base, out, *tensors, moments, EPS=EPS, num_warps=4, **shape)
    return out, moments


def _group_back(
    x: Tensor, grad: Tensor, moments: Tensor, tensors: Sequence[Tensor], kind: GroupKind, *, blends: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and [3, C]: those of weight, bias and gamma."""
    dx = torch.empty_like(x)
    parts = torch.empty(x.shape[0], 3, x.shape[1], device=x.device)
    shape = _group_shape(x, moments, kind, blends)
    warps = 8 if shape["HW"] * shape["C"] >= shape["G"] << 13 else 4
    kernels.group_back[(x.shape[0], shape["G"])](x, grad, dx, *tensors, moments, parts, num_warps=warps, **shape)
    return dx, add_rows(parts)


def _group_shape(x: Tensor, moments: Tensor, kind: GroupKind, blends: bool) -> dict[str, Any]:
    pixels, channels = x.shape[2] * x.shape[3], x.shape[1]
    return {"HW": pixels, "C": channels, "G": moments.shape[1], "KIND": kind, "BLEND": blends}
