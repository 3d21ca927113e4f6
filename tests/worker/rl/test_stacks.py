"""A run's part of a batched forward and update is what it is alone, bit for bit, in packs of any size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.rl.cases import HEADS, learner_config, make_learner, random_rollout
from worker.envs.base import HeadSpec
from worker.rl.affine import affine, exact_parts, tanh
from worker.rl.algorithms import ALGORITHMS, ppo_stack
from worker.rl.algorithms.base import Due, Played
from worker.rl.algorithms.ppo import prepare
from worker.rl.algorithms.ppo_loss import Slopes
from worker.rl.learner import Learner
from worker.rl.nets import MLPNet
from worker.rl.rollout import PolicyError
from worker.rl.stacked_nets import StackedMLP
from worker.rl.stacks import rows_of

CHOICE = (HeadSpec("action", 2),)
PUSH = (HeadSpec("push", 1, bounds=((-1.0, 1.0),)),)
BOTH = (HeadSpec("push", 2, bounds=((-1.0, 1.0), (-2.0, 2.0))), HeadSpec("hold", 4))
#: What may differ within a stack; the third stops by KL, the fourth is handed a target that is not a number.
OWN: list[dict[str, Any]] = [
    {},
    {"lr": 1e-2, "gamma": 0.9},
    {"lr": 3e-2, "target_kl": 1e-3},
    {"value_coef": 0.1},
    {"grad_clip": 0.01, "entropy_coef_start": 0.3},
    {"adv_std_floor": 0.5},
    {"lr": 1e-2, "target_kl": 3e-2},
]


def due(run: int, heads: tuple[HeadSpec, ...], hidden: int, steps: int, envs: int, **common: Any) -> Due:
    own = OWN[run % len(OWN)]
    features = common.pop("features", 4)
    learner = make_learner(learner_config(hidden=hidden, **{**common, **own}), heads, features, envs, seed=run)
    rollout = random_rollout(learner, heads, steps, np.random.default_rng(run))
    prepared = prepare(learner, rollout, learner.cfg.ppo.entropy_coef_start, None)
    if run % len(OWN) == 3:
        prepared.replay.batch.target[1, 0] = math.nan
    return Due(learner, rollout, prepared, 0, np.random.default_rng(100 + run))


def alone(item: Due) -> tuple[list[bytes], dict[str, float]]:
    metrics = ALGORITHMS["ppo"].update(item.learner, item.rollout, item.prepared, 0, item.order)
    return bits(item.learner), metrics


def bits(learner: Learner) -> list[bytes]:
    parts = (learner.flat.data, learner.flat.grad, learner.adam.m, learner.adam.v)
    # without the sign of a zero, which depends on how many terms a sum has and changes nothing
    return [(part.numpy() + np.float32(0.0)).tobytes() for part in parts] + [
        bytes([learner.adam.steps, learner.dead_updates])
    ]


@pytest.mark.parametrize("body", ["mlp", "lstm"])
@pytest.mark.parametrize(
    ("num_runs", "heads", "hidden"),
    [(2, CHOICE, 8), (20, CHOICE, 12), (7, HEADS, 64), (20, CHOICE, 64), (2, CHOICE, 192)],  # the last steps by runs
)
def test_updates_of_a_pack_equal_updates_alone(
    num_runs: int, heads: tuple[HeadSpec, ...], hidden: int, body: str
) -> None:
    common = {"body": body, "epochs": 2, "minibatches": 3, "value_clip": 0.2, "adv_norm": "minibatch"}
    expected = [alone(due(run, heads, hidden, 10, 4, **common)) for run in range(num_runs)]
    items = [due(run, heads, hidden, 10, 4, **common) for run in range(num_runs)]
    assert len({ppo_stack.key(item.learner, 10) for item in items}) == 1
    found = ppo_stack.update(items)
    for item, metrics, (wanted_bits, wanted) in zip(items, found, expected, strict=True):
        assert bits(item.learner) == wanted_bits
        assert repr(metrics) == repr(wanted)
    if num_runs > 2:
        assert not math.isnan(found[2]["kl_stop_epoch"])
        assert found[3]["steps_non_finite"] > 0


@pytest.mark.parametrize("body", ["mlp", "lstm"])
@pytest.mark.parametrize("heads", [CHOICE, PUSH, BOTH], ids=["choice", "real", "both"])
@pytest.mark.parametrize(("steps", "envs", "minibatches"), [(1, 3, 3), (2, 5, 5), (7, 3, 2), (33, 1, 1)])
def test_updates_of_odd_sizes_equal_updates_alone(
    steps: int, envs: int, minibatches: int, heads: tuple[HeadSpec, ...], body: str
) -> None:
    for features, hidden in ((3, 33), (6, 13)):  # neither a minibatch nor a layer begins where memory of its own would
        given: dict[str, Any] = {
            "body": body,
            "features": features,
            "minibatches": minibatches,
            "action_bounds": "tanh",
        }
        expected = [alone(due(run, heads, hidden, steps, envs, **given)) for run in (0, 1, 4)]
        items = [due(run, heads, hidden, steps, envs, **given) for run in (0, 1, 4)]
        for item, metrics, (wanted_bits, wanted) in zip(items, ppo_stack.update(items), expected, strict=True):
            assert bits(item.learner) == wanted_bits
            assert repr(metrics) == repr(wanted)


def test_a_rate_beyond_single_precision_ends_a_run_alone_as_in_a_stack() -> None:
    def items() -> list[Due]:
        found = [due(5, CHOICE, 8, 4, 2), due(0, CHOICE, 8, 4, 2)]
        for item in found:
            item.learner.cfg = replace(item.learner.cfg, ppo=item.learner.cfg.ppo.model_copy(update={"lr": 3e38}))
        return found

    expected, stacked = [alone(item) for item in items()], items()
    found = ppo_stack.update(stacked)
    assert [bits(item.learner) for item in stacked] == [wanted for wanted, _ in expected]
    assert [repr(metrics) for metrics in found] == [repr(wanted) for _, wanted in expected]


def test_a_run_that_is_not_a_number_leaves_the_others_of_a_batch_alone() -> None:
    expected = [alone(due(run, CHOICE, 64, 10, 4, epochs=2))[0] for run in range(3)]
    items = [due(run, CHOICE, 64, 10, 4, epochs=2) for run in range(3)]
    items[1].learner.flat.data[:] = math.nan
    metrics = ppo_stack.update(items)
    assert metrics[1]["steps_non_finite"] == metrics[1]["steps_skipped"] == 4
    assert [bits(item.learner) for item in items][::2] == expected[::2]


@pytest.mark.parametrize("body", ["mlp", "lstm"])
def test_a_run_with_a_step_in_which_nothing_is_legal_leaves_its_stack_alone(body: str) -> None:
    common: dict[str, Any] = {"body": body, "epochs": 2}
    expected = [alone(due(run, HEADS, 16, 10, 4, **common)) for run in (0, 1, 2)]
    items = [due(run, HEADS, 16, 10, 4, **common) for run in (0, 1, 2)]
    items[1].rollout.masks["op"][3, 2] = False
    faults: dict[int, str] = {}

    @contextmanager
    def guard(index: int) -> Iterator[None]:
        try:
            yield
        except PolicyError as error:
            faults[index] = str(error)

    prepared = ppo_stack.prepare([Played(item.learner, item.rollout, 0, None) for item in items], guard)
    assert list(faults) == [1]
    assert "no legal choice" in faults[1]
    rest = [replace(items[index], prepared=prepared[index]) for index in (0, 2)]
    found = ppo_stack.update(rest)
    assert [bits(item.learner) for item in rest] == [expected[0][0], expected[2][0]]
    assert [repr(metrics) for metrics in found] == [repr(expected[0][1]), repr(expected[2][1])]


@pytest.mark.parametrize("changes", [{"clip": 0.1}, {"epochs": 3}, {"adv_norm": "rollout"}, {"value_clip": 0.1}])
def test_what_a_batched_loss_shares_makes_another_stack(changes: dict[str, Any]) -> None:
    base = {"adv_norm": "minibatch"}
    keys = [
        ppo_stack.key(make_learner(learner_config(**settings), CHOICE, 4, 4), 10) for settings in (base, base | changes)
    ]
    assert None not in keys
    assert keys[0] != keys[1]


@pytest.mark.parametrize("changes", [{"ratio": "per_head"}, {"prob_floor": {"action": 0.1}}, {"precision": "bf16"}])
def test_what_is_not_stacked_has_no_key(changes: dict[str, Any]) -> None:
    assert ppo_stack.key(make_learner(learner_config(**changes), CHOICE, 4, 4), 10) is None


@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (4, 8), (4, 64), (5, 16), (32, 64)])
def test_logits_and_values_of_a_stack_equal_those_of_each_network(rows: int, hidden: int) -> None:
    learners = [make_learner(learner_config(hidden=hidden), CHOICE, 5, 4, seed=seed) for seed in range(6)]
    first = learners[0].net
    assert isinstance(first, MLPNet)
    stack = StackedMLP(first, rows_of([learner.flat.data for learner in learners]))
    x = torch.from_numpy(np.random.default_rng(rows).standard_normal((6, rows, 5), dtype=np.float32))
    ids = torch.zeros(6, rows, 0, dtype=torch.int64)
    with torch.inference_mode():
        logits, values = stack.sequence(x, ids, (), ())
        for run, learner in enumerate(learners):
            own_logits, own_values = learner.net.sequence(x[run], ids[run], (), ())
            assert torch.equal(logits[run], own_logits)
            assert torch.equal(values[run], own_values)
            assert torch.equal(stack.step(x)[0][run], own_logits)


def test_the_gradient_of_a_stack_is_that_of_autograd_in_float64() -> None:
    heads = (*HEADS, HeadSpec("push", 2, bounds=((-1.0, 1.0), (-1.0, 1.0))))
    nets = [make_learner(learner_config(hidden=16), heads, 5, 4, seed=seed).net.double() for seed in range(3)]
    draw = torch.Generator().manual_seed(3)
    for net in nets:  # initial values of outputs are small and biases zero; one deviation lies beyond its bound
        for parameter in net.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw, dtype=torch.float64) / 4
        net.outputs.log_std["3"].data[0] = 3.0
    x = torch.randn(3, 32, 5, generator=draw, dtype=torch.float64)
    ids = torch.zeros(3, 32, 0, dtype=torch.int64)

    def loss_of(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return logits.softmax(-1).log().flatten(-3).sum(-1) + (values**3).sum(-1)

    def judge(logits: torch.Tensor, values: torch.Tensor) -> Slopes:
        with torch.enable_grad():
            leaves = logits.requires_grad_(), values.detach().requires_grad_()
            loss = loss_of(*leaves)
            return Slopes(loss, loss, *torch.autograd.grad(loss.sum(), leaves))

    expected = []
    for net, rows, none in zip(nets, x, ids, strict=True):
        loss = loss_of(*net.sequence(rows, none, (), ()))
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        expected.append(torch.cat([slope.flatten() for slope in slopes]))
    data = torch.stack([torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets])
    grad = torch.zeros_like(data)
    first = nets[0]
    assert isinstance(first, MLPNet)
    StackedMLP(first, data, grad).learn(x, judge)
    assert torch.allclose(grad, torch.stack(expected), rtol=1e-11, atol=1e-12)
    assert float(grad.abs().max()) > 1.0


def test_a_tangent_is_the_same_in_every_array_and_that_of_pytorch_to_rounding() -> None:
    draw = np.random.default_rng(0)
    numbers = np.concatenate([3 * draw.standard_normal(300), 0.01 * draw.standard_normal(60), [0.0, 20.0, math.inf]])
    x = torch.from_numpy(numbers.astype(np.float32))
    found = tanh(x)
    for first, step in ((1, 1), (5, 1), (0, 3), (7, 2)):
        assert torch.equal(tanh(x[first::step]), found[first::step])
    assert torch.equal(torch.cat([tanh(x[i : i + 1]) for i in range(len(x))]), found)
    assert torch.equal(tanh(x[:360].view(6, 5, 12)).flatten(), found[:360])
    assert float((found.double() - x.double().tanh()).abs().max()) < 2**-23
    assert bool(tanh(torch.tensor([math.nan])).isnan())
    wide = x[:60].double().requires_grad_()
    (slope,) = torch.autograd.grad(tanh(wide).sum(), wide)
    assert torch.allclose(slope, 1.0 - wide.detach().tanh() ** 2, rtol=1e-13, atol=1e-13)


def test_a_product_that_a_library_batches_in_another_order_is_not_batched() -> None:
    # one output each: a product with a vector alone, with a matrix in a batch; true of the library that is pinned
    assert exact_parts(4, 128, 64, 64) == {"forward", "x", "weight", "across", "bias"}
    assert exact_parts(4, 4, 4, 8) == frozenset()
    assert "forward" not in exact_parts(4, 128, 64, 1)


def test_the_derivative_by_the_weight_of_one_output_is_one_product_for_all_runs() -> None:
    assert "weight" in exact_parts(4, 128, 64, 1)


@pytest.mark.parametrize("shape", [(4, 4, 4), (128, 4, 64), (128, 64, 64), (7, 64, 2), (128, 64, 1), (5, 3, 1)])
@pytest.mark.parametrize("num_runs", [2, 20])
def test_a_layer_of_several_runs_and_its_derivatives_are_those_of_each_alone(
    num_runs: int, shape: tuple[int, int, int]
) -> None:
    rows, inputs, outputs = shape
    draw = torch.Generator().manual_seed(7)
    shapes = ((num_runs, rows, inputs), (num_runs, outputs, inputs), (num_runs, outputs))
    parts = [torch.randn(*size, generator=draw).requires_grad_() for size in shapes]
    slope = torch.randn(num_runs, rows, outputs, generator=draw)
    x, weight, bias = parts
    together = affine(x, (weight, bias))
    found = [together, *torch.autograd.grad(together, parts, slope)]
    with torch.no_grad():
        assert torch.equal(affine(x, (weight, bias)), together)
    for run in range(num_runs):
        own = [part[run].detach().clone().requires_grad_() for part in parts]
        alone = torch.nn.functional.linear(*own)
        expected = [alone, *torch.autograd.grad(alone, own, slope[run].clone())]
        assert all(torch.equal(a[run], b) for a, b in zip(found, expected, strict=True))
