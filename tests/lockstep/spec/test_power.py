"""What the plan says about power: the registered rule, simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lockstep.spec.inference.analysis import AnalysisSpec, analysis_hash, complete_analysis
from lockstep.spec.inference.power import PowerRow, power_table


def rows(replicates: int, num_arms: int = 2, pilot: Any = None, sds: Any = None, **fields: Any) -> tuple[PowerRow, ...]:
    raw = {"sesoi": 2.0, "failure": {"floor": 0.0}} | fields
    spec = AnalysisSpec.model_validate(raw)
    full = complete_analysis(spec, kind="ab", replicates=replicates, env_kind="morphogenesis")
    return power_table(full, num_arms, sds, pilot)


def test_power_falls_with_the_sd_and_the_effect_that_is_found_grows() -> None:
    found = rows(10)
    assert [row.sd for row in found] == [1.0, 2.0, 4.0]
    powers = [row.power or 0.0 for row in found]
    assert powers == sorted(powers, reverse=True)
    assert powers[1] == pytest.approx(0.80, abs=0.03)
    effects = [row.minimum_detectable or 0.0 for row in found]
    assert effects[1] / effects[0] == pytest.approx(2.0, rel=0.1)
    # a guessed SD has its curve too: from the error rate up, and through the power that is told
    assert all([point.effect for point in row.curve] == [0.0, 2.0, 3.0, 4.0] for row in found)
    assert all(row.curve[0].power < 0.05 < row.curve[1].power <= row.curve[3].power for row in found)
    assert [row.curve[1].power for row in found] == powers
    sizes = [row.needed.plugin or 0 for row in found if row.needed is not None]
    assert sizes == [6, pytest.approx(10, abs=1), pytest.approx(34, abs=3)]


def test_a_design_that_can_never_reject_has_no_power() -> None:
    found = rows(1, sds=[1.0])[0]
    assert (found.power, found.minimum_detectable, found.needed) == (None, None, None)
    assert rows(10, estimand="p_superiority", paired=False, sesoi=0.2) == ()


def test_the_same_question_gives_the_same_numbers() -> None:
    assert rows(9, sds=[2.0]) == rows(9, sds=[2.0])


def test_a_pilot_brings_its_own_spread_failures_and_correlation() -> None:
    rng = np.random.default_rng(0)
    shared, z = rng.normal(size=12) * 10, rng.normal(size=12)
    z = (z - z.mean()) / z.std(ddof=1)
    pilot = 60 + np.column_stack([shared + z, shared - z])
    calm = rows(10, pilot=pilot.tolist())[0]
    assert (calm.sd, calm.pilot_size) == (None, 12)
    # the SD of differences is 2, whatever the blocks share
    assert calm.power == pytest.approx(0.8, abs=0.1)
    assert [point.effect for point in calm.curve] == [0.0, 2.0, 3.0, 4.0]
    assert calm.curve[0].power < 0.05 < calm.curve[3].power
    assert calm.needed is not None
    assert (calm.needed.upper80 or 999) > (calm.needed.plugin or 0)
    pilot[[2, 7], 0] = np.nan
    fragile = rows(10, pilot=pilot.tolist())[0]
    assert (fragile.power or 0.0) < (calm.power or 0.0) - 0.3


def test_learned_is_planned_with_a_pilot_only() -> None:
    pilot = [[90.0, 88.0], [20.0, 91.0], [89.0, 20.0], [20.0, 22.0]] * 3
    fields: dict[str, Any] = {"estimand": "learned", "threshold": 50.0, "sesoi": 0.4}
    assert rows(20, **fields) == ()
    found = rows(20, pilot=pilot, **fields)[0]
    assert found.curve[0].power < 0.05 < 0.4 < found.curve[1].power


def test_a_pilot_does_not_change_the_hash_of_analyses_without_one() -> None:
    plain = AnalysisSpec(sesoi=1.0)
    assert "pilot" not in plain.model_dump(mode="json")
    piloted = AnalysisSpec.model_validate({"sesoi": 1.0, "pilot": {"experiment": "exp_1"}})
    assert analysis_hash(piloted) != analysis_hash(plain)
