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
        tensors: on the host; copied at once where the device is another.
        device: where to.
    """
    if device.type == "cpu" or not tensors:
        return list(tensors)
    staging = torch.empty(_starts(tensors)[-1], dtype=torch.uint8, pin_memory=True)
    pack(tensors, staging)
    return unpack(staging.to(device, non_blocking=True), tensors)


def pack(tensors: Sequence[Tensor], staging: Tensor) -> None:
    """Write tensors one behind the other into ``staging`` [bytes]; numpy's views cost a fraction of torch's."""
    host = staging.numpy()
    for tensor, start in zip(tensors, _starts(tensors), strict=False):
        row = tensor.numpy().ravel().view(np.uint8)
        host[start : start + row.size] = row


def unpack(placed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of what ``pack`` wrote, in the shapes and dtypes of ``like``."""
    typed = {dtype: placed.view(dtype) for dtype in {tensor.dtype for tensor in like}}
    return [
        typed[tensor.dtype].narrow(0, start // tensor.itemsize, tensor.numel()).view(tensor.shape)
        for tensor, start in zip(like, _starts(like), strict=False)
    ]


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Return at which byte each tensor begins, and where the last ends."""
    return list(accumulate((-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors), initial=0))
