"""Fingerprints see every bit and do not depend on how they are added up."""

from __future__ import annotations

import math

import pytest
import torch

from worker.rl.cuda import fingerprint


def drawn(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool])
def test_equal_tensors_agree_whatever_their_layout(size: int, dtype: torch.dtype) -> None:
    tensor = drawn(size, dtype)
    spread = torch.stack([tensor, tensor], dim=1)[:, 0]
    assert int(fingerprint(spread)) == int(fingerprint(tensor.clone()))


@pytest.mark.parametrize("place", [0, 17, 4095, 4096, 8191, 9_999])
def test_one_bit_anywhere_changes_it(place: int) -> None:
    tensor = drawn(10_000)
    other = tensor.clone()
    other.view(torch.int32)[place] ^= 1
    assert int(fingerprint(tensor)) != int(fingerprint(other))


def test_signs_of_zero_and_kinds_of_nan_are_told_apart() -> None:
    values = [torch.tensor([value]) for value in (0.0, -0.0, math.nan, math.inf)]
    assert len({int(fingerprint(value)) for value in values}) == 4


def test_exchanged_or_shifted_elements_change_it() -> None:
    tensor = drawn(9_000)
    swapped = tensor.clone()
    swapped[[3, 5_000]] = tensor[[5_000, 3]]
    prints = {int(fingerprint(x)) for x in (tensor, swapped, tensor.roll(1), tensor.roll(4096), tensor.flip(0))}
    assert len(prints) == 5


def test_small_random_changes_never_collide() -> None:
    draws = torch.Generator().manual_seed(2)
    tensors = torch.randint(-2, 3, (2_000, 8), generator=draws, dtype=torch.int64)
    distinct = {tuple(row) for row in tensors.tolist()}
    assert len({int(fingerprint(row)) for row in tensors}) == len(distinct)
