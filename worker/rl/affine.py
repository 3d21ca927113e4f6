"""Linear layers as pairs of tensors, of one run or of several at once, each with the bits that it has alone.

Axes: R run, B row, D input, N output.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

#: Multiplications of a product, and trials with one, by which ``batches_exactly`` judges: few may agree by chance.
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
    if batches_exactly(*x.shape, weight.shape[1]):
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
    return torch.stack([F.linear(*own) for own in zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)])


@lru_cache(maxsize=4096)
def batches_exactly(runs: int, rows: int, inputs: int, outputs: int) -> bool:
    """Return whether a batched product gives each of ``runs`` what it has alone, here, forward and backward.

    A library may add the terms of a product in another order when several are asked for (very small ones, and those
    with one output), so it is tried out, on numbers that would show it, once for each shape.
    """
    if rows * inputs * outputs < _LEAST:
        return False
    draw = np.random.default_rng(rows)
    with torch.inference_mode(mode=False), torch.enable_grad():
        for _ in range(_TRIALS):
            shapes = ((runs, rows, inputs), (runs, outputs, inputs), (runs, outputs), (runs, rows, outputs))
            x, weight, bias, slope = (torch.from_numpy(draw.standard_normal(s, dtype=np.float32)) for s in shapes)
            parts = [part.requires_grad_() for part in (x, weight, bias)]
            together = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
            found = [together, *torch.autograd.grad(together, parts, slope)]
            for run in range(runs):
                own = [part[run].detach().clone().requires_grad_() for part in (x, weight, bias)]
                alone = F.linear(*own)
                expected = [alone, *torch.autograd.grad(alone, own, slope[run].clone())]
                if not all(torch.equal(a[run], b) for a, b in zip(found, expected, strict=True)):
                    return False
    return True


def tanh_body(x: Tensor, first: Affine, second: Affine) -> Tensor:
    """Return two layers of tanh units."""
    return affine(affine(x, first).tanh(), second).tanh()
