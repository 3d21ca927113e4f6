"""Levels of planned looks: tables, spending, and the error rate by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from lockstep.stats.sequential import (
    crossing_probability,
    equal_boundaries,
    is_equally_spaced,
    look_boundaries,
    look_levels,
    spending,
    spending_boundaries,
)


@pytest.mark.parametrize(
    ("kind", "constants"),
    [("pocock", (2.178, 2.289, 2.361, 2.413)), ("obf", (1.977, 2.004, 2.024, 2.040))],
)
def test_equal_boundaries_match_the_printed_tables(kind: str, constants: tuple[float, ...]) -> None:
    found = [equal_boundaries(kind, k, 0.05)[-1] for k in (2, 3, 4, 5)]
    assert found == pytest.approx(constants, abs=0.001)


@pytest.mark.parametrize(("kind", "at"), [("pocock", (7, 14, 20)), ("obf", (12, 24, 36)), ("obf", (10, 30))])
def test_look_boundaries_rectangle_probability_is_one_minus_alpha(kind: str, at: tuple[int, ...]) -> None:
    z = np.array(look_boundaries(at, kind, 0.05))
    if is_equally_spaced(at):
        at = tuple(range(1, len(at) + 1))
    t = np.array(at) / at[-1]
    covariance = np.sqrt(np.minimum.outer(t, t) / np.maximum.outer(t, t))
    inside = multivariate_normal(cov=covariance).cdf(z, lower_limit=-z, rng=np.random.default_rng(0))
    assert inside == pytest.approx(0.95, abs=2e-4)


def test_spending_boundaries_spend_alpha_exactly_at_the_end() -> None:
    fractions = (0.3, 0.9, 1.0)
    z = spending_boundaries("obf", fractions, 0.05)
    assert 2 * norm.sf(z[0]) == pytest.approx(spending("obf", 0.3, 0.05), abs=1e-9)
    assert crossing_probability(fractions, z) == pytest.approx(spending("obf", 1.0, 0.05), abs=1e-8)


def test_look_levels_simulated_error_stays_below_alpha() -> None:
    rng = np.random.default_rng(1)
    at = (7, 14, 20)
    levels = look_levels(at, "pocock", 0.05)
    paths = np.cumsum(rng.standard_normal((20_000, 20)), axis=1)
    crossed = np.zeros(len(paths), dtype=bool)
    for n, level in zip(at, levels, strict=True):
        crossed |= np.abs(paths[:, n - 1]) / np.sqrt(n) >= norm.isf(level / 2)
    assert crossed.mean() == pytest.approx(0.05, abs=0.006)


@pytest.mark.parametrize(
    ("at", "equal"), [((7, 14, 20), True), ((6, 12, 18), True), ((10, 30), False), ((7, 20), False), ((5, 10), True)]
)
def test_is_equally_spaced_allows_rounding_to_whole_blocks(at: tuple[int, ...], equal: bool) -> None:
    assert is_equally_spaced(at) is equal


def test_spending_and_boundaries_refuse_unknown_kinds() -> None:
    with pytest.raises(ValueError, match="pocock"):
        spending("linear", 0.5, 0.05)
    with pytest.raises(ValueError, match="looks"):
        equal_boundaries("obf", 6, 0.05)
