"""Copies of many small tensors: on a device one kernel for each dtype instead of one for each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def copy_each(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy every value into its place; both have the same shapes and dtypes."""
    for dtype in dict.fromkeys(place.dtype for place in into):
        places = [place for place in into if place.dtype is dtype]
        torch._foreach_copy_(places, [value for value in values if value.dtype is dtype])
