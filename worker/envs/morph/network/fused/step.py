"""The fused path: convolution, normalisation, pooling, head and SGD of small convolutional hosts in Triton.

Library convolutions of 3 to 32 channels are mostly launches and layout changes. Here a convolution is an
implicit matrix product that reads float32 weights as they lie and leaves the moments of its output behind;
what follows it is one pass, and the backward pass recomputes what it needs. No atomics: bits repeat. The
plain path is the oracle of every function. Activations are channels-last.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from worker.envs.morph.kernels import Tap, unit
from worker.envs.morph.network.fused import kernels, launch
from worker.envs.morph.network.fused.grafts import blend, conv_group, fits_group, group
from worker.envs.morph.network.fused.launch import EPS, Norm, add_rows, last
from worker.envs.morph.network.fused.stage import fits as fits_stage
from worker.envs.morph.network.fused.stage import fits_eval, stage, stage_beside, stage_eval, stage_tapped

__all__ = [
    "augment", "blend", "block", "block_eval", "conv2d", "conv_group", "fits_eval", "fits_group", "fits_stage", "group",
    "head_loss", "note", "padded", "pool", "sgd", "stage", "stage_beside", "stage_eval", "stage_tapped", "tapped",
]  # fmt: skip

#: Elements of the tile of one program of a pointwise pass.
_TILE = 2048


def block(x: Tensor, weight: Tensor, norm: Any, *, update: bool, pool: bool) -> Tensor:
    """Return pool(ReLU(BN(conv(x)))) with batch statistics; running statistics move if ``update``.

    Args:
        x: [B, C, H, W].
        weight: [O, C, k, k] float32, k odd.
        norm: ``hosts.BatchStats``.
        update: whether running statistics move.
        pool: whether 2x2 maxima follow.
    """
    if pool and fits_stage(x, weight):
        return stage(x, weight, norm, None, update=update)
    pools = pool and _is_even(x)
    given = (norm.weight, norm.bias, norm.running_mean, norm.running_var, update, pools)
    found: Tensor = _Block.apply(x, weight, *given)  # type: ignore[no-untyped-call]
    return F.max_pool2d(found, 2) if pool and not pools else found


def block_eval(x: Tensor, weight: Tensor, norm: Any, *, pool: bool) -> Tensor:
    """Return pool(ReLU(BN(conv(x)))) with running statistics; takes no gradient."""
    if pool and fits_eval(x, weight):
        return stage_eval(x, weight, norm, None, plain=True)
    pools = pool and _is_even(x)
    y = launch.conv(last(x), weight)
    z = _activate(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, pool=pools, variance=True)
    return F.max_pool2d(z, 2) if pool and not pools else z


@torch.no_grad()
def tapped(tap: Tap) -> Tensor:
    """Return ReLU(BN(y)), [B, 8, 32, 32]; nothing takes a gradient."""
    mean, rstd = tap.moments
    return _activate(tap.y, mean, rstd, tap.norm.weight, tap.norm.bias, pool=False, variance=False)


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of [B, C, H, W] with [O, C, k, k], stride 1, padding k // 2, no bias."""
    found: Tensor = _Conv.apply(x, weight)  # type: ignore[no-untyped-call]
    return found


def pool(x: Tensor) -> Tensor:
    """Return 2x2 maxima; the first of equal ones takes the gradient. An odd edge takes the library's."""
    if not _is_even(x):
        return F.max_pool2d(x, 2)
    found: Tensor = _Pool.apply(x)  # type: ignore[no-untyped-call]
    return found


def head_loss(x: Tensor, layer: Any, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of linear(mean over the map of x [B, C, H, W]) in float32."""
    found: Tensor = _Head.apply(x, layer.weight, layer.bias, y)  # type: ignore[no-untyped-call]
    return found


def augment(
    images: Tensor,
    labels: Tensor,
    draws: Tensor,
    batch: Tensor,
    norm: tuple[Tensor, Tensor, float],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return a batch, cropped, flipped and normalised images as ``padded`` lays them out, and their labels [B].

    Args:
        images: uint8 [N, C, E + 8, E + 8], padded.
        labels: int64 [N].
        draws: int64 [n, B, 4]: index, top, left, flip.
        batch: int64 [1], which of the n.
        norm: mean and std per channel, and the divisor of raw values.
        dtype: of the result.
    """
    size, channels, border = draws.shape[1], images.shape[1], images.shape[2]
    edge, wide = border - 8, triton.next_power_of_2(channels)
    x = torch.empty(size, wide, edge, edge, device=images.device, dtype=dtype, memory_format=torch.channels_last)
    y = torch.empty(size, dtype=torch.int64, device=images.device)
    mean, std, scale = norm
    kernels.augment[(triton.cdiv(size * edge * edge, 256),)](
        images, labels, draws, batch, mean, std, x, y, scale, N=size, C=channels, CP=wide, E=edge, P=border, BLOCK=256
    )
    return x, y


def note(row: Tensor, measured: Tensor, batch: Tensor) -> None:
    """Write row [W] to the first W columns of measured [n, M], in row ``batch`` [1], which goes up by one."""
    width = row.numel()
    kernels.note[(1,)](
        row, measured, batch, width, measured.stride(0), BLOCK=triton.next_power_of_2(width), num_warps=1
    )


def padded(x: Tensor) -> Tensor:
    """Return images [B, C, H, W] channels-last, with zero channels up to a power of two: pixels load as one vector."""
    extra = triton.next_power_of_2(x.shape[1]) - x.shape[1]
    return last(F.pad(x, (0, 0, 0, 0, 0, extra)))


def sgd(store: Any, active: Tensor, lr: Tensor, optim: Any) -> Tensor:
    """Clip ``store.grad`` to the norm limit, step as ``optim.Stepper`` does, return the norm before clipping."""
    norm = torch.empty((), device=store.flat.device)
    block = min(8192, triton.next_power_of_2(store.size))
    kernels.sgd[(1,)](
        store.grad, store.flat, store.momentum, active, lr, norm, store.size, optim.grad_clip,
        DECAY=optim.weight_decay, BETA=optim.momentum, BLOCK=block, num_warps=16,
    )  # fmt: skip
    return norm


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        running_mean, running_var, update, pools = rest
        x = last(x)
        y, moments = launch.conv_moments(x, weight, (running_mean, running_var), update=update)
        z = _activate(y, moments[0], moments[1], gain, bias, pool=pools, variance=False)
        ctx.save_for_backward(x, weight, gain, bias, y, moments)
        ctx.pools = pools
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gain, bias, y, moments = ctx.saved_tensors
        grad = last(grads[0])
        sums = _activate_sums(ctx.pools, y, grad, moments, gain, bias)
        dx = dw = None
        if not ctx.needs_input_grad[1]:  # a shadow's
            dx = launch.input_back(weight, _activate_back(ctx.pools, y, grad, moments, gain, bias, sums))
        elif ctx.needs_input_grad[0]:
            dx, dw = launch.conv_back(x, weight, _activate_back(ctx.pools, y, grad, moments, gain, bias, sums))
        elif ctx.pools:
            dw = launch.weight_back(x, weight, _activate_back(True, y, grad, moments, gain, bias, sums))
        else:
            dw = launch.weight_back(x, weight, grad, Norm(y, moments, gain, bias, sums))
        return dx, dw, sums[1], sums[0], None, None, None, None


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x = last(x)
        ctx.save_for_backward(x, weight)
        return launch.conv(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        dy = last(grads[0])
        return launch.conv_back(x, weight, dy) if ctx.needs_input_grad[0] else (None, launch.weight_back(x, weight, dy))


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = last(x)
        batch, channels, height, width = x.shape
        shape = (batch, channels, height // 2, width // 2)
        out = torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
        ctx.save_for_backward(x)
        kernels.pool[(triton.cdiv(out.numel(), 1024),)](x, out, out.numel(), H=height, W=width, O=channels, BLOCK=1024)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad, dx = last(grads[0]), torch.empty_like(x)
        total = grad.numel()
        shape = {"H": x.shape[2], "W": x.shape[3], "O": x.shape[1], "BLOCK": 512}
        kernels.pool_back[(triton.cdiv(total, 512),)](x, grad, dx, total, **shape)
        return dx


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        x = last(x)
        images, channels = x.shape[:2]
        classes = weight.shape[0]
        dx = torch.empty_like(x)
        programs, pixels = triton.cdiv(images, 16), x.shape[2] * x.shape[3]
        parts = torch.empty(programs, classes * channels + classes + 1, device=x.device)
        kernels.head[(programs,)](
            x, weight, bias, y, dx, parts, images,
            HW=pixels, C=channels, CP=max(16, triton.next_power_of_2(channels)),
            K=classes, KP=max(16, triton.next_power_of_2(classes)), BI=16, PB=math.gcd(pixels, 16),
        )  # fmt: skip
        sums = add_rows(parts)
        ctx.save_for_backward(dx, sums)
        ctx.shape = weight.shape
        return sums[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dx, sums = ctx.saved_tensors
        classes, channels = ctx.shape
        if grads[0].data_ptr() != unit(grads[0].device, grads[0].dtype).data_ptr():
            dx, sums = dx * grads[0].to(dx.dtype), sums * grads[0]
        dw, db = sums[: classes * channels].view(ctx.shape), sums[classes * channels : -1]
        return dx, dw, db, None


def _is_even(x: Tensor) -> bool:
    """Say whether the kernels can pool x [B, C, H, W]: an odd edge leaves a row over."""
    return x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0


def _activate(
    y: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor, bias: Tensor, *, pool: bool, variance: bool
) -> Tensor:
    batch, out, height, width = y.shape
    shape = (batch, out, height // 2, width // 2) if pool else (batch, out, height, width)
    z = torch.empty(shape, device=y.device, dtype=y.dtype, memory_format=torch.channels_last)
    kernels.activate[(triton.cdiv(z.numel(), 1024),)](
        y, z, mean, rstd, gain, bias, z.numel(),
        H=height, W=width, O=out, POOL=pool, VARIANCE=variance, EPS=EPS, BLOCK=1024,
    )  # fmt: skip
    return z


def _activate_sums(pools: bool, y: Tensor, grad: Tensor, moments: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Return [2, O]: the gradients of bias and gain of ReLU(BN(y)), pooled or not."""
    out = y.shape[1]
    total, rows, shape = _back_shape(pools, y, grad)
    # some 1,024 programs; each adds up before it reduces
    chunk = rows * max(1, triton.next_power_of_2(triton.cdiv(total, rows)) // 1024)
    programs = triton.cdiv(total, chunk)
    parts = torch.empty(programs, 2, out, device=y.device)
    given = (y, grad, y, moments[0], moments[1], gain, bias, parts, total, 1.0)
    kernels.activate_back[(programs,)](*given, SUMS=True, CHUNK=chunk, **shape)
    return add_rows(parts)


def _activate_back(
    pools: bool, y: Tensor, grad: Tensor, moments: Tensor, gain: Tensor, bias: Tensor, sums: Tensor
) -> Tensor:
    """Return the gradient of y, given ``_activate_sums``."""
    dy = torch.empty_like(y)
    total, rows, shape = _back_shape(pools, y, grad)
    given = (y, grad, dy, moments[0], moments[1], gain, bias, sums, total, float(y.numel() // y.shape[1]))
    kernels.activate_back[(triton.cdiv(total, rows),)](*given, SUMS=False, CHUNK=rows, **shape)
    return dy


def _back_shape(pools: bool, y: Tensor, grad: Tensor) -> tuple[int, int, dict[str, Any]]:
    """Return pixels of the gradient, pixels of a program, and what ``activate_back`` is compiled for."""
    out = y.shape[1]
    padded = triton.next_power_of_2(out)
    rows = max(16, _TILE // padded)
    shape = {"H": y.shape[2], "W": y.shape[3], "O": out, "OP": padded, "POOL": pools, "BP": rows}
    return grad.numel() // out, rows, shape | {"num_warps": 4, "num_stages": 1}
