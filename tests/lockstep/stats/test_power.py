"""The simulated rule finds what the registered pipeline finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.power import (
    _NAMES,
    Look,
    Plan,
    Scenario,
    _Effort,
    _judged,
    _pair_codes,
    _pairs,
    _searched,
    detectable,
    needed,
    outlook,
)
from lockstep.stats.registered import Design
from lockstep.stats.scores import arm_scores

MEAN = Design(estimand="mean", sesoi=1.0, floor=-100.0)


def plan(n: int, num_arms: int = 2, level: float = 0.05, **fields: Any) -> Plan:
    return Plan(replace(MEAN, **fields), num_arms, (Look(n, level),))


def simulated(found: Plan, effect: float, failure: float, repetitions: int) -> dict[str, float]:
    """Return the share of every verdict by the pipeline itself, experiment by experiment."""
    rng, n, codes = np.random.default_rng(5), found.looks[-1].n, []
    spread = 1 / np.sqrt(2) if found.design.paired else 1.0
    for _ in range(repetitions):
        values = spread * rng.standard_normal((found.num_arms, n))
        values[0] += effect
        failed = rng.random(values.shape) < failure
        arms = [
            arm_scores(f"arm{k}", [float(v) for v in row], ["failed" if f else "ok" for f in bad])
            for k, (row, bad) in enumerate(zip(values, failed, strict=True))
        ]
        codes.append(analyse_with_sensitivity(arms, found.design)[0].verdict)
    return {code: codes.count(code) / repetitions for code in codes}


@pytest.mark.long
@pytest.mark.parametrize(
    ("found", "effect", "failure"),
    [
        (plan(9), 1.0, 0.0),
        (plan(7, 3, sesoi=0.5, adjust="holm"), 1.5, 0.0),
        (plan(12, paired=False, estimand="shift"), 1.0, 0.0),
        (plan(5, paired=False), 0.0, 0.0),
        (plan(10, estimand="shift", sesoi=3.0), 2.5, 0.1),
    ],
    ids=["mean", "three arms", "unpaired shift", "unpaired mean, no effect", "failures"],
)
def test_verdicts_come_as_often_as_from_the_pipeline(found: Plan, effect: float, failure: float) -> None:
    repetitions = 300
    theirs = simulated(found, effect, failure, repetitions)
    ours = dict(outlook(found, Scenario(1.0, failure=failure), effect).verdicts)
    for code in {*ours, *theirs} - {"TIE_AT_TOP", "INCONCLUSIVE"}:
        assert ours.get(code, 0.0) == pytest.approx(theirs.get(code, 0.0), abs=0.08), code


@pytest.mark.long
@pytest.mark.parametrize(
    ("found", "effect", "failure"),
    [
        (plan(10, 4, comparisons="all_pairs", adjust="holm"), 1.5, 0.0),
        (plan(10, 3, comparisons="vs_control", control="arm0"), 1.2, 0.1),
        (plan(9, 3, estimand="shift"), 1.0, 0.1),
        (plan(5, 3, paired=False), 2.0, 0.0),
        (plan(10, 3, mode="anytime", e_value="sign"), 1.5, 0.0),
    ],
    ids=["Holm", "control, failures", "shift, failures", "unpaired mean", "anytime"],
)
def test_every_single_experiment_gets_the_verdicts_of_the_pipeline(found: Plan, effect: float, failure: float) -> None:
    rng, n = np.random.default_rng(3), found.looks[0].n
    values = rng.standard_normal((24, found.num_arms, n))
    values[:, 1] += effect
    scores = np.where(rng.random(values.shape) < failure, -np.inf, values)
    pairs = _pairs(found)
    codes, signs = _pair_codes(scores, found.design, pairs, _Effort(399))
    for rows, own, ways in zip(scores, codes, signs, strict=True):
        arms = [
            arm_scores(f"arm{k}", [float(v) for v in row], ["failed" if v == -np.inf else "ok" for v in row])
            for k, row in enumerate(rows)
        ]
        by_pair = {(p.a.label, p.b.label): p.verdict for p in analyse_with_sensitivity(arms, found.design)[0].pairs}
        theirs = [by_pair[f"arm{i}", f"arm{j}"] for i, j in pairs]
        assert [_NAMES[code] for code in own] == [v.code.replace("NO_INFERENCE", "INCONCLUSIVE") for v in theirs]
        assert ways.tolist() == [v.better for v in theirs]


def test_row_7_failures_in_both_arms_are_counted_as_the_rule_counts_them() -> None:
    found = plan(30, estimand="shift", sesoi=2.0, floor=0.0)
    scenario = Scenario(float(np.sqrt(2)), failure=0.1, location=60.0)
    assert outlook(found, scenario, 2.0).power == pytest.approx(0.88, abs=0.05)
    wanted = needed(found, scenario).plugin
    assert wanted is not None
    assert 15 <= wanted <= 35


def test_row_8_many_arms_looks_and_corrections_cost_power() -> None:
    assert outlook(plan(10), Scenario(1.0), 1.0).power == pytest.approx(0.80, abs=0.03)
    # eight arms at the size that finds the effect between two
    assert outlook(plan(10, 8), Scenario(1.0), 1.0).power == pytest.approx(0.44, abs=0.05)
    assert 0.36 < outlook(plan(10, mode="anytime"), Scenario(1.0), 1.0).power < 0.50
    assert outlook(plan(10, 4, comparisons="all_pairs"), Scenario(1.0), 1.0).power == pytest.approx(0.5, abs=0.08)


def test_looks_stop_early_where_the_effect_is_large() -> None:
    looks = Plan(MEAN, 2, (Look(7, 0.0221), Look(14, 0.0221), Look(20, 0.0221)))
    large, none = outlook(looks, Scenario(1.0), 2.5), outlook(looks, Scenario(3.0), 0.0)
    assert large.blocks < 8
    assert none.blocks > 19
    assert none.power < 0.05


def test_planning_takes_the_weaker_of_what_both_floors_allow() -> None:
    found = plan(7, estimand="shift", sesoi=5.0, floor=0.0)
    failed = [-np.inf] * 6
    scores = np.array([[[50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 40.0], [*failed, 41.0]]])
    codes, _ = _pair_codes(scores, found.design, _pairs(found), _Effort(399))
    # far more than 5 above the floor, but not above the worst score seen
    assert [_NAMES[code] for code in codes[0]] == ["WINNER"]


def test_what_a_look_settled_stands_in_planning_too() -> None:
    family = replace(MEAN, comparisons="vs_control", control="arm0", adjust="holm", sesoi=0.1)
    looks = Plan(family, 3, (Look(8, 0.03), Look(16, 0.03)))
    steps = np.arange(16) % 4 / 10
    # better at the first look and far behind in the end; the other treatment stays open
    ahead = np.where(np.arange(16) < 8, 2.0, -9.0) + steps
    arms = np.stack([steps * 0, ahead, np.where(np.arange(16) % 2, 1.0, -1.0) + steps])[None]
    judged, blocks = _judged(arms, looks, _pairs(looks), _Effort(399))
    assert judged.hit.tolist() == [True]
    assert blocks.tolist() == [16.0]


def test_the_smallest_effect_found_is_found_with_the_wanted_power() -> None:
    found = plan(12)
    least = detectable(found, Scenario(1.0))
    assert least is not None
    assert outlook(found, Scenario(1.0), least).power == pytest.approx(0.8, abs=0.05)


def test_no_number_is_proposed_where_none_would_do() -> None:
    assert needed(plan(10, sesoi=0.01), Scenario(1.0)).plugin is None


@pytest.mark.parametrize("fields", [{}, {"comparisons": "vs_control", "control": "arm0"}, {"comparisons": "all_pairs"}])
def test_a_search_counts_the_power_of_the_whole_rule(fields: dict[str, Any]) -> None:
    found, scenario = plan(9, 4, adjust="holm", **fields), Scenario(1.0, failure=0.05)
    assert _searched(found, scenario, 1.4, 0) == outlook(found, scenario, 1.4, 0, 300, 199).power > 0.2
