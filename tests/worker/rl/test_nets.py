"""Networks: initialisation, step = sequence, resets, isolation of rows (training.md 1.14, 8.3)."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
import torch

from lockstep.keys import generator
from lockstep.spec.sections import Net
from tests.worker.rl.cases import HEADS, build_heads, learner_config, make_learner
from worker.rl.initial import orthogonal
from worker.rl.learner import Learner
from worker.rl.nets import InputLayout, LSTMNet, PolicyNet, build_net, flatten, strayed

T, E, O = 12, 5, 3  # noqa: E741 - axis letters


def net_of(body: str, hidden: int = 16, lstm_hidden: int = 16, ids: int = 0) -> PolicyNet:
    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return generator(5, "policy_init", parameter=name).standard_normal(shape)

    layout = InputLayout(O, ids, 13 if ids else 0, 4)
    cfg = Net.model_validate({"body": body, "hidden": hidden, "lstm_hidden": lstm_hidden})
    return build_net(cfg, layout, build_heads(), draw, value_gain=1.0)


def inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((T, E, O)).astype(np.float32)), torch.zeros(T, E, 0, dtype=torch.int64)


@pytest.mark.parametrize(("hidden", "lstm_hidden"), [(16, 16), (16, 24)])
def test_lstm_steps_equal_the_sequence_with_resets(hidden: int, lstm_hidden: int) -> None:
    net = net_of("lstm", hidden, lstm_hidden)
    features, ids = inputs()
    rng = np.random.default_rng(1)
    ended = torch.from_numpy(rng.random((T, E)) < 0.3)
    resets = [(t + 1, (~ended[t]).float()) for t in range(T - 1) if ended[t].any()]
    with torch.no_grad():
        logits, values = net.sequence(features, ids, net.initial_state(E), resets)
        state = net.initial_state(E)
        for t in range(T):
            one_value = net.step_values(features[t], ids[t], state)
            one, state = net.step(features[t], ids[t], state)
            torch.testing.assert_close(one, logits[t], atol=1e-5, rtol=0)
            torch.testing.assert_close(one_value, values[t], atol=1e-5, rtol=0)
            keep = (~ended[t]).float().view(1, -1, 1)
            state = (state[0] * keep, state[1] * keep)


def test_lstm_output_after_an_episode_end_ignores_the_episode_before() -> None:
    net = net_of("lstm")
    features, ids = inputs()
    keep = torch.ones(E)
    keep[2] = 0.0
    changed = features.clone()
    changed[:4, 2] += 3.0
    with torch.no_grad():
        a, _ = net.sequence(features, ids, net.initial_state(E), [(4, keep)])
        b, _ = net.sequence(changed, ids, net.initial_state(E), [(4, keep)])
    assert torch.equal(a[4:], b[4:])
    assert not torch.equal(a[:4, 2], b[:4, 2])


def test_rows_do_not_see_each_other() -> None:
    for body in ("mlp", "lstm"):
        net = net_of(body)
        features, ids = inputs()
        changed = features.clone()
        changed[:, 1] = 9.0
        with torch.no_grad():
            a, va = net.sequence(features, ids, net.initial_state(E), [])
            b, vb = net.sequence(changed, ids, net.initial_state(E), [])
        rest = [0, 2, 3, 4]
        assert torch.equal(a[:, rest], b[:, rest])
        assert torch.equal(va[:, rest], vb[:, rest])


def test_initial_weights_are_orthogonal_with_the_stated_gains() -> None:
    net = net_of("lstm", 32, 32)
    assert isinstance(net, LSTMNet)
    parameters = dict(net.named_parameters())
    for name, gain in (
        ("towers.weight", 2**0.5),
        ("outputs.layers.0.weight", 0.01),
        ("value_out.weight", 1.0),
    ):
        w = parameters[name].detach()
        small = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        torch.testing.assert_close(small, gain**2 * torch.eye(len(small)), atol=1e-5, rtol=0)
    bias = parameters["lstm.bias_ih_l0"].detach() + parameters["lstm.bias_hh_l0"].detach()
    assert bias.view(4, 32).sum(1).tolist() == [0.0, 32.0, 0.0, 0.0]
    assert float(parameters["body.bias"].detach().abs().sum()) == 0.0


def test_orthogonal_of_a_wide_matrix_has_orthonormal_rows() -> None:
    w = orthogonal(np.random.default_rng(0).standard_normal((3, 7)), 2.0)
    torch.testing.assert_close(w @ w.T, 4.0 * torch.eye(3), atol=1e-5, rtol=0)


def test_ids_enter_by_their_embedding_and_none_is_a_row_of_its_own() -> None:
    net = net_of("mlp", ids=2)
    features = torch.zeros(1, O)
    with torch.no_grad():
        outs = [net.step(features, torch.tensor([[i, -1]]), ())[0] for i in (-1, 0, 12)]
    assert not torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[1], outs[2])


def test_parameters_are_views_of_one_vector() -> None:
    net = net_of("mlp")
    before = [p.detach().clone() for p in net.parameters()]
    flat = flatten(net, torch.device("cpu"))
    assert flat.data.numel() == sum(p.numel() for p in before)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    with torch.no_grad():
        flat.data.zero_()
    assert all(float(p.detach().abs().sum()) == 0.0 for p in net.parameters())


def test_no_network_lays_its_parameters_elsewhere_than_the_optimiser_writes() -> None:
    for body in ("mlp", "lstm"):
        net = net_of(body)
        flat = flatten(net, torch.device("cpu"))
        assert strayed(net, flat) == []
    # PyTorch calls this at the first forward on a GPU, and its own moves the parameters there
    assert isinstance(net, LSTMNet)
    assert type(net.lstm).flatten_parameters is not torch.nn.LSTM.flatten_parameters
    moved = dict(net.named_parameters())["lstm.weight_hh_l0"]
    moved.data = moved.data.clone()
    assert strayed(net, flat) == ["lstm.weight_hh_l0"]


def test_same_key_gives_same_weights_and_shapes_that_agree_are_shared() -> None:
    small = make_learner(learner_config("mlp", 16), HEADS, O, E)
    again = make_learner(learner_config("mlp", 16), HEADS, O, E)
    other = make_learner(learner_config("mlp", 16), HEADS[:1], O, E)
    assert torch.equal(small.flat.data, again.flat.data)
    ours, theirs = dict(small.net.named_parameters()), dict(other.net.named_parameters())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if ours[name].shape == theirs[name].shape)
    assert not torch.equal(small.flat.data, make_learner(learner_config("mlp", 16), HEADS, O, E, seed=8).flat.data)


@pytest.mark.parametrize("body", ["mlp", "lstm"])
def test_a_learner_takes_over_the_first_values_of_one_alike_and_nothing_else(body: str) -> None:
    alike: dict[Hashable, Learner] = {}
    base = learner_config(body)
    first = make_learner(base, HEADS, O, E, alike=alike)
    second = make_learner(base, HEADS, O, E, alike=alike)
    assert torch.equal(second.flat.data, first.flat.data)
    second.flat.data.add_(1.0)
    assert torch.equal(first.flat.data, make_learner(base, HEADS, O, E).flat.data)
    others = [
        (learner_config(body, return_norm="popart"), 7),
        (learner_config(body, hidden=24), 7),
        (base, 8),
    ]
    for config, seed in others:
        found = make_learner(config, HEADS, O, E, seed, alike)
        assert torch.equal(found.flat.data, make_learner(config, HEADS, O, E, seed).flat.data)
    assert len(alike) == 1 + len(others)
