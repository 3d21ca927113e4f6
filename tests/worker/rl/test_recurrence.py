"""A step and a sequence with episode ends against ``torch.nn.LSTM`` step by step, in float64, gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from worker.rl.recurrence import CELL, Cell, Resets, over_episodes, through_layers

T, E, D, N, LAYERS = 64, 3, 5, 7, 2


def library() -> nn.LSTM:
    lstm = nn.LSTM(D, N, LAYERS).double()
    for parameter in lstm.parameters():
        parameter.data.copy_(0.3 * numbers(*parameter.shape))
    return lstm


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def resets_at(ends: dict[int, list[int]]) -> Resets:
    return [(t, torch.tensor([float(env not in envs) for env in range(E)]).double()) for t, envs in ends.items()]


def step_by_step(lstm: nn.LSTM, x: Tensor, state: tuple[Tensor, Tensor], resets: Resets) -> Tensor:
    kept, outputs = dict(resets), []
    for t, row in enumerate(x):
        if t in kept:
            state = state[0] * kept[t].view(1, -1, 1), state[1] * kept[t].view(1, -1, 1)
        out, state = lstm(row.unsqueeze(0), state)
        outputs.append(out)
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("ends", "calls"),
    [
        ({}, 1),
        ({60: [1]}, 2),
        ({21: [0, 1, 2], 42: [0, 1, 2]}, 1),
        ({16: [0], 17: [1, 2], 33: [0], 34: [1], 40: [2], 48: [0]}, 1),
    ],
    ids=["none", "cut", "equal rows", "padded rows"],
)
def test_a_sequence_with_episode_ends_is_that_of_single_steps(ends: dict[int, list[int]], calls: int) -> None:
    lstm, resets = library(), resets_at(ends)
    x, state = numbers(T, E, D).requires_grad_(), (numbers(LAYERS, E, N), numbers(2, E, N) + 1.0)
    called = 0

    def counted(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        nonlocal called
        called += 1
        out, after = lstm(x, state)
        return out, after

    found, expected = over_episodes(counted, x, state, resets), step_by_step(lstm, x, state, resets)
    assert called == calls
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    slope, of = numbers(T, E, N), [x, *lstm.parameters()]
    grads = zip(torch.autograd.grad(found, of, slope), torch.autograd.grad(expected, of, slope), strict=True)
    for got, wanted in grads:
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_a_step_of_several_runs_is_that_of_each_lstm() -> None:
    lstms = [library(), library()]
    for parameter in lstms[1].parameters():
        parameter.data.mul_(-0.5)
    x, hidden, memory = numbers(2, E, D), numbers(2, LAYERS, E, N), numbers(2, LAYERS, E, N) + 1.0
    parameters = [dict(lstm.named_parameters()) for lstm in lstms]
    cells = [
        Cell(*(torch.stack([own[f"{name}_l{layer}"] for own in parameters]) for name in CELL))
        for layer in range(LAYERS)
    ]
    with torch.no_grad():
        out, after = through_layers(x, cells, hidden, memory)
        for run, lstm in enumerate(lstms):
            wanted, state = lstm(x[run : run + 1], (hidden[run], memory[run]))
            torch.testing.assert_close(out[run], wanted[0], rtol=0, atol=1e-14)
            for got, own in zip(after, state, strict=True):
                torch.testing.assert_close(got[run], own, rtol=0, atol=1e-14)
