"""The Triton kernels behind ``fused``. Activations lie channels-last; every reduction has a fixed order.

Axes: B images, H x W pixels, C channels in, O out, K = taps x C; one program takes a tile of rows.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: E741 - letters of kernels
# fmt: off
from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit
def larger(a, b):
    """Return the larger element, NaN where either is NaN, as PyTorch's ReLU and pooling do."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def normal(y, at, ok, mean, rstd, gain, bias):
    """Return xhat and max(0, gain xhat + bias) at pointers."""
    xhat = (tl.load(y + at, mask=ok, other=0.0).to(tl.float32) - mean) * rstd
    return xhat, larger(xhat * gain + bias, 0.0)


@triton.jit
def activate(
    y, out, mean, rstd, gain, bias, total, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, POOL: tl.constexpr,
    VARIANCE: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):
    """Normalise, ReLU, and with POOL take 2x2 maxima; with VARIANCE, ``rstd`` holds variances."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < total
    o = i % O
    m, r, g, b = tl.load(mean + o), tl.load(rstd + o), tl.load(gain + o), tl.load(bias + o)
    if VARIANCE:
        r = 1.0 / tl.sqrt(r + EPS)
    if POOL:
        q = i // O
        xo = q % (W // 2)
        yo = (q // (W // 2)) % (H // 2)
        at = (((q // ((W // 2) * (H // 2))) * H + 2 * yo) * W + 2 * xo) * O + o
        _, z = normal(y, at, ok, m, r, g, b)
        _, z1 = normal(y, at + O, ok, m, r, g, b)
        _, z2 = normal(y, at + W * O, ok, m, r, g, b)
        _, z3 = normal(y, at + W * O + O, ok, m, r, g, b)
        z = larger(larger(z, z1), larger(z2, z3))
    else:
        _, z = normal(y, i, ok, m, r, g, b)
    tl.store(out + i, z.to(out.dtype.element_ty), mask=ok)


@triton.jit
def activate_back(
    y, grad, dy, mean, rstd, gain, bias, sums, total, count, H: tl.constexpr, W: tl.constexpr,
    O: tl.constexpr, OP: tl.constexpr, POOL: tl.constexpr, SUMS: tl.constexpr, CHUNK: tl.constexpr, BP: tl.constexpr,
):
    """Sum the gradients of bias and gain over a chunk (SUMS), or write the gradient of y given those sums."""
    pid = tl.program_id(0)
    o = tl.arange(0, OP)
    known = o < O
    m, r = tl.load(mean + o, mask=known, other=0.0)[None, :], tl.load(rstd + o, mask=known, other=0.0)[None, :]
    g, b = tl.load(gain + o, mask=known, other=0.0)[None, :], tl.load(bias + o, mask=known, other=0.0)[None, :]
    if SUMS:
        bias_grad = tl.zeros((BP, OP), tl.float32)
        gain_grad = tl.zeros((BP, OP), tl.float32)
    else:
        # dL/dy = gain rstd (dz - mean(dz) - xhat mean(dz xhat)) (Ioffe & Szegedy 2015)
        s = tl.load(sums + o, mask=known, other=0.0)[None, :] / count
        t = tl.load(sums + O + o, mask=known, other=0.0)[None, :] / count
    for m0 in range(0, CHUNK, BP):
        q = pid * CHUNK + m0 + tl.arange(0, BP)
        ok = (q < total)[:, None] & known[None, :]
        d = tl.load(grad + q[:, None] * O + o[None, :], mask=ok, other=0.0).to(tl.float32)
        if POOL:
            xo = q % (W // 2)
            yo = (q // (W // 2)) % (H // 2)
            at = ((((q // ((W // 2) * (H // 2))) * H + 2 * yo) * W + 2 * xo) * O)[:, None] + o[None, :]
            down = at + W * O
            h0, z0 = normal(y, at, ok, m, r, g, b)
            h1, z1 = normal(y, at + O, ok, m, r, g, b)
            h2, z2 = normal(y, down, ok, m, r, g, b)
            h3, z3 = normal(y, down + O, ok, m, r, g, b)
            top = larger(larger(z0, z1), larger(z2, z3))
            # the first of equal maxima takes the gradient
            d = tl.where(top > 0.0, d, 0.0)
            is0 = z0 == top
            is1 = (z1 == top) & ~is0
            is2 = (z2 == top) & ~is0 & ~is1
            is3 = ~is0 & ~is1 & ~is2
            if SUMS:
                hit = tl.where(is0, h0, tl.where(is1, h1, tl.where(is2, h2, h3)))
            else:
                tl.store(dy + at, (g * r * (tl.where(is0, d, 0.0) - s - h0 * t)).to(dy.dtype.element_ty), mask=ok)
                tl.store(dy + at + O, (g * r * (tl.where(is1, d, 0.0) - s - h1 * t)).to(dy.dtype.element_ty), mask=ok)
                tl.store(dy + down, (g * r * (tl.where(is2, d, 0.0) - s - h2 * t)).to(dy.dtype.element_ty), mask=ok)
                tl.store(dy + down + O, (g * r * (tl.where(is3, d, 0.0) - s - h3 * t)).to(dy.dtype.element_ty), mask=ok)
        else:
            at = q[:, None] * O + o[None, :]
            hit, z = normal(y, at, ok, m, r, g, b)
            d = tl.where(z > 0.0, d, 0.0)
            if not SUMS:
                tl.store(dy + at, (g * r * (d - s - hit * t)).to(dy.dtype.element_ty), mask=ok)
        if SUMS:
            bias_grad += d
            gain_grad += d * hit
    if SUMS:
        tl.store(sums + pid * 2 * O + o, tl.sum(bias_grad, 0), mask=known)
        tl.store(sums + pid * 2 * O + O + o, tl.sum(gain_grad, 0), mask=known)


@triton.jit
def augment(
    images, labels, draws, batch, mean, std, x, y, scale, N: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
    E: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr,
):
    """Gather, crop, flip, normalise a batch; channels C to CP - 1 are zero."""
    draws += tl.load(batch) * N * 4
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < N * E * E
    col = i % E
    row = (i // E) % E
    item = i // (E * E)
    index = tl.load(draws + item * 4, mask=ok, other=0)
    top = tl.load(draws + item * 4 + 1, mask=ok, other=0).to(tl.int32)
    left = tl.load(draws + item * 4 + 2, mask=ok, other=0).to(tl.int32)
    flip = tl.load(draws + item * 4 + 3, mask=ok, other=0)
    across = left + tl.where(flip == 1, E - 1 - col, col)
    c = tl.arange(0, CP)
    known = (c < C)[None, :]
    middle = tl.load(mean + c, mask=c < C, other=0.0)[None, :]
    spread = tl.load(std + c, mask=c < C, other=1.0)[None, :]
    at = (index * (C * P * P) + (top + row) * P + across)[:, None] + (c * P * P)[None, :]
    v = tl.load(images + at, mask=ok[:, None] & known, other=0).to(tl.float32)
    v = tl.where(known, (v / scale - middle) / spread, 0.0)
    tl.store(x + i[:, None] * CP + c[None, :], v.to(x.dtype.element_ty), mask=ok[:, None])
    first = ok & (col == 0) & (row == 0)
    tl.store(y + item, tl.load(labels + index, mask=first, other=0), mask=first)


@triton.jit
def stepped(flat, momentum, i, here, p, g, b, rate, DECAY: tl.constexpr, BETA: tl.constexpr):
    """Store a step of SGD with momentum (PyTorch's, without dampening)."""
    b = g + DECAY * p + BETA * b
    tl.store(momentum + i, b, mask=here)
    tl.store(flat + i, p - rate * b, mask=here)


@triton.jit
def sgd(
    grad, flat, momentum, active, lr, norm, size, clip, DECAY: tl.constexpr, BETA: tl.constexpr, BLOCK: tl.constexpr,
):
    """Clip to the norm and step, in one program; a non-finite or frozen step changes nothing."""
    first = tl.arange(0, BLOCK)
    g = tl.load(grad + first, mask=first < size, other=0.0)
    p = tl.load(flat + first, mask=first < size, other=0.0)
    b = tl.load(momentum + first, mask=first < size, other=0.0)
    acc = g * g
    for start in range(BLOCK, size, BLOCK):
        more = tl.load(grad + start + first, mask=start + first < size, other=0.0)
        acc += more * more
    length = tl.sqrt(tl.sum(acc, 0))
    tl.store(norm, length)
    # NaN and infinity fail the comparison: such a step, or a frozen network, changes nothing
    good = (length < float("inf")).to(tl.int32) * tl.load(active).to(tl.int32)
    shrink = tl.minimum(clip / (length + 1e-6), 1.0)
    rate = tl.load(lr)
    stepped(flat, momentum, first, (first < size) & (good == 1), p, g * shrink, b, rate, DECAY, BETA)
    for start in range(BLOCK, size, BLOCK):
        i = start + first
        here = (i < size) & (good == 1)
        g = tl.load(grad + i, mask=here, other=0.0)
        p = tl.load(flat + i, mask=here, other=0.0)
        b = tl.load(momentum + i, mask=here, other=0.0)
        stepped(flat, momentum, i, here, p, g * shrink, b, rate, DECAY, BETA)


@triton.jit
def note(row, measured, batch, width, stride, BLOCK: tl.constexpr):
    """Write a row of measured where ``batch`` says, and count it; one warp, so that all read before it is counted."""
    i = tl.arange(0, BLOCK)
    at = tl.load(batch)
    tl.store(measured + at * stride + i, tl.load(row + i, mask=i < width), mask=i < width)
    tl.store(batch, at + 1)


@triton.jit
def add_rows(parts, out, rows, cols, BR: tl.constexpr, BC: tl.constexpr):
    """Sum [rows, cols] over rows, in a fixed order."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    acc = tl.zeros((BR, BC), tl.float32)
    for r0 in range(0, rows, BR):
        r = r0 + tl.arange(0, BR)
        ok = (r < rows)[:, None] & (c < cols)[None, :]
        acc += tl.load(parts + r[:, None] * cols + c[None, :], mask=ok, other=0.0)
    tl.store(out + c, tl.sum(acc, 0), mask=c < cols)


@triton.jit
def group(
    y, h, out, weight, bias, gamma, alpha, moments,
    HW: tl.constexpr, C: tl.constexpr, G: tl.constexpr, KIND: tl.constexpr, BLEND: tl.constexpr, EPS: tl.constexpr,
):
    """Write z = GN(y) of one image and group, or of KIND its ReLU or residual z - y; with BLEND, h + alpha gamma z.

    Leaves moments [B, G, 2].
    """
    c = tl.program_id(1) * (C // G) + tl.arange(0, C // G)
    at = (tl.program_id(0) * HW + tl.arange(0, HW)[:, None]) * C + c[None, :]
    v = tl.load(y + at).to(tl.float32)
    mean = tl.sum(tl.sum(v, 1), 0) / (HW * (C // G))
    d = v - mean
    rstd = 1.0 / tl.sqrt(tl.sum(tl.sum(d * d, 1), 0) / (HW * (C // G)) + EPS)
    to = moments + (tl.program_id(0) * G + tl.program_id(1)) * 2
    tl.store(to, mean)
    tl.store(to + 1, rstd)
    z = d * rstd * tl.load(weight + c)[None, :] + tl.load(bias + c)[None, :]
    if KIND == "relu":
        z = larger(z, 0.0)
    if KIND == "residual":
        z -= v
    if BLEND:
        z = tl.load(h + at).to(tl.float32) + tl.load(alpha) * tl.load(gamma + c)[None, :] * z
    tl.store(out + at, z.to(out.dtype.element_ty))


@triton.jit
def group_back(
    y, grad, dy, weight, bias, gamma, alpha, moments, parts,
    HW: tl.constexpr, C: tl.constexpr, G: tl.constexpr, KIND: tl.constexpr, BLEND: tl.constexpr,
):
    """Gradient of y, and per image those of weight, bias and gamma, [B, 3, C]."""
    image = tl.program_id(0)
    c = tl.program_id(1) * (C // G) + tl.arange(0, C // G)
    at = (image * HW + tl.arange(0, HW)[:, None]) * C + c[None, :]
    n: tl.constexpr = HW * (C // G)
    of = moments + (image * G + tl.program_id(1)) * 2
    mean, rstd = tl.load(of), tl.load(of + 1)
    xhat = (tl.load(y + at).to(tl.float32) - mean) * rstd
    w, b = tl.load(weight + c), tl.load(bias + c)
    g = tl.load(grad + at).to(tl.float32)
    if KIND == "relu":
        g = tl.where(xhat * w[None, :] + b[None, :] > 0.0, g, 0.0)
    # what all gradients are made of: two sums per channel
    first, second = tl.sum(g, 0), tl.sum(g * xhat, 0)
    scale = tl.zeros_like(w) + 1.0
    mixed = tl.zeros_like(w)
    if BLEND:
        mixed = w * second + b * first
        if KIND == "residual":
            mixed -= second / rstd + mean * first
        mixed *= tl.load(alpha)
        scale = tl.load(alpha) * tl.load(gamma + c)
    tl.store(parts + image * 3 * C + c, scale * second)
    tl.store(parts + (image * 3 + 1) * C + c, scale * first)
    tl.store(parts + (image * 3 + 2) * C + c, mixed)
    s = tl.sum(scale * w * first, 0) / n
    t = tl.sum(scale * w * second, 0) / n
    back = rstd * (g * (scale * w)[None, :] - s - xhat * t)
    if KIND == "residual":
        back -= scale[None, :] * g
    tl.store(dy + at, back.to(dy.dtype.element_ty))


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent, 0 of 0."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def blend(
    h, f, out, scale, alpha, total, HW: tl.constexpr, C: tl.constexpr, EACH: tl.constexpr, MULTIPLY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write h + alpha s f, or with MULTIPLY h + alpha h tanh(s f); s [C], or with EACH [B, C]."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < total
    of = i % C
    if EACH:
        of += i // (HW * C) * C
    base = tl.load(h + i, mask=ok, other=0.0).to(tl.float32)
    v = tl.load(scale + of, mask=ok, other=0.0) * tl.load(f + i, mask=ok, other=0.0).to(tl.float32)
    if MULTIPLY:
        v = base * tanh(v)
    tl.store(out + i, (base + tl.load(alpha) * v).to(out.dtype.element_ty), mask=ok)


@triton.jit
def blend_back(
    h, f, grad, dh, df, scale, alpha, parts, HW: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, EACH: tl.constexpr,
    MULTIPLY: tl.constexpr, BP: tl.constexpr,
):
    """Gradients of f, with MULTIPLY of h (else it is that of the output), and of s per image [B, C]."""
    image = tl.program_id(0)
    c = tl.arange(0, CP)
    known = c < C
    s = tl.load(scale + c + (image * C if EACH else 0), mask=known, other=0.0)[None, :]
    a = tl.load(alpha)
    total = tl.zeros((BP, CP), tl.float32)
    for start in range(0, HW, BP):
        q = start + tl.arange(0, BP)
        ok = (q < HW)[:, None] & known[None, :]
        at = (image * HW + q[:, None]) * C + c[None, :]
        g = tl.load(grad + at, mask=ok, other=0.0).to(tl.float32)
        v = tl.load(f + at, mask=ok, other=0.0).to(tl.float32)
        d = a * g
        if MULTIPLY:
            t = tanh(s * v)
            tl.store(dh + at, (g + d * t).to(dh.dtype.element_ty), mask=ok)
            d *= tl.load(h + at, mask=ok, other=0.0).to(tl.float32) * (1.0 - t * t)
        tl.store(df + at, (d * s).to(df.dtype.element_ty), mask=ok)
        total += d * v
    tl.store(parts + image * C + c, tl.sum(total, 0), mask=known)


@triton.jit
def pool(x, out, total, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, BLOCK: tl.constexpr):
    """2x2 maxima."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < total
    q = i // O
    at = (((q // ((W // 2) * (H // 2))) * H + 2 * ((q // (W // 2)) % (H // 2))) * W + 2 * (q % (W // 2))) * O + i % O
    a = larger(tl.load(x + at, mask=ok, other=0.0), tl.load(x + at + O, mask=ok, other=0.0))
    at += W * O
    b = larger(tl.load(x + at, mask=ok, other=0.0), tl.load(x + at + O, mask=ok, other=0.0))
    tl.store(out + i, larger(a, b), mask=ok)


@triton.jit
def pool_back(x, grad, dx, total, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, BLOCK: tl.constexpr):
    """The first of equal maxima takes the gradient."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < total
    q = i // O
    at = (((q // ((W // 2) * (H // 2))) * H + 2 * ((q // (W // 2)) % (H // 2))) * W + 2 * (q % (W // 2))) * O + i % O
    a0, a1 = tl.load(x + at, mask=ok, other=0.0), tl.load(x + at + O, mask=ok, other=0.0)
    low = at + W * O
    a2, a3 = tl.load(x + low, mask=ok, other=0.0), tl.load(x + low + O, mask=ok, other=0.0)
    top = larger(larger(a0, a1), larger(a2, a3))
    g = tl.load(grad + i, mask=ok, other=0.0)
    zero = tl.zeros_like(g)
    is0 = a0 == top
    is1 = (a1 == top) & ~is0
    is2 = (a2 == top) & ~is0 & ~is1
    tl.store(dx + at, tl.where(is0, g, zero), mask=ok)
    tl.store(dx + at + O, tl.where(is1, g, zero), mask=ok)
    tl.store(dx + low, tl.where(is2, g, zero), mask=ok)
    tl.store(dx + low + O, tl.where(is0 | is1 | is2, zero, g), mask=ok)


@triton.jit
def head(
    x, weight, bias, labels, dx, parts, images,
    HW: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BI: tl.constexpr,
    PB: tl.constexpr,
):
    """Mean over the map, linear, cross-entropy, and all their gradients; parts [P, K C + K + 1]."""
    pid = tl.program_id(0)
    i = pid * BI + tl.arange(0, BI)
    c = tl.arange(0, CP)
    k = tl.arange(0, KP)
    ok = (i < images)[:, None] & (c < C)[None, :]
    mean = tl.zeros((BI, CP), tl.float32)
    for p0 in range(0, HW, PB):
        for p in tl.static_range(0, PB):
            mean += tl.load(x + (i[:, None] * HW + p0 + p) * C + c[None, :], mask=ok, other=0.0).to(tl.float32)
    mean = mean / HW
    w = tl.load(weight + k[:, None] * C + c[None, :], mask=(k < K)[:, None] & (c < C)[None, :], other=0.0)
    logits = tl.dot(mean, tl.trans(w), input_precision="ieee") + tl.load(bias + k, mask=k < K, other=0.0)[None, :]
    logits = tl.where((k < K)[None, :], logits, float("-inf"))
    e = logits - tl.max(logits, 1)[:, None]
    total = tl.sum(tl.exp(e), 1)
    hot = tl.load(labels + i, mask=i < images, other=-1)[:, None] == k[None, :]
    loss = tl.log(total) - tl.sum(tl.where(hot, e, 0.0), 1)
    size = K * C + K + 1
    tl.store(parts + pid * size + K * C + K, tl.sum(tl.where(i < images, loss, 0.0), 0) / images)
    d = (tl.exp(e) / total[:, None] - tl.where(hot, 1.0, 0.0)) / images
    d = tl.where((i < images)[:, None] & (k < K)[None, :], d, 0.0)
    dw = tl.dot(tl.trans(d), mean, input_precision="ieee")
    tl.store(parts + pid * size + k[:, None] * C + c[None, :], dw, mask=(k < K)[:, None] & (c < C)[None, :])
    tl.store(parts + pid * size + K * C + k, tl.sum(d, 0), mask=k < K)
    back = (tl.dot(d, w, input_precision="ieee") / HW).to(dx.dtype.element_ty)
    for p in range(HW):
        tl.store(dx + (i[:, None] * HW + p) * C + c[None, :], back, mask=ok)
