"""Triton kernels of convolutions with few channels, behind ``fused``; every reduction has a fixed order.

One row of the product is ``PX`` neighbouring pixels of an image row: they share a window of KS x WN pixels, WN at
least PX + KS - 1, so each pixel is gathered fewer times and the narrow side of the product is PX times as wide.
A pixel that is not finite reaches all PX pixels of a row through taps of zero: one column more than the kernel's edge.
Axes: q rows of the product, k elements (r, t, c) of a window, n columns (j, o) of the product; C channels of the
window's tensor, of which CI are real, O of the other one. Activations lie channels-last.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: C901, E741, SIM108 - letters of kernels; branches on constants are decided when a kernel is compiled
# fmt: off
from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit
def window(
    x, q, k, total, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KS: tl.constexpr, WN: tl.constexpr,
    PX: tl.constexpr, BF16: tl.constexpr,
):
    """Return elements k of the windows of rows q, zero outside the image."""
    c = k % C
    t = (k // C) % WN - KS // 2
    r = k // (C * WN) - KS // 2
    first = q * PX
    yy = ((first // W) % H)[:, None] + r[None, :]
    xx = (first % W)[:, None] + t[None, :]
    # as unsigned numbers, places before the first are beyond the last
    ok = (yy.to(tl.uint32, bitcast=True) < H) & (xx.to(tl.uint32, bitcast=True) < W)
    ok = ok & (q < total)[:, None] & (r <= KS // 2)[None, :]
    a = tl.load(x + (first[:, None] + (r * W + t)[None, :]) * C + c[None, :], mask=ok, other=0.0)
    return a.to(tl.bfloat16) if BF16 else a.to(tl.float32)


@triton.jit
def taps(
    w, k, n, C: tl.constexpr, CI: tl.constexpr, O: tl.constexpr, KS: tl.constexpr, WN: tl.constexpr,
    PX: tl.constexpr, ADJOINT: tl.constexpr, BF16: tl.constexpr,
):
    """Return the weights [O, CI, KS, KS] (ADJOINT: [C, O, KS, KS]) between window elements k and columns n."""
    c = (k % C)[:, None]
    t = ((k // C) % WN)[:, None]
    r = (k // (C * WN))[:, None]
    o = (n % O)[None, :]
    j = (n // O)[None, :]
    kx = j + KS - 1 - t if ADJOINT else t - j
    at = ((c * O + o) * KS + KS - 1 - r) * KS + kx if ADJOINT else ((o * CI + c) * KS + r) * KS + kx
    b = tl.load(w + at, mask=(c < CI) & (r < KS) & (kx >= 0) & (kx < KS) & (j < PX), other=0.0)
    return b.to(tl.bfloat16) if BF16 else b


@triton.jit
def conv(
    x, w, y, sums, squares, total, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, CI: tl.constexpr,
    O: tl.constexpr, NP: tl.constexpr, KS: tl.constexpr, WN: tl.constexpr, PX: tl.constexpr,
    ADJOINT: tl.constexpr, STATS: tl.constexpr, BF16: tl.constexpr, PREC: tl.constexpr, TILES: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, NK: tl.constexpr,
):
    """Convolve, or with ADJOINT map a gradient back; with STATS, leave the moments of each column of each tile."""
    n = tl.arange(0, NP)
    k = tl.arange(0, BK)
    known = n < PX * O
    if NK <= 3:
        # weights lie scattered: gathered once for all tiles
        b = taps(w, k, n, C, CI, O, KS, WN, PX, ADJOINT, BF16)
        b1 = taps(w, k + BK, n, C, CI, O, KS, WN, PX, ADJOINT, BF16) if NK > 1 else b
        b2 = taps(w, k + 2 * BK, n, C, CI, O, KS, WN, PX, ADJOINT, BF16) if NK > 2 else b
    for turn in range(0, TILES):
        tile = tl.program_id(0) * TILES + turn
        q = tile * BM + tl.arange(0, BM)
        acc = tl.zeros((BM, NP), tl.float32)
        for i in tl.static_range(0, NK, 3):
            # what a product needs is asked for before the first one waits
            a = window(x, q, k + i * BK, total, H, W, C, KS, WN, PX, BF16)
            if NK > 3:
                b = taps(w, k + i * BK, n, C, CI, O, KS, WN, PX, ADJOINT, BF16)
            if i + 1 < NK:
                a1 = window(x, q, k + (i + 1) * BK, total, H, W, C, KS, WN, PX, BF16)
                if NK > 3:
                    b1 = taps(w, k + (i + 1) * BK, n, C, CI, O, KS, WN, PX, ADJOINT, BF16)
            if i + 2 < NK:
                a2 = window(x, q, k + (i + 2) * BK, total, H, W, C, KS, WN, PX, BF16)
                if NK > 3:
                    b2 = taps(w, k + (i + 2) * BK, n, C, CI, O, KS, WN, PX, ADJOINT, BF16)
            acc = tl.dot(a, b, acc, input_precision=PREC)
            if i + 1 < NK:
                acc = tl.dot(a1, b1, acc, input_precision=PREC)
            if i + 2 < NK:
                acc = tl.dot(a2, b2, acc, input_precision=PREC)
        inside = (q < total)[:, None]
        out = acc.to(y.dtype.element_ty)
        tl.store(y + q[:, None] * (PX * O) + n[None, :], out, mask=inside & known[None, :])
        if STATS:
            # statistics of what was stored; mean and squared deviations of the tile, for a stable combination
            v = tl.where(inside, out.to(tl.float32), 0.0)
            count = tl.minimum(total - tile * BM, BM).to(tl.float32)
            part = tl.sum(v, 0)
            d = tl.where(inside, v - (part / count)[None, :], 0.0)
            real = known & (tile * BM < total)
            tl.store(sums + tile * (PX * O) + n, part, mask=real)
            tl.store(squares + tile * (PX * O) + n, tl.sum(d * d, 0), mask=real)


@triton.jit
def combine(
    sums, squares, mean, rstd, running_mean, running_var, total, tiles, O: tl.constexpr, PX: tl.constexpr,
    BM: tl.constexpr, NB: tl.constexpr, UPDATE: tl.constexpr, EPS: tl.constexpr, MOMENTUM: tl.constexpr,
):
    """Combine the moments of all tiles of a channel (Chan et al. 1979); with UPDATE, move running statistics."""
    o = tl.program_id(0)
    i = tl.arange(0, NB)
    ok = i < tiles * PX
    part = tl.load(sums + i * O + o, mask=ok, other=0.0)
    within = tl.load(squares + i * O + o, mask=ok, other=0.0)
    n = (total * PX).to(tl.float32)
    mu = tl.sum(part, 0) / n
    count = tl.where(ok, tl.minimum(total - i // PX * BM, BM), 1).to(tl.float32)
    d = part / count - mu
    q = tl.sum(tl.where(ok, within + count * d * d, 0.0), 0)
    tl.store(mean + o, mu)
    tl.store(rstd + o, 1.0 / tl.sqrt(q / n + EPS))
    if UPDATE:
        tl.store(running_mean + o, (1.0 - MOMENTUM) * tl.load(running_mean + o) + MOMENTUM * mu)
        tl.store(running_var + o, (1.0 - MOMENTUM) * tl.load(running_var + o) + MOMENTUM * q / (n - 1.0))


@triton.jit
def unrectified(y, grad, at, ok, u, O: tl.constexpr, mean, rstd, gain, bias, sums, count):
    """Return the gradient of y behind ReLU(BN(y)) (Ioffe & Szegedy 2015); sums as ``kernels.activate_back`` leaves."""
    o = u % O
    m, r, g = tl.load(mean + o)[None, :], tl.load(rstd + o)[None, :], tl.load(gain + o)[None, :]
    s, t = tl.load(sums + o)[None, :] / count, tl.load(sums + O + o)[None, :] / count
    xhat = (tl.load(y + at, mask=ok, other=0.0).to(tl.float32) - m) * r
    d = tl.load(grad + at, mask=ok, other=0.0).to(tl.float32)
    d = tl.where(xhat * g + tl.load(bias + o)[None, :] > 0.0, d, 0.0)
    return tl.where(ok, g * r * (d - s - xhat * t), 0.0)


@triton.jit
def conv_back(
    x, e, w, dx, base, parts, total, y, mean, rstd, gain, bias, sums, count, H: tl.constexpr, W: tl.constexpr,
    C: tl.constexpr, O: tl.constexpr, NP: tl.constexpr, KS: tl.constexpr, WN: tl.constexpr, PX: tl.constexpr,
    DX: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr, BF16: tl.constexpr, PREC: tl.constexpr,
    CHUNK: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, NK: tl.constexpr,
):
    """Multiply windows of x with rows of e over a chunk: up to three tiles of k of the weight gradient.

    With DX, x is the gradient of the output and e the input, and dx becomes the gradient of the input as well
    (ADD: plus ``base``). Else x is the input and e the gradient of the output, with NORM of what follows it.
    """
    pid = tl.program_id(0)
    n = tl.arange(0, NP)
    known = n < PX * O
    k = tl.program_id(1) * NK * BK + tl.arange(0, BK)
    k1 = k + BK if NK > 1 else k
    k2 = k + 2 * BK if NK > 2 else k
    if DX:
        b0 = taps(w, k, n, C, C, O, KS, WN, PX, True, BF16)
        b1 = taps(w, k1, n, C, C, O, KS, WN, PX, True, BF16)
        b2 = taps(w, k2, n, C, C, O, KS, WN, PX, True, BF16)
    acc0 = tl.zeros((NP, BK), tl.float32)
    acc1 = acc0
    acc2 = acc0
    for m0 in range(0, CHUNK, BM):
        q = pid * CHUNK + m0 + tl.arange(0, BM)
        at = q[:, None] * (PX * O) + n[None, :]
        ok = (q < total)[:, None] & known[None, :]
        # what the products need is asked for before the first one waits
        a0 = window(x, q, k, total, H, W, C, KS, WN, PX, BF16)
        if NK > 1:
            a1 = window(x, q, k1, total, H, W, C, KS, WN, PX, BF16)
        if NK > 2:
            a2 = window(x, q, k2, total, H, W, C, KS, WN, PX, BF16)
        if ADD:
            out = tl.load(base + at, mask=ok, other=0.0).to(tl.float32)
        else:
            out = tl.zeros((BM, NP), tl.float32)
        if NORM:
            row = unrectified(y, e, at, ok, n, O, mean, rstd, gain, bias, sums, count)
        else:
            row = tl.load(e + at, mask=ok, other=0.0)
        rows = tl.trans(row.to(tl.bfloat16) if BF16 else row.to(tl.float32))
        acc0 = tl.dot(rows, a0, acc0, input_precision=PREC)
        if NK > 1:
            acc1 = tl.dot(rows, a1, acc1, input_precision=PREC)
        if NK > 2:
            acc2 = tl.dot(rows, a2, acc2, input_precision=PREC)
        if DX:
            out = tl.dot(a0, b0, out, input_precision=PREC)
            if NK > 1:
                out = tl.dot(a1, b1, out, input_precision=PREC)
            if NK > 2:
                out = tl.dot(a2, b2, out, input_precision=PREC)
            tl.store(dx + at, out.to(dx.dtype.element_ty), mask=ok)
    to = parts + (pid * PX * O + n[:, None]) * (tl.num_programs(1) * NK * BK) + k[None, :]
    # k is never negative: this widens the mask to the tile
    wide = known[:, None] & (k >= 0)[None, :]
    tl.store(to, acc0, mask=wide)
    if NK > 1:
        tl.store(to + BK, acc1, mask=wide)
    if NK > 2:
        tl.store(to + 2 * BK, acc2, mask=wide)


@triton.jit
def fold(
    parts, out, rows, O: tl.constexpr, C: tl.constexpr, CI: tl.constexpr, KS: tl.constexpr, WN: tl.constexpr,
    PX: tl.constexpr, WIDTH: tl.constexpr, ADJOINT: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):
    """Add the parts [rows, PX O, WIDTH] of ``conv_back`` up to the gradient of the weight [o, c, ky, kx].

    Window element t and pixel j of a row meet in tap kx = t - j (ADJOINT, where o and c change places: j + KS - 1 - t).
    """
    # in the order of the parts, so that neighbours read neighbours
    i = tl.program_id(0) * BC + tl.arange(0, BC)
    c = i % C
    kx = (i // C) % KS
    ky = (i // (C * KS)) % KS
    o = i // (C * KS * KS)
    known = (o < O) & (c < (C if ADJOINT else CI))
    first = (KS - 1 - ky) * WN + KS - 1 - kx if ADJOINT else ky * WN + kx
    acc = tl.zeros((BR, BC), tl.float32)
    for r0 in range(0, rows, BR):
        row = r0 + tl.arange(0, BR)
        ok = (row < rows)[:, None] & known[None, :]
        for j in tl.static_range(0, PX):
            at = (j * O + o) * WIDTH + (first + j) * C + c
            acc += tl.load(parts + row[:, None] * (PX * O * WIDTH) + at[None, :], mask=ok, other=0.0)
    to = ((c * O + o if ADJOINT else o * CI + c) * KS + ky) * KS + kx
    tl.store(out + to, tl.sum(acc, 0), mask=known)
