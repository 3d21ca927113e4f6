"""The dense product for tiny maps against the library convolution, its oracle."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.worker.envs.morph.factories import rng
from worker.envs.morph.network.conv import conv2d, is_dense


def draw(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(rng(seed).standard_normal(size)).requires_grad_()


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "edge"), [(1, 2, 3, 8), (2, 4, 3, 4), (4, 4, 5, 4), (1, 1, 3, 2)]
)
def test_dense_convolution_equals_the_library_in_value_and_gradients(
    channels: int, out: int, kernel: int, edge: int
) -> None:
    x, weight = draw(3, channels, edge, edge), draw(out, channels, kernel, kernel, seed=1)
    upstream = draw(3, out, edge, edge, seed=2).detach()
    assert is_dense(x, weight)
    ours, theirs = conv2d(x, weight), F.conv2d(x, weight, padding=kernel // 2)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    for mine, oracle in zip(
        torch.autograd.grad(ours, (x, weight), upstream),
        torch.autograd.grad(theirs, (x, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, oracle, atol=1e-12, rtol=0)


def test_dense_convolution_is_limited_to_small_maps_and_real_kernels() -> None:
    assert not is_dense(draw(1, 8, 8, 8), draw(8, 8, 3, 3))
    assert not is_dense(draw(1, 2, 4, 4), draw(2, 2, 1, 1))
    torch.testing.assert_close(
        conv2d(draw(1, 8, 8, 8), draw(8, 8, 3, 3)), F.conv2d(draw(1, 8, 8, 8), draw(8, 8, 3, 3), padding=1)
    )
