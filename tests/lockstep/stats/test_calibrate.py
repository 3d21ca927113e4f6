"""The pipeline keeps its error rate: re-randomisation and simulation (R = 200; full size by hand)."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.stats.calibrate import (
    Simulation,
    Target,
    attained_rate,
    binomial_band,
    by_device_slot,
    calibrate,
    rerandomised,
    standard_suite,
)
from lockstep.stats.registered import Design
from lockstep.stats.scores import ArmScores, arm_scores
from lockstep.stats.verdict import analyse


@pytest.mark.long
def test_standard_suite_every_mode_passes() -> None:
    found = standard_suite(200)
    assert len(found) == 10
    assert [c.name for c in found if not c.passed] == []


@pytest.mark.slow
def test_standard_suite_thousand_repetitions_pass() -> None:
    assert [c.name for c in standard_suite(1_000, seed=1) if not c.passed] == []


def test_calibration_notices_a_pipeline_that_counts_episodes_as_replicates() -> None:
    rng = np.random.default_rng(0)

    def draw(generator: np.random.Generator) -> list[ArmScores]:
        # the defect: five correlated episodes of two replicates enter as ten replicates
        arms = []
        for k in range(2):
            levels = np.repeat(generator.normal(size=2), 5) * 5
            arms.append(arm_scores(f"arm{k}", [float(v) for v in levels + generator.normal(size=10)], ["ok"] * 10))
        return arms

    design = Design(paired=False, sesoi=1.0, floor=-99.0)
    found = calibrate(draw, design, Target("defect", attained_rate(design, 10)), 200, rng)
    assert not found.passed
    assert found.rate > 0.3


@pytest.mark.parametrize(
    ("rate", "repetitions", "band"),
    [
        (0.0313, 1_000, (0.018, 0.046)),
        (0.0313, 10_000, (0.027, 0.036)),
        (0.0488, 1_000, (0.032, 0.067)),
        (0.0488, 10_000, (0.043, 0.055)),
    ],
)
def test_binomial_band_matches_the_specification(rate: float, repetitions: int, band: tuple[float, float]) -> None:
    assert binomial_band(rate, repetitions) == pytest.approx(band, abs=1e-3)


@pytest.mark.parametrize(
    ("design", "n", "rate"),
    [
        (Design(estimand="mean"), 6, 0.0313),
        (Design(estimand="shift"), 8, 0.0391),
        (Design(paired=False), 6, 0.0411),
        (Design(paired=False), 10, 0.0433),
    ],
)
def test_attained_rate_matches_the_specification(design: Design, n: int, rate: float) -> None:
    assert attained_rate(design, n) == pytest.approx(rate, abs=1e-4)


def test_rerandomised_needs_enough_replicates() -> None:
    with pytest.raises(ValueError, match="24 replicates"):
        rerandomised([0.0] * 20, ["ok"] * 20, 4)


def test_rerandomised_uses_each_replicate_at_most_once() -> None:
    draw = rerandomised([float(i) for i in range(21)], ["ok"] * 21, 2)
    arms = draw(np.random.default_rng(0))
    seen = np.concatenate([arm.values for arm in arms])
    assert [arm.values.size for arm in arms] == [10, 10]
    assert np.unique(seen).size == 20


def test_simulation_pairs_share_their_block_and_some_fail() -> None:
    arms = Simulation((0.0, 0.0), 4_000, rho=0.5, failure_rate=0.2).draw(np.random.default_rng(0))
    assert np.corrcoef(arms[0].values, arms[1].values)[0, 1] == pytest.approx(0.5, abs=0.06) or arms[0].failed.any()
    assert arms[0].failed.mean() == pytest.approx(0.2, abs=0.03)


def test_by_device_slot_a_device_that_shifts_scores_is_found() -> None:
    rng = np.random.default_rng(0)
    slots = [f"gpu{i % 2}" for i in range(16)]
    scores: list[float | None] = [float(rng.normal() + (4 if slot == "gpu1" else 0)) for slot in slots]
    arms = by_device_slot(scores, ["ok"] * 16, slots)
    assert [arm.label for arm in arms] == ["gpu0", "gpu1"]
    assert analyse(arms, Design(paired=False, sesoi=1.0, floor=-99.0)).winner == "gpu1"
