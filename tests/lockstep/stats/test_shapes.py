"""How far skewness pushes the level of a test of means, and when a report says so."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.report import build_report, render_markdown
from lockstep.stats.registered import Design
from lockstep.stats.scores import FlooredArm
from lockstep.stats.shapes import skewness, true_level
from tests.lockstep.report.factories import Cell, make_analysis, make_inputs

#: A long lower tail, of which most runs show nothing.
TAIL = np.array([60.0, 60.4, 60.8, 61.1, 61.5, 61.9, 62.2, 62.6, 55.0, 41.0])
NARROW = np.array([58.0, 58.1, 57.9, 58.2, 58.0, 57.8, 58.1, 57.9, 58.0, 58.1])


def floored(label: str, values: np.ndarray) -> FlooredArm:
    return FlooredArm(label, values, values, np.arange(values.size))


def test_skewness_is_that_of_a_known_sample_and_missing_without_spread() -> None:
    assert skewness(np.array([1.0, 2.0, 3.0, 10.0])) == pytest.approx(1.763632614803888)
    assert skewness(np.full(5, 2.0)) is None
    assert skewness(np.array([1.0, 2.0])) is None


def test_exchangeable_arms_are_tested_at_their_level_and_skewed_differences_above_it() -> None:
    rng = np.random.default_rng(0)
    design = Design(estimand="mean", sesoi=1.0, floor=0.0)
    plain = true_level(floored("a", rng.normal(size=10)), floored("b", rng.normal(size=10)), design, 0.05)
    assert plain is not None
    assert plain.simulated == pytest.approx(0.05, abs=0.012)
    assert not plain.is_off
    for paired in (True, False):
        pairing = Design(paired=paired, estimand="mean", sesoi=1.0, floor=0.0)
        skewed = true_level(floored("a", TAIL), floored("b", NARROW), pairing, 0.05)
        assert skewed is not None
        assert skewed.is_off
        assert skewed.skewness[0] < -1.5


def test_only_a_test_of_means_has_a_level_that_hangs_on_the_shape() -> None:
    arms = floored("a", TAIL), floored("b", NARROW)
    for design in (Design(estimand="shift"), Design(estimand="mean", mode="anytime")):
        assert true_level(*arms, design, 0.05) is None
    assert true_level(arms[1], arms[1], Design(estimand="mean"), 0.05) is None


def test_a_report_quotes_the_level_beside_a_claim_that_rests_on_skewed_scores() -> None:
    shifted: list[Cell] = [float(v) + 9.0 for v in TAIL]
    scores: dict[str, list[Cell]] = {"tail": shifted, "narrow": [float(v) for v in NARROW]}
    report = build_report(make_inputs(scores, make_analysis(10)))
    assert report["verdict"]["winner"] == "tail"
    assert "SKEWED" in report["verdict"]["flags"]
    text = render_markdown(report)
    assert "In simulation, scores with the skewness that was seen (-2." in text
    assert "instead of 5 %." in text
    even: dict[str, list[Cell]] = {"a": [60.0 + i for i in range(10)], "b": [50.0 + i + i % 2 for i in range(10)]}
    calm = build_report(make_inputs(even, make_analysis(10)))
    assert calm["verdict"]["winner"] == "a"
    assert "SKEWED" not in calm["verdict"]["flags"]
    assert "In simulation" not in calm["methods_sentence"]
