"""What goes up in one copy arrives as it was."""

from __future__ import annotations

import torch

from tests.worker.envs.morph.factories import CPU
from worker.envs.upload import pack, unpack, uploaded

TENSORS = [
    torch.arange(7, dtype=torch.float32).view(7, 1),
    torch.tensor([[True, False, True]]),
    torch.zeros(2, 0, dtype=torch.int64),
    torch.tensor([[[-(2**40)], [3]]]),
    torch.tensor(float("nan")),
    torch.arange(5, dtype=torch.float64),
    torch.tensor([[True], [False]]).expand(2, 3),
    torch.arange(6, dtype=torch.float32).view(2, 3).t(),
    torch.arange(12).view(3, 4)[:, ::2],
    torch.zeros(3, 0),
]


def test_packed_tensors_come_back_in_shape_dtype_and_bits() -> None:
    staging = torch.full((16 * (2 + 1 + 0 + 1 + 1 + 3 + 1 + 2 + 3 + 0),), 255, dtype=torch.uint8)
    pack(TENSORS, staging)
    found = unpack(staging, TENSORS)
    for tensor, other in zip(TENSORS, found, strict=True):
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert torch.equal(tensor.nan_to_num(nan=-1.0), other.nan_to_num(nan=-1.0))
    assert found[4].isnan()


def test_on_the_cpu_nothing_is_copied() -> None:
    assert all(a is b for a, b in zip(TENSORS, uploaded(TENSORS, CPU), strict=True))
    assert uploaded([], torch.device("cuda")) == []
