"""GAE against hand numbers and a plain loop (training.md 8.1)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from worker.rl.algorithms.gae import gae

DISCOUNT = (0.99, 0.95)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(n: int, *on: int) -> Tensor:
    result = torch.zeros(n, 1, dtype=torch.bool)
    result[list(on)] = True
    return result


def run(rewards: Tensor, values: Tensor, after: Tensor, terminated: Tensor, truncated: Tensor) -> list[float]:
    advantages, _ = gae(rewards, values, after, terminated, truncated, DISCOUNT)
    return [float(a) for a in advantages[:, 0]]


@pytest.mark.parametrize(
    ("terminated", "truncated", "next_at_1", "expected"),
    [
        ((), (), 1.5, [6.90534257, 5.75794, 3.48]),
        ((), (1,), 4.0, [6.15488, 4.96, 3.48]),
        ((1,), (), 1.5, [2.4305, 1.0, 3.48]),
    ],
)
def test_gae_of_three_steps_matches_hand_numbers(
    terminated: tuple[int, ...], truncated: tuple[int, ...], next_at_1: float, expected: list[float]
) -> None:
    got = run(
        column(1, 2, 3),
        column(0.5, 1, 1.5),
        column(1, next_at_1, 2),
        flags(3, *terminated),
        flags(3, *truncated),
    )
    assert got == pytest.approx(expected, abs=1e-6)


def test_gae_of_a_terminated_first_step_does_not_see_the_second() -> None:
    advantages, returns = gae(column(1, 2), column(0.5, 1), column(1, 3), flags(2, 0), flags(2), DISCOUNT)
    assert advantages[:, 0].tolist() == pytest.approx([0.5, 3.97], abs=1e-6)
    assert returns[:, 0].tolist() == pytest.approx([1.0, 4.97], abs=1e-6)


def test_gae_scan_equals_a_loop_over_random_data() -> None:
    rng = np.random.default_rng(3)
    T, E = 40, 6
    r, v, nv = (torch.from_numpy(rng.standard_normal((T, E))) for _ in range(3))
    term, trunc = (torch.from_numpy(rng.random((T, E)) < 0.1) for _ in range(2))
    trunc &= ~term
    advantages, _ = gae(r, v, nv, term, trunc, DISCOUNT)
    for e in range(E):
        running = 0.0
        for t in reversed(range(T)):
            alive = 0.0 if term[t, e] else 1.0
            goes_on = 0.0 if term[t, e] or trunc[t, e] else 1.0
            delta = float(r[t, e]) + 0.99 * alive * float(nv[t, e]) - float(v[t, e])
            running = delta + 0.99 * 0.95 * goes_on * running
            assert abs(running - float(advantages[t, e])) < 1e-12
