"""Diagonal Gaussians of continuous action heads: density, entropy, draws (tasks.md 1).

The sample u is never clipped here: what an environment is sent is made of it elsewhere, and the density is that of u,
or of tanh(u) where the head squashes. Axes: .. any leading axes, A components.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Bounds of a log standard deviation.
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


def parameters(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log standard deviation [.., A] of a head's outputs [.., 2 A], in FP32 or better."""
    mean, log_std = (outputs if outputs.dtype == torch.float64 else outputs.float()).chunk(2, dim=-1)
    return mean, log_std


def log_density(u: Tensor, mean: Tensor, log_std: Tensor, *, squashed: bool) -> Tensor:
    """Return the log-density [..] of samples u [.., A], or of tanh(u) where the head squashes."""
    u = u.to(mean.dtype)
    z = (u - mean) * (-log_std).exp()
    each = -0.5 * z * z - log_std - _HALF_LOG_2PI
    if squashed:
        # ln(1 - tanh(u)^2) = 2 (ln 2 - |u| - ln(1 + e^(-2 |u|))), finite for every u (Haarnoja et al. 2018, app. C);
        # a library's softplus rounds by where in a tensor a number stands
        size = u.abs()
        each = each - 2.0 * (_LOG_2 - size - (-2.0 * size).exp().log1p())
    return each.sum(-1)


def entropy(log_std: Tensor) -> Tensor:
    """Return the entropy [..] in nats; of a head that squashes that before squashing, which has no closed form."""
    # H = sum_i (1/2 + 1/2 ln(2 pi) + ln sigma_i)
    return (log_std + (0.5 + _HALF_LOG_2PI)).sum(-1)


def sample(mean: Tensor, log_std: Tensor, noise: Tensor | None) -> Tensor:
    """Return u [.., A] from standard normal noise of the same shape; None = the mean."""
    return mean if noise is None else mean + log_std.exp() * noise
