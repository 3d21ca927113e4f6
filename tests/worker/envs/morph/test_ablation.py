"""The ablation engine against masks run one by one, and its statistics against brute force."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tests.worker.envs.morph.factories import network, rng
from worker.envs.morph.engine import ablation
from worker.envs.morph.engine.ablation import Table
from worker.envs.morph.engine.validate import Measured, Validator, ValPlan, decode
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.hosts import EVAL
from worker.envs.morph.network.network import Network
from worker.envs.morph.task.config import EnvConfig

ALPHAS = (1.0, 0.5, 0.3, 0.8, 0.7, 0.6)


def garden(slots: tuple[str, ...], dtype: torch.dtype, config: EnvConfig | None = None) -> Network:
    """A network with one graft per slot, at different alphas and with weights that matter."""
    config = config or EnvConfig.for_task("digits_tiny", slots=slots, dtype=dtype)
    net = network(config)
    for slot in range(len(net.slots)):
        net.germinate(slot, (5, 1, 7, 4, 2)[slot % 5], Operator(slot % 3), rng(slot))
        net.cell(slot).graft.gamma.data.fill_(0.7)
        net.set_blend(slot, ALPHAS[slot], active=True)
    return net


def items(dtype: torch.dtype, count: int = 50) -> tuple[Tensor, Tensor]:
    draw = rng(9)
    return torch.from_numpy(draw.standard_normal((count, 1, 8, 8))).to(dtype), torch.from_numpy(
        draw.integers(0, 10, count)
    )


def alone(net: Network, x: Tensor, on: set[int]) -> Tensor:
    """The plain model with exactly the slots ``on`` blended."""
    done = 0
    for slot in net.in_execution_order(sorted(on)):
        stop = net.slots[slot].position + 1
        x = net.host.run(x, done, stop, EVAL)
        x = net.cell(slot).graft.blend(x, net.cell(slot).alpha)
        done = stop
    return net.host.run(x, done, net.host.num_segments, EVAL)


SLOTS = ("r0c0", "r0c1", "r1c0", "r1c1")


# defects 17 and 21
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_engine_equals_running_each_mask_alone(count: int, dtype: torch.dtype, tolerance: float) -> None:
    net = garden(SLOTS, dtype)
    x, y = items(dtype)
    players = tuple(net.in_execution_order(list(range(count))))
    plan = ValPlan(players)
    table, _ = Validator(net, 16).tables(x, y, plan)
    assert sorted(plan.masks) == list(range(1 << count))
    for row, mask in enumerate(plan.masks):
        on = {players[i] for i in range(count) if mask >> i & 1}
        logits = alone(net, x, on).detach()
        assert int(table.correct[row].sum()) == int((logits.argmax(1) == y).sum())
        loss = F.cross_entropy(logits, y, reduction="none").double()
        torch.testing.assert_close(table.loss[row], loss, atol=tolerance, rtol=0)


# defect 21
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_main_is_the_full_coalition_bitwise_at_any_alpha(count: int) -> None:
    net = garden(SLOTS, torch.float32)
    assert len({float(net.cell(slot).alpha) for slot in range(4)} - {0.0, 1.0}) >= 2
    x, y = items(torch.float32)
    plan = ValPlan(tuple(net.in_execution_order(list(range(count)))))
    measured = decode(Validator(net, 10_000).run(x, y, plan).numpy(), plan)
    full = plan.masks.index((1 << count) - 1)
    assert measured.loss == measured.mask_loss[full]
    assert measured.accuracy == measured.mask_accuracy[full]
    # a validation without ablation, all grafts kept on, measures the same network
    alone_plan = ValPlan((), fixed=plan.players)
    again = decode(Validator(net, 10_000).run(x, y, alone_plan).numpy(), alone_plan)
    assert measured.loss == pytest.approx(again.loss, abs=1e-6)


def test_standard_error_of_accuracy_is_that_of_main() -> None:
    net = garden(SLOTS, torch.float64)
    for slot in range(4):  # loud enough to change what the host says
        net.cell(slot).store.flat.data.mul_(30.0)
    x, _ = items(torch.float64)
    y = alone(net, x, {0, 1, 2, 3}).argmax(1)  # main is wrong on three items only, the bare host on more
    y[:3] = (y[:3] + 1) % 10
    plan = ValPlan(tuple(net.in_execution_order([0, 1, 2, 3])))
    validator = Validator(net, 10_000)
    errors = []
    for on in (set(), {0, 1, 2, 3}):
        hits = 100.0 * (alone(net, x, on).argmax(1) == y).double()
        errors.append(float(hits.std(correction=0) / len(hits) ** 0.5))
    assert errors[0] != errors[1], "the test could not tell one mask from the other"
    measured = decode(validator.run(x, y, plan).numpy(), plan)
    assert measured.accuracy_se == pytest.approx(errors[1], rel=1e-12)


def test_prospective_configuration_is_main_with_the_graft_at_alpha_one() -> None:
    net = garden(SLOTS, torch.float64)
    x, y = items(torch.float64)
    plan = ValPlan(players=tuple(net.in_execution_order([0, 3])), prospective=(2, 1))
    measured = decode(Validator(net, 10_000).run(x, y, plan).numpy(), plan)
    main = F.cross_entropy(alone(net, x, {0, 3}), y).item()
    assert measured.loss == pytest.approx(main, abs=1e-12)
    for slot in (1, 2):
        net.set_blend(slot, 1.0, active=True)
        tried = F.cross_entropy(alone(net, x, {0, 3, slot}), y).item()
        assert measured.prospective[slot][0] == pytest.approx(main - tried, abs=1e-12)


# defect 17
def test_forward_rows_follow_the_prefix_formula() -> None:
    net = garden(("r0c0", "r0c1"), torch.float32)
    x, y = items(torch.float32, 20)
    validator = Validator(net, 10_000)
    validator.run(x, y, ValPlan((0, 1)))
    # segments: input-r0c0, r0c0-r1c0, r1c0-r0c1, r0c1-r1c1, r1c1-logits
    assert validator.forward_rows == 20 * (1 + 2 + 2 + 4 + 4)


@pytest.mark.parametrize(
    "plan", [ValPlan((0, 3), prospective=(2, 1)), ValPlan((1,), fixed=(0, 3), prospective=(2,)), ValPlan((0, 1, 2, 3))]
)
def test_parts_name_the_rows_that_a_validation_runs(plan: ValPlan) -> None:
    net = garden(SLOTS, torch.float32)
    x, y = items(torch.float32, 20)
    validator = Validator(net, 10_000)
    parts: list[Any] = [part for _, part in validator.parts(20, plan)]
    runs = [part for part in parts if part[0] == "run"]
    validator.run(x, y, plan)
    assert validator.forward_rows == sum(items * rows * (stop - start) for _, items, rows, start, stop in runs)


def test_five_players_measure_only_the_masks_of_the_specification() -> None:
    masks = ablation.required_masks(5, fossils=0b00110)
    singles = {1 << i for i in range(5)}
    assert set(masks) == {0, 31, 6} | singles | {31 ^ s for s in singles}
    assert len(masks) <= 2 * 5 + 3
    order = ablation.final_order(5, masks)
    assert sorted(order) == list(masks)
    assert len(set(order)) == len(order)


# defect 41
def test_validation_keeps_the_tail_whatever_the_chunk() -> None:
    net = garden(("r0c0", "r0c1"), torch.float64)
    x, y = items(torch.float64, 50)
    plan = ValPlan((0, 1))
    small, _ = Validator(net, 28).tables(x, y, plan)
    whole, _ = Validator(net, 10_000).tables(x, y, plan)
    assert small.loss.shape == (4, 50)
    torch.testing.assert_close(small.loss, whole.loss, atol=1e-12, rtol=0)


# defect 16
def test_contribution_standard_error_covers_the_true_difference() -> None:
    inside, trials = 0, 2_000
    draw = rng(1)
    contrasts = ablation.contrasts(1, (0, 1), False)
    for _ in range(trials):
        off = draw.gamma(2.0, 0.5, 200)
        on = off + draw.normal(-0.1, 0.3, 200)
        table = Table(torch.from_numpy(np.stack([off, on])), torch.zeros(2, 200, dtype=torch.float64))
        gain, error = (float(v) for v in ablation.measure(table, contrasts)[:2, 0])
        inside += abs(gain - 0.1) <= 2 * error
    assert 0.93 <= inside / trials <= 0.97


def test_accuracy_contribution_and_error_follow_the_paired_formula() -> None:
    on = np.array([1.0] * 60 + [0.0] * 40)
    off = np.array([1.0] * 50 + [0.0] * 10 + [1.0] * 4 + [0.0] * 36)
    table = Table(torch.zeros(2, 100, dtype=torch.float64), torch.from_numpy(np.stack([off, on])))
    _, _, gain, error = (float(v) for v in ablation.measure(table, ablation.contrasts(1, (0, 1), False))[:, 0])
    assert gain == pytest.approx(6.0)
    assert error == pytest.approx(100 * math.sqrt((10 + 4) - (10 - 4) ** 2 / 100) / 100)


# defect 18
@pytest.mark.parametrize("count", [2, 3, 4])
def test_interactions_are_measured_from_two_players_on(count: int) -> None:
    masks = ablation.required_masks(count, 0)
    value = rng(2).standard_normal(1 << count)
    contrasts = ablation.contrasts(count, masks, False)
    found = contrasts.matrix.numpy() @ value
    for row, (i, j) in enumerate(contrasts.pairs, start=contrasts.interaction.start):
        a, b = 1 << i, 1 << j
        assert found[row] == pytest.approx(value[a | b] - value[a] - value[b] + value[0])
    assert len(contrasts.pairs) == count * (count - 1) // 2


def test_interactions_are_absent_for_five_players() -> None:
    contrasts = ablation.contrasts(5, ablation.required_masks(5, 0), False)
    assert contrasts.pairs == ()


def brute_force(value: np.ndarray, count: int) -> np.ndarray:
    total = np.zeros(count)
    for order in itertools.permutations(range(count)):
        before = 0
        for player in order:
            total[player] += value[before | 1 << player] - value[before]
            before |= 1 << player
    return total / math.factorial(count)


# defect 19
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_shapley_equals_brute_force_over_all_orders(count: int) -> None:
    value = rng(3).standard_normal(1 << count)
    contrasts = ablation.contrasts(count, ablation.required_masks(count, 0), True)
    phi = contrasts.matrix.numpy()[contrasts.shapley] @ value
    np.testing.assert_allclose(phi, brute_force(value, count), atol=1e-9)
    assert phi.sum() == pytest.approx(value[-1] - value[0], abs=1e-9)


# defect 19
def test_sampled_shapley_uses_reversed_pairs_and_keeps_the_efficiency_identity() -> None:
    orders = ablation.antithetic_orders(6, rng(4))
    assert len(orders) == 32
    assert all(orders[i + 1] == orders[i][::-1] for i in range(0, 32, 2))
    masks = ablation.required_masks(6, 0, ablation.coalitions(orders))
    value = rng(5).standard_normal(64)
    contrasts = ablation.contrasts(6, masks, True, orders)
    pair_means = contrasts.matrix.numpy()[contrasts.shapley] @ value[list(masks)]
    phi, error = ablation.sampled_shapley(pair_means, 6)
    assert phi.sum() == pytest.approx(value[63] - value[0], abs=1e-9)
    exact = brute_force(value, 6)
    assert (np.abs(phi - exact) <= 4 * error).all()


# defect 20
def test_missing_mask_raises_instead_of_being_invented() -> None:
    with pytest.raises(ValueError, match="not measured"):
        ablation.contrasts(2, (0, 1, 3), False)


def test_committed_and_shapley_are_read_from_the_same_table() -> None:
    net = garden(SLOTS, torch.float32)
    x, y = items(torch.float32)
    plan = ValPlan(tuple(net.in_execution_order([0, 1, 2, 3])), fossils=0b0101, shapley=True)
    measured: Measured = decode(Validator(net, 10_000).run(x, y, plan).numpy(), plan)
    on = {plan.players[0], plan.players[2]}
    assert measured.committed_loss == pytest.approx(F.cross_entropy(alone(net, x, on), y).item(), abs=1e-5)
    phi = measured.contrast[0, plan.contrasts.shapley]
    assert phi.sum() == pytest.approx(measured.contrast[0, plan.contrasts.total], abs=1e-5)


# defects 17 and 19
@pytest.mark.parametrize("sampled", [False, True])
def test_five_players_and_a_prospect_equal_running_each_mask_alone(sampled: bool) -> None:
    config = EnvConfig.for_task("cifar_multichannel", dtype=torch.float64)
    net = garden(config.slots, torch.float64, config)
    draw = rng(9)
    x = torch.from_numpy(draw.standard_normal((6, 3, 32, 32)))
    y = torch.from_numpy(draw.integers(0, 10, 6))
    order = net.in_execution_order(range(6))
    players, candidate = tuple(order[:2] + order[3:]), order[2]
    orders = ablation.antithetic_orders(5, rng(4)) if sampled else ()
    plan = ValPlan(players, fossils=0b00110, prospective=(candidate,), shapley=sampled, orders=orders)
    table, prospect = Validator(net, 10_000).tables(x, y, plan)
    assert len(plan.masks) == (32 if sampled else 2 * 5 + 3)
    assert len(set(plan.masks)) == len(plan.masks)
    for line, mask in enumerate(plan.masks):
        on = {players[i] for i in range(5) if mask >> i & 1}
        loss = F.cross_entropy(alone(net, x, on), y, reduction="none").detach()
        torch.testing.assert_close(table.loss[line], loss, atol=1e-12, rtol=0)
    net.set_blend(candidate, 1.0, active=True)
    loss = F.cross_entropy(alone(net, x, set(range(6))), y, reduction="none").detach()
    torch.testing.assert_close(prospect.loss[0], loss, atol=1e-12, rtol=0)


def test_fixed_fossils_stay_on_in_every_configuration() -> None:
    net = garden(("r0c0", "r0c1"), torch.float64)
    x, y = items(torch.float64)
    table, _ = Validator(net, 10_000).tables(x, y, ValPlan((1,), fixed=(0,)))
    for row, on in ((0, {0}), (1, {0, 1})):
        loss = F.cross_entropy(alone(net, x, on), y, reduction="none").detach()
        torch.testing.assert_close(table.loss[row], loss, atol=1e-12, rtol=0)
