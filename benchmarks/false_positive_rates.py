"""How often do common procedures declare a difference between two identical arms?

Simulates statistics.md section 18 with fixed seeds on one core in under five minutes, writes
benchmarks/results/false_positive_rates.json and prints the README table. Every row is checked
against the reference value within four combined standard errors; a disagreement ends with 1.
The row on published runs is left out: those data are not redistributed.

Run: python -m benchmarks.false_positive_rates
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from benchmarks.simulated import write_rates
from lockstep.stats.curves import curve_max_t
from lockstep.stats.exact import rank_sum_null
from lockstep.stats.paired import sign_flip
from lockstep.stats.sequential import look_levels, sign_path
from lockstep.stats.unpaired import mann_whitney

Floats = NDArray[np.float64]
ALPHA = 0.05
EPISODES, ANALYSED, NOISE_SD = 1_000, 200, 30.0
RESULT = Path(__file__).parent / "results" / "false_positive_rates.json"
#: Fewest repetitions behind a reference cell; bounds its standard error from above.
REFERENCE_REPETITIONS = 1_500


@dataclass(frozen=True)
class Row:
    """One simulated rate beside its reference value."""

    procedure: str
    rate: float
    reference: float
    repetitions: int
    parameters: dict[str, Any]
    kind: str = "false positives"

    @property
    def standard_error(self) -> float:
        """Return the binomial standard error of the rate (of the reference when the rate is 0 or 1)."""
        share = self.rate if 0 < self.rate < 1 else self.reference
        return sqrt(share * (1 - share) / self.repetitions)

    @property
    def agrees(self) -> bool:
        """Return whether rate and reference agree within four combined standard errors and rounding."""
        other = sqrt(self.reference * (1 - self.reference) / REFERENCE_REPETITIONS)
        rounding = 0.0005 if round(self.reference, 2) != self.reference else 0.005
        return abs(self.rate - self.reference) <= 4 * sqrt(self.standard_error**2 + other**2) + rounding


def ar1(rng: np.random.Generator, shape: tuple[int, ...], phi: float) -> Floats:
    """Return stationary AR(1) series of unit SD along the last axis."""
    series = rng.standard_normal(shape)
    innovation = sqrt(1 - phi**2)
    for t in range(1, shape[-1]):
        series[..., t] = phi * series[..., t - 1] + innovation * series[..., t]
    return series


def episodes(rng: np.random.Generator, runs: tuple[int, ...], tau: float, phi: float, last: int) -> Floats:
    """Return the last episodes' scores of runs: A_s (1 - exp(-t / T_s)) plus AR(1) noise of SD 30."""
    asymptote = 100 + tau * rng.standard_normal((*runs, 1))
    horizon = 150 * np.exp(0.3 * rng.standard_normal((*runs, 1))) if tau > 0 else np.full((*runs, 1), 150.0)
    t = np.arange(EPISODES - last, EPISODES)
    return np.asarray(asymptote * (1 - np.exp(-t / horizon)) + NOISE_SD * ar1(rng, (*runs, last), phi))


def rank_p_large(x: Floats, y: Floats) -> Floats:
    """Return two-sided rank-test p of each row by the normal approximation (hundreds of values)."""
    n, m = x.shape[1], y.shape[1]
    order = np.argsort(np.concatenate([x, y], axis=1), axis=1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, n + m + 1)[None, :], axis=1)
    u = ranks[:, :n].sum(axis=1) - n * (n + 1) / 2
    return np.asarray(2 * ndtr(-np.abs(u - n * m / 2) / sqrt(n * m * (n + m + 1) / 12)))


def rank_p_exact(x: Floats, y: Floats) -> Floats:
    """Return exact two-sided rank-test p of each row (untied), from the product's null table."""
    u = (x[:, :, None] > y[:, None, :]).sum(axis=(1, 2))
    below = np.cumsum(rank_sum_null(x.shape[1], y.shape[1]))
    tail = np.minimum(u, x.shape[1] * y.shape[1] - u)
    return np.asarray(np.minimum(1, 2 * below[tail]))


def welch_p(x: Floats, y: Floats) -> Floats:
    """Return Welch p of each row."""
    v, w = x.var(axis=1, ddof=1) / x.shape[1], y.var(axis=1, ddof=1) / y.shape[1]
    df = (v + w) ** 2 / (v**2 / (x.shape[1] - 1) + w**2 / (y.shape[1] - 1))
    return np.asarray(2 * stdtr(df, -np.abs(x.mean(axis=1) - y.mean(axis=1)) / np.sqrt(v + w)))


def paired_t_p(d: Floats) -> Floats:
    """Return paired t p along the second axis."""
    n = d.shape[1]
    return np.asarray(2 * stdtr(n - 1, -np.abs(d.mean(axis=1)) / (d.std(axis=1, ddof=1) / sqrt(n))))


def episode_rows(rng: np.random.Generator) -> Iterator[Row]:
    """One seed per arm, or pooled seeds, with episodes as n."""
    cells = (
        ("one seed per arm, rank test over 200 episodes", 15, 0.5, 1, ANALYSED, 0.78),
        ("one seed per arm, rank test over all 1,000 episodes", 15, 0.5, 1, EPISODES, 0.88),
        ("one seed per arm, no between-seed variance", 0, 0.5, 1, ANALYSED, 0.25),
        ("one seed per arm, no between-seed variance", 0, 0.9, 1, ANALYSED, 0.65),
        ("one seed per arm, no autocorrelation", 5, 0.0, 1, ANALYSED, 0.44),
        ("one seed per arm, no autocorrelation", 15, 0.0, 1, ANALYSED, 0.78),
        ("episodes of 5 seeds pooled", 15, 0.5, 5, ANALYSED, 0.79),
        ("episodes of 10 seeds pooled", 15, 0.5, 10, ANALYSED, 0.76),
    )
    for name, tau, phi, seeds, last, reference in cells:
        repetitions = 10_000 if seeds == 1 else 4_000
        p = np.concatenate([_episode_p(rng, 100, tau, phi, seeds, last) for _ in range(repetitions // 100)])
        parameters = {"tau": tau, "phi": phi, "seeds_per_arm": seeds, "episodes": last}
        yield Row(name, float((p <= ALPHA).mean()), reference, repetitions, parameters)
        if (tau, phi, seeds, last) == (15, 0.5, 1, ANALYSED):
            yield Row(f"{name}, p < .001", float((p < 0.001).mean()), 0.65, repetitions, parameters)


def _episode_p(rng: np.random.Generator, size: int, tau: float, phi: float, seeds: int, last: int) -> Floats:
    x, y = (episodes(rng, (size, seeds), tau, phi, last).reshape(size, -1) for _ in range(2))
    return rank_p_large(x, y)


def replicate_scores(rng: np.random.Generator, size: int, n: int) -> Floats:
    """Return replicate scores: A_s plus the mean of 200 AR(1) values (tau = 15, phi = .5)."""
    means = np.concatenate([ar1(rng, (500, n, ANALYSED), 0.5).mean(axis=2) for _ in range(size // 500)])
    return np.asarray(100 + 15 * rng.standard_normal((size, n)) + NOISE_SD * means)


def replicate_rows(rng: np.random.Generator) -> Iterator[Row]:
    """Tests on replicate scores, all on the same draws."""
    references = {5: (0.030, 0.045), 10: (0.047, 0.054), 20: (0.049, 0.048)}
    flips = {10: 0.056, 20: 0.060}
    size = 20_000
    for n, (rank, welch) in references.items():
        x, y = replicate_scores(rng, size, n), replicate_scores(rng, size, n)
        parameters = {"n": n, "tau": 15, "phi": 0.5}
        rates = float((rank_p_exact(x, y) <= ALPHA).mean()), float((welch_p(x, y) <= ALPHA).mean())
        yield Row(f"rank test on replicate scores, n = {n}", rates[0], rank, size, parameters)
        yield Row(f"Welch on replicate scores, n = {n}", rates[1], welch, size, parameters)
        if n in flips:
            rate = float(np.mean([sign_flip(d).two_sided <= ALPHA for d in x - y]))
            yield Row(f"exact sign-flip, n = {n}", rate, flips[n], size, parameters)


def bootstrap_rows(rng: np.random.Generator) -> Iterator[Row]:
    """Percentile bootstrap of the mean difference, 1,000 resamples."""
    for n, reference in ((3, 0.20), (5, 0.14), (10, 0.09), (20, 0.08)):
        size = 8_000
        x, y = replicate_scores(rng, size, n), replicate_scores(rng, size, n)
        rate = float(np.mean([_bootstrap_excludes_zero(rng, a, b) for a, b in zip(x, y, strict=True)]))
        yield Row(
            f"percentile bootstrap of the mean difference, n = {n}", rate, reference, size, {"n": n, "resamples": 1000}
        )


def _bootstrap_excludes_zero(rng: np.random.Generator, x: Floats, y: Floats) -> bool:
    n = x.size
    means = [values[rng.integers(0, n, size=(1_000, n))].mean(axis=1) for values in (x, y)]
    low, high = np.quantile(means[0] - means[1], (ALPHA / 2, 1 - ALPHA / 2))
    return bool(low > 0 or high < 0)


def sequential_rows(rng: np.random.Generator) -> Iterator[Row]:
    """Looking early: standard normal paired differences, n up to 20."""
    size = 20_000
    d = rng.standard_normal((size, 20))
    # the first test is possible after three blocks; from two on the rate is .26
    p = {n: paired_t_p(d[:, :n]) for n in range(3, 21)}
    peeking = np.any([p[n] <= ALPHA for n in range(3, 21)], axis=0)
    yield Row("test after every block to n = 20, stop at p <= .05", float(peeking.mean()), 0.23, size, {"n": "3..20"})
    at = (7, 14, 20)
    three = np.any([p[n] <= ALPHA for n in at], axis=0)
    yield Row("three uncorrected looks", float(three.mean()), 0.11, size, {"at": at})
    z = -ndtri(look_levels(at, "pocock", ALPHA)[0] / 2)
    pocock = np.any([-ndtri(p[n] / 2) >= z for n in at], axis=0)
    yield Row("Pocock looks 7/14/20", float(pocock.mean()), 0.053, size, {"at": at, "z": round(float(z), 4)})
    e = np.array([sign_path(row).max() for row in d])
    yield Row("sign e-value, looking after every block", float((e >= 1 / ALPHA).mean()), 0.027, size, {"n": 20})


def winner_rows(rng: np.random.Generator) -> Iterator[Row]:
    """Four arms, n = 10, unit-variance normal scores, Welch pairs."""
    size = 20_000
    equal = _four_arms(rng, size, (0, 0, 0, 0))
    yield Row("best against worst of 4 arms, uncorrected", float((_extreme_p(equal) <= ALPHA).mean()), 0.19, size, {})
    for means, name, reference in (
        ((0, 0, 0, 0), "winner rule, four equal arms", 0.006),
        ((0, 0, -9, -9), "winner rule, two tied at the top", 0.050),
        ((0, 0, 0, -9), "winner rule, three tied at the top", 0.013),
    ):
        rate = float(_has_winner(_four_arms(rng, size, means), 1).mean())
        yield Row(name, rate, reference, size, {"means": means, "n": 10})
    best = _four_arms(rng, size, (1.5, 0, 0, 0))
    parameters = {"means": (1.5, 0, 0, 0), "n": 10}
    yield Row(
        "power: winner rule, 1.5 SD best of 4", float(_first_wins(best, False).mean()), 0.76, size, parameters, "power"
    )
    yield Row("power: Holm over all pairs", float(_first_wins(best, True).mean()), 0.47, size, parameters, "power")


def _four_arms(rng: np.random.Generator, size: int, means: tuple[float, ...]) -> Floats:
    return np.asarray(np.array(means)[None, :, None] + rng.standard_normal((size, 4, 10)))


def _extreme_p(arms: Floats) -> Floats:
    order, rows = arms.mean(axis=2).argsort(axis=1), np.arange(len(arms))
    return welch_p(arms[rows, order[:, -1]], arms[rows, order[:, 0]])


def _beats(arms: Floats, level: float) -> NDArray[np.bool_]:
    """Return (size, 4, 4): arm i beats arm j by Welch at a level."""
    wins = np.zeros((len(arms), 4, 4), dtype=bool)
    for i in range(4):
        for j in range(4):
            if i != j:
                better = arms[:, i].mean(axis=1) > arms[:, j].mean(axis=1)
                wins[:, i, j] = better & (welch_p(arms[:, i], arms[:, j]) <= level)
    return wins


def _has_winner(arms: Floats, factor: float) -> NDArray[np.bool_]:
    return np.asarray((_beats(arms, ALPHA / factor).sum(axis=2) == 3).any(axis=1))


def _first_wins(arms: Floats, holm: bool) -> NDArray[np.bool_]:
    """Return whether arm 0 beats all others, uncorrected (winner rule) or by Holm over all six pairs."""
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    p = np.column_stack([welch_p(arms[:, i], arms[:, j]) for i, j in pairs])
    if holm:
        order = np.argsort(p, axis=1)
        stepped = np.maximum.accumulate(np.take_along_axis(p, order, axis=1) * np.arange(6, 0, -1), axis=1)
        np.put_along_axis(p, order, stepped, axis=1)
    ahead = arms[:, 0].mean(axis=1)[:, None] > arms[:, 1:].mean(axis=2)
    return np.asarray(((p[:, :3] <= ALPHA) & ahead).all(axis=1))


def curve_rows(rng: np.random.Generator) -> Iterator[Row]:
    """Better at some step: 10 difference curves at 20 steps."""
    size = 10_000
    noise = ar1(rng, (size, 10, 20), 0.8) / sqrt(1 - 0.8**2)
    d = 0.6 * noise + 0.8 * rng.standard_normal((size, 10, 1))
    some = np.any([paired_t_p(d[:, :, step]) <= ALPHA for step in range(20)], axis=0)
    yield Row("better at some of 20 steps, uncorrected", float(some.mean()), 0.34, size, {"n": 10, "steps": 20})
    joint = np.mean([curve_max_t(curves).p_any <= ALPHA for curves in d])
    yield Row("better at some of 20 steps, joint max-T", float(joint), 0.050, size, {"n": 10, "steps": 20})


def other_rows(rng: np.random.Generator) -> Iterator[Row]:
    """Non-overlapping intervals, and omitting failed runs."""
    size, n = 20_000, 10
    x, y = 1 + rng.standard_normal((size, n)), rng.standard_normal((size, n))
    # each interval with the 18 degrees of freedom of the comparison; with its own 9 the power is .22
    half = [float(stdtrit(2 * n - 2, 0.975)) * v.std(axis=1, ddof=1) / sqrt(n) for v in (x, y)]
    apart = np.abs(x.mean(axis=1) - y.mean(axis=1)) > half[0] + half[1]
    yield Row("power: intervals do not overlap, d = 1", float(apart.mean()), 0.28, size, {"n": n, "df": 18}, "power")
    yield Row("power: Welch, d = 1", float((welch_p(x, y) <= ALPHA).mean()), 0.55, size, {"n": n}, "power")
    for n, reference in ((6, 0.10), (10, 0.20), (20, 0.47)):
        rate = float(np.mean([_fragile_called_better(rng, n) for _ in range(10_000)]))
        yield Row(f"failed runs omitted: fragile arm called better, n = {n}", rate, reference, 10_000, {"n": n})


def _fragile_called_better(rng: np.random.Generator, n: int) -> bool:
    fragile, sound = rng.standard_normal(n), rng.standard_normal(n)
    survivors = fragile[fragile >= -0.25]
    if survivors.size == 0:
        return False
    test = mann_whitney(survivors, sound)
    return test.p.two_sided <= ALPHA and test.a12 > 0.5


PARTS: tuple[Callable[[np.random.Generator], Iterator[Row]], ...] = (
    episode_rows,
    replicate_rows,
    bootstrap_rows,
    sequential_rows,
    winner_rows,
    curve_rows,
    other_rows,
)


def main() -> int:
    """Simulate every row, write the result and print the README table; 1 when a row disagrees."""
    start, rows = time.perf_counter(), []
    for key, part in enumerate(PARTS):
        rows += list(part(np.random.Generator(np.random.Philox(key=2026 + key))))
    _write(rows, time.perf_counter() - start)
    print(table(rows))
    bad = [row for row in rows if not row.agrees]
    for row in bad:
        print(f"DISAGREES: {row.procedure}: {row.rate:.3f}, reference {row.reference}", file=sys.stderr)
    return 1 if bad else 0


def table(rows: list[Row]) -> str:
    """Return the README table."""
    lines = ["| procedure | rate | standard error | repetitions |", "|---|---|---|---|"]
    lines += [
        f"| {row.procedure}{_shown(row)} | {row.rate:.3f} | {row.standard_error:.3f} | {row.repetitions:,} |"
        for row in rows
    ]
    return "\n".join(lines)


def _shown(row: Row) -> str:
    known = {
        name: row.parameters[name] for name in ("tau", "phi") if name in row.parameters and "seed" in row.procedure
    }
    return "".join(f", {name} = {value}" for name, value in known.items())


def _write(rows: list[Row], seconds: float) -> None:
    about = "false positives of common procedures between identical arms, nominal .05 (statistics.md 18)"
    shown = [asdict(row) | {"standard_error": round(row.standard_error, 5), "agrees": row.agrees} for row in rows]
    write_rates(RESULT, about, seconds, rows=shown)


if __name__ == "__main__":
    sys.exit(main())
