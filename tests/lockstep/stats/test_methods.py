"""Edges of single methods: refusals, degenerate samples, and agreement with library routines where those are right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from lockstep.stats.companions import (
    bca,
    best_arm,
    completion,
    effect_sizes,
    effective_size,
    equivalence,
    friedman,
    interquartile_mean,
    leave_one_out,
    normal_factor,
    paired_t,
    profile,
    reference_posterior,
    row_mean,
    welch,
)
from lockstep.stats.curves import logrank, restricted_mean
from lockstep.stats.exact import rank_sum_null, signed_rank_null, smallest_n, within
from lockstep.stats.paired import sign_flip
from lockstep.stats.planning import Goal, replicates_needed, sample_size, t_power
from lockstep.stats.results import doubled_midranks, tie_groups
from lockstep.stats.sequential import Wager, _betting_paths, anytime_p, early_stop, sign_path
from lockstep.stats.unpaired import brunner_munzel, mann_whitney, permutation_mean

RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=9), RNG.normal(size=7) + 0.4


def test_bootstrap_below_ten_replicates_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 10 replicates, got 9"):
        bca(X, row_mean, 0.95, 999, np.random.default_rng(0))


def test_bootstrap_constant_sample_is_a_point() -> None:
    result = bca(np.full(12, 3.0), row_mean, 0.95, 999, np.random.default_rng(0))
    assert (result.interval.low, result.interval.high, result.z0) == (3.0, 3.0, None)


def test_bootstrap_agrees_with_scipy() -> None:
    sample = np.random.default_rng(3).exponential(size=20)
    ours = bca(sample, row_mean, 0.95, 20_000, np.random.default_rng(0)).interval
    theirs = stats.bootstrap((sample,), np.mean, method="BCa", n_resamples=20_000, rng=np.random.default_rng(1))
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.03)


def test_library_routines_agree_where_they_are_exact() -> None:
    assert mann_whitney(X, Y).p.two_sided == pytest.approx(stats.mannwhitneyu(X, Y, method="exact").pvalue)
    assert welch(X, Y).p == pytest.approx(stats.ttest_ind(X, Y, equal_var=False).pvalue)
    assert paired_t(X).p == pytest.approx(stats.ttest_1samp(X, 0).pvalue)
    found, library = brunner_munzel(X, Y), stats.brunnermunzel(X, Y)
    assert (found.w, found.p) == pytest.approx((library.statistic, library.pvalue))


def test_tied_ranks_match_scipy_and_noise_does_not_split_them() -> None:
    values = np.array([0.3, 0.1 + 0.2, 1.0, 1.0, -np.inf, -np.inf, 2.0])
    assert (doubled_midranks(values) / 2).tolist() == stats.rankdata(np.round(values, 9)).tolist()
    assert tie_groups(np.array([np.inf, np.inf, 1.0])).tolist() == [1, 1, 0]


@pytest.mark.parametrize("bad", [[], [float("nan")], [1.0, float("inf")]])
def test_finite_methods_refuse_bad_input_by_name(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"^d"):
        sign_flip(bad)


def test_large_samples_without_a_generator_are_refused() -> None:
    with pytest.raises(ValueError, match="pass rng"):
        sign_flip(np.arange(31.0))
    with pytest.raises(ValueError, match="pass rng"):
        permutation_mean(np.arange(20.0), np.arange(20.0))


def test_a_p_that_equals_the_level_rejects_whatever_float_noise_does() -> None:
    assert within(2 / 40, 0.05)
    assert within(0.1 + 0.2, 0.3)
    assert not within(0.0501, 0.05)
    # 2 / 2^5 and 2 / C(6, 3) are these levels exactly
    assert (smallest_n(0.0625, paired=True), smallest_n(0.1, paired=False)) == (5, 3)


def test_monte_carlo_p_is_never_zero_and_close_to_the_t_test() -> None:
    d = np.random.default_rng(2).normal(size=60) + 0.3
    test = sign_flip(d, np.random.default_rng(0))
    assert test.method == "monte-carlo"
    assert test.two_sided == pytest.approx(paired_t(d).p, abs=0.01)
    assert sign_flip(d + 50, np.random.default_rng(0)).two_sided == pytest.approx(1e-5)


def test_sampled_rank_test_beyond_the_exact_range_is_close_to_the_normal() -> None:
    generator = np.random.default_rng(4)
    x, y = np.round(generator.normal(size=110), 1), np.round(generator.normal(size=110) + 0.2, 1)
    found = mann_whitney(x, y, np.random.default_rng(0))
    assert found.method == "monte-carlo"
    assert found.p.two_sided == pytest.approx(stats.mannwhitneyu(x, y, method="asymptotic").pvalue, abs=0.01)


@pytest.mark.parametrize("n", [1, 5, 30, 200])
def test_null_tables_are_probabilities_and_symmetric(n: int) -> None:
    for null in (rank_sum_null(n, 7), signed_rank_null(n)):
        assert null.sum() == pytest.approx(1.0)
        assert null == pytest.approx(null[::-1], abs=1e-15)
        assert not null.flags.writeable


def test_intervals_cover_the_truth_at_least_as_often_as_they_say() -> None:
    generator = np.random.default_rng(5)
    draws = generator.exponential(size=(2_000, 8)) - generator.exponential(size=(2_000, 8))
    found = [sign_flip(d).interval(0.05) for d in draws]
    assert np.mean([i is not None and i.low <= 0 <= i.high for i in found]) == pytest.approx(0.953, abs=0.012)


def test_t_interval_without_variance_is_missing_never_a_point() -> None:
    test = paired_t(np.full(5, 2.0))
    assert (test.t, test.p, test.interval(0.05)) == (None, None, None)
    assert equivalence(test, 3.0).equivalent is False


def test_effect_sizes_without_variance_or_with_one_value_are_missing() -> None:
    assert effect_sizes([1.0, 1.0], [2.0, 2.0]).g is None
    assert effect_sizes([1.0], [2.0]).cohen_d is None


def test_iqm_drops_nothing_for_three_values() -> None:
    assert interquartile_mean([1.0, 2.0, 9.0]) == 4.0
    assert interquartile_mean([0.0, 1.0, 2.0, 100.0]) == 1.5


def test_profile_is_the_share_strictly_above() -> None:
    assert profile([1.0, 2.0, 3.0], [0.0, 1.0, 3.0]).tolist() == [1.0, pytest.approx(2 / 3), 0.0]


def test_anytime_interval_agrees_with_rejection_and_is_missing_when_unbounded() -> None:
    d = np.random.default_rng(6).normal(size=12) + 2
    interval = Wager("sign").interval(d, 0.05)
    assert interval is not None
    assert anytime_p(Wager("sign").path(d)) <= 0.05
    assert interval.low > 0
    assert sign_path(d - (interval.low + 1e-6))[-1] < 20 <= sign_path(d - (interval.low - 0.2))[-1]
    assert Wager("sign").interval(d[:4], 0.05) is None


def test_anytime_t_interval_contains_the_mean() -> None:
    d = np.random.default_rng(7).normal(size=15)
    interval = Wager("t").interval(d, 0.05)
    assert interval is not None
    assert interval.low < d.mean() < interval.high


def test_betting_is_fair_for_every_bounded_difference_of_mean_zero_whatever_its_shape() -> None:
    values, chances = (-0.9, 0.3), (0.25, 0.75)
    fair = 0.0
    for outcome in product((0, 1), repeat=6):
        path = Wager("betting", 1.0).path([values[i] for i in outcome])
        fair += float(path[-1]) * float(np.prod([chances[i] for i in outcome]))
    assert fair == pytest.approx(1.0, abs=1e-12)


def test_a_bet_knows_nothing_of_the_block_that_it_bets_on() -> None:
    # from block 12 on bets are below their limit, so that the variance that is known decides them
    signs = np.array(list(product((-1.0, 1.0), repeat=14)))
    final = _betting_paths(signs, np.zeros(len(signs)), 1.0)[:, -1]
    assert final.mean() == pytest.approx(1.0, abs=1e-9)


def test_betting_needs_bounds_and_widens_those_that_scores_break() -> None:
    with pytest.raises(ValueError, match="two bounds"):
        Wager("betting").path([0.1, 0.2])
    d = [3.0, -1.0, 2.0]
    assert Wager("betting", 1.0).path(d).tolist() == Wager("betting", 3.0).path(d).tolist()
    interval = Wager("betting", 1.0).interval([0.9] * 30, 0.05)
    assert interval is not None
    assert 0 < interval.low < 0.9 < interval.high <= 1.0


@pytest.mark.parametrize("kind", ["sign", "t", "betting"])
def test_many_experiments_at_once_give_what_each_gives_alone(kind: str) -> None:
    d = np.random.default_rng(1).normal(size=(5, 9))
    wager = Wager(kind, 4.0)
    alone = [wager.paths(row, np.array([0.3])).max() for row in d]
    assert wager.largest(d, 0.3).tolist() == pytest.approx(alone)


def test_what_a_block_rejected_stays_rejected() -> None:
    d = np.concatenate([np.random.default_rng(6).normal(size=12) + 2, np.full(4, -9.0)])
    early, late = Wager("sign").interval(d[:12], 0.05), Wager("sign").interval(d, 0.05)
    assert early is not None
    assert late is not None
    assert early.low <= late.low
    assert late.high <= early.high
    assert late.low > 0 > d[12:].mean()
    assert anytime_p([1.0, 25.0, 0.5]) == 0.04


@pytest.mark.parametrize(("look", "observed"), [(1, 2.6), (2, 2.4), (3, 3.0)])
def test_the_estimate_of_an_early_stop_is_the_median_of_its_ordering(look: int, observed: float) -> None:
    at, boundary = (7, 14, 20), (2.3, 2.3, 2.3)
    found = early_stop(at, boundary, look, observed, 0.05)
    assert found.low < found.median_unbiased < found.high
    assert (found.median_unbiased == pytest.approx(1.0)) == (look == 1)
    times = np.array(at) / 20
    steps = np.random.default_rng(2).standard_normal((100_000, 3)) * np.sqrt(np.diff(times, prepend=0))
    for share, expected in ((found.median_unbiased, 0.5), (found.low, 0.025), (found.high, 0.975)):
        drift = share * observed / np.sqrt(times[look - 1])
        z = (np.cumsum(steps, axis=1) + drift * times) / np.sqrt(times)
        extreme, going_on = np.zeros(len(z), dtype=bool), np.ones(len(z), dtype=bool)
        for k in range(look):
            extreme |= going_on & (z[:, k] >= (observed if k == look - 1 else boundary[k]))
            going_on &= np.abs(z[:, k]) < boundary[k]
        assert extreme.mean() == pytest.approx(expected, abs=0.006)


def test_power_is_monotone_and_defined_for_huge_effects() -> None:
    powers = [t_power(effect, 6, True, 0.05) for effect in (0.0, 0.5, 1.0, 2.0, 10.0, 1e4)]
    assert powers == sorted(powers)
    assert powers[0] == pytest.approx(0.05)
    assert powers[-1] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="> 0"):
        sample_size(0.0, True)


def test_replicates_needed_two_replicates_cannot_be_estimated_and_floor_holds() -> None:
    goal = Goal(1.0, True, "mean", 0.05)
    assert replicates_needed(2, 1.0, goal) is None
    zero = replicates_needed(6, 0.0, goal)
    assert zero is not None
    assert (zero.plugin, zero.upper80, zero.more) == (6, 6, (0, 0))


def test_replicates_needed_probability_of_superiority_uses_the_normal_shift() -> None:
    found = replicates_needed(10, 1.0, Goal(0.2602, False, "p_superiority", 0.05))
    assert found is not None
    assert found.plugin == 18  # .7602 = Phi(1 / sqrt 2): one SD, 17 per arm by the t test, / .955


def test_bayes_degenerate_samples_give_nothing() -> None:
    assert reference_posterior([1.0], 0.5) is None
    assert reference_posterior([1.0, 1.0], 0.5) is None
    assert best_arm(np.ones((5, 2)), np.random.default_rng(0)) is None


def test_best_arm_probabilities_sum_to_one_and_loss_is_smallest_for_the_best() -> None:
    blocks = np.random.default_rng(8).normal(size=(12, 3)) + np.array([1.0, 0.0, 0.0])
    found = best_arm(blocks, np.random.default_rng(0))
    assert found is not None
    assert found[0].sum() == pytest.approx(1.0)
    assert int(found[0].argmax()) == int(found[1].argmin()) == 0


def test_logrank_without_events_and_restricted_mean() -> None:
    assert logrank([(5, 0)], [(5, 0)]).p is None
    assert restricted_mean([(2, 1), (4, 0)], 4) == pytest.approx(3.0)


def test_friedman_without_variation_and_completion_errors() -> None:
    assert friedman([[1.0, 1.0], [1.0, 1.0]]).p is None
    with pytest.raises(ValueError, match="expected > 0"):
        completion([1, 2], [0, 2])


def test_leave_one_out_single_block_that_decides_is_found() -> None:
    d = [1.0, 1.2, 0.9, 1.1, 1.3, 0.05]
    found = leave_one_out(d, "sign_flip", 0.05)
    assert found.p_full == 0.03125
    assert found.any_flip is True
    with pytest.raises(ValueError, match="two blocks"):
        leave_one_out([1.0], "sign_flip", 0.05)
    with pytest.raises(ValueError, match="test must be"):
        leave_one_out(d, "sorcery", 0.05)


def test_effective_size_refuses_a_unit_root() -> None:
    with pytest.raises(ValueError, match="phi"):
        effective_size(100, 1.0)


def test_tolerance_factor_shrinks_with_n_and_covers_in_simulation() -> None:
    assert normal_factor(10) > normal_factor(20) > 1.96
    samples = np.random.default_rng(9).normal(size=(4_000, 10))
    half = normal_factor(10) * samples.std(axis=1, ddof=1)
    content = stats.norm.cdf(samples.mean(axis=1) + half) - stats.norm.cdf(samples.mean(axis=1) - half)
    assert (content >= 0.95).mean() == pytest.approx(0.95, abs=0.015)
