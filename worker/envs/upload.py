"""Many small tensors to a device in one copy: each copy of its own would wait for the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

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
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    stops = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
    spans = [slice(start, start + size) for start, size in zip([0, *stops], sizes, strict=False)]
    staging = torch.empty(stops[-1], dtype=torch.uint8, pin_memory=True)
    for tensor, span in zip(tensors, spans, strict=True):
        staging[span].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    placed = staging.to(device, non_blocking=True)
    return [placed[span].view(tensor.dtype).view(tensor.shape) for tensor, span in zip(tensors, spans, strict=True)]
