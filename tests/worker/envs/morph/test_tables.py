"""Parameter tables of environment.md 2 and 4, and the task facts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from lockstep.spec.tasks import TASKS, CnnShape, LmShape, Topology, action_order
from tests.worker.envs.morph.factories import network, rng
from worker.envs.morph.network.blend import Graft, Operator, graft_params
from worker.envs.morph.network.blueprints import ALLOWED, blueprint_id, build_core, core_params, groups
from worker.envs.morph.network.hosts import build_host
from worker.envs.morph.task.config import EnvConfig

HOST_PARAMS = {
    "digits_tiny": 152,
    "digits_small": 438,
    "synth_small": 510,
    "cifar_baseline": 6_418,
    "cifar_scale": 99_922,
    "cifar_impaired": 77,
    "cifar_minimal": 164,
    "cifar_multichannel": 6_418,
    "cifar_postpool": 24_346,
    "cifar_highres": 24_346,
    "cifar_deep_multichannel": 99_922,
    "cifar_deep_impaired": 1_140,
    "lm_tiny": 170_560,
    "tinystories": 10_844_160,
}
CNN_PARAMS = {
    "conv_light": ((592, 600), (2_336, 2_352), (9_280, 9_312), (36_992, 37_056)),
    "attention": ((40, 48), (144, 160), (544, 576), (2_112, 2_176)),
    "norm": ((16, 24), (32, 48), (64, 96), (128, 192)),
    "depthwise": ((152, 160), (432, 448), (1_376, 1_408), (4_800, 4_864)),
    "bottleneck": ((720, 728), (864, 880), (1_152, 1_184), (4_480, 4_544)),
    "conv_small": ((80, 88), (288, 304), (1_088, 1_120), (4_224, 4_288)),
    "conv_heavy": ((1_184, 1_192), (4_672, 4_688), (18_560, 18_592), (73_984, 74_048)),
}
LM_PARAMS = {
    "attention": ((16_640, 16_704), (591_360, 591_744)),
    "norm": ((128, 192), (768, 1_152)),
    "lora": ((1_024, 1_088), (6_144, 6_528)),
    "lora_large": ((4_096, 4_160), (24_576, 24_960)),
    "mlp_small": ((16_576, 16_640), (590_976, 591_360)),
    "mlp": ((33_088, 33_152), (1_181_568, 1_181_952)),
}


# defect 45
@pytest.mark.parametrize("name", TASKS)
def test_host_params_of_every_preset_match_the_table(name: str) -> None:
    assert set(TASKS) == set(HOST_PARAMS)
    shape = TASKS[name].host
    assert shape.params() == HOST_PARAMS[name]
    assert sum(p.numel() for p in build_host(shape).parameters()) == HOST_PARAMS[name]


def test_host_params_of_reference_shapes_match_the_specification() -> None:
    assert CnnShape(3, 32, 3, 32, 3, 3).params() == 94_762
    reference = LmShape(50_257, 384, 6, 6, 256, 0.1)
    assert reference.params() == 30_044_544
    block = sum(p.numel() for name, p in build_host(reference).named_parameters() if "blocks.0." in name)
    assert block == 12 * 384**2 + 13 * 384 == 1_774_464


@pytest.mark.parametrize(("topology", "table", "widths"), [
    ("cnn", CNN_PARAMS, (8, 16, 32, 64)),
    ("lm", LM_PARAMS, (64, 384)),
])  # fmt: skip
def test_graft_params_of_every_blueprint_match_the_table(
    topology: Topology, table: dict[str, tuple[tuple[int, int], ...]], widths: tuple[int, ...]
) -> None:
    assert {blueprint_id(name) for name in table} == ALLOWED[topology]
    for name, counts in table.items():
        for width, (core, graft) in zip(widths, counts, strict=True):
            assert core_params(blueprint_id(name), topology, width) == core
            assert graft_params(blueprint_id(name), topology, width, Operator.ADD) == graft


@pytest.mark.parametrize(("channels", "gate"), [(8, 81), (16, 145), (32, 273), (64, 1_057)])
def test_gate_params_match_the_table(channels: int, gate: int) -> None:
    plain = graft_params(1, "cnn", channels, Operator.ADD)
    assert graft_params(1, "cnn", channels, Operator.GATE) - plain == gate


def test_gate_params_of_a_wide_language_model_match_the_table() -> None:
    assert graft_params(8, "lm", 384, Operator.GATE) - graft_params(8, "lm", 384, Operator.ADD) == 37_057


# defect 7
def test_groups_fall_back_to_one_group_not_to_instance_norm() -> None:
    assert [groups(c) for c in (1, 2, 8, 16, 32, 64, 128)] == [1, 1, 1, 1, 2, 4, 8]


_REFUSED = [(0, "cnn"), (12, "lm"), (8, "cnn"), (1, "lm"), (13, "cnn"), (-1, "lm")]


# defect 10
@pytest.mark.parametrize(
    ("blueprint", "topology"), [(0, "cnn"), (12, "lm"), (8, "cnn"), (1, "lm"), (13, "cnn"), (-1, "lm")]
)
def test_blueprint_unknown_reserved_or_of_the_other_topology_raises(blueprint: int, topology: Topology) -> None:
    with pytest.raises(ValueError, match="blueprint"):
        build_core(blueprint, topology, 8)


def test_graft_given_another_shape_raises() -> None:
    net = network(EnvConfig.for_task("digits_tiny"))
    net.germinate(0, 1, Operator.ADD, rng())
    with pytest.raises(ValueError, match="cannot take input"):
        net.cell(0).graft.blend(torch.zeros(1, 3, 8, 8), torch.ones(()))
    assert isinstance(net.cell(0).graft, Graft)


# defect 23
def test_slots_of_twelve_columns_keep_integer_order() -> None:
    shape = CnnShape(3, 8, 12, 1, 1, 2)
    ids = [slot.id for slot in action_order(shape.slots())]
    assert ids == [f"r0c{i}" for i in range(12)] + ["r1c0", "r1c1"]
    execution = [slot.id for slot in shape.slots()]
    assert execution[:5] == ["r0c0", "r1c0", "r0c1", "r1c1", "r0c2"]
    assert execution[-2:] == ["r0c10", "r0c11"]


def test_slot_shapes_of_three_blocks_match_the_specification() -> None:
    shapes = {slot.id: slot.height for slot in TASKS["cifar_multichannel"].host.slots()}
    assert shapes == {"r0c0": 32, "r1c0": 16, "r0c1": 16, "r1c1": 8, "r0c2": 8, "r1c2": 4}
    assert [slot.channels for slot in TASKS["cifar_baseline"].host.slots()] == [8, 8, 16, 16, 32, 32]


def test_preset_slots_and_surfaces_match_the_table() -> None:
    assert [slot.id for slot in TASKS["cifar_minimal"].host.slots()] == ["r0c0", "r0c1", "r0c2"]
    counts = {name: len(task.slots) for name, task in TASKS.items()}
    assert [counts[f"cifar_{name}"] for name in ("baseline", "scale", "multichannel", "postpool")] == [3, 5, 6, 3]
    assert (counts["cifar_deep_multichannel"], counts["cifar_deep_impaired"], counts["lm_tiny"]) == (10, 10, 3)
    assert TASKS["cifar_postpool"].slots == ("r1c0", "r1c1", "r1c2")
    for task in TASKS.values():
        assert set(task.slots) <= {slot.id for slot in task.host.slots()}


@pytest.mark.parametrize("name", ["digits_tiny", "cifar_minimal", "lm_tiny"])
def test_host_routing_through_slots_equals_the_plain_forward(name: str) -> None:
    net = network(EnvConfig.for_task(name))
    x = _input(name)
    whole = net.host(x)
    first, last = net.host.slots()[0].id, net.host.slots()[-1].id
    middle = net.host.forward_to(first, x)
    assert torch.equal(net.host.forward_from(first, middle), whole)
    late = net.host.forward_to(last, middle, from_slot=first)
    assert torch.equal(net.host.forward_from(last, late), whole)
    with pytest.raises(ValueError, match="backward"):
        net.host.forward_to(first, middle, from_slot=last)
    with pytest.raises(ValueError, match="does not exist"):
        net.host.forward_to("r9c9", x)


# defect 11
@pytest.mark.parametrize("name", ["lm_tiny", pytest.param("tinystories", marks=pytest.mark.slow)])
def test_language_model_initial_loss_is_near_ln_vocab(name: str) -> None:
    config = EnvConfig.for_task(name)
    net = network(config)
    assert isinstance(config.task.host, LmShape)
    length = config.task.host.block_len
    tokens = torch.from_numpy(rng(1).integers(0, 256, (4, length + 1)))
    with torch.no_grad():
        logits = net.host(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(float(loss) - math.log(256)) < 0.2


def test_cnn_initial_loss_is_near_ln_classes() -> None:
    losses = []
    for seed in range(5):
        net = network(EnvConfig.for_task("digits_tiny"), seed)
        x = torch.from_numpy(rng(seed).standard_normal((64, 1, 8, 8)).astype(np.float32))
        y = torch.from_numpy(rng(seed + 9).integers(0, 10, 64))
        losses.append(F.cross_entropy(net.host(x), y).item())
    assert abs(np.mean(losses) - math.log(10)) < 0.3


def _input(name: str) -> torch.Tensor:
    shape = TASKS[name].host
    if isinstance(shape, LmShape):
        return torch.from_numpy(rng(3).integers(0, shape.vocab, (2, shape.block_len)))
    size = (2, shape.in_channels, shape.size, shape.size)
    return torch.from_numpy(rng(3).standard_normal(size).astype(np.float32))
