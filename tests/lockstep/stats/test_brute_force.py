"""Exact methods against plain enumeration on random small inputs with ties, zeros and failures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.stats import rankdata

from lockstep.stats.curves import curve_max_t, logrank, logrank_permutation
from lockstep.stats.multiplicity import benjamini_hochberg, holm, max_t_blocks
from lockstep.stats.paired import pseudo_median, sign_flip, signed_rank, walsh_interval
from lockstep.stats.sequential import sign_path
from lockstep.stats.unpaired import hodges_lehmann, mann_whitney, permutation_mean, shift_interval

FULL, TENTH = 500, 50
ROUNDS = [
    pytest.param(range(TENTH), id="tenth"),
    pytest.param(range(TENTH, FULL), id="rest", marks=pytest.mark.slow),
]
Floats = np.ndarray


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def _values(rng: np.random.Generator, n: int, seed: int) -> Floats:
    """Return scores of one of several shapes: continuous, gridded, with zeros, all equal, float noise."""
    shape = seed % 5
    if shape == 0:
        return rng.normal(size=n)
    if shape == 1:
        return rng.integers(-2, 3, size=n).astype(float)
    if shape == 2:
        return np.where(rng.random(n) < 0.4, 0.0, rng.normal(size=n))
    if shape == 3:
        return np.full(n, float(rng.integers(-1, 2)))
    return np.round(rng.normal(size=n), 1) + 0.1 + 0.2 - 0.3


def _two_arms(seed: int) -> tuple[Floats, Floats]:
    rng = _rng(seed)
    n, m = (int(v) for v in rng.integers(1, 6, size=2))
    x, y = _values(rng, n, seed), _values(rng, m, seed)
    return (x + 20, y) if seed % 7 == 0 else (x, y)


def _differences(seed: int, largest: int = 8) -> Floats:
    rng = _rng(seed)
    d = _values(rng, int(rng.integers(1, largest + 1)), seed)
    return np.abs(d) + 1 if seed % 7 == 0 else d


def _tails(statistics: list[float], observed: float) -> tuple[float, float]:
    values = np.array(statistics)
    return float((values >= observed - 1e-9).mean()), float((values <= observed + 1e-9).mean())


@pytest.mark.parametrize("seeds", ROUNDS)
def test_mann_whitney_enumerated_splits_agree(seeds: range) -> None:
    for seed in seeds:
        x, y = _two_arms(seed)
        if seed % 3 == 0:
            x, y = np.where(x < 0, -np.inf, x), np.where(y < 0, -np.inf, y)
        test = mann_whitney(x, y)
        ranks = rankdata(np.round(np.concatenate([x, y]), 9))
        sums = [float(ranks[list(chosen)].sum()) for chosen in combinations(range(len(ranks)), len(x))]
        greater, less = _tails(sums, float(ranks[: len(x)].sum()))
        assert test.p.greater == pytest.approx(greater, abs=1e-12), seed
        assert test.p.less == pytest.approx(less, abs=1e-12), seed
        assert test.p.two_sided == pytest.approx(min(1, 2 * min(greater, less)), abs=1e-12), seed
        wins = [(a > b) + 0.5 * (a == b) for a in np.round(x, 9) for b in np.round(y, 9)]
        assert test.u == pytest.approx(sum(wins)), seed


def _untied_interval(ordered: list[float], null: list[int], level: float) -> tuple[float, float] | None:
    counts = np.bincount(null) / len(null)
    reached = np.flatnonzero(np.cumsum(counts) <= level / 2 + 1e-12)
    if not reached.size:
        return None
    return ordered[reached[-1]], ordered[len(ordered) - 1 - reached[-1]]


@pytest.mark.parametrize("seeds", ROUNDS)
def test_shift_interval_enumerated_null_gives_same_order_statistics(seeds: range) -> None:
    for seed in seeds:
        x, y = _two_arms(seed)
        ordered = sorted(float(a - b) for a in x for b in y)
        places = range(1, len(x) + len(y) + 1)
        null = [sum(c) - len(x) * (len(x) + 1) // 2 for c in combinations(places, len(x))]
        for level in (0.05, 0.1, 0.2):
            expected = _untied_interval(ordered, null, level)
            found = shift_interval(x, y, level)
            assert (found and (found.low, found.high)) == expected, (seed, level)
        assert hodges_lehmann(x, y) == pytest.approx(np.median(ordered))


@pytest.mark.parametrize("seeds", ROUNDS)
def test_signed_rank_enumerated_signs_agree(seeds: range) -> None:
    for seed in seeds:
        d = _differences(seed)
        clean = np.round(d, 9)
        ranks = rankdata(np.abs(clean))[clean != 0]
        sums = [float(ranks @ s) for s in product((0, 1), repeat=ranks.size)]
        observed = float(ranks @ (clean[clean != 0] > 0)) if ranks.size else 0.0
        greater, less = _tails(sums, observed)
        test = signed_rank(d)
        assert test.v == pytest.approx(observed), seed
        assert (test.p.greater, test.p.less) == pytest.approx((greater, less), abs=1e-12), seed


@pytest.mark.parametrize("seeds", ROUNDS)
def test_walsh_interval_enumerated_null_gives_same_order_statistics(seeds: range) -> None:
    for seed in seeds:
        d = _differences(seed)
        ordered = sorted(float((d[i] + d[j]) / 2) for i in range(d.size) for j in range(i, d.size))
        null = [sum(i + 1 for i, s in enumerate(signs) if s) for signs in product((0, 1), repeat=d.size)]
        for level in (0.05, 0.1, 0.2):
            found = walsh_interval(d, level)
            assert (found and (found.low, found.high)) == _untied_interval(ordered, null, level), (
                seed,
                level,
            )
        assert pseudo_median(d) == pytest.approx(np.median(ordered))


@pytest.mark.parametrize("seeds", ROUNDS)
def test_sign_flip_enumerated_signs_and_subset_means_agree(seeds: range) -> None:
    for seed in seeds:
        d = _differences(seed)
        sums = np.array([float(np.dot(s, d)) for s in product((-1, 1), repeat=d.size)])
        expected = float((np.abs(sums) >= abs(d.sum()) - 1e-9).mean())
        test = sign_flip(d)
        assert test.two_sided == pytest.approx(expected, abs=1e-12), seed
        assert test.p.greater == pytest.approx(float((sums >= d.sum() - 1e-9).mean()), abs=1e-12), seed
        means = sorted(float(d[list(c)].mean()) for k in range(1, d.size + 1) for c in combinations(range(d.size), k))
        for level in (0.05, 0.1):
            k = int(level / 2 * 2**d.size)
            found = test.interval(level)
            if k == 0:
                assert found is None
            else:
                assert found is not None
                assert (found.low, found.high) == pytest.approx((means[k - 1], means[2**d.size - k - 1]), abs=1e-9)


def _permutation_p(x: Floats, y: Floats) -> float:
    pooled = np.concatenate([x, y])
    stats = []
    for chosen in combinations(range(pooled.size), x.size):
        mask = np.zeros(pooled.size, dtype=bool)
        mask[list(chosen)] = True
        stats.append(abs(pooled[mask].mean() - pooled[~mask].mean()))
    return float((np.array(stats) >= abs(x.mean() - y.mean()) - 1e-11).mean())


@pytest.mark.parametrize("seeds", ROUNDS)
def test_permutation_mean_enumerated_splits_and_inversion_agree(seeds: range) -> None:
    for seed in seeds:
        x, y = _two_arms(seed)
        test = permutation_mean(x, y)
        assert test.p_two_sided == pytest.approx(_permutation_p(x, y), abs=1e-12), seed
        found = test.interval(0.1)
        if found is None:
            assert _permutation_p(x - 1e6, y) > 0.1, seed
            continue
        assert _permutation_p(x - (found.low - 1e-6), y) <= 0.1 + 1e-12, seed
        assert _permutation_p(x - (found.high + 1e-6), y) <= 0.1 + 1e-12, seed
        if found.high - found.low > 1e-5:
            assert _permutation_p(x - (found.low + 1e-7), y) > 0.1, seed
            assert _permutation_p(x - (found.high - 1e-7), y) > 0.1, seed


def _welch(x: Floats, y: Floats) -> float:
    return float(abs(x.mean() - y.mean()) / np.sqrt(x.var(ddof=1) / x.size + y.var(ddof=1) / y.size))


@pytest.mark.parametrize("seeds", ROUNDS)
def test_studentised_permutation_enumerated_welch_statistics_agree(seeds: range) -> None:
    for seed in seeds:
        rng = _rng(seed)
        n, m = (int(v) for v in rng.integers(2, 6, size=2))
        x, y = rng.normal(size=n) * 4 + 1, rng.normal(size=m)
        pooled = np.concatenate([x, y])
        splits = [np.isin(np.arange(n + m), chosen) for chosen in combinations(range(n + m), n)]
        statistics = [_welch(pooled[mask], pooled[~mask]) for mask in splits]
        expected = float((np.array(statistics) >= _welch(x, y) * (1 - 1e-9)).mean())
        assert permutation_mean(x, y, studentised=True).p_two_sided == pytest.approx(expected, abs=1e-12), seed


@pytest.mark.parametrize("seeds", ROUNDS)
def test_max_t_enumerated_block_permutations_agree(seeds: range) -> None:
    for seed in seeds:
        rng = _rng(seed)
        blocks = np.column_stack([_values(rng, 3, seed) for _ in range(3)])
        pairs = [(0, 1), (0, 2), (1, 2)]
        found = max_t_blocks(blocks, pairs)
        spreads = []
        for orders in product(permutations(range(3)), repeat=3):
            means = np.mean([blocks[r][list(o)] for r, o in enumerate(orders)], axis=0)
            spreads.append(max(abs(means[i] - means[j]) for i, j in pairs))
        means = blocks.mean(axis=0)
        for (i, j), p_max, p_own, p in zip(pairs, found.p_max_t, found.p_pair, found.p_adjusted, strict=True):
            expected = float((np.array(spreads) >= abs(means[i] - means[j]) - 1e-9).mean())
            assert p_max == pytest.approx(expected, abs=1e-12), seed
            assert p == max(p_max, p_own)


@pytest.mark.parametrize("seeds", ROUNDS)
def test_curve_max_t_studentised_enumeration_agrees(seeds: range) -> None:
    for seed in seeds:
        rng = _rng(seed)
        n = int(rng.integers(2, 7))
        d = rng.normal(size=(n, 3)) + (2.0 if seed % 3 == 0 else 0.0)
        d[:, 1] = 0.0 if seed % 4 == 0 else d[:, 1]
        found = curve_max_t(d)

        def studentised(flipped: Floats) -> Floats:
            total, squares = flipped.sum(axis=0), (flipped**2).sum(axis=0)
            spread = squares - total**2 / len(flipped)
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where(squares > 0, total**2 / np.maximum(spread, 1e-300), 0.0)

        largest = [studentised(d * np.array(s)[:, None]).max() for s in product((1, -1), repeat=n)]
        observed = studentised(d)
        expected = [float((np.array(largest) >= t * (1 - 1e-9)).mean()) for t in observed]
        assert found.p_adjusted == pytest.approx(expected, abs=1e-12), seed


@pytest.mark.parametrize("seeds", ROUNDS)
def test_sign_evalue_mean_over_signs_is_one(seeds: range) -> None:
    for seed in seeds:
        d = np.abs(_differences(seed, 6))
        finals = [float(sign_path(d * np.array(s))[-1]) for s in product((1, -1), repeat=d.size)]
        assert np.mean(finals) == pytest.approx(1.0), seed
        assert max(finals) <= 2**d.size / 2 + 1e-9


@pytest.mark.parametrize("seeds", ROUNDS)
def test_corrections_plain_loops_agree(seeds: range) -> None:
    for seed in seeds:
        rng = _rng(seed)
        ps = [float(p) for p in np.round(rng.random(int(rng.integers(1, 7))), 2)]
        given: list[float | None] = list(ps)
        m, ordered = len(ps), sorted(ps)
        for p, adjusted_holm, adjusted_bh in zip(ps, holm(given), benjamini_hochberg(given), strict=True):
            place = max(i for i, q in enumerate(ordered) if q == p)
            assert adjusted_holm == pytest.approx(min(1, max((m - i) * ordered[i] for i in range(place + 1))))
            assert adjusted_bh == pytest.approx(min(1, min(m * ordered[i] / (i + 1) for i in range(place, m))))


@pytest.mark.parametrize("seeds", ROUNDS)
def test_logrank_permutation_enumerated_splits_agree(seeds: range) -> None:
    for seed in seeds:
        rng = _rng(seed)
        n, m = (int(v) for v in rng.integers(1, 5, size=2))
        rows = [(float(t), int(e)) for t, e in zip(rng.integers(1, 6, n + m), rng.integers(0, 2, n + m), strict=True)]
        found = logrank_permutation(rows[:n], rows[n:])
        if not any(e for _, e in rows):
            assert found is None
            continue
        deviations = []
        for chosen in combinations(range(n + m), n):
            test = logrank([rows[i] for i in chosen], [rows[i] for i in range(n + m) if i not in chosen])
            deviations.append(abs(test.observed - test.expected))
        assert found == pytest.approx(float((np.array(deviations) >= deviations[0] - 1e-9).mean()), abs=1e-12), seed


EXACT_PS: list[Callable[[Floats], float]] = [
    lambda d: signed_rank(d).p.two_sided,
    lambda d: sign_flip(d).two_sided,
]


@pytest.mark.parametrize("p_of", EXACT_PS, ids=["signed_rank", "sign_flip"])
def test_paired_tests_all_zero_differences_give_one(p_of: Callable[[Floats], float]) -> None:
    assert p_of(np.zeros(6)) == 1.0


@pytest.mark.parametrize("n", [15, 18, 20])
def test_sign_flip_interval_bisected_order_statistics_equal_enumeration(n: int) -> None:
    rng = _rng(n)
    for d in (rng.normal(size=n), rng.integers(-3, 4, size=n).astype(float)):
        sums, sizes = np.zeros(1), np.zeros(1)
        for value in d:
            sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
        means = np.sort(sums[1:] / sizes[1:])
        k = int(0.025 * 2**n)
        found = sign_flip(d).interval(0.05)
        assert found is not None
        assert (found.low, found.high) == pytest.approx((means[k - 1], means[2**n - k - 1]), abs=1e-9)
