"""Grafts: identity at birth, gradients, first steps, operators (defects 1, 3, 4, 5, 6, 8)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.spec.tasks import BLUEPRINT_NAMES, Topology
from tests.worker.envs.morph.factories import CPU, network, rng, tiny
from worker.envs.morph.network.blend import Graft, Operator, isolated
from worker.envs.morph.network.blueprints import ALLOWED, blueprint_id
from worker.envs.morph.network.hosts import Pass
from worker.envs.morph.network.network import EpochStats, Network, SlotPlan, gradient_figures, gradient_health
from worker.envs.morph.network.params import ParamStore
from worker.envs.morph.task.config import EnvConfig

TRAIN = Pass("train")


TOPOLOGIES: tuple[Topology, ...] = ("cnn", "lm")
CASES = [(t, b) for t in TOPOLOGIES for b in sorted(ALLOWED[t])]


def grow(
    topology: Topology, blueprint: int, channels: int, operator: Operator, seed: int = 0
) -> tuple[Graft, ParamStore]:
    graft = Graft(blueprint, topology, channels, operator)
    store = ParamStore(graft, graft.inits(), adam=False, device=CPU, dtype=torch.float32)
    store.initialise(rng(seed))
    return graft, store


def feature_map(topology: Topology, channels: int, seed: int = 5) -> Tensor:
    """Random slot input; CNN slots follow a ReLU, so their maps are not negative."""
    size = (16, channels, 4, 4) if topology == "cnn" else (4, 8, channels)
    values = torch.from_numpy(rng(seed).standard_normal(size)).float()
    return values.relu() if topology == "cnn" else values


# defect 4
@pytest.mark.parametrize(("topology", "blueprint"), CASES)
@pytest.mark.parametrize("operator", list(Operator))
def test_newborn_graft_is_bitwise_identity_at_every_alpha(
    topology: Topology, blueprint: int, operator: Operator
) -> None:
    graft, _ = grow(topology, blueprint, 8, operator)
    h = feature_map(topology, 8)
    for alpha in (0.0, 0.5, 1.0):
        assert torch.equal(graft.blend(h, torch.tensor(alpha)), h)
    assert torch.equal(graft.straight_through(h), h)


def test_no_layer_inside_a_newborn_graft_is_zero() -> None:
    for topology, blueprint in CASES:
        graft, _ = grow(topology, blueprint, 8, Operator.GATE)
        weights = [p for n, p in graft.named_parameters() if n.endswith("weight")]
        assert all(float(p.detach().abs().sum()) > 0 for p in weights), BLUEPRINT_NAMES[blueprint]
        assert float(graft.gamma.detach().abs().sum()) == 0.0


def dead_tensors(topology: Topology, blueprint: int, channels: int, operator: Operator, seed: int) -> set[str]:
    """Names of tensors without gradient after two SGD steps on a regression to a random target."""
    graft, store = grow(topology, blueprint, channels, operator, seed)
    alive: set[str] = set()
    for step in range(2 if operator is not Operator.GATE else 3):
        h = feature_map(topology, channels, 100 * seed + step)
        target = h + feature_map(topology, channels, 7 + seed)
        loss = (graft.blend(h, torch.ones(())) - target).square().mean()
        grads = torch.autograd.grad(loss, store.params)
        alive |= {name for name, g in zip(store.names, grads, strict=True) if float(g.abs().max()) > 0}
        with torch.no_grad():
            store.flat.sub_(0.1 * torch.cat([g.flatten() for g in grads]))
    return set(store.names) - alive


# defects 5 and 8
@pytest.mark.parametrize(("topology", "blueprint"), CASES)
def test_every_tensor_gets_a_gradient_within_two_steps(topology: Topology, blueprint: int) -> None:
    widths = (1, 2, 4, 8, 16, 32, 64) if topology == "cnn" else (64,)
    for channels in widths:
        for seed in range(20):
            dead = dead_tensors(topology, blueprint, channels, Operator.ADD, seed)
            assert not dead, (channels, seed, dead)


# defect 3
@pytest.mark.parametrize(("topology", "blueprint"), CASES)
def test_every_gate_tensor_gets_a_gradient_within_three_steps(topology: Topology, blueprint: int) -> None:
    for seed in range(5):
        dead = dead_tensors(topology, blueprint, 64 if topology == "lm" else 8, Operator.GATE, seed)
        assert not {name for name in dead if name.startswith("gate")}, (seed, dead)


# defect 6
def test_bottleneck_first_gradient_is_of_the_size_of_conv_light() -> None:
    norms = {}
    for name in ("bottleneck", "conv_light"):
        total = 0.0
        for seed in range(10):
            graft, store = grow("cnn", blueprint_id(name), 8, Operator.ADD, seed)
            h = feature_map("cnn", 8, seed)
            loss = (graft.blend(h, torch.ones(())) - feature_map("cnn", 8, seed + 50)).square().mean()
            grads = torch.autograd.grad(loss, store.params)
            total += float(torch.cat([g.flatten() for g in grads]).norm())
        norms[name] = total
    assert norms["bottleneck"] < 20 * norms["conv_light"]


def test_multiply_factor_stays_within_alpha_of_one() -> None:
    graft, store = grow("cnn", 1, 8, Operator.MULTIPLY)
    store.flat.mul_(50.0)
    graft.gamma.data.fill_(100.0)
    h = feature_map("cnn", 8) + 0.1
    for alpha in (0.3, 1.0):
        factor = (graft.blend(h, torch.tensor(alpha)) / h).detach()
        assert float(factor.min()) >= 1 - alpha - 1e-5
        assert float(factor.max()) <= 1 + alpha + 1e-5


def test_language_model_gate_does_not_see_future_tokens() -> None:
    graft, _ = grow("lm", 8, 64, Operator.GATE)
    graft.gamma.data.fill_(1.0)
    h = feature_map("lm", 64)
    changed = h.clone()
    changed[:, -1] += 1.0
    before, after = (graft.blend(x, torch.ones(())) for x in (h, changed))
    assert torch.equal(before[:, :-1], after[:, :-1])


@pytest.mark.parametrize(("topology", "blueprint"), [c for c in CASES if c[0] == "lm"])
def test_language_model_graft_is_causal(topology: Topology, blueprint: int) -> None:
    graft, _ = grow(topology, blueprint, 64, Operator.ADD)
    graft.gamma.data.fill_(1.0)
    h = feature_map(topology, 64)
    changed = h.clone()
    changed[:, -1] += 1.0
    before, after = (graft.blend(x, torch.ones(())) for x in (h, changed))
    torch.testing.assert_close(before[:, :-1], after[:, :-1])


def batch(net: Network, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = rng(seed)
    if net.is_text:
        tokens = torch.from_numpy(draw.integers(0, 256, (4, 65)))
        return tokens[:, :-1], tokens[:, 1:]
    return torch.from_numpy(draw.standard_normal((32, 1, 8, 8))).float(), torch.from_numpy(draw.integers(0, 10, 32))


# defect 1
@pytest.mark.parametrize("operator", list(Operator))
@pytest.mark.parametrize("blueprint", sorted(ALLOWED["cnn"]))
def test_upstream_parameters_learn_beside_a_graft_at_alpha_one(operator: Operator, blueprint: int) -> None:
    net = network(tiny())
    net.germinate(1, blueprint, operator, rng(1))
    net.cell(1).store.flat.add_(0.05)
    net.set_blend(1, 1.0, active=True)
    x, y = batch(net)
    features, _ = net._features(x, (SlotPlan(1, "blend"),), TRAIN)
    grads = torch.autograd.grad(net.host.loss(features, y, TRAIN, torch.float32), net.store.params)
    upstream = {n: g for n, g in zip(net.store.names, grads, strict=True) if n.startswith(("convs.0", "norms.0"))}
    assert len(upstream) == 3
    assert all(float(g.abs().sum()) > 0 for g in upstream.values())


# defect 1
def test_graft_upstream_of_a_fossil_trains_with_health() -> None:
    net = network(tiny())
    net.germinate(1, 7, Operator.ADD, rng(1))
    net.set_blend(1, 1.0, active=True)
    net.germinate(0, 5, Operator.ADD, rng(2))
    x, y = batch(net)
    plan = (SlotPlan(0, "shadow", detach=True), SlotPlan(1, "blend"))
    for _ in range(4):
        stats = EpochStats()
        net.train_batch(x, y, plan, TRAIN, stats, measure=True)
    total, vanishing, exploding = (float(v) for v in stats.grads[0])
    assert gradient_health(total, vanishing, exploding) >= 0.7


def test_gradient_health_follows_its_formula() -> None:
    parts = [torch.zeros(3), torch.ones(2), torch.full((2,), 100.0), torch.ones(1)]
    total, vanishing, exploding = (float(v) for v in gradient_figures(parts))
    assert (vanishing, exploding) == (0.25, 0.25)
    assert gradient_health(total, vanishing, exploding) == pytest.approx(1 - 0.125 - 0.2)
    assert gradient_health(float("nan"), 0.0, 0.0) == 0.0
    _, _, exploding = gradient_figures([torch.tensor([float("nan")]), torch.ones(1)])
    assert float(exploding) == 0.5


@pytest.mark.parametrize("task", ["digits_tiny", "lm_tiny"])
def test_composed_network_without_grafts_is_bitwise_the_plain_host(task: str) -> None:
    net = network(EnvConfig.for_task(task))
    x, _ = batch(net)
    features, _ = net._features(x, (), TRAIN)
    logits = net.host.run(features, net.host.num_segments - 1, net.host.num_segments, TRAIN)
    assert torch.equal(logits, net.host(x, TRAIN))


@pytest.mark.parametrize("edge", [2, 4])
def test_isolated_input_has_contiguous_strides_even_where_one_pixel_is_left(edge: int) -> None:
    wide = torch.rand(3, 8, edge, edge, requires_grad=True).contiguous(memory_format=torch.channels_last)
    h = torch.nn.functional.max_pool2d(wide, 2)
    x = isolated(h)
    assert h.stride() != x.stride() == torch.empty(h.shape).stride()
    assert torch.equal(x, h)
    assert not x.requires_grad


def test_norm_behind_the_last_pool_of_a_deep_host_trains_in_the_shadow() -> None:
    # one pixel is left there; a wrong layout of the graft's input ends the process
    config = EnvConfig.for_task("cifar_deep_multichannel", slots=("r1c4",))
    net = network(config)
    net.germinate(0, blueprint_id("norm"), Operator.ADD, rng(1))
    x = torch.rand(8, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for _ in range(3):
        net.train_batch(x, torch.arange(8), (SlotPlan(0, "shadow"),), TRAIN, EpochStats())
    gamma = dict(net.cell(0).graft.named_parameters())["gamma"]
    assert float(gamma.detach().abs().max()) > 0.0
