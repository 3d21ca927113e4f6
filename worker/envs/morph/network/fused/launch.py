"""How the kernels of convolutions are launched: tiles, chunks and rows of products from shapes alone.

Axes: B images, C channels in, O out, k kernel edge, PX pixels of one row of the product (``conv_kernels``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from worker.envs.morph.network.fused import conv_kernels, kernels

#: Of BatchNorm and GroupNorm, as PyTorch has them; momentum as ``hosts`` has it.
EPS, _MOMENTUM = 1e-5, 0.1
#: Columns up to which a product takes two pixels a row.
_WIDE = 64
#: Programs of ``conv_back``: each leaves partial sums for ``fold`` to add up, and other hosts fill the rest of a card.
#: The same number on every card, for the order of a sum decides its bits.
_PROGRAMS = 132
#: Programs of ``conv`` where weights are many beside a tile: each gathers them once. No number depends on how many run.
_RUNNING = 132
#: Elements of windows that a program holds at once (twice as many halves): a multiprocessor has 228 kB for all on it.
_HELD = 12_288
#: Tiles of k that one program of ``conv_back`` adds up.
_TILES = 3


class Norm(NamedTuple):
    """ReLU(BN(y)) behind a convolution: moments [2, O], gain and bias [O], sums [2, O] of its backward pass."""

    y: Tensor
    moments: Tensor
    gain: Tensor
    bias: Tensor
    sums: Tensor


@dataclass(frozen=True)
class Product:
    """Shape of a convolution as a product of rows, elements of a window, and columns.

    Attributes:
        rows: rows of the product.
        pixels: PX.
        columns: of the product, padded to a power of two.
        elements: of a window.
        tile: rows of one program.
        step: elements that one product takes.
        constants: of the kernels.
    """

    rows: int
    pixels: int
    columns: int
    elements: int
    tile: int
    step: int
    constants: dict[str, Any]


def product(x: Tensor, channels: int, kernel: int) -> Product:
    """Return how windows of x [B, C, H, W] meet rows of ``channels`` channels of the same map.

    Raises:
        ValueError: more elements than 32-bit offsets of the kernels reach.
    """
    batch, inner, height, width = x.shape
    if batch * height * width * max(inner, channels) >= 1 << 31:
        raise ValueError(f"maps of {tuple(x.shape)} are too large for engine.path fused; use captured")
    pixels = 2 if width % 2 == 0 and 2 * channels <= _WIDE else 1
    window = triton.next_power_of_2(kernel + pixels - 1)
    columns = max(16, triton.next_power_of_2(pixels * channels))
    rows, elements = batch * height * width // pixels, kernel * window * inner
    half = _halves(x)
    shape = {"H": height, "W": width, "C": inner, "O": channels, "NP": columns, "KS": kernel, "WN": window}
    shape |= {"PX": pixels, "BF16": half, "PREC": _precision()}
    step = max(16, min(triton.next_power_of_2(window * inner), 128 if half else 32))
    tile = 256 if columns <= 16 and rows >= 1 << 17 else 128 if columns <= (64 if half else 32) else 64
    held = min(elements, _TILES * step) // (2 if half else 1)
    return Product(rows, pixels, columns, elements, _fitting(tile, held), step, shape)


def conv(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of x [B, C', H, W], channels-last, with [O, C, k, k]; channels from C on are ignored."""
    return _conv(x, weight, stats=False)[0]


def conv_moments(x: Tensor, weight: Tensor, running: tuple[Tensor, Tensor], *, update: bool) -> tuple[Tensor, Tensor]:
    """Return the convolution and [2, O], mean and 1 / sd of its channels; running statistics move if ``update``."""
    y, sums, squares, shape = _conv(x, weight, stats=True)
    out, tiles = weight.shape[0], sums.shape[0]
    wide = triton.next_power_of_2(tiles * shape.pixels)
    moments = torch.empty(2, out, device=x.device)
    conv_kernels.combine[(out,)](
        sums, squares, moments[0], moments[1], *running, shape.rows, tiles,
        O=out, PX=shape.pixels, BM=shape.tile, NB=wide, UPDATE=update, EPS=EPS, MOMENTUM=_MOMENTUM, num_warps=8,
    )  # fmt: skip
    return y, moments


def conv_back(x: Tensor, weight: Tensor, dy: Tensor, base: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the gradients of the input (plus ``base``) and of the weight.

    Args:
        x: [B, C, H, W] input.
        weight: [O, C, k, k].
        dy: [B, O, H, W] gradient of the output.
        base: [B, C, H, W] what is added to the gradient of the input.

    Raises:
        ValueError: x has channels that the weight has not, as ``padded`` images do; they take no gradient.
    """
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"no gradient for {x.shape[1]} channels of an input to a weight of {weight.shape[1]}")
    shape = product(dy, x.shape[1], weight.shape[2])
    step = max(16, triton.next_power_of_2(shape.constants["WN"] * dy.shape[1]))
    if shape.columns > _WIDE or step > 64 or triton.cdiv(shape.elements, step) > _TILES:
        dx = input_back(weight, dy)
        return (dx if base is None else dx + base), weight_back(x, weight, dy)
    dx = torch.empty_like(x)
    tiles = triton.cdiv(shape.elements, step)
    tile = _fitting(min(shape.tile, 128), tiles * step)
    parts = _back(shape, (dy, x, weight, dx, base), None, tile=tile, step=step, tiles=tiles, groups=1)
    return dx, _fold(parts, weight, shape, adjoint=True)


def input_back(weight: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of the input alone, given that of the output [B, O, H, W]."""
    return _conv(dy, weight, stats=False, adjoint=True)[0]


def weight_back(x: Tensor, weight: Tensor, dy: Tensor, norm: Norm | None = None) -> Tensor:
    """Return the gradient of the weight; with ``norm``, ``dy`` is the gradient behind it."""
    shape = product(x, weight.shape[0], weight.shape[2])
    tiles = triton.cdiv(shape.elements, shape.step)
    each = tiles if tiles <= _TILES and shape.columns <= _WIDE else 1
    given = (x, dy, weight, None, None)
    tile = min(shape.tile, 128)
    parts = _back(shape, given, norm, tile=tile, step=shape.step, tiles=each, groups=triton.cdiv(tiles, each))
    return _fold(parts, weight, shape, adjoint=False)


def add_rows(parts: Tensor) -> Tensor:
    """Return parts [P, ..] summed over the first axis."""
    out = torch.empty(parts.shape[1:], device=parts.device)
    rows, columns = parts.shape[0], out.numel()
    kernels.add_rows[(triton.cdiv(columns, 16),)](parts, out, rows, columns, BR=512, BC=16, num_warps=8)
    return out


def last(x: Tensor) -> Tensor:
    """Return x channels-last."""
    return x.contiguous(memory_format=torch.channels_last)


def _conv(x: Tensor, weight: Tensor, *, stats: bool, adjoint: bool = False) -> tuple[Tensor, Tensor, Tensor, Product]:
    real, outer = (weight.shape[0], weight.shape[1]) if adjoint else (weight.shape[1], weight.shape[0])
    shape = product(x, outer, weight.shape[2])
    dtype = torch.bfloat16 if shape.constants["BF16"] else x.dtype
    y = torch.empty_like(x[:, :1].expand(-1, outer, -1, -1), dtype=dtype, memory_format=torch.channels_last)
    tiles = triton.cdiv(shape.rows, shape.tile)
    sums = torch.empty(2, tiles if stats else 0, shape.pixels * outer, device=x.device)
    # a power of two: a kernel is compiled for each number
    each = triton.next_power_of_2(triton.cdiv(tiles, _RUNNING)) if 8 * shape.columns > shape.tile else 1
    conv_kernels.conv[(triton.cdiv(tiles, each),)](
        x, weight, y, sums[0], sums[1], shape.rows, CI=real, ADJOINT=adjoint, STATS=stats, TILES=each, BM=shape.tile,
        BK=shape.step, NK=triton.cdiv(shape.elements, shape.step), num_warps=4, num_stages=1, **shape.constants,
    )  # fmt: skip
    return y, sums[0], sums[1], shape


def _back(
    shape: Product, gradients: tuple[Any, ...], norm: Norm | None, *, tile: int, step: int, tiles: int, groups: int
) -> Tensor:
    """Launch ``conv_back`` for groups of tiles of k and return its parts."""
    x, e, weight, dx, base = gradients
    chunk = tile * triton.cdiv(shape.rows, tile * _PROGRAMS)
    programs = triton.cdiv(shape.rows, chunk)
    width = groups * tiles * step
    parts = torch.empty(programs, shape.pixels * shape.constants["O"], width, device=x.device)
    # a pointer that the constants switch off may be any
    behind = (e, weight, weight, weight, weight, weight) if norm is None else (norm.y, *norm.moments, *norm[2:])
    conv_kernels.conv_back[(programs, groups)](
        x, e, weight, e if dx is None else dx, e if base is None else base, parts, shape.rows,
        *behind, float(shape.rows * shape.pixels), DX=dx is not None, ADD=base is not None, NORM=norm is not None,
        CHUNK=chunk, BM=tile, BK=step, NK=tiles, num_warps=4, num_stages=1, **shape.constants,
    )  # fmt: skip
    return parts


def _fold(parts: Tensor, weight: Tensor, shape: Product, *, adjoint: bool) -> Tensor:
    out = torch.empty_like(weight, memory_format=torch.contiguous_format)
    constants = {name: shape.constants[name] for name in ("O", "C", "KS", "WN", "PX")}
    size = shape.constants["O"] * shape.constants["C"] * weight.shape[2] ** 2
    conv_kernels.fold[(triton.cdiv(size, 16),)](
        parts, out, parts.shape[0], CI=weight.shape[1], WIDTH=parts.shape[2], ADJOINT=adjoint, BR=256, BC=16,
        num_warps=8, **constants,
    )  # fmt: skip
    return out


def _fitting(tile: int, elements: int) -> int:
    """Return the tile, halved until its windows of ``elements`` fit, but not below 16 rows."""
    while tile > 16 and tile * elements > _HELD:
        tile //= 2
    return tile


def _halves(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cuda")


def _precision() -> str:
    # three products of tf32 are as exact as one of float32, and the only way to the tensor cores
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
