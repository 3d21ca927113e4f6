"""Which way a batch takes where kernels run the first stage as one: plain operations stand in for them, on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor

from tests.worker.envs.morph.factories import network, rng, tiny
from worker.envs.morph.engine.validate import Validator, ValPlan
from worker.envs.morph.kernels import StagedGraft, Tap
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.blueprints import blueprint_id
from worker.envs.morph.network.hosts import CnnHost, Pass
from worker.envs.morph.network.network import EpochStats, Network, SlotPlan

#: Slots in the order of a host: behind block 0, behind its pool, behind block 1.
FIRST, BEHIND_THE_POOL, SECOND = SLOTS = ("r0c0", "r1c0", "r0c1")


def normal(y: Tensor, norm: Any, mean: Tensor | None, variance: Tensor | None, *, batch: bool) -> Tensor:
    return F.relu(F.batch_norm(y, mean, variance, norm.weight, norm.bias, batch, 0.1))


def grown(h: Tensor, read: Tensor, graft: StagedGraft) -> Tensor:
    y = F.conv2d(read, graft.weight, padding=1)
    core = F.relu(F.group_norm(y, 1, graft.norm.weight, graft.norm.bias))
    return F.max_pool2d(h + graft.alpha * graft.gamma[:, None, None] * core, 2)


def first(x: Tensor, weight: Tensor, norm: Any, update: bool) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, weight, padding=1)
    running = (norm.running_mean, norm.running_var) if update else (None, None)
    return y, normal(y, norm, *running, batch=True)


def block(x: Tensor, weight: Tensor, norm: Any, *, update: bool, pool: bool) -> Tensor:
    h = first(x, weight, norm, update)[1]
    return F.max_pool2d(h, 2) if pool else h


def block_eval(x: Tensor, weight: Tensor, norm: Any, *, pool: bool) -> Tensor:
    y = F.conv2d(x, weight, padding=1)
    h = normal(y, norm, norm.running_mean, norm.running_var, batch=False)
    return F.max_pool2d(h, 2) if pool else h


class Plain:
    """Operations of the fused path by PyTorch; counts what takes the first stage as one."""

    def __init__(self) -> None:
        self.staged = 0
        self.block, self.block_eval, self.conv2d = block, block_eval, F.conv2d

    def pool(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2)

    def fits_group(self, x: Tensor, groups: int) -> bool:
        del x, groups
        return False

    def fits_stage(self, x: Tensor, weight: Tensor) -> bool:
        return x.shape[1] == weight.shape[1]

    fits_eval = fits_stage

    def stage(self, x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft, *, update: bool) -> Tensor:
        self.staged += 1
        h = first(x, weight, norm, update)[1]
        return grown(h, h.detach() if graft.detach else h, graft)

    def stage_tapped(self, x: Tensor, weight: Tensor, norm: Any, *, update: bool) -> tuple[Tensor, Tap]:
        self.staged += 1
        y, h = first(x, weight, norm, update)
        return F.max_pool2d(h, 2), Tap(y.detach(), y.new_zeros(0), norm)

    def stage_beside(self, tap: Tap, graft: StagedGraft) -> Tensor:
        self.staged += 1
        h = self.tapped(tap)
        return grown(h, h, graft)

    def tapped(self, tap: Tap) -> Tensor:
        return normal(tap.y, tap.norm, None, None, batch=True).detach()

    def stage_eval(self, x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft, *, plain: bool) -> Tensor:
        self.staged += 1
        h = block_eval(x, weight, norm, pool=False)
        behind = grown(h, h, graft)
        return torch.cat([F.max_pool2d(h, 2), behind]) if plain else behind

    def head_loss(self, x: Tensor, layer: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x.mean((2, 3)), layer.weight, layer.bias), y)


def both(grafts: Sequence[tuple[str, str]]) -> tuple[Network, Network, Plain]:
    """Return two equal networks, the second with operations in the kernels' place."""
    kernels = Plain()
    pair = network(tiny(slots=SLOTS)), network(tiny(slots=SLOTS))
    for net in pair:
        for place, (slot, blueprint) in enumerate(grafts):
            index = index_of(net, slot)
            net.germinate(index, blueprint_id(blueprint), Operator.ADD, rng(place))
            cell = net.cell(index)
            cell.graft.gamma.data.fill_(0.5)
            net.set_blend(index, 0.7, active=True)
    assert isinstance(pair[1].host, CnnHost)
    pair[1].kernels = pair[1].host.kernels = kernels  # type: ignore[assignment]
    return *pair, kernels


def index_of(net: Network, slot: str) -> int:
    return next(i for i, spec in enumerate(net.slots) if spec.id == slot)


@pytest.mark.parametrize(
    ("plan", "blueprint", "staged"),
    [
        ([(FIRST, "blend", False)], "conv_light", 1),
        ([(FIRST, "blend", True), (BEHIND_THE_POOL, "blend", False)], "conv_light", 1),
        ([(FIRST, "shadow", True)], "conv_light", 2),
        ([(FIRST, "shadow", True), (BEHIND_THE_POOL, "blend", False), (SECOND, "blend", False)], "conv_light", 2),
        ([(FIRST, "shadow", True), (SECOND, "shadow", True)], "conv_light", 2),
        ([(FIRST, "shadow", True), (SECOND, "blend", True)], "norm", 1),
        ([(BEHIND_THE_POOL, "shadow", True)], "conv_light", 0),
        ([(FIRST, "ste", True)], "conv_light", 0),
    ],
)
def test_a_batch_trains_the_same_whichever_way_it_takes(
    plan: Sequence[tuple[str, Any, bool]], blueprint: str, staged: int
) -> None:
    one, two, kernels = both([(slot, blueprint if slot == FIRST else "conv_light") for slot, _, _ in plan])
    steps = tuple(SlotPlan(index_of(one, slot), how, detach) for slot, how, detach in plan)
    x, y = torch.from_numpy(rng(5).standard_normal((32, 1, 8, 8))).float(), torch.arange(32) % 10
    for net in (one, two):
        for _ in range(3):
            net.train_batch(x, y, steps, Pass("train"), EpochStats())
    assert kernels.staged == 3 * staged
    for a, b in zip(one.stores(steps), two.stores(steps), strict=True):
        torch.testing.assert_close(b.flat, a.flat, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b.buffers, a.buffers, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("slots", "wanted", "staged"),
    [
        ((FIRST,), {"players": (0,)}, 1),
        ((FIRST, BEHIND_THE_POOL, SECOND), {"players": (0, 1, 2)}, 1),
        ((FIRST, SECOND), {"players": (0, 1), "fossils": 1}, 1),
        ((FIRST, SECOND), {"players": (1,), "prospective": (0,)}, 1),
        ((FIRST, BEHIND_THE_POOL), {"players": (1,), "fixed": (0,)}, 1),
        ((BEHIND_THE_POOL, SECOND), {"players": (0,), "prospective": (1,)}, 0),
    ],
)
def test_a_validation_is_the_same_whichever_way_it_takes(
    slots: Sequence[str], wanted: dict[str, Any], staged: int
) -> None:
    one, two, kernels = both([(slot, "conv_light") for slot in slots])
    places: dict[str, Any] = {
        name: value if name == "fossils" else tuple(index_of(one, slots[i]) for i in value)
        for name, value in wanted.items()
    }
    x, y = torch.from_numpy(rng(6).standard_normal((50, 1, 8, 8))).float(), torch.arange(50) % 10
    validators = [Validator(net, 16_384) for net in (one, two)]
    found = [validator.run(x, y, ValPlan(**places)).numpy() for validator in validators]
    assert kernels.staged == staged
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert validators[0].forward_rows == validators[1].forward_rows
