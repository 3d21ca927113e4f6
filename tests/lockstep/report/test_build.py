"""The report as data: always valid, deterministic, and honest at the edges."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from lockstep.report import build_report, report_json
from lockstep.report.inputs import (
    ArmFacts,
    CalibrationStamp,
    ConfigDifference,
    CrossScore,
    Extension,
    LearningRow,
    ReportInputs,
    ScoreRow,
    TrainingRow,
)
from lockstep.report.numbers import digits_beside, plain
from lockstep.report.rendering.tables import arms_table, cross_table, fact_items, training_table
from tests.lockstep.report.factories import Cell, curve_points, make_analysis, make_inputs, score_rows

BETTER: list[Cell] = [70.0, 71.0, 72.0, 73.0, 74.0, 75.5]
WORSE: list[Cell] = [60.0, 62.0, 61.0, 66.0, 63.0, 64.0]


def build(inputs: ReportInputs) -> dict[str, Any]:
    """Return the report after a strict JSON round trip."""
    report = build_report(inputs)
    assert json.loads(report_json(report)) == report
    return report


def verdict(scores: dict[str, list[Cell]], **fields: Any) -> dict[str, Any]:
    changes = {k: fields.pop(k) for k in ("kind", "runs", "registered_hash", "planned_blocks", "extra") if k in fields}
    blocks = max(len(v) for v in scores.values())
    analysis = make_analysis(blocks, kind=changes.get("kind", "ab"), **fields)
    found: dict[str, Any] = build(make_inputs(scores, analysis, **changes))["verdict"]
    return found


def test_report_outline_has_every_field_of_the_specification() -> None:
    report = build(make_inputs({"a": BETTER, "b": WORSE}))
    outline = (
        "schema experiment_id generated_utc versions registration verdict facts comparisons guardrails secondary "
        "curve failures sensitivity leave_one_out integrity aa more bayes methods_sentence scores_sha256 seeds"
    )
    assert set(outline.split()) <= set(report)
    comparison = (
        "a b pairs test estimate se p p_adj p_method alpha_used ci_superiority ci_equivalence coverage verdict "
        "better e_value companions effect"
    )
    assert set(comparison.split()) <= set(report["comparisons"][0])
    assert {"code", "level", "winner", "leader", "best_set", "reason", "flags", "suffix", "sentence"} <= set(
        report["verdict"]
    )


def test_report_same_inputs_same_bytes_whatever_the_row_order() -> None:
    inputs = make_inputs({"a": BETTER, "b": WORSE})
    shuffled = replace(inputs, scores=tuple(reversed(inputs.scores)), runs=tuple(reversed(inputs.runs)))
    assert report_json(build_report(inputs)) == report_json(build_report(shuffled))


def test_report_generated_utc_is_the_only_difference() -> None:
    inputs = make_inputs({"a": BETTER, "b": WORSE})
    later = build_report(replace(inputs, generated_utc="2027-01-01T00:00:00Z"))
    assert later | {"generated_utc": inputs.generated_utc} == build_report(inputs)


def test_pairs_are_joined_by_replicate_not_by_completion_order() -> None:
    report = build(make_inputs({"a": BETTER, "b": WORSE}))
    assert [p["difference"] for p in report["comparisons"][0]["pairs"]] == [10.0, 9.0, 11.0, 7.0, 11.0, 11.5]


def test_duplicate_score_of_a_run_is_an_error() -> None:
    inputs = make_inputs({"a": BETTER, "b": WORSE})
    with pytest.raises(ValueError, match="two scores"):
        build_report(replace(inputs, scores=(*inputs.scores, inputs.scores[0])))


def test_verdict_winner_meaningful_sentence_states_effect_interval_test_n_and_sesoi() -> None:
    found = verdict({"a": BETTER, "b": WORSE})
    assert found["code"] == "WINNER_MEANINGFUL"
    assert found["promotable"] is True
    assert found["sentence"] == (
        "`a` beats `b` on eval/accuracy: +9.92 pp [95 % CI +7.00, +11.5], exact sign-flip p = .031, "
        "n = 6 replicates per arm, smallest effect of interest 2 pp."
    )


def test_verdict_of_a_minimised_metric_says_lower_not_plus() -> None:
    loss = {"primary": {"metric": "eval/loss", "direction": "min"}, "failure": {"floor": 9.0}, "sesoi": 0.1}
    better: list[Cell] = [1.0, 1.1, 1.2, 1.0, 1.1, 1.3]
    found = verdict(
        {"a": better, "b": [x + 1.0 + 0.02 * i for i, x in enumerate(better) if isinstance(x, float)]}, **loss
    )
    assert found["sentence"] == (
        "`a` beats `b` on eval/loss (lower is better): 1.05 nats lower [95 % CI 1.00 lower, 1.10 lower], exact "
        "sign-flip p = .031, n = 6 replicates per arm, smallest effect of interest 0.1 nats."
    )


def test_verdict_winner_that_may_be_small_says_so() -> None:
    found = verdict({"a": BETTER, "b": WORSE}, sesoi=8.0)
    assert found["code"] == "WINNER"
    assert found["sentence"].endswith("The true advantage may be smaller than 8 pp.")


def test_verdict_negligible_difference_is_named() -> None:
    found = verdict({"a": [60.5, 61.5, 62.5, 63.5, 64.5, 65.6], "b": [60.0, 61.0, 62.0, 63.0, 64.0, 65.0]})
    assert found["code"] == "DIFFERENT_BUT_NEGLIGIBLE"
    assert found["winner"] == "a"
    assert found["promotable"] is False
    assert "better, by an amount that does not matter" in found["sentence"]


def test_a_difference_that_does_not_matter_names_the_interval_that_says_so() -> None:
    apart = [3.1, 0.9, 1.7, 1.6, 0.7, -0.5, 2.0, 0.6]  # the 95 % interval goes past 2, that of 90 % does not
    worse = [60.0 + i for i in range(8)]
    a: list[Cell] = [x + d for x, d in zip(worse, apart, strict=True)]
    found = verdict({"a": a, "b": list(worse)})
    assert found["code"] == "DIFFERENT_BUT_NEGLIGIBLE"
    assert "[95 % CI +0.333, +2.23]" in found["sentence"]
    assert "The amount does not matter: the 90 % CI, +0.600 to +1.93 pp, lies inside +/-2 pp." in found["sentence"]
    family = verdict(
        {"a": a, "b": list(worse), "c": [x - 20.0 for x in worse]},
        comparisons="all_pairs",
        sesoi=3.0,
        pairwise_adjust="holm",
    )
    assert re.search(
        r"`a` against `b` is better, by .*% CI .*\], [\d.]+ % CI \S+ to \S+ pp inside \+/-3 pp", family["sentence"]
    )


@pytest.mark.parametrize("gap", [2e-3, 2e-5, 0.0])
def test_an_end_of_an_interval_is_told_with_the_digits_that_tell_it_from_what_matters(gap: float) -> None:
    apart = [3.1, 0.9, 1.7, 1.6, 0.7, -0.5, 2.0, 0.6]
    worse = [60.0 + i for i in range(8)]
    a: list[Cell] = [x + d for x, d in zip(worse, apart, strict=True)]
    [pair] = build(make_inputs({"a": a, "b": list(worse)}, make_analysis(8)))["comparisons"]
    sesoi = pair["ci_equivalence"][1] + gap
    found = verdict({"a": a, "b": list(worse)}, sesoi=sesoi)
    if gap == 0.0:
        assert "lies inside" not in found["sentence"], "an end that touches it does not lie inside"
        return
    told = re.search(r"to \+([\d.]+) pp, lies inside \+/-([\d.]+) pp", found["sentence"])
    assert told is not None, found["sentence"]
    assert float(told[1]) < float(told[2])


def test_digits_beside_a_mark_are_as_few_as_tell() -> None:
    assert digits_beside(1.5, 2.0) == 3
    assert plain(1.9996, digits_beside(1.9996, 2.0)) == "1.9996"
    assert plain(2.0004, digits_beside(2.0004, 2.0)) == "2.0004"
    assert plain(2.0, digits_beside(2.0, 2.0)) == "2.00"
    assert digits_beside(math.inf, 2.0) == 3


def test_verdict_equivalent_states_the_ninety_percent_interval() -> None:
    found = verdict({"a": [60.1, 61.0, 62.2, 62.9, 64.1, 64.8], "b": [60.0, 61.2, 62.0, 63.0, 64.0, 65.0]})
    assert found["code"] == "EQUIVALENT"
    assert found["sentence"].startswith("No meaningful difference on eval/accuracy: 90 % CI ")
    assert "(`b` minus `a`) lies inside +/-2 pp (n = 6)" in found["sentence"]


def test_verdict_inconclusive_says_how_many_more_with_device_hours() -> None:
    found = verdict({"a": [60.0, 66.0, 62.0, 69.0, 61.0, 65.0], "b": [61.0, 62.0, 64.0, 63.0, 60.0, 66.0]})
    assert found["code"] == "INCONCLUSIVE"
    assert "Not settled: estimate -1.17 pp, 95 % CI " in found["sentence"]
    # the plan was one analysis, and it is made: nothing can be added to it
    assert "A new experiment with about" in found["sentence"]
    assert "more replicates" not in found["sentence"]
    assert "device-hours) would find 2 pp with 80 % power." in found["sentence"]


def test_verdict_one_replicate_compares_two_runs() -> None:
    found = verdict({"a": [60.0], "b": [70.0]}, inference="full")
    assert (found["code"], found["reason"]) == ("NO_INFERENCE", "ONE_REPLICATE")
    assert found["sentence"] == "One replicate per arm: this compares two runs, not two configurations."
    assert (found["winner"], found["leader"], found["best_set"]) == (None, None, [])


def test_verdict_five_blocks_cannot_reach_alpha_and_the_p_is_not_claimed() -> None:
    found = verdict({"a": BETTER[:5], "b": WORSE[:5]})
    assert (found["code"], found["reason"]) == ("NO_INFERENCE", "ALPHA_UNREACHABLE")
    assert found["sentence"] == "n = 5 cannot reach alpha = 0.05 with this test."


def test_verdict_identical_runs_says_the_setting_had_no_effect() -> None:
    found = verdict({"a": BETTER, "b": BETTER})
    assert found["code"] == "IDENTICAL_RUNS"
    assert found["sentence"] == (
        "All scores are identical: the changed setting had no effect on the metric, was not applied, or the metric is "
        "at its limit."
    )


@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_verdict_aa_identical_for_any_number_of_replicates(blocks: int) -> None:
    found = verdict({"a": BETTER[:blocks], "b": BETTER[:blocks]}, kind="aa")
    assert found["code"] == "IDENTICAL_RUNS"
    assert "A/A" in found["sentence"]


def test_verdict_aa_that_differs_reports_nondeterminism_against_seed_spread() -> None:
    found = verdict({"a": BETTER, "b": [x + 0.1 for x in BETTER if isinstance(x, float)]}, kind="aa")
    assert (found["code"], found["reason"], found["winner"]) == ("NO_INFERENCE", "AA_DIFFERS", None)
    assert found["sentence"] == (
        "Identical arms gave different scores: SD 0.0707 pp within blocks against 2.01 pp between replicates."
    )


def test_more_replicates_never_follow_from_the_observed_effect() -> None:
    noise = [3.0, -4.0, 2.0, -1.0, 5.0, -5.0]
    small = build(make_inputs({"a": [60 + e for e in noise], "b": [60.0] * 6}))
    large = build(make_inputs({"a": [63 + e for e in noise], "b": [60.0] * 6}))
    assert small["verdict"]["code"] == large["verdict"]["code"] == "INCONCLUSIVE"
    assert small["more"] == large["more"]


def test_verdict_tie_at_top_names_the_tied_arms() -> None:
    scores: dict[str, list[Cell]] = {
        "a": [60.1, 59.8, 60.3, 59.9, 60.0, 60.2, 59.7, 60.4],
        "b": [60.0, 59.9, 60.2, 60.0, 60.1, 60.1, 59.8, 60.3],
        "c": [50.0, 50.3, 49.9, 50.6, 50.1, 49.7, 50.4, 50.2],
    }
    found = verdict(scores, sesoi=0.5)
    assert (found["code"], found["best_set"]) == ("TIE_AT_TOP", ["a", "b"])
    assert "`a` and `b` tie at the top on eval/accuracy: `b` was not shown to be worse than `a`" in found["sentence"]
    assert "`a` beats `c`. `b` beats `c`." in found["sentence"]
    assert "chosen by the data" in found["sentence"]


def test_verdict_winner_of_three_reports_the_largest_p() -> None:
    scores: dict[str, list[Cell]] = {
        "a": BETTER,
        "b": WORSE,
        "c": [x - 1 for x in WORSE if isinstance(x, float)],
    }
    found = verdict(scores)
    assert found["winner"] == "a"
    assert "beats every other arm" in found["sentence"]
    assert "(largest of 2 comparisons)" in found["sentence"]
    assert found["p_max"] == 0.03125


EDGES: dict[str, dict[str, list[Cell]]] = {
    "nothing finished": {"a": ["lost"] * 6, "b": ["lost"] * 6},
    "all failed": {"a": ["failed"] * 6, "b": ["failed"] * 6},
    "one arm failed": {"a": BETTER, "b": ["failed"] * 6},
    "non-finite": {"a": [float("inf"), *BETTER[1:]], "b": [float("nan"), *WORSE[1:4], float("-inf"), 64.0]},
    "constant": {"a": [5.0] * 6, "b": [4.0] * 6},
    "one replicate": {"a": [1.0], "b": [2.0]},
    "two replicates": {"a": [1.0, 2.0], "b": [2.0, 1.0]},
    "one complete block": {"a": [1.0, "lost"], "b": [2.0, 1.0]},
    "everything equal": {"a": [5.0] * 6, "b": [5.0] * 6},
    "three arms, one lost": {"a": BETTER, "b": WORSE, "c": ["lost"] * 6},
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"estimand": "mean"},
        {"paired": False},
        {"paired": False, "estimand": "mean"},
        {"paired": False, "estimand": "p_superiority", "sesoi": 0.2},
        {"looks": {"mode": "anytime"}},
        {"looks": {"mode": "anytime", "e_value": "sign"}},
        {"looks": {"mode": "anytime", "e_value": "t"}},
        {"comparisons": "all_pairs", "bayes_panel": True},
        {"small_n_fallback": "unpaired_rank"},
        {"inference": "none"},
    ],
    ids=lambda f: "-".join(map(str, f)) or "default",
)
def test_report_edge_scores_still_give_a_valid_report(name: str, fields: dict[str, Any]) -> None:
    found = verdict(EDGES[name], **fields)
    assert found["sentence"]
    assert "nan" not in found["sentence"].lower().replace("finance", "")
    if name in ("nothing finished", "one replicate", "one complete block"):
        assert found["code"] in ("NO_INFERENCE", "INCONCLUSIVE")


def test_report_no_score_at_all_is_valid() -> None:
    inputs = make_inputs({"a": BETTER, "b": WORSE})
    report = build(replace(inputs, scores=(), runs=()))
    assert (report["verdict"]["code"], report["verdict"]["reason"]) == ("NO_INFERENCE", "NO_COMPLETE_BLOCKS")


def test_failures_are_counted_with_exact_intervals_and_never_omitted() -> None:
    scores: dict[str, list[Cell]] = {"a": BETTER, "b": [*WORSE[:4], "failed", "failed"]}
    report = build(make_inputs(scores))
    row = report["failures"][1]
    assert (row["k"], row["n"]) == (2, 6)
    assert row["ci"] == pytest.approx([0.0433, 0.7772], abs=1e-3)
    assert row["fisher_p"]["a"] == pytest.approx(0.4545, abs=1e-3)
    assert report["comparisons"][0]["pairs"][5]["b"] == 0.0
    assert report["sensitivity"]["floor"] is not None


def test_floor_sensitive_verdict_claims_nothing_and_offers_no_replicates() -> None:
    scores: dict[str, list[Cell]] = {
        "a": [*(60.0 + 2 * i for i in range(8)), "failed", "failed"],
        "b": [50.0 + i for i in range(10)],
    }
    found = verdict(scores, estimand="shift")
    assert "more replicates" not in found["sentence"]
    assert (found["code"], found["reason"], found["winner"]) == ("INCONCLUSIVE", "FLOOR_SENSITIVE", None)
    assert "depends on the score given to failed runs" in found["sentence"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "A failed run scores 0, as registered, and is never omitted"),
        (
            {"failure": {"floor": 65.0}},
            "A failed run scores 60, the worst score seen: the registered 65 is better, and is never omitted",
        ),
        ({"failure": {"floor": None}, "inference": "full"}, "A failed run scores 60, the worst score seen, and"),
        (
            {"primary": {"metric": "eval/loss", "direction": "min"}, "failure": {"floor": 70.0}},
            "A failed run scores 75.5, the worst score seen: the registered 70 is better, and",
        ),
    ],
)
def test_method_says_what_a_failed_run_scores_in_this_very_analysis(fields: dict[str, Any], told: str) -> None:
    report = build(make_inputs({"a": BETTER, "b": [*WORSE[:5], "failed"]}, make_analysis(6, **fields)))
    assert told in report["methods_sentence"]
    assert f" {report['facts']['floor']:g}, " in told


def test_omitting_failures_that_would_change_the_verdict_is_flagged_not_obeyed() -> None:
    scores: dict[str, list[Cell]] = {"a": [*BETTER, "failed"], "b": [*WORSE, 65.0]}
    found = verdict(scores)
    assert "DRIVEN_BY_FAILURES" in found["flags"]


def test_lost_runs_that_could_reverse_the_winner_are_flagged() -> None:
    scores: dict[str, list[Cell]] = {"a": [*BETTER, "lost", "lost"], "b": [*WORSE, 90.0, 91.0]}
    found = verdict(scores)
    assert found["code"] == "WINNER_MEANINGFUL"
    assert {"LOSS_SENSITIVE", "MANY_LOST", "INCOMPLETE"} <= set(found["flags"])


def test_guardrail_harm_turns_the_winner_into_winner_with_harm() -> None:
    analysis = make_analysis(6, guardrails=[{"metric": "eval/param_ratio", "max_harm": 0.1}])
    ratios = score_rows({"a": [2.0, 2.1, 2.2, 2.1, 2.0, 2.3], "b": [1.1, 1.2, 1.1, 1.3, 1.2, 1.1]}, "eval/param_ratio")
    report = build(make_inputs({"a": BETTER, "b": WORSE}, analysis, ratios))
    assert report["guardrails"][0]["state"] == "harm"
    assert report["guardrails"][0]["estimate"] == pytest.approx(0.95, abs=0.05)
    assert report["verdict"]["code"] == "WINNER_WITH_HARM"
    assert report["verdict"]["promotable"] is False
    assert "harm on eval/param_ratio" in report["verdict"]["sentence"]


def test_harm_on_one_of_two_guardrails_is_judged_at_half_of_alpha() -> None:
    guards = [{"metric": "eval/param_ratio", "max_harm": 0.1}, {"metric": "eval/loss", "max_harm": 0.1}]
    extra = score_rows({"a": [2.0 + 0.01 * i for i in range(6)], "b": [1.0] * 6}, "eval/param_ratio")
    extra += score_rows({"a": [1.0 + 0.01 * i for i in range(6)], "b": [1.5] * 6}, "eval/loss")
    report = build(make_inputs({"a": BETTER, "b": WORSE}, make_analysis(6, guardrails=guards), extra))
    # six blocks reach p = .031: harm for one guardrail, not for one of two
    assert [row["state"] for row in report["guardrails"]] == ["unproven", "pass", "pass"]


@pytest.mark.parametrize(("ours", "state", "promotable"), [(1.15, "pass", True), (1.3, "unproven", False)])
def test_guardrail_pass_and_unproven_decide_promotion(ours: float, state: str, promotable: bool) -> None:
    analysis = make_analysis(6, guardrails=[{"metric": "eval/param_ratio", "max_harm_rel": 0.2}])
    base = [1.1, 1.2, 1.1, 1.3, 1.2, 1.1]
    noise = [0.3, -0.3, 0.2, -0.2, 0.1, -0.1] if state == "unproven" else [0.0] * 6
    rows = score_rows({"a": [ours + e for e in noise], "b": list(base)}, "eval/param_ratio")
    report = build(make_inputs({"a": BETTER, "b": WORSE}, analysis, rows))
    assert report["guardrails"][0]["state"] == state
    assert report["verdict"]["promotable"] is promotable
    assert ("GUARDRAIL_UNPROVEN" in report["verdict"]["flags"]) is (not promotable)


def test_secondary_metrics_are_exploratory_and_corrected() -> None:
    analysis = make_analysis(6, secondary=["eval/loss", "eval/committed_accuracy"])
    rows = score_rows({"a": [1.0, 1.1, 1.2, 1.0, 1.1, 1.3], "b": [2.0, 2.2, 2.1, 2.3, 2.2, 2.5]}, "eval/loss")
    rows += score_rows({"a": WORSE, "b": BETTER}, "eval/committed_accuracy")
    report = build(make_inputs({"a": BETTER, "b": WORSE}, analysis, rows))
    assert [row["estimate"] > 0 for row in report["secondary"]] == [True, False]  # a smaller loss is better
    assert all(row["exploratory"] and row["q"] >= row["p"] for row in report["secondary"])
    assert report["verdict"]["winner"] == "a"


def test_minimised_primary_reports_raw_scores_and_oriented_differences() -> None:
    analysis = make_analysis(6, primary={"metric": "eval/loss", "direction": "min"}, failure={"floor": 9.0}, sesoi=0.1)
    report = build(
        make_inputs({"a": [1.0, 1.1, 1.2, 1.0, 1.1, "failed"], "b": [2.0, 2.2, 2.1, 2.3, 2.2, 2.5]}, analysis)
    )
    pairs = report["comparisons"][0]["pairs"]
    assert (pairs[0]["a"], pairs[0]["b"], pairs[0]["difference"]) == (1.0, 2.0, 1.0)
    assert (pairs[5]["a"], pairs[5]["difference"]) == (9.0, -6.5)
    assert report["facts"]["floor"] == 9.0


def test_planned_look_uses_its_own_level_and_the_first_blocks_only() -> None:
    looks = {"mode": "planned", "at": [7, 14]}
    analysis = make_analysis(14, looks=looks)
    a: list[Cell] = [*(70.0 + i for i in range(7)), 0.0, 0.0, 0.0]
    b: list[Cell] = [*(60.0 + i * 0.9 for i in range(7)), 50.0, 50.0, 50.0]
    report = build(make_inputs({"a": a, "b": b}, analysis, planned_blocks=14))
    assert report["facts"]["looks"]["k"] == 1
    assert report["facts"]["complete_blocks"] == 7
    assert report["verdict"]["level"] == pytest.approx(0.0294, abs=1e-3)
    assert (report["verdict"]["code"], report["verdict"]["suffix"]) == ("WINNER_MEANINGFUL", "@look 1")


def test_planned_look_not_reached_gives_no_analysis() -> None:
    analysis = make_analysis(14, looks={"mode": "planned", "at": [7, 14]})
    report = build(make_inputs({"a": BETTER, "b": WORSE}, analysis))
    assert (report["verdict"]["code"], report["verdict"]["reason"]) == ("NO_INFERENCE", "LOOK_NOT_REACHED")


def test_anytime_verdict_carries_e_value_and_suffix() -> None:
    a: list[Cell] = [70.0 + 0.3 * (i % 3) for i in range(10)]
    b: list[Cell] = [60.0 + 0.2 * (i % 4) for i in range(10)]
    report = build(make_inputs({"a": a, "b": b}, make_analysis(10, looks={"mode": "anytime", "e_value": "sign"})))
    assert report["verdict"]["code"] == "WINNER_MEANINGFUL"
    assert report["verdict"]["suffix"] == "@anytime 10"
    assert report["comparisons"][0]["e_value"] >= 20
    assert report["sequential"]["threshold"] == pytest.approx(20.0)


def test_exploratory_extension_never_replaces_the_registered_verdict() -> None:
    a: list[Cell] = [61.0, 60.0, 63.0, 62.0, 64.0, 61.0, *[80.0] * 6]
    b: list[Cell] = [60.0, 62.0, 61.0, 64.0, 62.0, 63.0, *[50.0] * 6]
    inputs = make_inputs({"a": a, "b": b}, make_analysis(6), planned_blocks=6)
    report = build(replace(inputs, extension=Extension(6, "2026-11-27T01:00:00Z", "close result")))
    alone = build(make_inputs({"a": a[:6], "b": b[:6]}, make_analysis(6)))
    assert report["verdict"]["code"] == alone["verdict"]["code"] == "INCONCLUSIVE"
    assert report["comparisons"] == alone["comparisons"]
    assert report["exploratory"]["label"] == "EXPLORATORY"
    assert report["exploratory"]["blocks"] == 12
    assert "EXPLORATORY_EXTENSION" in report["verdict"]["flags"]


def test_curve_test_is_joint_over_the_registered_steps() -> None:
    analysis = make_analysis(6, curve={"metric": "eval/accuracy", "at": [1, 2, 3]})
    curves = {
        "a": [[50.0 + r, 60.0 + r, 70.0 + 2 * r] for r in range(6)],
        "b": [[50.5 - r * 0.1, 55.0 + r * 0.5, 60.0 + r] for r in range(6)],
    }
    report = build(make_inputs({"a": BETTER, "b": WORSE}, analysis, curves=curve_points(curves, [1, 2, 3])))
    assert report["curve"]["steps"] == [1, 2, 3]
    assert report["curve"]["p_adj"][2] == 0.03125
    assert report["curves"]["band"].startswith("pointwise 95 %")
    assert report["time_to_threshold"] is None  # no threshold was registered


def test_curve_test_failed_run_keeps_the_floor_and_a_hole_gives_a_reason() -> None:
    analysis = make_analysis(6, curve={"metric": "eval/accuracy", "at": [1, 2]})
    ends: list[float | None] = [50.0, 51.0, 52.0, 53.0, 54.0, None]
    curves: dict[str, list[list[float | None]]] = {
        "a": [[50.0 + r, 60.0 + r] for r in range(6)],
        "b": [[45.0 + r, end] for r, end in enumerate(ends)],
    }
    points = curve_points(curves, [1, 2])
    failed = build(make_inputs({"a": BETTER, "b": [*WORSE[:5], "failed"]}, analysis, curves=points))
    assert failed["curve"]["pairs"][0]["mean_difference"][1] == pytest.approx((5 * 10 + 65) / 6)
    holed = build(make_inputs({"a": BETTER, "b": WORSE}, analysis, curves=points))
    assert (holed["curve"]["p_adj"], holed["curve"]["reason"]) == (None, "CURVE_INCOMPLETE")


def test_time_to_threshold_never_reached_is_censored_not_dropped() -> None:
    curves = {"a": [[10.0, 80.0]] * 6, "b": [[10.0, 20.0]] * 6}
    report = build(make_inputs({"a": BETTER, "b": WORSE}, curves=curve_points(curves, [1, 2]), threshold=50.0))
    times = report["time_to_threshold"]
    assert times["arms"][1]["times"] == [[2.0, 0]] * 6
    assert times["registered"] is True
    assert times["pairs"][0]["permutation_p"] == pytest.approx(2 / 924)


def test_training_rows_and_cross_scores_are_summarised() -> None:
    training = tuple(TrainingRow(a, r, 32, 60.0 + r, 65.0, 1.5) for a in "ab" for r in range(6))
    cross = tuple(CrossScore(a, m, r, float(r), 0.5, 8) for a in "ab" for m in "ab" for r in range(6))
    report = build(make_inputs({"a": BETTER, "b": WORSE}, training=training, cross_scores=cross))
    assert report["training"][0]["final_accuracy"] == 62.5
    assert report["training"][0]["episodes"] == 192
    alike = tuple(CrossScore(a, "native", r, float(r), 0.5, 8) for a in "ab" for r in range(6))
    arms = tuple(ArmFacts(label, "native") for label in "ab")
    one = build(make_inputs({"a": BETTER, "b": WORSE}, arms=arms, cross_scores=alike))
    assert one["xeval"] is None
    assert ("Cross-evaluation", "left out: all arms have the same reward") in fact_items(one)
    own = [c for c in report["xeval"]["cells"] if c["own_mode"]]
    assert [(c["arm"], c["mode"], c["mean"]) for c in own] == [("a", "a", 2.5), ("b", "b", 2.5)]


def _cross(names: str, paths: dict[str, tuple[str, float]]) -> dict[str, Any]:
    """Return the report of arms of one mode that differ in these settings, scored under functions of these names."""
    cells = tuple(CrossScore(a, m, r, float(r), 0.5, 8) for a in "ab" for m in names.split() for r in range(6))
    arms = tuple(
        ArmFacts(label, "native", "ppo", tuple(ConfigDifference(path, 0.0, value) for path, value in [paths[label]]))
        if label in paths
        else ArmFacts(label, "native")
        for label in "ab"
    )
    return build(make_inputs({"a": BETTER, "b": WORSE}, arms=arms, cross_scores=cells))


def test_cross_evaluation_of_arms_that_differ_in_discounts_alone_is_left_out() -> None:
    report = _cross("native_arm0 native_arm1", {"b": ("ppo.gamma", 0.9)})
    assert report["xeval"] is None
    assert ("Cross-evaluation", "left out: all arms have the same reward") in fact_items(report)
    assert _cross("native_arm0 native_arm1 sparse", {"b": ("ppo.gamma", 0.9)})["xeval"] is not None


def test_cross_evaluation_names_functions_of_one_mode_after_their_arms() -> None:
    report = _cross("native_arm0 native_arm1", {"b": ("reward.scale", 2.0)})
    names = {cells[1] for cells in cross_table(report).rows if cells[0] == "b"}
    assert names == {"native as in a", "native as in b (own)"}
    assert not [term for term, _ in fact_items(report) if term == "Cross-evaluation"]


LIKE: dict[str, list[Cell]] = {
    "a": [60.1, 61.0, 62.2, 62.9, 64.1, 64.8],
    "b": [60.0, 61.2, 62.0, 63.0, 64.0, 65.0],
}
NOISE = [0.4, -0.9, 0.2, 1.1, -0.6, 0.1]


def learning_rows(change: float, metric: str = "train/accuracy_mean", arms: str = "ab") -> tuple[LearningRow, ...]:
    """Return rows of six replicates that change by so much on average, more or less."""
    return tuple(LearningRow(a, r, metric, 60.0, 60.0 + change + NOISE[r]) for a in arms for r in range(6))


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        (learning_rows(0.0), "not learned"),
        (learning_rows(-5.0), "not learned"),
        (learning_rows(1.5), "not learned"),  # shown to rise, by less than what matters
        (learning_rows(5.0), "learned"),
        ((*learning_rows(0.0), *learning_rows(5.0, "eval/accuracy")), "learned"),
        ((), "not known"),
    ],
)
def test_equivalence_of_arms_that_have_not_learned_carries_a_caution(rows: tuple[LearningRow, ...], state: str) -> None:
    report = build(make_inputs(LIKE, learning=rows))
    found = report["verdict"]
    assert (found["code"], report["learning"]["state"]) == ("EQUIVALENT", state)
    cautious = found["sentence"].startswith("Equivalent, but neither arm has learned: train longer. No meaningful")
    assert cautious == ("NOT_LEARNED" in found["flags"]) == (state == "not learned")


def test_caution_names_the_change_and_why_it_is_too_small() -> None:
    sentence = build(make_inputs(LIKE, learning=learning_rows(1.5)))["verdict"]["sentence"]
    change = "train/accuracy_mean changed by +1.55 [90 % CI +0.960, +2.14], less than the smallest effect of interest"
    assert sentence.endswith(f"From the first round to the last tenth of training {change} 2 pp.")


def test_caution_stands_beside_every_verdict_that_calls_arms_alike_and_no_other() -> None:
    rows = learning_rows(0.0)
    equal = build(make_inputs({"a": WORSE, "b": WORSE}, learning=rows))["verdict"]
    assert equal["sentence"].startswith("Identical, but neither arm has learned: train longer. All scores are ident")
    checked = make_inputs({"a": WORSE, "b": WORSE}, make_analysis(6, kind="aa"), learning=rows, kind="aa")
    assert "NOT_LEARNED" not in build(checked)["verdict"]["flags"]
    assert "NOT_LEARNED" not in build(make_inputs({"a": BETTER, "b": WORSE}, learning=rows))["verdict"]["flags"]


def test_caution_is_silent_where_nothing_is_left_to_learn_and_asks_only_arms_that_learn() -> None:
    best: dict[str, list[Cell]] = {arm: [99.0 + 0.1 * r for r in range(6)] for arm in "ab"}
    found = build(make_inputs(best, learning=learning_rows(0.0)))
    assert (found["learning"]["state"], found["verdict"]["flags"]) == ("at its best", [])
    arms = (ArmFacts("a", "shaped"), ArmFacts("b", "shaped", "random"))
    beside = (*learning_rows(0.0, arms="a"), *learning_rows(50.0, arms="b"))
    control = build(make_inputs(LIKE, arms=arms, learning=beside))["verdict"]
    assert control["sentence"].startswith("Equivalent, but `a` has not learned: train longer.")


def test_caution_of_a_share_that_learned_asks_whether_any_run_reached_the_threshold() -> None:
    analysis = make_analysis(30, estimand="learned", threshold=90.0, sesoi=0.3)
    scores: dict[str, list[Cell]] = {arm: [60.0 + r % 7 for r in range(30)] for arm in "ab"}
    found = build(make_inputs(scores, analysis))["verdict"]
    assert found["sentence"].startswith("Identical, but neither arm has learned: train longer.")
    assert found["sentence"].endswith("No run reached the threshold 90.")
    scores["a"] = [95.0, *scores["a"][1:]]
    assert "NOT_LEARNED" not in build(make_inputs(scores, analysis))["verdict"]["flags"]


def training_ends(ends: dict[str, float], metric: str = "train/accuracy_mean") -> tuple[LearningRow, ...]:
    """Return rows of six replicates of each arm that end their training near a value."""
    noise = {"a": NOISE, "b": [0.0] * 6}
    return tuple(LearningRow(a, r, metric, 10.0, end + noise[a][r]) for a, end in ends.items() for r in range(6))


def test_training_that_clearly_names_the_other_arm_is_told_and_changes_no_verdict() -> None:
    scores = {"a": BETTER, "b": WORSE}
    plain = build(make_inputs(scores))["verdict"]
    report = build(make_inputs(scores, learning=training_ends({"a": 50.0, "b": 58.0})))
    told = report["verdict"]
    assert told["flags"] == [*plain["flags"], "TRAINING_DISAGREES"]
    assert {**told, "flags": 0, "sentence": 0} == {**plain, "flags": 0, "sentence": 0}
    caution = (
        "But training points to `b`: over the last tenth of it train/accuracy_mean of `b` minus that of `a` was +7.95 "
        "pp [95 % CI +6.90, +8.90]. The verdict is on the policies as they were evaluated."
    )
    assert told["sentence"] == f"{plain['sentence']} {caution}"
    assert report["opposed"][0]["difference"] == pytest.approx(7.95)


def test_training_of_a_minimised_metric_is_compared_in_its_own_direction() -> None:
    analysis = make_analysis(6, primary={"metric": "eval/loss", "direction": "min"}, failure={"floor": 99.0})
    rows = training_ends({"a": 50.0, "b": 58.0}, "train/loss_mean")
    report = build(make_inputs({"a": BETTER, "b": WORSE}, analysis, learning=rows))
    assert report["verdict"]["winner"] == "b"
    assert "train/loss_mean of `a` minus that of `b` was -7.95" in report["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("scores", "ends"),
    [
        ({"a": BETTER, "b": WORSE}, {"a": 58.0, "b": 50.0}),  # the same arm
        ({"a": BETTER, "b": WORSE}, {"a": 50.0, "b": 50.2}),  # training is not clear
        (LIKE, {"a": 50.0, "b": 58.0}),  # the evaluation claims no better arm
        ({"a": BETTER, "b": WORSE}, {"a": 50.0}),  # nothing to compare with
    ],
)
def test_training_that_does_not_clearly_name_another_arm_than_the_claim_is_not_mentioned(
    scores: dict[str, list[Cell]], ends: dict[str, float]
) -> None:
    report = build(make_inputs(scores, learning=training_ends(ends)))
    assert ("TRAINING_DISAGREES" in report["verdict"]["flags"], report["opposed"]) == (False, [])


def test_what_is_not_settled_asks_for_longer_training_where_nothing_was_learned() -> None:
    first: list[Cell] = [60.0, 66.0, 61.0, 69.0, 62.0, 64.0]
    scores: dict[str, list[Cell]] = {"a": first, "b": [63.0, 60.0, 65.0, 64.0, 67.0, 61.0]}
    trained = build(make_inputs(scores, learning=learning_rows(20.0)))["verdict"]
    assert "replicates" in trained["sentence"].rpartition(". ")[2]
    found = build(make_inputs(scores, learning=learning_rows(0.0)))["verdict"]
    assert found["code"] == trained["code"] == "INCONCLUSIVE"
    assert found["sentence"].endswith("moved the policies by as much as matters: train longer (budget.rounds) first.")
    assert "80 % power" not in found["sentence"]


def test_tables_leave_out_columns_in_which_no_arm_has_anything() -> None:
    training = tuple(TrainingRow(a, r, 32, None, None, 1.5) for a in "ab" for r in range(6))
    report = build(make_inputs({"a": BETTER, "b": WORSE}, training=training))
    assert training_table(report).header == ("arm", "reward", "episodes", "mean reward")
    assert "IQM" not in arms_table(report).header
    assert "IQM" in arms_table(build(make_inputs({"a": [*BETTER, *BETTER], "b": [*WORSE, *WORSE]}))).header


def test_two_groups_nearer_than_what_matters_are_not_flagged() -> None:
    grouped: list[Cell] = [60.0 + (1.0 if r % 2 else 0.0) + 0.01 * r for r in range(10)]
    scores: dict[str, list[Cell]] = {"a": grouped, "b": [60.5 + 0.03 * r for r in range(10)]}
    assert "BIMODAL" not in verdict(scores, sesoi=2.0)["flags"]
    assert "BIMODAL" in verdict(scores, sesoi=0.5)["flags"]


def test_reward_shared_metric_is_flagged() -> None:
    analysis = make_analysis(6, primary="eval/return_mean")
    assert "REWARD_SHARED" in build(make_inputs({"a": BETTER, "b": WORSE}, analysis))["verdict"]["flags"]


def test_stamp_and_seed_are_printed() -> None:
    report = build(
        make_inputs({"a": BETTER, "b": WORSE}, stamp=CalibrationStamp("2026-11-27", "0.1.0", ("simulation",)))
    )
    assert report["aa"]["modes"] == ["simulation"]
    assert report["seeds"] == {"analysis": 0}


def test_score_row_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="status"):
        ScoreRow("a", 0, "r", "eval/accuracy", 1.0, "running")


def test_many_blocks_fall_back_to_seeded_monte_carlo() -> None:
    a: list[Cell] = [60.0 + (i * 7 % 11) for i in range(40)]
    b: list[Cell] = [59.0 + (i * 5 % 13) for i in range(40)]
    analysis = make_analysis(40, estimand="mean")
    first, second = (build(make_inputs({"a": a, "b": b}, analysis)) for _ in range(2))
    assert first == second
    assert first["comparisons"][0]["p_method"] == "monte-carlo"
