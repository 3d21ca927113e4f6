"""The way of grafts through kernels, with PyTorch's operations in the kernels' place: it equals the plain way."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor

from lockstep.spec.tasks import BLUEPRINT_NAMES
from worker.envs.morph.kernels import GroupKind
from worker.envs.morph.network.blend import Graft, Operator
from worker.envs.morph.network.blueprints import ALLOWED

CHANNELS = 8
#: Blueprints that are ReLU(GN(conv)) of 3 x 3, which the first stage takes along.
STAGED = {"conv_light", "depthwise"}


class Plain:
    """Operations of the fused path by PyTorch."""

    def conv2d(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=weight.shape[2] // 2)

    def fits_group(self, x: Tensor, groups: int) -> bool:
        return x.shape[1] % groups == 0

    def group(
        self, x: Tensor, norm: Any, groups: int, kind: GroupKind, blend: tuple[Tensor, Tensor, Tensor] | None = None
    ) -> Tensor:
        y = F.group_norm(x, groups, norm.weight, norm.bias)
        y = F.relu(y) if kind == "relu" else y - x if kind == "residual" else y
        return y if blend is None else self.blend(blend[0], y, *blend[1:], multiply=False)

    def conv_group(self, h: Tensor, weight: Tensor, norm: Any, groups: int, *scale: Tensor) -> Tensor:
        gamma, alpha = scale
        return self.group(self.conv2d(h, weight), norm, groups, "relu", (h, gamma, alpha))

    def blend(self, h: Tensor, f: Tensor, scale: Tensor, alpha: Tensor, *, multiply: bool) -> Tensor:
        added = scale[..., None, None] * f
        return h + alpha * (h * torch.tanh(added) if multiply else added)


def grown(blueprint: int, operator: Operator) -> Graft:
    graft = Graft(blueprint, "cnn", CHANNELS, operator).to_empty(device="cpu").double()
    for place, param in enumerate(graft.parameters()):
        param.data = torch.randn(param.shape, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
    return graft


def outcome(graft: Graft, way: str) -> list[Tensor]:
    h = torch.randn(2, CHANNELS, 4, 4, generator=torch.Generator().manual_seed(40), dtype=torch.float64)
    h, alpha = h.requires_grad_(), torch.tensor(0.7, dtype=torch.float64)
    out = graft.straight_through(h) if way == "ste" else graft.blend(h, alpha, way == "detached")
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(41), dtype=torch.float64)
    return [out, *torch.autograd.grad((out * weights).sum(), [h, *graft.parameters()])]


@pytest.mark.parametrize("way", ["reaching", "detached", "ste"])
@pytest.mark.parametrize(("blueprint", "operator"), list(product(sorted(ALLOWED["cnn"]), Operator)))
def test_a_graft_by_kernels_equals_the_plain_one(blueprint: int, operator: Operator, way: str) -> None:
    plain, fused = grown(blueprint, operator), grown(blueprint, operator)
    fused.core.kernels = Plain()  # type: ignore[assignment]
    for found, wanted in zip(outcome(fused, way), outcome(plain, way), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("blueprint", sorted(ALLOWED["cnn"]))
def test_the_first_stage_takes_one_3x3_convolution_with_its_norm(blueprint: int) -> None:
    alpha = torch.tensor(0.7)
    staged = grown(blueprint, Operator.ADD).staged(alpha, detach=False)
    assert (staged is not None) == (BLUEPRINT_NAMES[blueprint] in STAGED)
    assert staged is None or staged.weight.shape == (CHANNELS, CHANNELS, 3, 3)
    assert grown(blueprint, Operator.MULTIPLY).staged(alpha, detach=False) is None
