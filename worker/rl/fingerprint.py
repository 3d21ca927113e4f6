"""A 64-bit fingerprint of a tensor's bits, computed where the tensor lies.

Two tensors with one differing bit differ in it; others that differ agree with probability 2^-64. It is a sum of
integer products, so neither the order of addition nor the device changes it. (A cryptographic hash of a policy and
its optimiser would take longer than the policy's update.)
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_COLUMNS = 4096
#: Weyl's sequence by the golden ratio, and the multiplier of its mixing (Steele et al. 2014, SplitMix64).
_STEP, _MIX = -0x61C8864680B583EB, -0x40A7B892E31B1A47
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> Tensor:
    """Return the fingerprint of the bits of a tensor, [] int64 on its device; its shape does not enter."""
    bits = tensor.detach().contiguous().flatten()
    bits = bits.view(_BITS[bits.element_size()])
    rows = bits.numel() // _COLUMNS
    whole, rest = bits[: rows * _COLUMNS].view(rows, _COLUMNS), bits[rows * _COLUMNS :]
    columns = _weights(_COLUMNS, tensor.device)
    sums = torch.cat([(whole * columns).sum(1), (rest * columns[: rest.numel()]).sum(0, keepdim=True)])
    return (sums * _weights(len(sums), tensor.device)).sum()


@lru_cache(maxsize=64)
def _weights(count: int, device: torch.device) -> Tensor:
    """Return odd pseudo-random weights [count] int64: a change of one element changes every sum it enters."""
    mixed = torch.arange(1, count + 1, device=device) * _STEP
    mixed = (mixed ^ (mixed >> 30)) * _MIX
    return (mixed ^ (mixed >> 27)) | 1
