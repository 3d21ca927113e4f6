"""First values of a policy's parameters from keyed draws (training.md 1.14)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

#: Standard normal numbers of a shape for the parameter of a name, float64.
Draw = Callable[[str, tuple[int, ...]], np.ndarray]

_BODY_GAIN = math.sqrt(2.0)
_POLICY_GAIN = 0.01
_EMBEDDING_STD = 0.02


def initial_value(name: str, shape: tuple[int, ...], draw: Draw, value_gain: float) -> Tensor:
    """Return the first value of a parameter.

    Args:
        name: of the parameter in its network.
        shape: of the parameter.
        draw: where its numbers come from.
        value_gain: of the value's last layer.
    """
    if name == "embed.table":
        return torch.from_numpy(_EMBEDDING_STD * draw(name, shape)).float()
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if len(shape) == 1:
        return _bias(name, shape[0])
    gain = _BODY_GAIN
    if name.startswith("outputs."):
        gain = _POLICY_GAIN
    elif name.startswith("value_out."):
        gain = value_gain
    elif name.startswith(("lstm.", "skip.")):
        gain = 1.0
    # a convolution as the matrix that reads one patch
    return orthogonal(draw(name, shape).reshape(shape[0], -1), gain).view(shape)


def orthogonal(normal: np.ndarray, gain: float) -> Tensor:
    """Return a (semi-)orthogonal matrix of the shape of ``normal`` times ``gain`` (Saxe et al. 2014)."""
    rows, columns = normal.shape
    q, r = np.linalg.qr(normal if rows >= columns else normal.T)
    q = q * np.sign(np.diag(r))
    return torch.from_numpy(np.ascontiguousarray(gain * (q if rows >= columns else q.T))).float()


def _bias(name: str, size: int) -> Tensor:
    bias = torch.zeros(size)
    if name.startswith("lstm.bias_ih"):
        # gate order of nn.LSTM: input, forget, cell, output
        bias[size // 4 : size // 2] = 1.0
    return bias
