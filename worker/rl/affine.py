"""Linear layers as pairs of tensors, of one run or of several at once, each with the bits that it has alone.

Axes: R run, B row, D input, N output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

#: Multiplications of a product by which ``exact_parts`` judges, and numbers that must agree: few may do so by chance.
_LEAST, _NUMBERS = 400, 1500
#: Least and most trials with a product.
_TRIALS = (2, 40)

#: What the memory of a tensor of its own begins at a multiple of.
ALIGNED_BYTES = 64
#: Weight [N, D] and bias [N] of a linear layer, or [R, N, D] and [R, N] of those of several runs, and maybe views.
Affine = tuple[Tensor, ...]


def weights(*layers: nn.Linear) -> list[Affine]:
    """The layers without module calls and look-ups: acting on a few environments is all overhead."""
    return [(layer.weight, layer.bias) for layer in layers]


def views_of(weight: Tensor, bias: Tensor) -> Affine:
    """Return stacked layers with their views [R, D, N] and [R, 1, N], which cost as much to make as small products."""
    return weight, bias, weight.transpose(1, 2), bias.unsqueeze(1)


def affine(x: Tensor, layer: Affine) -> Tensor:
    """Return x W' + b; of x [R, B, D] and stacked layers a product for each run, with the bits that it has alone."""
    weight, bias, *views = layer
    if weight.ndim == 2:
        return F.linear(x if x.is_cuda else at_own_address(x), weight, bias)
    if torch.is_grad_enabled():
        return cast("Tensor", _Stacked.apply(x, weight, bias))  # type: ignore[no-untyped-call]
    if not views:
        views = [weight.transpose(1, 2), bias.unsqueeze(1)]
    return _forward(x, *views)


@lru_cache(maxsize=4096)
def exact_parts(runs: int, rows: int, inputs: int, outputs: int) -> frozenset[str]:
    """Return for which parts of a layer one batched product gives each of ``runs`` what it has alone, here.

    Parts are ``forward`` and the derivatives by ``x``, ``weight`` (as autograd has it, or ``across``) and ``bias``. A
    library may add the terms of a product in another order when several are asked for (very small ones, and those with
    one output), so it is tried out, on numbers that would show it, once for each shape.
    """
    if rows * inputs * outputs < _LEAST:
        return frozenset()
    draw, exact = np.random.default_rng(rows), set(_BATCHED)
    trials = _NUMBERS // (runs * min(rows * inputs, rows * outputs, inputs * outputs))
    with torch.inference_mode(mode=False), torch.enable_grad():
        for _ in range(min(max(trials, _TRIALS[0]), _TRIALS[1])):
            shapes = ((runs, rows, inputs), (runs, outputs, inputs), (runs, outputs), (runs, rows, outputs))
            numbers = [torch.from_numpy(draw.standard_normal(s, dtype=np.float32)).clone() for s in shapes]
            found = {part: _BATCHED[part](*numbers) for part in exact}
            for run in range(runs):
                own = [part[run].clone().requires_grad_() for part in numbers[:3]]
                alone = F.linear(*own)
                # the slope as a factor: given as ``grad_outputs`` PyTorch would import sympy to look at it
                slopes = torch.autograd.grad((alone * numbers[3][run].clone()).sum(), own)
                expected = dict(zip(("x", "weight", "bias"), slopes, strict=True))
                expected["forward"] = alone
                expected["across"] = (own[0].detach().t() @ numbers[3][run].clone()).t()
                exact = {part for part in exact if torch.equal(found[part][run], expected[part])}
    return frozenset(exact)


#: Each part as one product of x [R, B, D], weight [R, N, D], bias [R, N] and slope [R, B, N] of what follows.
_BATCHED: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "forward": lambda x, weight, bias, _: torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2)),
    "x": lambda _x, weight, _bias, slope: torch.bmm(slope, weight),
    # in the order that autograd has for a layer alone, which is not that of ``baddbmm``
    # ``bmm`` would hand one output over as a column, whose product is taken in another order
    "weight": lambda x, _weight, _bias, slope: torch.matmul(slope.transpose(1, 2), x),
    "across": lambda x, _weight, _bias, slope: torch.bmm(x.transpose(1, 2), slope).transpose(1, 2),
    "bias": lambda _x, _weight, _bias, slope: slope.sum(1),
}


def _forward(x: Tensor, columns: Tensor, row: Tensor) -> Tensor:
    """Return x W' + b for W' [R, D, N] and b [R, 1, N]."""
    x = at_own_address(x)
    if "forward" in exact_parts(*x.shape, columns.shape[2]):
        return torch.baddbmm(row, x, columns)
    out = x.new_empty(*x.shape[:2], columns.shape[2])
    parts = zip(out.unbind(), row.squeeze(1).unbind(), x.unbind(), columns.unbind(), strict=True)
    for own, offset, rows, product in parts:
        own.copy_(torch.addmm(offset, at_own_address(rows), product))
    return out


class _Stacked(torch.autograd.Function):
    """A layer of several runs as one node of the graph; its derivatives are those of ``F.linear`` of each run alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _forward(x, weight.transpose(1, 2), bias.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x = by_input(weight, slopes[0]) if ctx.needs_input_grad[0] else None
        return by_x, *by_layer(x, slopes[0], as_recorded=True)


def by_input(weight: Tensor, slope: Tensor) -> Tensor:
    """Return the derivative by what enters a layer of several runs [R, B, D], that of ``F.linear`` of each alone.

    Args:
        weight: [R, N, D].
        slope: [R, B, N], the derivative by what the layer gives.
    """
    runs, rows, outputs = slope.shape
    slope = at_own_address(slope)
    if "x" in exact_parts(runs, rows, weight.shape[2], outputs):
        return torch.bmm(slope, weight)
    pairs = zip(slope.unbind(), weight.unbind(), strict=True)
    return torch.stack([at_own_address(own) @ columns for own, columns in pairs])


def by_layer(x: Tensor, slope: Tensor, *, as_recorded: bool = False) -> list[Tensor]:
    """Return the derivatives by weight [R, N, D] and bias [R, N] of a layer of several runs, those of each alone.

    The weight's is the product of the transposed slope with the input; where inputs are fewer than outputs that of the
    transposed input with the slope, which takes a sixth of the time for 4 inputs.

    Args:
        x: [R, B, D], what enters the layer.
        slope: [R, B, N], the derivative by what it gives.
        as_recorded: whether it is always the first, as it is where autograd has recorded ``F.linear``.
    """
    across = not as_recorded and x.shape[2] < slope.shape[2]
    x, slope = at_own_address(x), at_own_address(slope)
    exact, part = exact_parts(*x.shape, slope.shape[2]), "across" if across else "weight"
    own = [] if {part, "bias"} <= exact else [at_own_address(one) for one in slope.unbind()]
    if part in exact:
        by_weight = _BATCHED[part](x, x, x, slope)
    else:
        pairs = [(at_own_address(rows), one) for rows, one in zip(x.unbind(), own, strict=True)]
        by_weight = torch.stack([(rows.t() @ one).t() if across else one.t() @ rows for rows, one in pairs])
    by_bias = slope.sum(1) if "bias" in exact else torch.stack([one.sum(0) for one in own])
    return [by_weight, by_bias]


def single(x: Tensor, layer: Affine) -> Tensor:
    """Return x w' + b [R, B] of layers with one output as sums of products, which are each run's own.

    A library takes such a product of one run in another order than those of several.
    """
    weight, bias, *_ = layer
    return (x * weight).sum(-1).add_(bias)


def at_own_address(x: Tensor) -> Tensor:
    """Return numbers as a tensor of their own has them, without gaps and at such an address: sums depend on both."""
    whole = x.contiguous()
    return whole if whole.data_ptr() % ALIGNED_BYTES == 0 else whole.clone()


def tanh(x: Tensor) -> Tensor:
    """Return tanh x. On a processor it is numpy's, which takes a sixth of the time that the library of PyTorch does."""
    if x.device.type != "cpu" or x.dtype not in _OF_NUMPY:
        return x.tanh()
    if torch.is_grad_enabled() and x.requires_grad:
        return cast("Tensor", _Tanh.apply(x))  # type: ignore[no-untyped-call]
    return _tanh(x)


#: What numpy knows the hyperbolic tangent of, beside PyTorch.
_OF_NUMPY = (torch.float32, torch.float64)


def _tanh(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = _tanh(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return cast("Tensor", torch.ops.aten.tanh_backward(slopes[0], out))


def tanh_body(x: Tensor, first: Affine, second: Affine) -> Tensor:
    """Return two layers of tanh units."""
    recorded = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    if x.device.type == "cpu" and x.dtype in _OF_NUMPY and not recorded:
        return through_tanh(x, (first, second))[-1]
    return tanh(affine(tanh(affine(x, first)), second))


def through_tanh(x: Tensor, layers: Sequence[Affine]) -> list[Tensor]:
    """Return x and what each of several layers of tanh units gives; nothing is recorded, on a processor."""
    found = [x]
    for layer in layers:
        found.append(affine(found[-1], layer))
        values = found[-1].numpy()
        np.tanh(values, out=values)
    return found


def back_through_tanh(found: Sequence[Tensor], layers: Sequence[Affine], slope: Tensor) -> list[Tensor]:
    """Return the derivatives by weight and bias of each layer.

    Args:
        found: by ``through_tanh``.
        layers: as given to it.
        slope: the derivative by the last of ``found``; it is overwritten.
    """
    by_layers: list[Tensor] = []
    for depth in reversed(range(len(layers))):
        torch.ops.aten.tanh_backward.grad_input(slope, found[depth + 1], grad_input=slope)
        by_layers = [*by_layer(found[depth], slope), *by_layers]
        if depth:
            slope = by_input(layers[depth][0], slope)
    return by_layers
