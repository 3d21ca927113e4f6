"""The fused path: convolution, normalisation, pooling, head and SGD of small convolutional hosts in Triton.

Library convolutions of 3 to 32 channels are mostly launches and layout changes. Here a convolution is an
implicit matrix product that reads float32 weights as they lie and leaves the moments of its output behind;
what follows it is one pass, and the backward pass recomputes what it needs. No atomics: bits repeat. The
plain path is the oracle of every function. Activations are channels-last.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from worker.envs.morph import kernels

_EPS, _MOMENTUM = 1e-5, 0.1
#: Products of K that one step of a convolution takes.
_TAPS = 32
#: Elements of the tile of one program of a pointwise pass.
_TILE = 4096
#: Largest number of elements of one image and group that a program holds.
_GROUP_LIMIT = 1 << 14


def block(x: Tensor, weight: Tensor, norm: Any, *, update: bool, pool: bool) -> Tensor:
    """Return pool(ReLU(BN(conv(x)))) with batch statistics; running statistics move if ``update``.

    Args:
        x: [B, C, H, W].
        weight: [O, C, k, k] float32, k odd.
        norm: ``hosts.BatchStats``.
        update: whether running statistics move.
        pool: whether 2x2 maxima follow.
    """
    given = (norm.weight, norm.bias, norm.running_mean, norm.running_var, update, pool)
    found: Tensor = _Block.apply(x, weight, *given)  # type: ignore[no-untyped-call]
    return found


def block_eval(x: Tensor, weight: Tensor, norm: Any, *, pool: bool) -> Tensor:
    """Return pool(ReLU(BN(conv(x)))) with running statistics; takes no gradient."""
    y, _, _ = _run_conv(_last(x), weight, stats=False)
    return _activate(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, pool=pool, variance=True)


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of [B, C, H, W] with [O, C, k, k], stride 1, padding k // 2, no bias."""
    found: Tensor = _Conv.apply(x, weight)  # type: ignore[no-untyped-call]
    return found


def pool(x: Tensor) -> Tensor:
    """Return 2x2 maxima; the first of equal ones takes the gradient."""
    found: Tensor = _Pool.apply(x)  # type: ignore[no-untyped-call]
    return found


def fits_group(x: Tensor, groups: int) -> bool:
    """Say whether ``group_relu`` holds an image and group of x [B, C, H, W] in one program."""
    size = x.shape[1] // groups * x.shape[2] * x.shape[3]
    return size <= _GROUP_LIMIT and size & (size - 1) == 0


def group_relu(x: Tensor, norm: Any, groups: int, blend: tuple[Tensor, Tensor, Tensor] | None = None) -> Tensor:
    """Return ReLU(GN(x)), or with ``blend`` (h, gamma, alpha) h + alpha gamma ReLU(GN(x))."""
    h, gamma, alpha = (None, None, None) if blend is None else blend
    found: Tensor = _Group.apply(x, norm.weight, norm.bias, groups, h, gamma, alpha)  # type: ignore[no-untyped-call]
    return found


def head_loss(x: Tensor, layer: Any, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of linear(mean over the map of x [B, C, H, W]) in float32."""
    found: Tensor = _Head.apply(x, layer.weight, layer.bias, y)  # type: ignore[no-untyped-call]
    return found


def augment(
    images: Tensor, labels: Tensor, draws: Tensor, norm: tuple[Tensor, Tensor, float], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cropped, flipped and normalised images [B, C, E, E] channels-last, and their labels [B].

    Args:
        images: uint8 [N, C, E + 8, E + 8], padded.
        labels: int64 [N].
        draws: int64 [B, 4]: index, top, left, flip.
        norm: mean and std per channel, and the divisor of raw values.
        dtype: of the result.
    """
    batch, channels, padded = draws.shape[0], images.shape[1], images.shape[2]
    edge = padded - 8
    x = torch.empty(batch, channels, edge, edge, device=images.device, dtype=dtype, memory_format=torch.channels_last)
    y = torch.empty(batch, dtype=torch.int64, device=images.device)
    mean, std, scale = norm
    kernels.augment[(triton.cdiv(x.numel(), 1024),)](
        images, labels, draws, mean, std, x, y, scale, N=batch, C=channels, E=edge, P=padded, BLOCK=1024
    )
    return x, y


def sgd(store: Any, active: Tensor, lr: Tensor, optim: Any) -> Tensor:
    """Clip ``store.grad`` to the norm limit, step as ``optim.Stepper`` does, return the norm before clipping."""
    norm = torch.empty((), device=store.flat.device)
    kernels.sgd[(1,)](
        store.grad, store.flat, store.momentum, active, lr, norm, store.size, optim.grad_clip,
        DECAY=optim.weight_decay, BETA=optim.momentum, BLOCK=4096, num_warps=16,
    )  # fmt: skip
    return norm


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        running_mean, running_var, update, pools = rest
        x = _last(x)
        y, sums, squares = _run_conv(x, weight, stats=True)
        batch, out, height, width = y.shape
        pixels, tiles = batch * height * width, sums.shape[0]
        moments = torch.empty(2, out, device=x.device)
        kernels.combine[(out,)](
            sums, squares, moments[0], moments[1], running_mean, running_var, pixels, tiles,
            O=out, BM=_rows(pixels), NB=2048, UPDATE=update, EPS=_EPS, MOMENTUM=_MOMENTUM, num_warps=8,
        )  # fmt: skip
        z = _activate(y, moments[0], moments[1], gain, bias, pool=pools, variance=False)
        ctx.save_for_backward(x, weight, gain, bias, y, moments)
        ctx.pools = pools
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gain, bias, y, moments = ctx.saved_tensors
        grad = _last(grads[0])
        batch, out, height, width = y.shape
        total, padded = grad.numel() // out, triton.next_power_of_2(out)
        rows = max(16, _TILE // padded)
        tiles = triton.cdiv(total, rows)
        parts = torch.empty(tiles, 2, out, device=x.device)
        dy = torch.empty_like(y)
        shape = {"H": height, "W": width, "O": out, "OP": padded, "POOL": ctx.pools, "BP": rows, "num_warps": 8}
        given = (moments[0], moments[1], gain, bias)
        kernels.activate_back[(tiles,)](y, grad, dy, *given, parts, total, 1.0, SUMS=True, **shape)
        sums = _add_rows(parts)
        pixels = float(batch * height * width)
        kernels.activate_back[(tiles,)](y, grad, dy, *given, sums, total, pixels, SUMS=False, **shape)
        dx, dw = _conv_back(ctx, x, weight, dy)
        return dx, dw, sums[1], sums[0], None, None, None, None


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x = _last(x)
        ctx.save_for_backward(x, weight)
        return _run_conv(x, weight, stats=False)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        return _conv_back(ctx, x, weight, _last(grads[0]))


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = _last(x)
        batch, channels, height, width = x.shape
        shape = (batch, channels, height // 2, width // 2)
        out = torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
        ctx.save_for_backward(x)
        kernels.pool[(triton.cdiv(out.numel(), 1024),)](x, out, out.numel(), H=height, W=width, O=channels, BLOCK=1024)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad, dx = _last(grads[0]), torch.empty_like(x)
        total = grad.numel()
        shape = {"H": x.shape[2], "W": x.shape[3], "O": x.shape[1], "BLOCK": 1024}
        kernels.pool_back[(triton.cdiv(total, 1024),)](x, grad, dx, total, **shape)
        return dx


class _Group(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, *blend: Any) -> Tensor:
        h, gamma, alpha = blend
        x = _last(x)
        given = (weight, bias, weight, weight) if gamma is None else (weight, bias, gamma, alpha)
        ctx.shape = {"HW": x.shape[2] * x.shape[3], "C": x.shape[1], "G": groups, "BLEND": h is not None, "EPS": _EPS}
        ctx.shape["num_warps"] = 8
        base = x if h is None else _last(h)
        out = torch.empty_like(base)
        kernels.group[(x.shape[0], groups)](x, base, out, *given, **ctx.shape)
        ctx.save_for_backward(x, *given)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *given = ctx.saved_tensors
        grad, dx = _last(grads[0]), torch.empty_like(x)
        parts = torch.empty(x.shape[0], 3, x.shape[1], device=x.device)
        kernels.group_back[(x.shape[0], ctx.shape["G"])](x, grad, dx, *given, parts, **ctx.shape)
        sums = _add_rows(parts)
        blends = ctx.shape["BLEND"]
        return dx, sums[0], sums[1], None, grad if blends else None, sums[2] if blends else None, None


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        x = _last(x)
        images, channels = x.shape[:2]
        classes = weight.shape[0]
        dx = torch.empty_like(x)
        programs = triton.cdiv(images, 32)
        parts = torch.empty(programs, classes * channels + classes + 1, device=x.device)
        kernels.head[(programs,)](
            x, weight, bias, y, dx, parts, images,
            HW=x.shape[2] * x.shape[3], C=channels, CP=max(16, triton.next_power_of_2(channels)),
            K=classes, KP=max(16, triton.next_power_of_2(classes)), BI=32,
        )  # fmt: skip
        sums = _add_rows(parts)
        ctx.save_for_backward(dx, sums)
        ctx.shape = weight.shape
        return sums[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dx, sums = ctx.saved_tensors
        classes, channels = ctx.shape
        sums = sums * grads[0]
        dw, db = sums[: classes * channels].view(ctx.shape), sums[classes * channels : -1]
        return dx * grads[0].to(dx.dtype), dw, db, None


def _run_conv(x: Tensor, weight: Tensor, *, stats: bool, transposed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    batch, inner, height, width = x.shape
    outer = weight.shape[1] if transposed else weight.shape[0]
    half = x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cuda")
    dtype = torch.bfloat16 if half else x.dtype
    y = torch.empty((batch, outer, height, width), device=x.device, dtype=dtype, memory_format=torch.channels_last)
    total = batch * height * width
    rows = _rows(total)
    tiles = triton.cdiv(total, rows)
    sums = torch.empty(tiles if stats else 0, outer, device=x.device)
    squares = torch.empty_like(sums)
    kernels.conv[(tiles,)](
        x, weight, y, sums, squares, total,
        H=height, W=width, C=inner, O=outer, OP=max(16, triton.next_power_of_2(outer)), KS=weight.shape[2],
        TRANSPOSED=transposed, STATS=stats, BF16=half, PREC=_precision(), BM=rows, BK=_TAPS, num_warps=rows // 32,
    )  # fmt: skip
    return y, sums, squares


def _activate(
    y: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor, bias: Tensor, *, pool: bool, variance: bool
) -> Tensor:
    batch, out, height, width = y.shape
    shape = (batch, out, height // 2, width // 2) if pool else (batch, out, height, width)
    z = torch.empty(shape, device=y.device, dtype=y.dtype, memory_format=torch.channels_last)
    kernels.activate[(triton.cdiv(z.numel(), 1024),)](
        y, z, mean, rstd, gain, bias, z.numel(),
        H=height, W=width, O=out, POOL=pool, VARIANCE=variance, EPS=_EPS, BLOCK=1024,
    )  # fmt: skip
    return z


def _conv_back(ctx: Any, x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor | None, Tensor]:
    outer, inner, kernel, _ = weight.shape
    total = dy.numel() // outer
    # some 500 chunks fill the card beside its neighbours and leave few partial sums
    chunk = max(256, triton.next_power_of_2(triton.cdiv(total, 512)))
    chunks = triton.cdiv(total, chunk)
    parts = torch.empty(chunks, *weight.shape, device=x.device)
    kernels.weight_grad[(chunks, triton.cdiv(kernel * kernel * inner, _TAPS))](
        x, dy, parts, total,
        H=x.shape[2], W=x.shape[3], C=inner, O=outer, OP=max(16, triton.next_power_of_2(outer)), KS=kernel,
        BF16=dy.dtype == torch.bfloat16, PREC=_precision(), CHUNK=chunk, BM=128, BK=_TAPS,
    )  # fmt: skip
    dx = None
    if ctx.needs_input_grad[0]:
        dx = _run_conv(dy, weight, stats=False, transposed=True)[0].to(x.dtype)
    return dx, _add_rows(parts)


def _add_rows(parts: Tensor) -> Tensor:
    """Return parts [P, ..] summed over the first axis."""
    out = torch.empty(parts.shape[1:], device=parts.device)
    rows, columns = parts.shape[0], out.numel()
    kernels.add_rows[(triton.cdiv(columns, 16),)](parts, out, rows, columns, BR=128, BC=16)
    return out


def _rows(pixels: int) -> int:
    """Return the pixels of one tile of a convolution."""
    return 256 if pixels >= 1 << 18 else 128


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
