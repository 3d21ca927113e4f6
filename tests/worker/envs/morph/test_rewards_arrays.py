"""What the built-in modes compute with numpy has the bits that torch gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from worker.envs.morph.rewards.arrays import Array, at_least, at_most, log1p, lowest, measured, some, tanh, total


def rows(num_slots: int, *, missing: float) -> Array:
    """[500, S] float32 over six decades, with zeros of both signs and NaN."""
    rng = np.random.default_rng(num_slots)
    x = rng.standard_normal((500, num_slots)) * 10.0 ** rng.integers(-3, 3, (500, num_slots))
    kind = rng.random(x.shape)
    x[kind < 0.1], x[(kind >= 0.1) & (kind < 0.2)] = 0.0, -0.0
    x[kind > 1.0 - missing] = np.nan
    return x.astype(np.float32)


def bits(x: Array | Tensor) -> Array:
    found = x.numpy() if isinstance(x, Tensor) else x
    assert found.dtype == np.float32
    whole: Array = np.where(np.isnan(found), 0, np.ascontiguousarray(found).view(np.int32))
    return whole


@pytest.mark.parametrize("num_slots", range(1, 9))
def test_functions_of_measurements_equal_torch_bit_for_bit(num_slots: int) -> None:
    x, known = rows(num_slots, missing=0.2), rows(num_slots, missing=0.0)
    tensor, full = torch.from_numpy(x), torch.from_numpy(known)
    for bound in (0, 0.1, 1.5):
        np.testing.assert_array_equal(bits(at_least(x, bound)), bits(tensor.clamp(min=bound)))
        np.testing.assert_array_equal(bits(at_most(x, bound)), bits(tensor.clamp(max=bound)))
    np.testing.assert_array_equal(bits(measured(x)), bits(torch.nan_to_num(tensor, nan=0.0)))
    np.testing.assert_array_equal(bits(total(known)), bits(full.sum(1)))
    np.testing.assert_array_equal(bits(lowest(known)), bits(full.amin(1)))
    np.testing.assert_array_equal(bits(log1p(np.abs(known))), bits(full.abs().log1p()))
    np.testing.assert_array_equal(bits(tanh(known)), bits(full.tanh()))


def test_some_is_any() -> None:
    assert not some(np.zeros((2, 3), dtype=bool))
    assert some(np.array([[False, True]]))
