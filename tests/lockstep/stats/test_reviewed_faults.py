"""Verdicts that were computed right and were still wrong answers, each with the right one.

Every case was seen to give the wrong answer before its mend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.report import build_report, render_html, render_markdown, report_from_scores_csv, scores_csv
from lockstep.report.numbers import p_text, plain
from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.registered import Design
from lockstep.stats.scores import ArmScores, arm_scores
from lockstep.stats.verdict import ExperimentResult
from tests.lockstep.report.factories import Cell, curve_points, make_analysis, make_inputs, score_rows

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
        assert "But the mean says otherwise: the mean of `b` minus that of `a` is -" in shift["sentence"]
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
    assert "But the mean says otherwise: the mean of `b` minus that of `a` is -" in shift["sentence"]
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
    assert "`t2` against `t1` is not settled" in pairs["sentence"]


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


STEADY: list[Cell] = [60.0 + (i * 7) % 5 for i in range(20)]
AHEAD: list[Cell] = [65.0 + (i * 7) % 5 + 0.1 * (i % 3) for i in range(20)]


def cut_short(cancelled: bool) -> dict[str, Any]:
    """Return the report of 7 of 20 blocks, the rest cancelled by a user or never run."""
    scores: Scores = {"a": AHEAD[:7], "b": STEADY[:7]}
    if cancelled:
        scores = {label: [*values, *["lost"] * 13] for label, values in scores.items()}
    inputs = make_inputs(scores, make_analysis(20), planned_blocks=20, ended=True)
    rows = tuple(replace(row, cause="user") if row.status == "lost" else row for row in inputs.scores)
    return build_report(replace(inputs, scores=rows))


@pytest.mark.parametrize("cancelled", [True, False])
def test_row_9_an_experiment_cut_short_says_so_and_is_not_promoted(cancelled: bool) -> None:
    report = cut_short(cancelled)
    verdict = report["verdict"]
    assert (verdict["winner"], verdict["suffix"], verdict["promotable"]) == ("a", "@cancelled 7 of 20", False)
    assert "STOPPED_EARLY" in verdict["flags"]
    assert "was ended after 7 complete of 20 planned blocks. That was not planned" in report["methods_sentence"]
    again = report_from_scores_csv(scores_csv_of(cancelled), report["registration"])
    assert (again["verdict"]["suffix"], again["verdict"]["flags"]) == (verdict["suffix"], verdict["flags"])


def scores_csv_of(cancelled: bool) -> str:
    scores: Scores = {"a": AHEAD[:7], "b": STEADY[:7]}
    if cancelled:
        scores = {label: [*values, *["lost"] * 13] for label, values in scores.items()}
    return scores_csv(make_inputs(scores, make_analysis(20)))


TWO_LOOKS = {"mode": "planned", "at": [9, 18]}
EARLY: dict[str, Scores] = {
    "8 blocks": {"a": AHEAD[:8], "b": STEADY[:8]},
    "9 of which 2 lost": {"a": [*AHEAD[:7], "lost", 66.0], "b": [*STEADY[:8], "lost"]},
}


@pytest.mark.parametrize("name", EARLY)
@pytest.mark.parametrize("paired", [True, False])
def test_row_10_before_a_look_nothing_is_computed_from_the_scores(name: str, paired: bool) -> None:
    analysis = make_analysis(
        18, looks=TWO_LOOKS, paired=paired, bayes_panel=True, secondary=["eval/loss"], threshold=50.0
    )
    extra = score_rows(EARLY[name], "eval/loss")
    curves = curve_points({arm: [[50.0, 60.0]] * 8 for arm in "ab"}, [1, 2])
    report = build_report(make_inputs(EARLY[name], analysis, extra, planned_blocks=18, curves=curves))
    verdict = report["verdict"]
    assert (verdict["code"], verdict["reason"], verdict["leader"]) == ("NO_INFERENCE", "LOOK_NOT_REACHED", None)
    complete = 8 if name == "8 blocks" else 7
    assert verdict["sentence"].endswith(f"It is due after 9 complete blocks; {complete} are complete.")
    shown = [report[section] for section in ("comparisons", "quantities", "secondary", "guardrails")]
    shown += [report[section] for section in ("curve", "bayes", "sequential", "leave_one_out", "time_to_threshold")]
    shown += [report["table"], report["scores"], report["more"], report["sensitivity"], report["omnibus"]]
    assert {key for key, value in numbers_in(shown) if value is not None} <= QUIET
    assert [arm["low"] for arm in report["curves"]["arms"]] == [[None, None]] * 2
    for page in (render_html(report), render_markdown(report)):
        assert "WINNER" not in page.replace("WINNER_", "")
        assert "p = " not in page


#: Numbers of a registered plan, which say nothing about the scores.
QUIET = {"alpha_used", "n", "failed", "min_p", "failures", "fisher_p", "ci", "k", "look"}


def numbers_in(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number with the name of the field that holds it."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers_in(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from numbers_in(item, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


def test_row_10_the_next_look_waits_too_and_a_lost_block_counts_for_nothing() -> None:
    rng = np.random.default_rng(4)
    a, b = ([float(v) for v in 60 + rng.normal(size=17)] for _ in range(2))
    analysis = make_analysis(18, looks=TWO_LOOKS, sesoi=0.2)
    first = build_report(make_inputs({"a": a[:9], "b": b[:9]}, analysis, planned_blocks=18))
    between = build_report(make_inputs({"a": a, "b": b}, analysis, planned_blocks=18))
    assert first["verdict"]["code"] == "INCONCLUSIVE"
    assert between["comparisons"] == first["comparisons"]
    lost: Scores = {"a": ["lost", *a[:9]], "b": [50.0, *b[:9]]}
    later = build_report(make_inputs(lost, analysis, planned_blocks=18))
    assert later["comparisons"][0]["p"] == first["comparisons"][0]["p"]


def test_row_11_later_blocks_never_overwrite_a_winner() -> None:
    analysis = make_analysis(18, looks=TWO_LOOKS)
    look = build_report(make_inputs({"a": AHEAD[:9], "b": STEADY[:9]}, analysis, planned_blocks=18))
    turned: Scores = {"a": [*AHEAD[:9], *[0.0] * 9], "b": [*STEADY[:9], *[99.0] * 9]}
    later = build_report(make_inputs(turned, analysis))
    assert later["verdict"]["sentence"] == look["verdict"]["sentence"]
    assert later["comparisons"] == look["comparisons"]
    assert (later["verdict"]["code"], later["verdict"]["suffix"]) == (look["verdict"]["code"], "@look 1")
    assert later["overrun"]["blocks"] == list(range(9, 18))
    assert later["overrun"]["comparisons"][0]["pooled"] < 0
    assert "OVERRUN, not confirmatory: 9 blocks finished after the answer" in render_markdown(later)


def test_row_11_a_block_repeated_after_the_look_does_not_enter_it() -> None:
    analysis = make_analysis(18, looks=TWO_LOOKS)
    scores: Scores = {"a": [0.0, *AHEAD[:9]], "b": [99.0, *STEADY[:9]]}
    later = build_report(make_inputs(scores, analysis, looks_taken=(tuple(range(1, 10)),), planned_blocks=18))
    assert later["verdict"]["winner"] == "a"
    assert later["overrun"]["blocks"] == [0]


def test_row_11_a_comparison_settled_at_the_first_look_stands_while_the_others_go_on() -> None:
    rng = np.random.default_rng(8)
    control = [float(v) for v in 60 + rng.normal(size=18)]
    good = [v + 6 + 0.1 * i if i < 9 else v - 30 for i, v in enumerate(control)]
    open_ = [float(v) for v in control + rng.normal(size=18) * 3]
    analysis = make_analysis(18, looks=TWO_LOOKS, comparisons="vs_control", control="c", sesoi=0.5)
    report = build_report(make_inputs({"c": control, "good": good, "open": open_}, analysis))
    assert report["verdict"]["treatments_better"] == ["good"]
    assert [c["look"] for c in report["comparisons"]] == [1, 2, 2]
    assert "`good` against `c` was won at look 1 of 2 (n = 9): the median-unbiased" in report["verdict"]["sentence"]


def test_row_12_an_anytime_crossing_is_not_taken_back() -> None:
    a: list[Cell] = [61.0 + 0.1 * (i % 3) for i in range(8)]
    b: list[Cell] = [60.0 + 0.01 * i for i in range(8)]
    scores: Scores = {"a": [*a, *[40.0] * 4], "b": [*b, *[60.0] * 4]}
    looks = {"mode": "anytime", "e_value": "sign"}
    analysis = make_analysis(12, looks=looks, sesoi=0.1)
    report = build_report(make_inputs(scores, analysis))
    steps = report["sequential"]["e"]
    assert steps[7] >= 20 > 1 > steps[-1]
    comparison = report["comparisons"][0]
    assert report["verdict"]["winner"] == "a"
    assert comparison["p"] == pytest.approx(1 / max(steps))
    assert comparison["ci_superiority"][0] > 0
    assert "TEST_INTERVAL_DISAGREE" not in report["verdict"]["flags"]
    before = build_report(make_inputs({"a": a, "b": b}, make_analysis(8, looks=looks, sesoi=0.1)))
    standing, now = before["comparisons"][0]["ci_superiority"], comparison["ci_superiority"]
    assert standing[0] <= now[0] <= comparison["estimate"] <= now[1] <= standing[1]


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


def test_row_14_leave_one_out_repeats_the_registered_test_or_says_why_not() -> None:
    six: Scores = {"a": AHEAD[:6], "b": STEADY[:6]}
    left = reported(six)["leave_one_out"]
    assert (left["p_range"], left["flips"]) == (None, None)
    assert left["reason"] == "5 blocks cannot reach alpha = 0.05 with this test"
    assert "not shown: 5 blocks cannot reach alpha" in render_markdown(reported(six))
    rng = np.random.default_rng(1)
    a = [float(v) for v in 60 + rng.normal(size=9) + 1.2]
    b = [float(v) for v in 60 + rng.normal(size=9)]
    for estimand, name in (("mean", "sign-flip"), ("shift", "signed-rank"), ("learned", "paired sign")):
        fields = {"estimand": estimand, "threshold": 60.5, "sesoi": 0.5}
        report = reported({"a": [*a], "b": [*b]}, **fields)
        found = report["leave_one_out"]
        ps = [reported({"a": [*a[:i], *a[i + 1 :]], "b": [*b[:i], *b[i + 1 :]]}, **fields) for i in range(9)]
        assert found["test"] == report["comparisons"][0]["test"] == name
        assert found["p_full"] == report["comparisons"][0]["p"]
        assert found["p_range"] == [f(r["comparisons"][0]["p"] for r in ps) for f in (min, max)]


@pytest.mark.parametrize(
    ("p", "shown"), [(0.0496, "= .0496"), (0.0504, "= .0504"), (0.05, "= .05"), (0.0312, "= .031"), (0.4, "= .400")]
)
def test_row_15_a_p_near_alpha_is_not_rounded_across_it(p: float, shown: str) -> None:
    assert p_text(p) == shown


def test_row_15_numbers_of_one_size_have_the_same_digits() -> None:
    assert [plain(v) for v in (10.0, 9.999, 9.994, 0.9999)] == ["10.0", "10.0", "9.99", "1.00"]


def test_row_15_ranges_stay_within_the_metric_and_location_is_named_for_what_it_is() -> None:
    scores: Scores = {"a": [100.0, 99.0, 100.0, 98.0, 100.0, 91.0] * 2, "b": [97.0, 99.0, 100.0, 90.0, 99.0, 98.0] * 2}
    curves = curve_points(
        {arm: [[50.0, v if isinstance(v, float) else 0.0] for v in scores[arm]] for arm in "ab"}, [1, 2]
    )
    for estimand, location in (
        ("mean", "Location: the mean."),
        ("shift", "Location: median of all averages of two runs."),
    ):
        report = build_report(make_inputs(scores, make_analysis(12, estimand=estimand), curves=curves))
        assert all(row[name][1] <= 100.0 for row in report["table"] for name in ("mean_ci", "tolerance_95_95"))
        assert all(v is None or v <= 100.0 for arm in report["curves"]["arms"] for v in arm["high"])
        text = render_markdown(report)
        assert location in text
        assert "Location is the estimate behind the test" not in text
        assert "Ranges are cut at the bounds of the metric" in text
