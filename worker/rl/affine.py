"""Linear layers as pairs of tensors, of one run or of several at once, each with the bits that it has alone.

Axes: R run, B row, D input, N output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

#: Multiplications of a product, and trials with one, by which ``exact_parts`` judges: few may agree by chance.
_LEAST, _TRIALS = 400, 2

#: Weight [N, D] and bias [N] of a linear layer, or [R, N, D] and [R, N] of those of several runs.
Affine = tuple[Tensor, Tensor]


def weights(*layers: nn.Linear) -> list[Affine]:
    """The layers without module calls and look-ups: acting on a few environments is all overhead."""
    return [(layer.weight, layer.bias) for layer in layers]


def affine(x: Tensor, layer: Affine) -> Tensor:
    """Return x W' + b; of x [R, B, D] and stacked layers a product for each run, with the bits that it has alone."""
    weight, bias = layer
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return cast("Tensor", _Stacked.apply(x, weight, bias))  # type: ignore[no-untyped-call]
    return _forward(x, weight, bias)


@lru_cache(maxsize=4096)
def exact_parts(runs: int, rows: int, inputs: int, outputs: int) -> frozenset[str]:
    """Return for which parts of a layer one batched product gives each of ``runs`` what it has alone, here.

    Parts are ``forward`` and the derivatives by ``x``, ``weight`` and ``bias``. A library may add the terms of a
    product in another order when several are asked for (very small ones, and those with one output), so it is tried
    out, on numbers that would show it, once for each shape.
    """
    if rows * inputs * outputs < _LEAST:
        return frozenset()
    draw, exact = np.random.default_rng(rows), set(_BATCHED)
    with torch.inference_mode(mode=False), torch.enable_grad():
        for _ in range(_TRIALS):
            shapes = ((runs, rows, inputs), (runs, outputs, inputs), (runs, outputs), (runs, rows, outputs))
            numbers = [torch.from_numpy(draw.standard_normal(s, dtype=np.float32)) for s in shapes]
            found = {part: _BATCHED[part](*numbers) for part in exact}
            for run in range(runs):
                own = [part[run].clone().requires_grad_() for part in numbers[:3]]
                alone = F.linear(*own)
                expected = dict(zip(("x", "weight", "bias"), _grad(alone, own, numbers[3][run].clone()), strict=True))
                expected["forward"] = alone
                exact = {part for part in exact if torch.equal(found[part][run], expected[part])}
    return frozenset(exact)


_grad = torch.autograd.grad
#: Each part as one product of x [R, B, D], weight [R, N, D], bias [R, N] and slope [R, B, N] of what follows.
_BATCHED: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "forward": lambda x, weight, bias, _: torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2)),
    "x": lambda _x, weight, _bias, slope: torch.bmm(slope, weight),
    # in the order that autograd has for a layer alone, which is not that of ``baddbmm``
    "weight": lambda x, _weight, _bias, slope: torch.bmm(slope.transpose(1, 2), x),
    "bias": lambda _x, _weight, _bias, slope: slope.sum(1),
}


def _forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if "forward" in exact_parts(*x.shape, weight.shape[1]):
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
    out = x.new_empty(*x.shape[:2], weight.shape[1])
    parts = zip(out.unbind(), bias.unbind(), x.unbind(), weight.transpose(1, 2).unbind(), strict=True)
    for own, offset, rows, columns in parts:
        torch.addmm(offset, rows, columns, out=own)
    return out


class _Stacked(torch.autograd.Function):
    """A layer of several runs as one node of the graph; its derivatives are those of ``F.linear`` of each run alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        (x, weight), slope = ctx.saved_tensors, slopes[0]
        exact = exact_parts(*x.shape, weight.shape[1])
        by_weight = _products(slope.transpose(1, 2), x, batched="weight" in exact)
        by_bias = slope.sum(1) if "bias" in exact else torch.stack([own.sum(0) for own in slope.unbind()])
        by_x = _products(slope, weight, batched="x" in exact) if ctx.needs_input_grad[0] else None
        return by_x, by_weight, by_bias


def _products(left: Tensor, right: Tensor, *, batched: bool) -> Tensor:
    """Return the product of each run, left [R, ..] by right [R, ..]."""
    if batched:
        return torch.bmm(left, right)
    out = left.new_empty(*left.shape[:2], right.shape[2])
    for own, one, other in zip(out.unbind(), left.unbind(), right.unbind(), strict=True):
        torch.mm(one, other, out=own)
    return out


def tanh_body(x: Tensor, first: Affine, second: Affine) -> Tensor:
    """Return two layers of tanh units."""
    return affine(affine(x, first).tanh(), second).tanh()
