"""Verdicts that were computed right and were still wrong answers, each with the right one.

Every case was seen to give the wrong answer before its mend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lockstep.report import build_report, render_html, render_markdown
from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.registered import Design
from lockstep.stats.scores import ArmScores, arm_scores
from lockstep.stats.verdict import ExperimentResult
from tests.lockstep.report.factories import Cell, make_analysis, make_inputs

Scores = dict[str, list[Cell]]


def arms_of(scores: Scores) -> list[ArmScores]:
    return [
        arm_scores(
            label,
            [None if isinstance(v, str) else v for v in values],
            [v if isinstance(v, str) else "ok" for v in values],
        )
        for label, values in scores.items()
    ]


def analysed(scores: Scores, **fields: Any) -> ExperimentResult:
    return analyse_with_sensitivity(arms_of(scores), Design(**({"floor": 0.0, "sesoi": 2.0} | fields)))[0]


def reported(scores: Scores, **fields: Any) -> dict[str, Any]:
    blocks = max(len(values) for values in scores.values())
    return build_report(make_inputs(scores, make_analysis(blocks, **fields)))


SIXTIES: list[Cell] = [60.0 + i for i in range(10)]
NEAR: list[Cell] = [60.0 + i + (0.1 if i % 2 else -0.1) for i in range(10)]
TWENTY: list[Cell] = [50.0 + i for i in range(20)]
#: Row 1: equal but for one run that scores 5, or for three failures of twenty.
COLLAPSED: Scores = {"a": SIXTIES, "b": [*NEAR[:9], 5.0]}
THREE_FAILED: Scores = {"a": TWENTY, "b": [*(50.1 + i for i in range(17)), *["failed"] * 3]}
#: Row 2: better by three but for two runs that score 5.
TWO_COLLAPSED: Scores = {"a": TWENTY, "b": [*(53.0 + i + (0.3 if i % 2 else -0.3) for i in range(18)), 5.0, 5.0]}


@pytest.mark.parametrize("scores", [COLLAPSED, THREE_FAILED], ids=["one run at 5", "3 of 20 failed"])
def test_row_1_an_equivalence_that_the_mean_contradicts_is_flagged_and_the_default_does_not_claim_it(
    scores: Scores,
) -> None:
    shift = reported(scores, estimand="shift")["verdict"]
    assert (shift["code"], shift["promotable"]) in (("EQUIVALENT", False), ("INCONCLUSIVE", False))
    if shift["code"] == "EQUIVALENT":
        assert "ESTIMANDS_DISAGREE" in shift["flags"]
        assert "But the mean says otherwise: the mean of `a` minus that of `b` is +" in shift["sentence"]
    default = reported(scores)
    assert default["registration"]["analysis"]["estimand"] == "mean"
    assert default["verdict"]["code"] == "INCONCLUSIVE"


def test_row_1_one_collapsed_run_is_equivalent_under_the_shift_and_not_in_the_mean() -> None:
    report = reported(COLLAPSED, estimand="shift")
    assert report["verdict"]["code"] == "EQUIVALENT"
    assert "ESTIMANDS_DISAGREE" in report["verdict"]["flags"]
    quantities = report["quantities"][0]
    assert quantities["mean"]["estimate"] == pytest.approx(6.4, abs=0.1)
    assert abs(quantities["shift"]["estimate"]) < 0.2
    assert "What the other quantities say" in render_markdown(report)


def test_row_2_a_winner_whose_mean_is_lower_is_flagged_and_not_promotable() -> None:
    shift = reported(TWO_COLLAPSED, estimand="shift")["verdict"]
    assert (shift["code"], shift["winner"], shift["promotable"]) == ("WINNER_MEANINGFUL", "b", False)
    assert "ESTIMANDS_DISAGREE" in shift["flags"]
    assert "But the mean says otherwise: the mean of `a` minus that of `b` is +" in shift["sentence"]
    default = reported(TWO_COLLAPSED)["verdict"]
    assert (default["code"], default["winner"]) == ("INCONCLUSIVE", None)
    assert "BIMODAL" in default["flags"]


RNG = np.random.default_rng(3)
CONTROL: list[Cell] = [50.0 + i for i in range(9)]
T1: list[Cell] = [55.0 + 1.01 * i for i in range(9)]
T2: list[Cell] = [60.0, 53.0, 61.0, 56.0, 62.0, 59.0, 63.0, 62.0, 64.0]


def test_row_3_two_treatments_that_both_beat_the_control_are_both_named() -> None:
    scores = {"A": CONTROL, "t1": T1, "t2": T2}
    report = reported(scores, comparisons="vs_control", control="A", sesoi=1.0, estimand="shift")
    verdict = report["verdict"]
    assert (verdict["code"], verdict["treatments_better"]) == ("TREATMENTS_BETTER", ["t1", "t2"])
    assert verdict["sentence"].startswith("Against the control `A` on eval/accuracy: `t1` is better, +5.04 pp [")
    assert "`t2` is better, +" in verdict["sentence"]
    assert "more replicates" not in verdict["sentence"]
    assert [c["p_adj"] for c in report["comparisons"]] == [0.0078125, 0.0078125, None]
    # who was not compared carries no verdict
    assert [c["verdict"] is None for c in report["comparisons"]] == [False, False, True]
    pairs = reported(scores, comparisons="all_pairs", sesoi=1.0, estimand="shift")["verdict"]
    assert pairs["code"] == "TREATMENTS_BETTER"
    assert "`t1` against `A` is better" in pairs["sentence"]
    assert "`t1` against `t2` is not settled" in pairs["sentence"]


def test_row_4_an_arm_that_did_not_beat_another_is_never_said_to() -> None:
    scores: Scores = {
        "a": [10.0, 10.1, 10.2, 10.3, 10.4, 10.5],
        "b": [7.75, 10.6, 9.7, 9.8, 10.9, 11.0],
        "c": [8.0, 7.1, 9.2, 7.3, 7.4, 9.5],
    }
    for estimand in ("shift", "mean"):
        verdict = reported(scores, estimand=estimand, sesoi=2.0)["verdict"]
        assert "beat the rest" not in verdict["sentence"]
        if verdict["code"] == "TIE_AT_TOP":
            assert "`a` beats `c`. `b` was not shown to beat `c`." in verdict["sentence"]
    assert reported(scores, estimand="shift", sesoi=2.5)["verdict"]["code"] == "TIE_AT_TOP"


@pytest.mark.parametrize("estimand", ["mean", "shift"])
@pytest.mark.parametrize("paired", [True, False])
def test_row_5_an_arm_that_always_fails_loses_to_one_that_never_does(estimand: str, paired: bool) -> None:
    scores: Scores = {"fragile": ["failed"] * 10, "sound": [60.0 + i for i in range(10)]}
    verdict = reported(scores, estimand=estimand, paired=paired)["verdict"]
    assert verdict["code"] in ("WINNER", "WINNER_MEANINGFUL")
    assert (verdict["winner"], verdict["promotable"]) == ("sound", False)
    assert "DRIVEN_BY_FAILURES" in verdict["flags"]
    assert "more replicates" not in verdict["sentence"]


def test_row_5_where_the_metric_cannot_decide_the_failures_do_and_the_sentence_says_so() -> None:
    scores: Scores = {"fragile": ["failed"] * 5, "sound": [60.0 + i for i in range(5)]}
    verdict = reported(scores)["verdict"]
    assert (verdict["code"], verdict["winner"]) == ("WINNER", "sound")
    assert "all 5 replicates of `fragile` failed and none of the 5 of `sound`" in verdict["sentence"]
    assert "Fisher exact p = .0079" in verdict["sentence"]


SUCCESS: Scores = {
    "a": [100.0, 90.0, 90.0, 90.0, 80.0, 90.0, 100.0, 90.0, 80.0, 90.0],
    "b": [80.0, 70.0, 80.0, 80.0, 90.0, 80.0, 70.0, 80.0, 90.0, 70.0],
}


@pytest.mark.parametrize("estimand", ["shift", "mean"])
def test_row_6_few_distinct_scores_do_not_hide_what_the_exact_test_shows(estimand: str) -> None:
    verdict = reported(SUCCESS, estimand=estimand, paired=False)["verdict"]
    assert verdict["winner"] == "a"
    assert ("BOUND_AT_ZERO" in verdict["flags"]) == (estimand == "shift")
    if estimand == "shift":
        assert verdict["code"] == "WINNER"


@pytest.mark.parametrize("estimand", ["shift", "mean"])
def test_row_13_a_far_away_floor_does_not_set_the_scale_of_ties(estimand: str) -> None:
    rng = np.random.default_rng(1)
    a = [float(v) for v in 60 + rng.normal(size=12)]
    scores: Scores = {"a": [*a, "failed"], "b": [*(v + 3.3 + 0.01 * i for i, v in enumerate(a)), "failed"]}
    far = analysed(scores, estimand=estimand, floor=-1e10)
    near = analysed(scores, estimand=estimand, floor=0.0)
    assert far.winner == near.winner == "b"
    assert far.pairs[0].evidence.p == near.pairs[0].evidence.p
    assert far.pairs[0].evidence.estimate == pytest.approx(near.pairs[0].evidence.estimate, abs=1e-3)
    one = analysed({"a": [*a, "failed"], "b": [*(v + 3.3 for v in a), 60.0]}, estimand="shift", floor=-1e10)
    assert one.winner == "b"


def test_row_15_every_run_failed_is_not_identical_runs_in_green() -> None:
    verdict = reported({"a": ["failed"] * 6, "b": ["failed"] * 6})["verdict"]
    assert (verdict["code"], verdict["reason"]) == ("NO_INFERENCE", "ALL_FAILED")
    assert verdict["sentence"] == "Every run that was compared failed: there is no score to compare."


def test_row_15_one_replicate_against_five_is_not_one_per_arm() -> None:
    verdict = reported({"a": [1.0], "b": [1.0, 2.0, 3.0, 4.0, 5.0]}, paired=False, inference="full")["verdict"]
    assert verdict["reason"] == "ONE_REPLICATE"
    assert "per arm are needed: `a` has 1." in verdict["sentence"]
    assert "One replicate per arm" not in verdict["sentence"]


def test_row_15_rows_of_a_winner_table_carry_no_verdict_word() -> None:
    rng = np.random.default_rng(5)
    scores: Scores = {f"arm{k}": [float(v) for v in 60 + rng.normal(size=8)] for k in range(8)}
    report = reported(scores)
    assert {c["verdict"] for c in report["comparisons"]} == {None}
    page = render_html(report)
    assert "WINNER_MEANINGFUL" not in page


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("estimand", ["mean", "shift"])
def test_row_15_huge_scores_do_not_overflow(estimand: str, paired: bool) -> None:
    rng = np.random.default_rng(2)
    a = [float(v) * 1e298 for v in rng.random(10)]
    report = reported(
        {"a": [*a], "b": [2e298 + v for v in a]}, estimand=estimand, paired=paired, failure={"floor": 0.0}
    )
    assert report["verdict"]["winner"] == "b"
    assert "nan" not in render_html(report).lower()
