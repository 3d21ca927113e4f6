"""Pair verdicts, the winner rule, adjusted tables and the treatment of failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.stats.estimands import bimodal_gap
from lockstep.stats.failures import analyse_with_sensitivity, failure_guardrail
from lockstep.stats.multiplicity import holm_levels
from lockstep.stats.registered import Design
from lockstep.stats.results import Interval
from lockstep.stats.scores import ArmScores, arm_scores
from lockstep.stats.shares import clopper_pearson, fisher
from lockstep.stats.verdict import Evidence, ExperimentResult, analyse, pair_verdict

DESIGN = Design(estimand="mean", sesoi=1.0, floor=-10.0)


def arm(label: str, *values: float | str, direction: str = "max") -> ArmScores:
    statuses = [v if isinstance(v, str) else "ok" for v in values]
    return arm_scores(label, [None if isinstance(v, str) else v for v in values], statuses, direction)


def normal_arms(*means: float, n: int = 10, seed: int = 0) -> list[ArmScores]:
    rng = np.random.default_rng(seed)
    return [arm(f"arm{k}", *(float(v) for v in mean + rng.normal(size=n))) for k, mean in enumerate(means)]


def evidence(**fields: Any) -> Evidence:
    base: dict[str, Any] = {
        "p": 0.01,
        "level": 0.05,
        "ci_superiority": Interval(0.5, 2.5),
        "ci_equivalence": Interval(0.6, 2.4),
        "estimate": 1.5,
        "sesoi": 1.0,
    }
    return Evidence(**(base | fields))


@pytest.mark.parametrize(
    ("fields", "code", "better"),
    [
        ({"void_gate": "evaluator"}, "INVALID", 0),
        ({"num_usable": 0}, "NO_INFERENCE", 0),
        ({"num_usable": 1}, "NO_INFERENCE", 0),
        ({"identical": True}, "IDENTICAL_RUNS", 0),
        ({"min_p": 0.06}, "NO_INFERENCE", 0),
        ({"demonstration": True}, "NO_INFERENCE", 0),
        ({"ci_superiority": Interval(1.1, 2.0)}, "WINNER_MEANINGFUL", 1),
        ({"ci_superiority": Interval(1.0, 2.0)}, "WINNER", 1),
        ({}, "WINNER", 1),
        ({"estimate": -1.5, "ci_superiority": Interval(-2.5, -0.5)}, "WINNER", -1),
        ({"ci_equivalence": Interval(0.6, 0.99)}, "DIFFERENT_BUT_NEGLIGIBLE", 1),
        ({"p": 0.2, "ci_superiority": Interval(-0.5, 1.5), "ci_equivalence": Interval(-0.4, 0.9)}, "EQUIVALENT", 0),
        ({"p": 0.2, "ci_superiority": Interval(-0.5, 1.5), "ci_equivalence": Interval(-0.4, 1.0)}, "INCONCLUSIVE", 0),
        ({"p": None}, "INCONCLUSIVE", 0),
        ({"ci_superiority": None, "ci_equivalence": None}, "INCONCLUSIVE", 0),
        ({"ci_superiority": None, "ci_equivalence": None, "separated": True}, "WINNER", 1),
    ],
)
def test_pair_verdict_first_row_that_holds(fields: dict[str, Any], code: str, better: int) -> None:
    found = pair_verdict(evidence(**fields))
    assert (found.code, found.better) == (code, better)


@pytest.mark.parametrize(
    "fields",
    [
        {"p": 0.04, "ci_superiority": Interval(-0.1, 2.0)},
        {"p": 0.06, "ci_superiority": Interval(0.1, 2.0)},
        {"p": 0.04, "sign": -1},
        {"p": 0.04, "estimate": 0.0, "ci_superiority": Interval(0.0, 2.0)},
    ],
)
def test_pair_verdict_test_and_interval_disagree_claims_nothing(fields: dict[str, Any]) -> None:
    found = pair_verdict(evidence(**fields))
    assert found.code == "INCONCLUSIVE"
    assert found.flags == ("TEST_INTERVAL_DISAGREE",)


def test_pair_verdict_bound_at_zero_is_a_winner_at_most_and_says_so() -> None:
    found = pair_verdict(evidence(p=0.04, ci_superiority=Interval(0.0, 2.0)))
    assert (found.code, found.better, found.flags) == ("WINNER", 1, ("BOUND_AT_ZERO",))
    mirrored = pair_verdict(evidence(p=0.04, estimate=-1.0, sign=-1, ci_superiority=Interval(-2.0, -0.0)))
    assert (mirrored.code, mirrored.better, mirrored.flags) == ("WINNER", -1, ("BOUND_AT_ZERO",))


def test_winner_rule_at_most_one_arm_wins_and_needs_every_rival() -> None:
    result = analyse(normal_arms(4.0, 0.0, 0.0), DESIGN)
    assert (result.winner, result.best_set) == ("arm0", ("arm0",))
    tied = analyse(normal_arms(4.0, 4.0, 0.0), DESIGN)
    assert tied.winner is None
    assert set(tied.best_set) == {"arm0", "arm1"}


def test_winner_level_is_the_weakest_of_its_pairs() -> None:
    noise = (0.0, 0.4, -0.3, 0.2, -0.4, 0.1, 0.3, -0.2)
    arms = [arm("arm0", *(5 + e for e in noise)), arm("arm1", *(3.8 - e for e in noise)), arm("arm2", *[0.0] * 8)]
    result = analyse(arms, DESIGN)
    codes = {pair.verdict.code for pair in result.pairs if "arm0" in (pair.a.label, pair.b.label)}
    assert codes == {"WINNER", "WINNER_MEANINGFUL"}
    assert result.verdict == "WINNER"


def test_the_p_of_a_winner_is_the_largest_of_its_comparisons() -> None:
    steps = [10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 10.7]
    once = [v - 2 if i else v + 0.1 for i, v in enumerate(steps)]
    result = analyse([arm("a", *steps), arm("b", *(v - 2 for v in steps)), arm("c", *once)], DESIGN)
    assert result.winner == "a"
    assert [pair.evidence.p for pair in result.pairs[:2]] == [2 / 256, 4 / 256]
    assert result.p_max == 4 / 256


def test_winner_rule_ignores_multiplicity_but_the_table_adjusts() -> None:
    arms = normal_arms(1.2, 0.0, 0.0, n=7, seed=5)
    result = analyse(arms, replace(DESIGN, adjust="holm"))
    for pair in result.pairs:
        assert pair.p_adjusted is not None
        assert pair.evidence.p is not None
        assert pair.p_adjusted >= pair.evidence.p


def test_all_pairs_verdicts_use_the_adjusted_p() -> None:
    arms = [arm("a", 2, 3, 2, 4, 3, 2), arm("b", 1, 1, 1, 2, 2, 1), arm("c", 1.1, 1.2, 0.9, 2.1, 1.8, 1.2)]
    winner = analyse(arms, DESIGN)
    table = analyse(arms, replace(DESIGN, comparisons="all_pairs", adjust="holm"))
    assert winner.pairs[0].verdict.code in ("WINNER", "WINNER_MEANINGFUL")
    # six blocks cannot reach .05 / 3
    assert (table.pairs[0].verdict.code, table.pairs[0].verdict.reason) == ("NO_INFERENCE", "ALPHA_UNREACHABLE")
    assert table.pairs[0].p_adjusted == pytest.approx(0.09375)


def test_intervals_of_a_family_exclude_zero_where_and_only_where_the_adjusted_p_rejects() -> None:
    for seed in range(60):
        arms = normal_arms(0.0, 1.2, 0.9, 0.2, n=9, seed=seed)
        for comparisons, control in (("all_pairs", None), ("vs_control", "arm0")):
            result = analyse(arms, replace(DESIGN, comparisons=comparisons, control=control, adjust="holm"))
            for pair in (p for p in result.pairs if p.in_family):
                interval = pair.evidence.ci_superiority
                assert interval is not None
                assert pair.p_adjusted is not None
                excludes = interval.low > 0 or interval.high < 0
                assert excludes == (pair.p_adjusted <= 0.05 + 1e-12) == bool(pair.superior), (seed, pair.p_adjusted)
                assert 0.05 / 6 - 1e-12 <= pair.evidence.level <= 0.05


def test_levels_of_holm_stop_growing_at_the_first_that_fails() -> None:
    assert holm_levels([0.01, 0.02, 0.06], 0.05) == pytest.approx([0.05 / 3, 0.025, 0.05])
    # .045 is below .05 and still no rejection, because .03 was none at .05 / 3
    assert holm_levels([0.03, 0.04, 0.045], 0.05) == pytest.approx([0.05 / 3] * 3)


def test_vs_control_adjusts_only_the_comparisons_with_the_control() -> None:
    result = analyse(normal_arms(2.0, 0.0, 1.0), replace(DESIGN, comparisons="vs_control", control="arm1"))
    adjusted = {(p.a.label, p.b.label): p.p_adjusted for p in result.pairs}
    assert adjusted["arm0", "arm2"] is None
    assert adjusted["arm0", "arm1"] is not None


@pytest.mark.parametrize(
    ("scale", "paired", "expected"), [(1.0, True, "max_t"), (5.0, True, "holm"), (1.0, False, "holm")]
)
def test_auto_adjustment_follows_pairing_arms_and_sd_ratio(scale: float, paired: bool, expected: str) -> None:
    rng = np.random.default_rng(2)
    arms = [arm(f"arm{k}", *(float(v) for v in rng.normal(size=8) * (scale if k == 0 else 1))) for k in range(3)]
    assert analyse(arms, replace(DESIGN, paired=paired)).adjustment == expected


def test_max_t_pair_guard_three_blocks_cannot_reject() -> None:
    arms = [arm("a", 9, 9, 9), arm("b", 5, 5.1, 5.2), arm("c", 1, 1.1, 1.3)]
    result = analyse(arms, replace(DESIGN, adjust="max_t"))
    assert all(p.p_adjusted is not None and p.p_adjusted >= 0.25 for p in result.pairs)


def test_lost_block_is_dropped_for_all_arms_when_paired() -> None:
    arms = [arm("a", 1, "lost", 3), arm("b", 1, 2, 3), arm("c", 1, 2, "lost")]
    assert [a.values.size for a in analyse(arms, DESIGN).arms] == [1, 1, 1]
    assert [a.values.size for a in analyse(arms, replace(DESIGN, paired=False, estimand="shift")).arms] == [2, 3, 2]


def test_floor_above_a_successful_score_uses_the_worst_score_and_says_so() -> None:
    arms = [arm("a", 5, 6, 7, 8, 9, 4), arm("b", 1, "failed", 2, 3, 2, 1)]
    result = analyse(arms, replace(DESIGN, floor=3.0))
    assert (result.floor, result.flags) == (1.0, ("FLOOR_ABOVE_SCORE",))


def test_failures_rank_worst_and_tie_with_each_other_in_the_unpaired_test() -> None:
    arms = [arm("a", 5, "failed", 7, 8), arm("b", "failed", "failed", 6, 4)]
    result = analyse(arms, replace(DESIGN, paired=False, estimand="shift"))
    assert np.isneginf(result.arms[0].ranked).sum() == 1
    assert result.pairs[0].test is not None
    assert 0 < result.pairs[0].test.p <= 1


def test_minimised_metric_is_negated_before_the_tests() -> None:
    arms = [arm("a", *[1.0, 1.2, 0.9, 1.1, 1.0, 1.3], direction="min"), arm("b", *[5.0] * 6, direction="min")]
    assert analyse(arms, replace(DESIGN, floor=-99.0)).winner == "a"


def test_dying_weak_seeds_do_not_make_an_arm_better() -> None:
    rng = np.random.default_rng(4)
    scores = rng.normal(size=10)
    fragile: list[float | str] = [float(v) if v > -0.25 else "failed" for v in scores]
    sound = [float(v) for v in rng.normal(size=10)]
    result, sensitivity = analyse_with_sensitivity([arm("fragile", *fragile), arm("sound", *sound)], DESIGN)
    assert result.winner != "fragile"
    assert sensitivity.omit is not None


def test_sensitivity_same_arm_under_both_floors_keeps_the_weaker_claim() -> None:
    arms = [arm("a", 50, 51, 52, 53, 54, 55, 40), arm("b", *["failed"] * 6, 41)]
    result, sensitivity = analyse_with_sensitivity(arms, Design(estimand="shift", sesoi=30.0, floor=0.0))
    # 50 above the registered floor, 10 above the worst score: better either way, by how much depends on the floor
    assert (result.verdict, result.winner) == ("WINNER", "a")
    assert "FLOOR_SENSITIVE" in result.flags
    assert sensitivity.floor == "DIFFERENT_BUT_NEGLIGIBLE"
    sure, _ = analyse_with_sensitivity(arms, Design(estimand="shift", sesoi=5.0, floor=0.0))
    assert (sure.verdict, sure.winner) == ("WINNER", "a")
    assert "FLOOR_SENSITIVE" not in sure.flags


def test_sensitivity_floor_variants_that_differ_in_the_arm_claim_nothing() -> None:
    arms = [arm("a", *[60.0 + 2 * i for i in range(8)], "failed", "failed"), arm("b", *[50.0 + i for i in range(10)])]
    result, variants = analyse_with_sensitivity(arms, Design(estimand="shift", sesoi=2.0, floor=0.0))
    assert (result.verdict, result.reason, result.winner) == ("INCONCLUSIVE", "FLOOR_SENSITIVE", None)
    assert variants.floor == "WINNER"


@pytest.mark.parametrize(
    ("scores", "gap"),
    [
        ((5.0, *range(60, 69)), None),
        ((5.0, 6.0, *range(61, 69)), (6.0, 61.0)),
        ((5.0, 6.0, 30.0, *range(62, 69)), (30.0, 62.0)),
        (tuple(range(10)), None),
        ((5.0, 6.0, 61.0, 62.0, 63.0, 64.0, 65.0, 66.0, 67.0), None),
    ],
)
def test_two_groups_need_ten_runs_two_on_each_side_and_a_gap_of_half_the_range(
    scores: tuple[float, ...], gap: tuple[float, float] | None
) -> None:
    assert bimodal_gap(np.array(scores)) == gap


def _differs(a: ExperimentResult, b: ExperimentResult) -> bool:
    return [p.evidence.p for p in a.pairs] != [p.evidence.p for p in b.pairs]


def test_float_noise_neither_breaks_nor_makes_ties() -> None:
    clean = [arm("a", 0.3, 0.6, 0.4, 0.8, 0.5, 0.9, 0.7), arm("b", 0.2, 0.5, 0.4, 0.6, 0.6, 0.7, 0.6)]
    noisy = [arm("a", 0.1 + 0.2, 0.6, 0.4, 0.8, 0.5, 0.9, 0.7), arm("b", 0.2, 0.5, 0.1 + 0.3, 0.6, 0.6, 0.7, 0.6)]
    assert not _differs(
        analyse(clean, replace(DESIGN, estimand="shift")), analyse(noisy, replace(DESIGN, estimand="shift"))
    )


def test_rank_p_order_of_arms_mirrors_the_verdict() -> None:
    first, second = normal_arms(2.0, 0.0, n=8, seed=7)
    forward, backward = analyse([first, second], DESIGN), analyse([second, first], DESIGN)
    assert forward.winner == backward.winner == "arm0"
    assert forward.pairs[0].evidence.p == backward.pairs[0].evidence.p
    assert forward.pairs[0].evidence.estimate == -backward.pairs[0].evidence.estimate


@pytest.mark.parametrize("n", [4, 5, 6, 9, 10, 12])
def test_p_superiority_complete_separation_uses_the_rank_test_at_most_winner(n: int) -> None:
    arms = [arm("a", *(float(v) for v in range(10, 10 + n))), arm("b", *(float(v) for v in range(n)))]
    design = Design(paired=False, estimand="p_superiority", sesoi=0.1, floor=-1.0)
    result = analyse(arms, design)
    assert arms[1].values.max() >= 10 or result.verdict in ("WINNER", "WINNER_MEANINGFUL")
    if n < 10:
        assert (result.verdict, result.flags) == ("WINNER", ("SEPARATED",))
        assert result.pairs[0].evidence.ci_superiority is None


def test_small_n_fallback_uses_the_unpaired_rank_test_between_four_and_five_blocks() -> None:
    arms = [arm("a", 7, 8, 9, 10, 11), arm("b", 1, 2, 3, 4, 5)]
    design = Design(sesoi=1.0, floor=0.0)
    assert analyse(arms, design).verdict == "NO_INFERENCE"
    result = analyse(arms, replace(design, fallback="unpaired_rank"))
    assert result.pairs[0].test is not None
    assert (result.verdict, result.pairs[0].test.name) == ("WINNER_MEANINGFUL", "rank")


def test_unpaired_mean_is_always_studentised() -> None:
    rng = np.random.default_rng(3)
    wide = arm("wide", *(float(v) for v in 5 * rng.normal(size=14)))
    narrow = arm("narrow", *(float(v) for v in rng.normal(size=10)))
    design = Design(paired=False, estimand="mean", sesoi=1.0, floor=-99.0)
    for other in (wide, arm("n2", *(float(v) for v in rng.normal(size=10)))):
        pair = analyse([other, narrow], design).pairs[0]
        assert pair.test is not None
        assert pair.test.name == "studentised permutation"
        assert pair.evidence.ci_superiority is not None
        assert pair.evidence.ci_superiority.low < pair.test.estimate < pair.evidence.ci_superiority.high


def test_clopper_pearson_edges_and_errors() -> None:
    assert clopper_pearson(0, 0) == Interval(0.0, 1.0)
    assert clopper_pearson(10, 10).high == 1.0
    with pytest.raises(ValueError, match="0 <= k <= n"):
        clopper_pearson(3, 2)


def test_fisher_tea_tasting_is_reproduced() -> None:
    assert fisher([[3, 1], [1, 3]]) == pytest.approx(0.485714, abs=1e-6)


def test_failure_guardrail_more_failures_is_harm_only_when_proven() -> None:
    bad, good = arm("a", *["failed"] * 8, 1, 2), arm("b", *[1.0] * 10)
    some = arm("a", "failed", *[1.0] * 9)
    assert failure_guardrail(bad, good, 0.05).state == "harm"
    assert failure_guardrail(some, good, 0.05).state == "unproven"
    assert failure_guardrail(good, some, 0.05).state == "pass"


def test_successful_run_without_score_is_an_error_naming_arm_and_replicate() -> None:
    with pytest.raises(ValueError, match="arm 'a', replicate 1"):
        arm_scores("a", [1.0, None], ["ok", "ok"])


def test_non_finite_score_counts_as_failed() -> None:
    assert arm("a", 1.0, float("nan"), float("inf")).num_failures == 2


@pytest.mark.parametrize("seed", range(6))
def test_max_t_claims_nothing_that_its_adjusted_p_does_not(seed: int) -> None:
    # a small difference in every block beside an arm of large spread: its own p is tiny, its max-T p near one
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=10)
    arms = [arm("a", *scores), arm("b", *(scores + 0.05 + 0.001 * rng.random(10))), arm("c", *rng.normal(size=10))]
    pairs = analyse(arms, replace(DESIGN, comparisons="all_pairs", adjust="max_t")).pairs
    close = next(pair for pair in pairs if {pair.a.label, pair.b.label} == {"a", "b"})
    assert close.evidence.p == 2 / 2**10
    for pair in pairs:
        assert pair.p_adjusted is not None
        interval = pair.evidence.ci_superiority
        assert interval is not None
        rejects, excludes = pair.p_adjusted <= 0.05, interval.low > 0 or interval.high < 0
        assert (pair.superior != 0) == rejects
        assert ("TEST_INTERVAL_DISAGREE" in pair.verdict.flags) == (rejects != excludes)
