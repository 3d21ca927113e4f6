"""Detectors: injected trouble raises its own, controls and healthy runs raise none (training.md 7.4)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from worker.rl.algorithms import ALGORITHMS
from worker.train.anomalies import Detectors

HEALTHY: dict[str, float] = {
    "ppo/policy_loss": -0.01,
    "ppo/value_loss": 0.3,
    "ppo/entropy_loss": -0.8,
    "ppo/approx_kl": 0.01,
    "ppo/grad_norm": 1.0,
    "ppo/ratio_max": 1.2,
    "ppo/ratio_min": 0.8,
    "ppo/value_nrmse": 0.6,
    "ppo/explained_variance": 0.5,
    "ppo/lstm_h_rms": 0.2,
    "policy/wait_unforced": 0.4,
    "policy/open_steps_op": 64.0,
    "policy/entropy_op": 0.7,
    "train/accuracy_mean": 50.0,
    "sys/env_steps_per_second": 100.0,
}


def run(changes: list[dict[str, float]], *, learns: bool = True, rounds: int = 40) -> list[list[dict[str, Any]]]:
    detectors = Detectors(rounds, ALGORITHMS["ppo"] if learns else None)
    return [detectors.observe(r, HEALTHY | change) for r, change in enumerate(changes)]


def raised(events: list[list[dict[str, Any]]]) -> dict[str, int]:
    """Detector to the round in which it was raised first."""
    found: dict[str, int] = {}
    for r, of_round in enumerate(events):
        for event in of_round:
            if event["type"] == "anomaly_raised":
                found.setdefault(event["detector"], r)
    return found


def test_a_healthy_run_raises_nothing() -> None:
    assert raised(run([{}] * 40)) == {}


@pytest.mark.parametrize(
    ("change", "detector", "first"),
    [
        ({"ppo/value_loss": math.nan}, "non_finite", 20),
        ({"ppo/ratio_max": 6.0}, "ratio_max", 20),
        ({"ppo/ratio_min": 0.05}, "ratio_min", 20),
        ({"ppo/approx_kl": 0.2}, "approx_kl", 22),
        ({"policy/entropy_op": 0.01}, "entropy_op", 22),
        ({"ppo/value_nrmse": 3.0}, "value_nrmse", 22),
        ({"ppo/explained_variance": -2.0}, "explained_variance", 22),
        ({"ppo/lstm_h_rms": 1e-9}, "lstm_rms_low", 22),
        ({"ppo/lstm_h_rms": 50.0}, "lstm_rms_high", 22),
        ({"policy/wait_unforced": 0.95}, "wait_share", 22),
        ({"train/accuracy_mean": 20.0}, "accuracy_drop", 22),
        ({"sys/env_steps_per_second": 20.0}, "throughput_drop", 22),
        ({"ppo/grad_norm": 50.0}, "grad_norm_drift", 22),
    ],
)
def test_trouble_raises_its_own_detector_after_its_streak(change: dict[str, float], detector: str, first: int) -> None:
    assert raised(run([{}] * 20 + [change] * 10)) == {detector: first}


def test_controls_and_heads_without_data_are_not_applicable() -> None:
    bad = {"ppo/approx_kl": 9.0, "policy/entropy_op": 0.0, "policy/wait_unforced": 1.0}
    assert raised(run([bad] * 10, learns=False)) == {}
    assert raised(run([{"policy/entropy_op": 0.0, "policy/open_steps_op": 31.0}] * 10)) == {}
    assert raised(run([{"ppo/value_nrmse": math.nan, "ppo/explained_variance": math.nan}] * 20)) == {}


def test_two_bad_rounds_are_not_three_and_clearing_needs_a_margin() -> None:
    events = run([{"ppo/approx_kl": 0.2}] * 2 + [{}] + [{"ppo/approx_kl": 0.2}] * 3 + [{"ppo/approx_kl": 0.08}, {}])
    assert raised(events) == {"approx_kl": 5}
    assert [e["type"] for e in events[7]] == ["anomaly_cleared"]
    assert events[6] == []


def test_state_survives_a_round_trip() -> None:
    first = Detectors(40, ALGORITHMS["ppo"])
    for r in range(2):
        first.observe(r, HEALTHY | {"ppo/approx_kl": 0.2})
    second = Detectors(40, ALGORITHMS["ppo"])
    second.load_state_dict(first.state_dict())
    [event] = second.observe(2, HEALTHY | {"ppo/approx_kl": 0.2})
    assert event["detector"] == "approx_kl"
    assert event["rounds"] == 3
