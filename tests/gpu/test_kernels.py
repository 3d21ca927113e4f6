"""Every kernel of the fused path against PyTorch in float64, for shapes of all hosts, on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor, nn

from benchmarks.machine import set_up
from tests.gpu.lives import CUDA
from worker.envs.morph.kernels import StagedGraft, unit
from worker.envs.morph.network.blend import Graft, Operator
from worker.envs.morph.network.blueprints import ALLOWED

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
#: Largest difference from float64, as a part of the largest element: float32 by three products of TF32.
LIMIT = 3e-6
#: B, C, O, edge, kernel, pooled; channels 3 and 1 are images, whose gradient nobody asks for.
BLOCKS = [
    (3, 3, 8, 8, 3, True),
    (3, 1, 8, 8, 3, False),
    (130, 3, 8, 32, 3, False),
    (3, 8, 16, 8, 3, True),
    (40, 8, 16, 16, 3, True),
    (3, 16, 32, 4, 3, False),
    (65, 16, 32, 8, 3, True),
    (2, 2, 4, 8, 1, True),
    (2, 8, 11, 6, 3, True),
    (5, 3, 8, 7, 3, False),
    (2, 64, 128, 2, 3, True),
    (2, 32, 64, 4, 3, True),
    (3, 8, 16, 7, 3, True),
]
#: Root mean square of differences in TF32, as a part of the value's.
TF32_LIMIT = 2e-3
#: In bf16 the kernels may be this much further from float64 than the plain modules under autocast, and no more.
HALF_FACTOR, HALF_MARGIN = 1.5, 2e-3
#: The same for grafts, whose plain modules keep some maps in float32; in the bias of a gate, one number, nothing
#: averages out.
GRAFT_FACTOR, GRAFT_MARGIN = 2.0, 4e-2


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    set_up(tf32=False)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def fused() -> ModuleType:
    return import_module("worker.envs.morph.network.fused.step")


def draws(*shape: int, seed: int = 0) -> Tensor:
    """Return keyed normal numbers in float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(CUDA)


def shortened(values: Tensor) -> Tensor:
    """Return values rounded to TF32; gradients pass."""
    short = ((values.detach().float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return values + (short.double() - values.detach())


def compare(found: Sequence[Tensor], wanted: Sequence[Tensor], limit: float = LIMIT) -> None:
    for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-6))
        assert error <= limit, (place, error)


def errors(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[float]:
    """Return the root mean square of each difference, as a part of that of the wanted values."""
    return [
        float((a.double() - b).square().mean().sqrt() / b.square().mean().sqrt().clamp(min=1e-6))
        for a, b in zip(found, wanted, strict=True)
    ]


def no_worse(
    found: Sequence[float], plain: Sequence[float], factor: float = HALF_FACTOR, margin: float = HALF_MARGIN
) -> None:
    """Hold errors of the kernels in bf16 against those of the plain modules in bf16."""
    for place, (a, b) in enumerate(zip(found, plain, strict=True)):
        assert a <= factor * b + margin, (place, a, b)


def gradients(out: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the output and the gradients of its product with fixed numbers."""
    weights = draws(*out.shape, seed=9).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), list(inputs))]


@pytest.mark.parametrize(("batch", "inner", "outer", "edge", "kernel", "pools"), BLOCKS)
def test_a_block_equals_convolution_norm_relu_and_pool(
    fused: ModuleType, batch: int, inner: int, outer: int, edge: int, kernel: int, pools: bool
) -> None:
    leaves = [draws(batch, inner, edge, edge), 0.3 * draws(outer, inner, kernel, kernel, seed=1)]
    leaves += [draws(outer, seed=2).abs(), draws(outer, seed=3)]
    running = [torch.zeros(outer, device=CUDA), torch.ones(outer, device=CUDA)]
    x, weight, gain, bias = (leaf.requires_grad_() for leaf in leaves)
    norm = SimpleNamespace(weight=gain, bias=bias, running_mean=running[0], running_var=running[1])
    wanted_of = [leaf.detach().double().requires_grad_() for leaf in leaves]
    mean, var = statistics = [values.double() for values in running]

    def plain(training: bool) -> Tensor:
        y = F.conv2d(wanted_of[0], wanted_of[1], padding=kernel // 2)
        y = F.relu(F.batch_norm(y, mean, var, wanted_of[2], wanted_of[3], training, 0.1))
        return F.max_pool2d(y, 2) if pools else y

    needed = slice(1 if inner in (1, 3) else 0, None)
    given = fused.padded(x.detach()) if inner == 3 else x
    found = gradients(fused.block(given, weight, norm, update=True, pool=pools), [x, weight, gain, bias][needed])
    compare(found, gradients(plain(training=True), wanted_of[needed]))
    compare(running, statistics)
    compare([fused.block_eval(given.detach(), weight.detach(), norm, pool=pools)], [plain(training=False).detach()])


@pytest.mark.parametrize(("batch", "inner", "outer", "edge", "kernel", "pools"), BLOCKS)
def test_a_block_in_bf16_is_as_exact_as_plain_modules_in_bf16(
    fused: ModuleType, batch: int, inner: int, outer: int, edge: int, kernel: int, pools: bool
) -> None:
    leaves = [draws(batch, inner, edge, edge).bfloat16(), 0.3 * draws(outer, inner, kernel, kernel, seed=1)]
    leaves += [draws(outer, seed=2).abs(), draws(outer, seed=3)]
    needed = slice(1 if inner in (1, 3) else 0, None)

    def plain(own: Sequence[Tensor]) -> list[Tensor]:
        y = F.conv2d(own[0], own[1], padding=kernel // 2)
        y = F.relu(F.batch_norm(y, None, None, own[2], own[3], True, 0.1))
        return gradients(F.max_pool2d(y, 2) if pools else y, own[needed])

    def kernels(own: Sequence[Tensor]) -> list[Tensor]:
        running = {"running_mean": torch.zeros_like(own[2]), "running_var": torch.ones_like(own[2])}
        norm = SimpleNamespace(weight=own[2], bias=own[3], **running)
        x = fused.padded(own[0].detach()) if inner == 3 else own[0]
        return gradients(fused.block(x, own[1], norm, update=True, pool=pools), own[needed])

    wanted = plain([leaf.detach().double().requires_grad_() for leaf in leaves])
    with torch.autocast("cuda", torch.bfloat16):
        found = kernels([leaf.detach().requires_grad_() for leaf in leaves])
        halves = plain([leaf.detach().requires_grad_() for leaf in leaves])
    no_worse(errors(found, wanted), errors(halves, wanted))


@pytest.mark.parametrize("blueprint", sorted(ALLOWED["cnn"]))
@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize(
    ("channels", "edge", "isolated"), [(8, 32, False), (8, 8, True), (16, 4, False), (32, 4, True)]
)
def test_a_graft_equals_its_plain_modules(
    fused: ModuleType, blueprint: int, operator: Operator, channels: int, edge: int, isolated: bool
) -> None:
    graft = Graft(blueprint, "cnn", channels, operator).to_empty(device=CUDA)
    for place, param in enumerate(graft.parameters()):
        param.data = 0.5 * draws(*param.shape, seed=place)
    plain = Graft(blueprint, "cnn", channels, operator).to_empty(device=CUDA).double()
    plain.load_state_dict({name: value.double() for name, value in graft.state_dict().items()})
    graft.core.kernels = fused
    assert graft.core.fuses(draws(5, channels, edge, edge))

    def outcome(own: Graft, dtype: torch.dtype) -> list[Tensor]:
        h = draws(5 if edge == 32 else 40, channels, edge, edge, seed=40).to(dtype).requires_grad_()
        alpha = torch.tensor(0.7, device=CUDA, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
        # what comes next in a host reads it in this precision
        return gradients(own.blend(h, alpha, isolated).to(dtype), [h, *own.parameters()])

    wanted = outcome(plain, torch.float64)
    found = outcome(graft, torch.float32)
    compare(found, wanted, limit=5 * LIMIT)
    assert all(torch.equal(a, b) for a, b in zip(found, outcome(graft, torch.float32), strict=True))
    with torch.autocast("cuda", torch.bfloat16):
        halves = errors(outcome(graft, torch.bfloat16), wanted)
        graft.core.kernels = None
        no_worse(halves, errors(outcome(graft, torch.bfloat16), wanted), GRAFT_FACTOR, GRAFT_MARGIN)


@pytest.mark.parametrize("blueprint", sorted(ALLOWED["cnn"]))
def test_a_newborn_graft_changes_no_bit(fused: ModuleType, blueprint: int) -> None:
    h, alpha = draws(3, 8, 8, 8).bfloat16(), torch.tensor(0.7, device=CUDA)
    for operator in Operator:
        graft = Graft(blueprint, "cnn", 8, operator).to_empty(device=CUDA)
        for place, param in enumerate(graft.parameters()):
            param.data = draws(*param.shape, seed=place)
        graft.gamma.data.zero_()
        graft.core.kernels = fused
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.equal(graft.blend(h, alpha), h), operator


@pytest.mark.parametrize("graft", ["none", "reaching", "detached"])
@pytest.mark.parametrize(("images", "inner"), [(130, 3), (5, 4)])
def test_the_first_stage_in_bf16_is_as_exact_as_plain_modules_in_bf16(
    fused: ModuleType, graft: str, images: int, inner: int
) -> None:
    x, alpha = draws(images, inner, 32, 32).bfloat16(), torch.tensor(0.7, device=CUDA)
    leaves = [0.3 * draws(8, inner, 3, 3, seed=1), draws(8, seed=2).abs(), draws(8, seed=3)]
    if graft != "none":
        leaves += [0.3 * draws(8, 8, 3, 3, seed=4), *(draws(8, seed=seed) for seed in (5, 6, 7))]

    def plain(own: Sequence[Tensor]) -> list[Tensor]:
        dtype = own[0].dtype
        y = F.conv2d(x if dtype is torch.float32 else x.to(dtype), own[0], padding=1)
        h = F.relu(F.batch_norm(y, None, None, own[1], own[2], True, 0.1))
        if graft != "none":
            y = F.conv2d(h.detach() if graft == "detached" else h, own[3], padding=1)
            h = h + alpha.to(dtype) * own[6][:, None, None] * F.relu(F.group_norm(y, 1, own[4], own[5]))
        return gradients(F.max_pool2d(h, 2), own)

    def kernels(own: Sequence[Tensor]) -> list[Tensor]:
        running = {"running_mean": torch.zeros_like(own[1]), "running_var": torch.ones_like(own[1])}
        norm, grown = SimpleNamespace(weight=own[1], bias=own[2], **running), None
        if graft != "none":
            grown = StagedGraft(own[3], SimpleNamespace(weight=own[4], bias=own[5]), own[6], alpha, graft == "detached")
        given = fused.padded(x)
        assert fused.fits_stage(given, own[0])
        return gradients(fused.stage(given, own[0], norm, grown, update=True), own)

    def fresh() -> list[Tensor]:
        return [leaf.detach().requires_grad_() for leaf in leaves]

    wanted = plain([leaf.detach().double().requires_grad_() for leaf in leaves])
    with torch.autocast("cuda", torch.bfloat16):
        found, again, other = kernels(fresh()), kernels(fresh()), plain(fresh())
    no_worse(errors(found, wanted), errors(other, wanted))
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("images", [5, 130])
def test_a_graft_beside_the_first_stage_equals_plain_modules(fused: ModuleType, images: int) -> None:
    x, one = draws(images, 3, 32, 32).bfloat16(), torch.ones((), device=CUDA)
    host = [0.3 * draws(8, 3, 3, 3, seed=1), draws(8, seed=2).abs(), draws(8, seed=3)]
    graft = [0.3 * draws(8, 8, 3, 3, seed=4), *(draws(8, seed=seed) for seed in (5, 6, 7))]

    def plain(own: Sequence[Tensor], grown: Sequence[Tensor]) -> list[Tensor]:
        dtype = own[0].dtype
        y = F.conv2d(x if dtype is torch.float32 else x.to(dtype), own[0], padding=1)
        h = F.relu(F.batch_norm(y, None, None, own[1], own[2], True, 0.1))
        y = F.conv2d(h.detach(), grown[0], padding=1)
        beside = h.detach() + grown[3][:, None, None] * F.relu(F.group_norm(y, 1, grown[1], grown[2]))
        return [*gradients(F.max_pool2d(h, 2), own), *gradients(F.max_pool2d(beside, 2), grown), h.detach()]

    def kernels(own: Sequence[Tensor], grown: Sequence[Tensor]) -> list[Tensor]:
        running = {"running_mean": torch.zeros_like(own[1]), "running_var": torch.ones_like(own[1])}
        norm = SimpleNamespace(weight=own[1], bias=own[2], **running)
        out, tap = fused.stage_tapped(fused.padded(x), own[0], norm, update=True)
        staged = StagedGraft(grown[0], SimpleNamespace(weight=grown[1], bias=grown[2]), grown[3], one, True)
        beside = fused.stage_beside(tap, staged)
        return [*gradients(out, own), *gradients(beside, grown), fused.tapped(tap)]

    def fresh(leaves: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        return [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]

    wanted = plain(fresh(host, torch.float64), fresh(graft, torch.float64))
    with torch.autocast("cuda", torch.bfloat16):
        found, other = (way(fresh(host, torch.float32), fresh(graft, torch.float32)) for way in (kernels, plain))
    no_worse(errors(found, wanted), errors(other, wanted))


@pytest.mark.parametrize("graft", ["none", "reaching", "detached", "beside"])
@pytest.mark.parametrize(("images", "inner"), [(130, 3), (5, 4)])
def test_the_first_stage_in_tf32_equals_float64_with_the_same_roundings(
    fused: ModuleType, graft: str, images: int, inner: int
) -> None:
    set_up(tf32=True)
    x, alpha = draws(images, inner, 32, 32), torch.tensor(1.0 if graft == "beside" else 0.7, device=CUDA)
    leaves = [0.3 * draws(8, inner, 3, 3, seed=1), draws(8, seed=2).abs(), draws(8, seed=3)]
    leaves += [0.3 * draws(8, 8, 3, 3, seed=4), *(draws(8, seed=seed) for seed in (5, 6, 7))]
    used = slice(3 if graft == "beside" else 0, 3 if graft == "none" else None)
    own = [leaf.requires_grad_() for leaf in leaves]
    running = {"running_mean": torch.zeros(8, device=CUDA), "running_var": torch.ones(8, device=CUDA)}
    norm, given = SimpleNamespace(weight=own[1], bias=own[2], **running), fused.padded(x)
    staged = StagedGraft(own[3], SimpleNamespace(weight=own[4], bias=own[5]), own[6], alpha, graft != "reaching")
    assert fused.fits_stage(given, own[0])
    out, tap = fused.stage_tapped(given, own[0], norm, update=True)
    if graft == "beside":
        out = fused.stage_beside(tap, staged)
    elif graft != "none":
        out = fused.stage(given, own[0], norm, staged, update=True)

    weight, gain, bias, kernel, gn_weight, gn_bias, gamma = exact = [
        leaf.detach().double().requires_grad_() for leaf in leaves
    ]
    y = F.conv2d(x.double(), weight, padding=1)
    assert errors([tap.y], [y.detach()])[0] < TF32_LIMIT
    y = y + (tap.y.double() - y.detach())
    h = z = F.relu(F.batch_norm(y, None, None, gain, bias, True, 0.1))
    if graft != "none":
        read = shortened(z if graft == "reaching" else z.detach())
        grown = F.group_norm(F.conv2d(read, shortened(kernel), padding=1), 1, gn_weight, gn_bias)
        h = (z.detach() if graft == "beside" else z) + alpha.double() * gamma[:, None, None] * F.relu(grown)
    found = errors(gradients(out, own[used]), gradients(F.max_pool2d(h, 2), exact[used]))
    assert max(found) < TF32_LIMIT, found


@pytest.mark.parametrize(("images", "inner"), [(5, 4), (300, 3)])
@pytest.mark.parametrize("plain", [False, True])
def test_the_first_stage_of_validation_equals_its_plain_modules(
    fused: ModuleType, images: int, inner: int, plain: bool
) -> None:
    x, weight, kernel = draws(images, inner, 32, 32), draws(8, inner, 3, 3, seed=1), draws(8, 8, 3, 3, seed=2)
    gain, bias, mean, gn_weight, gn_bias, gamma = (draws(8, seed=seed) for seed in range(3, 9))
    variance, alpha = draws(8, seed=9).square() + 0.1, torch.tensor(0.7, device=CUDA)
    norm = SimpleNamespace(weight=gain, bias=bias, running_mean=mean, running_var=variance)
    graft = StagedGraft(kernel, SimpleNamespace(weight=gn_weight, bias=gn_bias), gamma, alpha, False)
    given = fused.padded(x)
    assert fused.fits_eval(given, weight)

    y = F.conv2d(x.double(), weight.double(), padding=1)
    z = F.relu(F.batch_norm(y, mean.double(), variance.double(), gain.double(), bias.double(), False))
    y = F.group_norm(F.conv2d(z, kernel.double(), padding=1), 1, gn_weight.double(), gn_bias.double())
    grown = F.max_pool2d(z + alpha.double() * gamma.double()[:, None, None] * F.relu(y), 2)
    alone = F.max_pool2d(z, 2)
    wanted = torch.cat([alone, grown]) if plain else grown
    compare([fused.stage_eval(given, weight, norm, graft, plain=plain)], [wanted])
    compare([fused.block_eval(given, weight, norm, pool=True)], [alone])


@pytest.mark.parametrize("edge", [2, 5, 6, 8, 12, 64])
def test_pool_equals_the_plain_one(fused: ModuleType, edge: int) -> None:
    x = draws(5, 8, edge, edge).requires_grad_()
    wanted = x.detach().double().requires_grad_()
    compare(gradients(fused.pool(x), [x]), gradients(F.max_pool2d(wanted, 2), [wanted]), limit=0.0)


@pytest.mark.parametrize(("items", "channels", "edge"), [(40, 32, 4), (17, 8, 1), (33, 16, 6)])
def test_the_head_equals_the_mean_cross_entropy(fused: ModuleType, items: int, channels: int, edge: int) -> None:
    x, layer = draws(items, channels, edge, edge).requires_grad_(), nn.Linear(channels, 10).to(CUDA)
    y = torch.arange(items, device=CUDA) % 10
    wanted = x.detach().double().requires_grad_()
    twin = nn.Linear(channels, 10).to(CUDA).double()
    twin.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    loss = F.cross_entropy(twin(wanted.mean((2, 3))), y)
    compare(
        gradients(fused.head_loss(x, layer, y), [x, *layer.parameters()]),
        gradients(loss, [wanted, *twin.parameters()]),
    )


def test_the_head_need_not_multiply_by_the_one_that_gradients_begin_with(fused: ModuleType) -> None:
    x, layer, y = draws(17, 8, 2, 2).requires_grad_(), nn.Linear(8, 10).to(CUDA), torch.arange(17, device=CUDA) % 10
    loss = fused.head_loss(x, layer, y)
    inputs = [x, *layer.parameters()]
    one = unit(loss.device, loss.dtype)
    begun = torch.autograd.grad(loss, inputs, grad_outputs=one, retain_graph=True)
    halved = torch.autograd.grad(loss, inputs, grad_outputs=0.5 * one, retain_graph=True)
    for whole, half in zip(begun, halved, strict=True):
        assert torch.equal(0.5 * whole, half)


def test_rows_are_noted_one_after_another(fused: ModuleType) -> None:
    measured, batch = torch.zeros(3, 5, device=CUDA), torch.zeros(1, dtype=torch.int64, device=CUDA)
    for place in range(3):
        fused.note(torch.arange(3.0, device=CUDA) + 10 * place, measured, batch)
    assert measured.tolist() == [[0, 1, 2, 0, 0], [10, 11, 12, 0, 0], [20, 21, 22, 0, 0]]
    assert batch.tolist() == [3]


@pytest.mark.parametrize("size", [5, 300, 9_000, 20_000])
def test_a_step_clips_and_is_dropped_where_it_is_not_finite(fused: ModuleType, size: int) -> None:
    grad, flat, momentum = (draws(size, seed=seed) for seed in range(3))
    store = SimpleNamespace(flat=flat.clone(), grad=grad.clone(), momentum=momentum.clone(), size=size)
    optim = SimpleNamespace(grad_clip=1.0, weight_decay=0.01, momentum=0.9)
    on, lr = torch.tensor(True, device=CUDA), torch.tensor(0.1, device=CUDA)
    norm = fused.sgd(store, on, lr, optim)
    wanted, clipped = (value.double() for value in (flat, grad))
    clipped = clipped * min(1.0, 1.0 / (float(clipped.norm()) + 1e-6)) + 0.01 * wanted
    moved = 0.9 * momentum.double() + clipped
    compare([norm, store.momentum, store.flat], [grad.double().norm(), moved, wanted - 0.1 * moved])
    before = store.flat.clone()
    store.grad[size // 2] = float("nan")
    fused.sgd(store, on, lr, optim)
    fused.sgd(store, ~on, lr, optim)
    assert torch.equal(store.flat, before)


def test_a_batch_is_cropped_flipped_and_normalised(fused: ModuleType) -> None:
    images = torch.arange(9 * 3 * 40 * 40, device=CUDA).remainder(251).to(torch.uint8).view(9, 3, 40, 40)
    chosen = torch.tensor([[0, 0, 0, 0], [8, 8, 3, 1], [4, 2, 8, 0], [5, 7, 1, 1]], device=CUDA)
    mean, std = (torch.tensor(values, device=CUDA).view(3, 1, 1) for values in ([0.4, 0.5, 0.6], [0.2, 0.25, 0.3]))
    both, which = torch.stack([0 * chosen, chosen]), torch.tensor([1], device=CUDA)
    x, y = fused.augment(images, torch.arange(9, device=CUDA), both, which, (mean, std, 255.0), torch.float32)
    crops = [images[i, :, top : top + 32, left : left + 32] for i, top, left, _ in chosen.tolist()]
    flipped: list[Any] = [crop.flip(-1) if row[3] else crop for crop, row in zip(crops, chosen.tolist(), strict=True)]
    wanted = (torch.stack(flipped).double() / 255.0 - mean.double()) / std.double()
    compare([x[:, :3]], [wanted])
    assert x.shape[1] == 4
    assert not x[:, 3].any()
    assert y.tolist() == [0, 8, 4, 5]


@pytest.mark.parametrize("pools", [False, True])
def test_nan_passes_through_relu_and_pooling_as_in_the_plain_path(fused: ModuleType, pools: bool) -> None:
    nan, one, zero = (torch.full((8,), value, device=CUDA) for value in (float("nan"), 1.0, 0.0))
    norm = SimpleNamespace(weight=one, bias=zero, running_mean=nan, running_var=one)
    assert fused.block_eval(draws(2, 8, 4, 4), draws(8, 8, 3, 3, seed=1), norm, pool=pools).isnan().all()
    x = draws(2, 8, 4, 4)
    x[0, 0, 0, 0] = float("nan")
    assert torch.equal(fused.pool(x).isnan(), F.max_pool2d(x, 2).isnan())
    grown = fused.group(x, SimpleNamespace(weight=one, bias=zero), 1, "relu")
    assert grown[0].isnan().all()
    assert grown[1].isfinite().all()


def test_padded_images_take_no_gradient(fused: ModuleType) -> None:
    images, weight = fused.padded(draws(1, 3, 8, 8)).requires_grad_(), draws(8, 3, 3, 3)
    with pytest.raises(ValueError, match="4 channels"):
        fused.conv2d(images, weight).sum().backward()
