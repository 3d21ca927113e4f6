"""The training step: shadow pass, optimisers, freezing, skipping, in-place storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lockstep.spec.tasks import LmShape
from tests.worker.envs.morph.factories import CPU, network, rng, tiny
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.blueprints import ALLOWED
from worker.envs.morph.network.hosts import Pass
from worker.envs.morph.network.network import EpochStats, Network, SlotPlan, StepPlan
from worker.envs.morph.task.config import EnvConfig

TRAIN = Pass("train")
SHADOW_0: StepPlan = (SlotPlan(0, "shadow", detach=True),)


def batches(net: Network, count: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = rng(seed)
    if net.is_text:
        tokens = torch.from_numpy(draw.integers(0, 256, (count, 4, 65)))
        return tokens[..., :-1], tokens[..., 1:]
    x = torch.from_numpy(draw.standard_normal((count, 32, 1, 8, 8))).to(net.config.dtype)
    return x, torch.from_numpy(draw.integers(0, 10, (count, 32)))


def host_bytes(net: Network) -> Tensor:
    return torch.cat([net.store.flat, net.store.momentum, net.store.buffers])


# defect 2
@pytest.mark.parametrize("blueprint", sorted(ALLOWED["cnn"]))
def test_host_is_bitwise_equal_with_and_without_a_training_graft(blueprint: int) -> None:
    plain, grafted = network(tiny()), network(tiny())
    grafted.germinate(0, blueprint, Operator.ADD, rng(1))
    before = grafted.cell(0).store.flat.clone()
    plain.train_epoch(*batches(plain), (), TRAIN)
    grafted.train_epoch(*batches(grafted), SHADOW_0, TRAIN)
    assert torch.equal(host_bytes(plain), host_bytes(grafted))
    assert not torch.equal(grafted.cell(0).store.flat, before)


def test_straight_through_leaves_the_main_output_alone_and_trains_the_graft() -> None:
    plain, grafted = network(tiny()), network(tiny())
    grafted.germinate(0, 1, Operator.ADD, rng(1))
    before = grafted.cell(0).store.flat.clone()
    plan: StepPlan = (SlotPlan(0, "ste", detach=True),)
    plain.train_epoch(*batches(plain), (), TRAIN)
    grafted.train_epoch(*batches(grafted), plan, TRAIN)
    assert torch.equal(host_bytes(plain), host_bytes(grafted))
    assert not torch.equal(grafted.cell(0).store.flat, before)


def test_shadow_gradient_equals_training_the_graft_alone_at_alpha_one() -> None:
    config = tiny(dtype=torch.float64)
    net, oracle = network(config), network(config)
    for each in (net, oracle):
        each.germinate(0, 5, Operator.ADD, rng(1))
    x, y = batches(net, 1)
    net.train_epoch(x, y, SHADOW_0, TRAIN)
    h = oracle.host.forward_to("r0c0", x[0], how=Pass("shadow")).detach()
    cell = oracle.cell(0)
    loss = F.cross_entropy(oracle.host.forward_from("r0c0", h + cell.graft.delta(h), how=Pass("shadow")), y[0])
    grad = torch.cat([g.flatten() for g in torch.autograd.grad(loss, cell.store.params)])
    grad *= min(1.0, 1.0 / (float(grad.norm()) + 1e-6))
    torch.testing.assert_close(net.cell(0).store.momentum, grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("task", ["digits_tiny", "lm_tiny"])
def test_optimiser_equals_pytorch_over_three_steps(task: str) -> None:
    config = EnvConfig.for_task(task, dtype=torch.float64)
    net, oracle = network(config), network(config)
    named = dict(oracle.host.named_parameters())
    kind: dict[str, Any] = {"lr": config.host.lr}
    if net.is_text:
        groups = [
            {"params": [p for p in named.values() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in named.values() if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimiser: torch.optim.Optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), **kind)
    else:
        optimiser = torch.optim.SGD(named.values(), momentum=0.9, weight_decay=5e-4, **kind)
    x, y = batches(net)
    for i in range(3):
        net.train_epoch(x[i : i + 1], y[i : i + 1], (), TRAIN)
        optimiser.zero_grad()
        loss = F.cross_entropy(oracle.host(x[i], TRAIN).flatten(0, -2), y[i].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(list(named.values()), 1.0)
        optimiser.step()
    flat = torch.cat([p.detach().flatten() for p in named.values()])
    torch.testing.assert_close(net.store.flat, flat, atol=1e-12, rtol=0)


@pytest.mark.parametrize("task", ["digits_tiny", "lm_tiny"])
def test_frozen_graft_keeps_weights_and_optimiser_state_bitwise(task: str) -> None:
    net = network(EnvConfig.for_task(task))
    net.germinate(0, 3, Operator.ADD, rng(1))
    store, plan = net.cell(0).store, (SlotPlan(0, "blend"),)
    net.set_blend(0, 0.5, active=True)
    net.train_epoch(*batches(net), plan, TRAIN)
    kept = [t.clone() for t in (store.flat, store.momentum, store.second, store.steps)]
    net.set_blend(0, 0.4, active=False)
    net.train_epoch(*batches(net, seed=1), plan, TRAIN)
    assert all(
        torch.equal(a, b) for a, b in zip(kept, (store.flat, store.momentum, store.second, store.steps), strict=True)
    )


def test_shadow_mode_normalises_by_the_batch_and_touches_no_buffer() -> None:
    net = network(tiny())
    x, _ = batches(net, 1)
    buffers = net.store.buffers.clone()
    shadow = net.host(x[0], Pass("shadow"))
    assert torch.equal(net.store.buffers, buffers)
    assert torch.equal(shadow, net.host(x[0], TRAIN))
    assert not torch.equal(net.store.buffers, buffers)
    assert not torch.equal(shadow, net.host(x[0], Pass("eval")))


def test_host_gradient_passes_through_a_blended_graft_only_when_not_detached() -> None:
    net = network(tiny())
    net.germinate(0, 1, Operator.ADD, rng(1))
    net.cell(0).graft.gamma.data.fill_(1.0)
    net.set_blend(0, 1.0, active=True)
    x, y = batches(net, 1)
    grads = []
    for detach in (True, False):
        features, _ = net._features(x[0], (SlotPlan(0, "blend", detach),), Pass("shadow"))
        loss = net.host.loss(features, y[0], Pass("shadow"), torch.float32)
        grads.append(torch.autograd.grad(loss, net.store.params)[0])
    assert float(grads[0].abs().sum()) > 0
    assert not torch.equal(grads[0], grads[1])


def test_batch_with_a_non_finite_gradient_changes_nothing_and_is_counted() -> None:
    net = network(tiny())
    x, y = batches(net)
    net.train_epoch(x, y, (), TRAIN)
    flat, momentum = net.store.flat.clone(), net.store.momentum.clone()
    stats = net.train_epoch(torch.full_like(x[:2], float("nan")), y[:2], (), TRAIN)
    assert torch.equal(net.store.flat, flat)
    assert torch.equal(net.store.momentum, momentum)
    assert float(stats.packed(2)[1]) == 2.0


def test_reset_with_live_grafts_raises_and_storage_is_reused_in_place() -> None:
    net = network(tiny())
    net.germinate(0, 1, Operator.GATE, rng(1))
    address, first = net.cell(0).store.flat.data_ptr(), net.cell(0).store.flat.clone()
    with pytest.raises(RuntimeError, match="live grafts"):
        net.reset(rng(0))
    with pytest.raises(ValueError, match="already holds"):
        net.germinate(0, 1, Operator.ADD, rng(1))
    net.train_epoch(*batches(net), SHADOW_0, TRAIN)
    net.remove(0)
    host = net.store.flat.data_ptr()
    net.reset(rng(0))
    net.germinate(0, 1, Operator.GATE, rng(1))
    assert net.cell(0).store.flat.data_ptr() == address
    assert net.store.flat.data_ptr() == host
    assert torch.equal(net.cell(0).store.flat, first)
    assert float(net.cell(0).store.momentum.abs().sum()) == 0.0


def test_dropout_is_keyed_and_off_outside_training() -> None:
    config = EnvConfig.for_task("lm_tiny")
    assert isinstance(config.task.host, LmShape)
    shape = replace(config.task.host, dropout=0.5)
    net = Network(config, config.task.host.slots(), CPU, shape)
    net.reset(rng(0))
    x, _ = batches(net, 1)

    def logits(seed: int) -> Tensor:
        out: Tensor = net.host(x[0], Pass("train", torch.Generator().manual_seed(seed)))
        return out

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))
    assert torch.equal(net.host(x[0]), net.host(x[0], Pass("shadow")))
    with pytest.raises(ValueError, match="keyed generator"):
        net.host(x[0], TRAIN)


def test_training_statistics_report_losses_and_missing_gradients() -> None:
    net = network(tiny())
    net.germinate(0, 1, Operator.ADD, rng(1))
    packed = net.train_epoch(*batches(net), SHADOW_0, TRAIN).packed(2).numpy()
    assert np.isfinite(packed[:5]).all()
    assert np.isnan(packed[5:]).all()
    assert isinstance(EpochStats().grads, dict)


# defect 39
def test_building_and_training_leaves_the_global_generators_alone() -> None:
    before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # type: ignore[index]
    for task in ("digits_tiny", "lm_tiny"):
        net = network(EnvConfig.for_task(task))
        net.germinate(0, 3, Operator.GATE, rng(1))
        net.train_epoch(*batches(net), SHADOW_0, TRAIN)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]
