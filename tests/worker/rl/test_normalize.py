"""Running statistics: exact, frozen between updates, PopArt exact (training.md 1.15)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from worker.rl.normalise import ObsNormalizer, PopArt, RewardScaler

CONTINUOUS = torch.tensor([True, True, False])
SENTINEL = torch.tensor([False, True, False])


def test_observation_statistics_equal_those_of_all_samples_at_once() -> None:
    rng = np.random.default_rng(0)
    samples = torch.from_numpy(rng.normal(5, 3, (300, 3)).astype(np.float32))
    samples[::7, 1] = -1.0
    norm = ObsNormalizer(CONTINUOUS, SENTINEL, 10.0)
    for part in (samples[i : i + 70] for i in range(0, 300, 70)):
        norm.update(part, torch.ones(len(part), dtype=torch.bool))
    plain = samples[:, 0].double()
    known = samples[samples[:, 1] != -1, 1].double()
    out = norm(samples)
    assert out[:, 0].numpy() == pytest.approx(
        ((plain - plain.mean()) / (plain.var(correction=0) + 1e-4).sqrt()).numpy(), abs=1e-4
    )
    assert float(norm.mean[1]) == pytest.approx(float(known.mean()), abs=1e-9)
    assert bool((out[::7, 1] == -1).all())
    assert bool((out[:, 2] == samples[:, 2]).all())


def test_invalid_rows_do_not_count_and_nothing_seen_passes_through() -> None:
    norm = ObsNormalizer(CONTINUOUS, SENTINEL, 10.0)
    x = torch.full((4, 3), 3.0)
    norm.update(x, torch.zeros(4, dtype=torch.bool))
    assert bool((norm(x) == x).all())


def test_normalised_values_are_clipped() -> None:
    norm = ObsNormalizer(CONTINUOUS, SENTINEL, 2.0)
    norm.update(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.ones(50) > 0)
    far = norm(torch.full((1, 3), 1e6))
    assert far[0].tolist() == [2.0, 2.0, 1e6]
    assert float(norm.clipped_share(far)) == pytest.approx(1.0)


def linear(inputs: int, seed: int) -> nn.Linear:
    layer = nn.Linear(inputs, 1, device="meta").to_empty(device="cpu")
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.normal_(generator=draws)
        layer.bias.normal_(generator=draws)
    return layer


def test_popart_update_leaves_outputs_unchanged() -> None:
    rng = torch.Generator().manual_seed(1)
    layer = linear(8, 0)
    x = torch.randn(16, 8, generator=rng)
    popart = PopArt()
    popart.update(torch.randn(64, generator=rng) * 3 + 5, layer)
    before = popart.denormalise(layer(x))
    popart.update(torch.randn(64, generator=rng) * 30 - 40, layer)
    torch.testing.assert_close(popart.denormalise(layer(x)), before, atol=1e-5, rtol=1e-6)
    assert popart.std > 3


def test_first_popart_statistics_read_the_untrained_layer_in_new_units() -> None:
    layer = linear(4, 0)
    weight = layer.weight.clone()
    popart = PopArt()
    popart.update(torch.tensor([90.0, 110.0]), layer)
    assert (popart.mean, popart.std) == (100.0, 10.0)
    assert torch.equal(layer.weight, weight)


def test_popart_ignores_non_finite_returns() -> None:
    popart = PopArt()
    popart.update(torch.tensor([1.0, torch.inf]), linear(2, 0))
    assert (popart.mean, popart.std, popart.rounds) == (0.0, 1.0, 0)


def test_reward_scaler_brings_discounted_returns_to_unit_spread() -> None:
    scaler = RewardScaler(4, 0.9, torch.device("cpu"))
    rng = np.random.default_rng(2)
    rewards = torch.from_numpy(rng.normal(0, 50, (400, 4)).astype(np.float32))
    ended = torch.from_numpy(rng.random((400, 4)) < 0.05)
    scaled = scaler(rewards, ended, torch.ones(400, 4) > 0)
    back = torch.zeros(4)
    seen = []
    for t in range(400):
        back = back * 0.9 + scaled[t]
        seen.append(back.clone())
        back = torch.where(ended[t], 0.0, back)
    assert float(torch.stack(seen).std()) == pytest.approx(1.0, abs=0.05)


def test_statistics_survive_a_round_trip() -> None:
    norm = ObsNormalizer(CONTINUOUS, SENTINEL, 10.0)
    norm.update(torch.randn(20, 3, generator=torch.Generator().manual_seed(3)), torch.ones(20) > 0)
    other = ObsNormalizer(CONTINUOUS, SENTINEL, 10.0)
    other.load_state_dict(norm.state_dict())
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(4))
    assert torch.equal(norm(x), other(x))
