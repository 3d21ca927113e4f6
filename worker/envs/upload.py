"""Many small tensors to a device in one copy: each copy of its own would wait for the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

#: Bytes at whose multiples every tensor begins: of the largest element.
_ALIGNMENT = 16


def uploaded(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return host tensors on a device, as views of one buffer; on the CPU the tensors themselves.

    Args:
        tensors: contiguous, on the host; copied at once where the device is another.
        device: where to.
    """
    if device.type == "cpu" or not tensors:
        return list(tensors)
    staging = torch.empty(sum(_spaces(tensors)), dtype=torch.uint8, pin_memory=True)
    pack(tensors, staging)
    return unpack(staging.to(device, non_blocking=True), tensors)


def pack(tensors: Sequence[Tensor], staging: Tensor) -> None:
    """Write tensors one behind the other into ``staging`` [bytes]; numpy's views cost a fraction of torch's."""
    host = staging.numpy()
    for tensor, start in zip(tensors, accumulate(_spaces(tensors), initial=0), strict=False):
        row = tensor.numpy().reshape(-1).view(np.uint8)
        host[start : start + row.size] = row


def unpack(placed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of what ``pack`` wrote, in the shapes and dtypes of ``like``."""
    parts = torch.split(placed, _spaces(like))
    return [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)
    ]


def _spaces(tensors: Sequence[Tensor]) -> list[int]:
    """Return the bytes that each tensor takes, up to where the next begins."""
    return [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
