"""Triton kernels of the fused path: convolution, normalisation, ReLU and pooling of small channel counts.

Library convolutions of 3 to 32 channels are mostly launches and layout changes. Here a convolution is an
implicit matrix product that reads float32 weights as they lie, leaves the statistics of its output behind,
and what follows it (normalise, ReLU, pool) is one pass; the backward pass recomputes what it needs. No
atomics: every reduction has a fixed order, so bits repeat. The plain path is the oracle of every function.
Activations are channels-last. Axes: B images, H x W pixels, C channels in, O out, K = taps x C.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: E741 - letters of kernels
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

_EPS, _MOMENTUM = 1e-5, 0.1
_ROWS, _TAPS = 128, 32
#: Pixels that one program of the weight gradient sums.
_CHUNK = 2048
_TILE = 128


@triton.jit
def _conv(
    x,
    w,
    y,
    sums,
    squares,
    total,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,
    OP: tl.constexpr,
    KS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    STATS: tl.constexpr,
    BF16: tl.constexpr,
    PREC: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    TAPS: tl.constexpr = KS * KS
    pid = tl.program_id(0)
    p = pid * BM + tl.arange(0, BM)
    col = p % W
    row = (p // W) % H
    o = tl.arange(0, OP)
    inside = p < total
    acc = tl.zeros((BM, OP), tl.float32)
    for k0 in tl.static_range(0, TAPS * C, BK):
        k = k0 + tl.arange(0, BK)
        tap = k // C
        c = k % C
        dy = tap // KS - KS // 2
        dx = tap % KS - KS // 2
        yy = row[:, None] + dy[None, :]
        xx = col[:, None] + dx[None, :]
        ok = inside[:, None] & (k < TAPS * C)[None, :] & (yy >= 0) & (yy < H) & (xx >= 0) & (xx < W)
        a = tl.load(x + (p[:, None] + (dy * W + dx)[None, :]) * C + c[None, :], mask=ok, other=0.0)
        known = (k < TAPS * C)[:, None] & (o < O)[None, :]
        if TRANSPOSED:
            at = (c[:, None] * O + o[None, :]) * TAPS + (TAPS - 1 - tap)[:, None]
        else:
            at = (o[None, :] * C + c[:, None]) * TAPS + tap[:, None]
        b = tl.load(w + at, mask=known, other=0.0)
        if BF16:
            acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
        else:
            acc = tl.dot(a.to(tl.float32), b, acc, input_precision=PREC)
    out = acc.to(y.dtype.element_ty)
    tl.store(y + p[:, None] * O + o[None, :], out, mask=inside[:, None] & (o < O)[None, :])
    if STATS:
        # statistics of what was stored; mean and squared deviations of the tile, for a stable combination
        v = tl.where(inside[:, None], out.to(tl.float32), 0.0)
        count = tl.minimum(total - pid * BM, BM).to(tl.float32)
        part = tl.sum(v, 0)
        d = tl.where(inside[:, None], v - (part / count)[None, :], 0.0)
        tl.store(sums + pid * O + o, part, mask=o < O)
        tl.store(squares + pid * O + o, tl.sum(d * d, 0), mask=o < O)


@triton.jit
def _combine(
    sums,
    squares,
    mean,
    rstd,
    running_mean,
    running_var,
    total,
    tiles,
    O: tl.constexpr,
    BM: tl.constexpr,
    NB: tl.constexpr,
    UPDATE: tl.constexpr,
    EPS: tl.constexpr,
    MOMENTUM: tl.constexpr,
):
    o = tl.program_id(0)
    n = total.to(tl.float32)
    acc = tl.zeros((NB,), tl.float32)
    for i0 in range(0, tiles, NB):
        i = i0 + tl.arange(0, NB)
        acc += tl.load(sums + i * O + o, mask=i < tiles, other=0.0)
    mu = tl.sum(acc, 0) / n
    acc = tl.zeros((NB,), tl.float32)
    for i0 in range(0, tiles, NB):
        i = i0 + tl.arange(0, NB)
        ok = i < tiles
        count = tl.where(ok, tl.minimum(total - i * BM, BM), 1).to(tl.float32)
        d = tl.load(sums + i * O + o, mask=ok, other=0.0) / count - mu
        acc += tl.where(ok, tl.load(squares + i * O + o, mask=ok, other=0.0) + count * d * d, 0.0)
    q = tl.sum(acc, 0)
    tl.store(mean + o, mu)
    tl.store(rstd + o, 1.0 / tl.sqrt(q / n + EPS))
    if UPDATE:
        tl.store(running_mean + o, (1.0 - MOMENTUM) * tl.load(running_mean + o) + MOMENTUM * mu)
        tl.store(running_var + o, (1.0 - MOMENTUM) * tl.load(running_var + o) + MOMENTUM * q / (n - 1.0))


@triton.jit
def _normal(y, at, ok, mean, rstd, gain, bias):
    """Return xhat and max(0, gain xhat + bias) at pointers."""
    xhat = (tl.load(y + at, mask=ok, other=0.0).to(tl.float32) - mean) * rstd
    return xhat, tl.maximum(xhat * gain + bias, 0.0)


@triton.jit
def _activate(
    y,
    out,
    mean,
    rstd,
    gain,
    bias,
    total,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < total
    o = i % O
    m, r, g, b = tl.load(mean + o), tl.load(rstd + o), tl.load(gain + o), tl.load(bias + o)
    if POOL:
        q = i // O
        xo = q % (W // 2)
        yo = (q // (W // 2)) % (H // 2)
        at = (((q // ((W // 2) * (H // 2))) * H + 2 * yo) * W + 2 * xo) * O + o
        _, z = _normal(y, at, ok, m, r, g, b)
        _, z1 = _normal(y, at + O, ok, m, r, g, b)
        _, z2 = _normal(y, at + W * O, ok, m, r, g, b)
        _, z3 = _normal(y, at + W * O + O, ok, m, r, g, b)
        z = tl.maximum(tl.maximum(z, z1), tl.maximum(z2, z3))
    else:
        _, z = _normal(y, i, ok, m, r, g, b)
    tl.store(out + i, z.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _activate_back(
    y,
    grad,
    dy,
    mean,
    rstd,
    gain,
    bias,
    sums,
    total,
    count,
    H: tl.constexpr,
    W: tl.constexpr,
    O: tl.constexpr,
    POOL: tl.constexpr,
    SUMS: tl.constexpr,
    BP: tl.constexpr,
):
    """Sum the gradients of bias and gain (SUMS), or write the gradient of y given those sums."""
    pid = tl.program_id(0)
    q = pid * BP + tl.arange(0, BP)
    o = tl.arange(0, O)
    ok = (q < total)[:, None] & (o < O)[None, :]
    m, r, g, b = (
        tl.load(mean + o)[None, :],
        tl.load(rstd + o)[None, :],
        tl.load(gain + o)[None, :],
        tl.load(bias + o)[None, :],
    )
    d = tl.load(grad + q[:, None] * O + o[None, :], mask=ok, other=0.0).to(tl.float32)
    if POOL:
        xo = q % (W // 2)
        yo = (q // (W // 2)) % (H // 2)
        at = ((((q // ((W // 2) * (H // 2))) * H + 2 * yo) * W + 2 * xo) * O)[:, None] + o[None, :]
        h0, z0 = _normal(y, at, ok, m, r, g, b)
        h1, z1 = _normal(y, at + O, ok, m, r, g, b)
        h2, z2 = _normal(y, at + W * O, ok, m, r, g, b)
        h3, z3 = _normal(y, at + W * O + O, ok, m, r, g, b)
        top = tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3))
        # the first of equal maxima takes the gradient
        d = tl.where(top > 0.0, d, 0.0)
        is0 = z0 == top
        is1 = (z1 == top) & ~is0
        is2 = (z2 == top) & ~is0 & ~is1
        is3 = ~is0 & ~is1 & ~is2
        if SUMS:
            hit = tl.where(is0, h0, tl.where(is1, h1, tl.where(is2, h2, h3)))
    else:
        at = q[:, None] * O + o[None, :]
        hit, z = _normal(y, at, ok, m, r, g, b)
        d = tl.where(z > 0.0, d, 0.0)
    if SUMS:
        tl.store(sums + pid * 2 * O + o, tl.sum(d, 0))
        tl.store(sums + pid * 2 * O + O + o, tl.sum(d * hit, 0))
    else:
        # dL/dy = gain rstd (dz - mean(dz) - xhat mean(dz xhat)) (Ioffe & Szegedy 2015)
        s = tl.load(sums + o)[None, :] / count
        t = tl.load(sums + O + o)[None, :] / count
        if POOL:
            tl.store(dy + at, (g * r * (tl.where(is0, d, 0.0) - s - h0 * t)).to(dy.dtype.element_ty), mask=ok)
            tl.store(dy + at + O, (g * r * (tl.where(is1, d, 0.0) - s - h1 * t)).to(dy.dtype.element_ty), mask=ok)
            down = at + W * O
            tl.store(dy + down, (g * r * (tl.where(is2, d, 0.0) - s - h2 * t)).to(dy.dtype.element_ty), mask=ok)
            tl.store(dy + down + O, (g * r * (tl.where(is3, d, 0.0) - s - h3 * t)).to(dy.dtype.element_ty), mask=ok)
        else:
            tl.store(dy + at, (g * r * (d - s - hit * t)).to(dy.dtype.element_ty), mask=ok)


@triton.jit
def _weight_grad(
    x,
    dy,
    parts,
    total,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,
    OP: tl.constexpr,
    KS: tl.constexpr,
    BF16: tl.constexpr,
    PREC: tl.constexpr,
    CHUNK: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    TAPS: tl.constexpr = KS * KS
    pid = tl.program_id(0)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    o = tl.arange(0, OP)
    tap = k // C
    c = k % C
    ky = tap // KS - KS // 2
    kx = tap % KS - KS // 2
    acc = tl.zeros((BK, OP), tl.float32)
    for m0 in range(0, CHUNK, BM):
        p = pid * CHUNK + m0 + tl.arange(0, BM)
        inside = p < total
        yy = ((p // W) % H)[None, :] + ky[:, None]
        xx = (p % W)[None, :] + kx[:, None]
        ok = inside[None, :] & (k < TAPS * C)[:, None] & (yy >= 0) & (yy < H) & (xx >= 0) & (xx < W)
        a = tl.load(x + (p[None, :] + (ky * W + kx)[:, None]) * C + c[:, None], mask=ok, other=0.0)
        d = tl.load(dy + p[:, None] * O + o[None, :], mask=inside[:, None] & (o < O)[None, :], other=0.0)
        if BF16:
            acc = tl.dot(a.to(tl.bfloat16), d.to(tl.bfloat16), acc)
        else:
            acc = tl.dot(a.to(tl.float32), d.to(tl.float32), acc, input_precision=PREC)
    at = (o[None, :] * C + c[:, None]) * TAPS + tap[:, None]
    tl.store(parts + pid * O * C * TAPS + at, acc, mask=(k < TAPS * C)[:, None] & (o < O)[None, :])


@triton.jit
def _augment(
    images,
    labels,
    draws,
    mean,
    std,
    x,
    y,
    scale,
    N: tl.constexpr,
    C: tl.constexpr,
    E: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < N * E * E * C
    c = i % C
    col = (i // C) % E
    row = (i // (C * E)) % E
    item = i // (C * E * E)
    index = tl.load(draws + item * 4, mask=ok, other=0)
    top = tl.load(draws + item * 4 + 1, mask=ok, other=0)
    left = tl.load(draws + item * 4 + 2, mask=ok, other=0)
    flip = tl.load(draws + item * 4 + 3, mask=ok, other=0)
    across = left + tl.where(flip == 1, E - 1 - col, col)
    v = tl.load(images + ((index * C + c) * P + top + row) * P + across, mask=ok, other=0).to(tl.float32)
    v = (v / scale - tl.load(mean + c)) / tl.load(std + c)
    tl.store(x + i, v.to(x.dtype.element_ty), mask=ok)
    first = ok & (c == 0) & (col == 0) & (row == 0)
    tl.store(y + item, tl.load(labels + index, mask=first, other=0), mask=first)


@triton.jit
def _sgd(
    grad,
    flat,
    momentum,
    active,
    lr,
    norm,
    size,
    clip,
    DECAY: tl.constexpr,
    BETA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        g = tl.load(grad + i, mask=i < size, other=0.0)
        acc += g * g
    length = tl.sqrt(tl.sum(acc, 0))
    tl.store(norm, length)
    # NaN and infinity fail the comparison: such a step, or a frozen network, changes nothing
    good = (length < float("inf")).to(tl.int32) * tl.load(active).to(tl.int32)
    shrink = tl.minimum(clip / (length + 1e-6), 1.0)
    rate = tl.load(lr)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        here = (i < size) & (good == 1)
        p = tl.load(flat + i, mask=here, other=0.0)
        b = tl.load(grad + i, mask=here, other=0.0) * shrink + DECAY * p
        b += BETA * tl.load(momentum + i, mask=here, other=0.0)
        tl.store(momentum + i, b, mask=here)
        tl.store(flat + i, p - rate * b, mask=here)


def block(x: Tensor, weight: Tensor, norm: Any, *, update: bool, pool: bool) -> Tensor:
    """Return pool(ReLU(BN(conv(x)))) with batch statistics; running statistics move if ``update``.

    Args:
        x: [B, C, H, W].
        weight: [O, C, k, k] float32, k odd.
        norm: ``hosts.BatchStats``.
        update: whether running statistics move.
        pool: whether 2x2 maxima follow.
    """
    found: Tensor = _Block.apply(x, weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, update, pool)  # type: ignore[no-untyped-call]
    return found


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of [B, C, H, W] with [O, C, k, k], stride 1, padding k // 2, no bias."""
    found: Tensor = _Conv.apply(x, weight)  # type: ignore[no-untyped-call]
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
    _augment[(triton.cdiv(x.numel(), 1024),)](
        images, labels, draws, mean, std, x, y, scale, N=batch, C=channels, E=edge, P=padded, BLOCK=1024
    )
    return x, y


def sgd(store: Any, active: Tensor, lr: Tensor, optim: Any) -> Tensor:
    """Clip ``store.grad`` to the norm limit, step as ``optim.Stepper`` does, return the norm before clipping."""
    norm = torch.empty((), device=store.flat.device)
    _sgd[(1,)](
        store.grad, store.flat, store.momentum, active, lr, norm, store.size, optim.grad_clip,
        DECAY=optim.weight_decay, BETA=optim.momentum, BLOCK=2048, num_warps=8,
    )  # fmt: skip
    return norm


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        running_mean, running_var, update, pool = rest
        x = _last(x)
        y, sums, squares = _run_conv(x, weight, stats=True)
        batch, out, height, width = y.shape
        pixels, tiles = batch * height * width, sums.shape[0]
        moments = torch.empty(2, out, device=x.device)
        _combine[(out,)](
            sums, squares, moments[0], moments[1], running_mean, running_var, pixels, tiles,
            O=out, BM=_ROWS, NB=1024, UPDATE=update, EPS=_EPS, MOMENTUM=_MOMENTUM,
        )  # fmt: skip
        shape = (batch, out, height // 2, width // 2) if pool else (batch, out, height, width)
        z = torch.empty(shape, device=x.device, dtype=y.dtype, memory_format=torch.channels_last)
        _activate[(triton.cdiv(z.numel(), 1024),)](
            y, z, moments[0], moments[1], gain, bias, z.numel(), H=height, W=width, O=out, POOL=pool, BLOCK=1024
        )
        ctx.save_for_backward(x, weight, gain, bias, y, moments)
        ctx.pool = pool
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gain, bias, y, moments = ctx.saved_tensors
        grad = _last(grads[0])
        batch, out, height, width = y.shape
        total = grad.numel() // out
        tiles = triton.cdiv(total, _TILE)
        parts = torch.empty(tiles, 2, out, device=x.device)
        dy = torch.empty_like(y)
        shape = {"H": height, "W": width, "O": out, "POOL": ctx.pool, "BP": _TILE}
        given = (moments[0], moments[1], gain, bias)
        _activate_back[(tiles,)](y, grad, dy, *given, parts, total, 1.0, SUMS=True, **shape)
        sums = parts.sum(0)
        pixels = float(batch * height * width)
        _activate_back[(tiles,)](y, grad, dy, *given, sums, total, pixels, SUMS=False, **shape)
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


def _run_conv(x: Tensor, weight: Tensor, *, stats: bool, transposed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    batch, inner, height, width = x.shape
    outer = weight.shape[1] if transposed else weight.shape[0]
    half = x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cuda")
    dtype = torch.bfloat16 if half else x.dtype
    y = torch.empty((batch, outer, height, width), device=x.device, dtype=dtype, memory_format=torch.channels_last)
    total = batch * height * width
    tiles = triton.cdiv(total, _ROWS)
    sums = torch.empty(tiles if stats else 0, outer, device=x.device)
    squares = torch.empty_like(sums)
    _conv[(tiles,)](
        x, weight, y, sums, squares, total,
        H=height, W=width, C=inner, O=outer, OP=max(16, triton.next_power_of_2(outer)), KS=weight.shape[2],
        TRANSPOSED=transposed, STATS=stats, BF16=half, PREC=_precision(), BM=_ROWS, BK=_TAPS,
    )  # fmt: skip
    return y, sums, squares


def _conv_back(ctx: Any, x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor | None, Tensor]:
    outer, inner, kernel, _ = weight.shape
    total = dy.numel() // outer
    chunks = triton.cdiv(total, _CHUNK)
    parts = torch.empty(chunks, *weight.shape, device=x.device)
    _weight_grad[(chunks, triton.cdiv(kernel * kernel * inner, _TAPS))](
        x, dy, parts, total,
        H=x.shape[2], W=x.shape[3], C=inner, O=outer, OP=max(16, triton.next_power_of_2(outer)), KS=kernel,
        BF16=dy.dtype == torch.bfloat16, PREC=_precision(), CHUNK=_CHUNK, BM=_ROWS, BK=_TAPS,
    )  # fmt: skip
    dx = None
    if ctx.needs_input_grad[0]:
        dx = _run_conv(dy, weight, stats=False, transposed=True)[0].to(x.dtype)
    return dx, parts.sum(0)


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
