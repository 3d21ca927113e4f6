"""Recompute the primary effect, interval and p of a report from its scores.csv alone.

This file needs Python and numpy, nothing of Lockstep: it is exported beside report.json and checks
it by plain counting. Run ``python recompute.py [folder]`` where the folder holds both files.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb, floor, inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

#: Largest number of sign vectors or splits that is enumerated here.
LIMIT = 1 << 20
SPLITS = 200_000
Ends = tuple[float, float] | None
Answer = tuple[float, float, Ends, Ends]


def main(arguments: Sequence[str]) -> int:
    """Print each comparison as reported and as recomputed; return 1 when they differ."""
    folder = Path(arguments[0]) if arguments else Path()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    with (folder / "scores.csv").open(newline="", encoding="utf-8") as lines:
        bad, text = verify(report, list(csv.DictReader(lines)))
    sys.stdout.write("".join(line + "\n" for line in text))
    return 1 if bad else 0


def verify(report: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> tuple[int, list[str]]:
    """Return the number of comparisons that differ and one line of text for each."""
    scores = read_scores(report, rows)
    bad, lines = 0, []
    for c in report["comparisons"]:
        name = f"{c['a']} - {c['b']}"
        answer = recompute(c, scores[c["a"]], scores[c["b"]], report)
        if answer is None:
            lines.append(f"{name}: {c['test']} is not recomputed here")
            continue
        reported = c["estimate"], c["p"], c["ci_superiority"], c["ci_equivalence"]
        same = all(close(x, y) for x, y in zip(answer, reported, strict=True))
        bad += not same
        lines.append(f"{name}: {'agrees' if same else 'DIFFERS'}: recomputed {answer}, reported {reported}")
    return bad, lines


def read_scores(
    report: Mapping[str, Any], rows: Sequence[Mapping[str, str]]
) -> dict[str, dict[int, tuple[float, float]]]:
    """Return per arm: replicate -> (score with failures at the floor, rank score), oriented."""
    sign = 1.0 if report["facts"]["direction"] == "max" else -1.0
    floor_score = sign * report["facts"]["floor"]
    used = {c["replicate"] for c in report["scores"]}
    scores: dict[str, dict[int, tuple[float, float]]] = {arm: {} for arm in report["facts"]["arms"]}
    for row in rows:
        replicate, arm = int(row["replicate"]), row["arm"].removeprefix("'")
        if row["metric"] != report["facts"]["metric"] or row["status"] == "lost" or replicate not in used:
            continue
        failed = row["status"] == "failed" or not isfinite(float(row["raw"]))
        scores[arm][replicate] = (floor_score, -inf) if failed else (sign * float(row["raw"]),) * 2
    return scores


def recompute(
    c: Mapping[str, Any],
    a: Mapping[int, tuple[float, float]],
    b: Mapping[int, tuple[float, float]],
    report: Mapping[str, Any],
) -> Answer | None:
    """Return estimate, p, superiority and equivalence interval of one comparison, or None."""
    level = c["alpha_used"]
    if c["test"] in ("signed-rank", "sign-flip"):
        shared = sorted(set(a) & set(b) & {row["replicate"] for row in c["pairs"]})
        d = np.array([a[r][0] - b[r][0] for r in shared])
        # scores this close are tied; a failed run's score sets no scale
        tie = 1e-9 * max((abs(v[1]) for r in shared for v in (a[r], b[r]) if v[1] > -inf), default=0.0)
        d[np.abs(d) <= tie] = 0.0
        if d.size < 2 or 2**d.size > LIMIT:
            return None
        return signed_rank(d, level, tie) if c["test"] == "signed-rank" else sign_flip(d, level, tie)
    if c["test"] == "rank" and report["registration"]["analysis"]["estimand"] == "shift":
        return rank_test(list(a.values()), list(b.values()), level)
    if c["test"] == "studentised permutation" and comb(len(a) + len(b), len(a)) <= SPLITS:
        return permutation([v[0] for v in a.values()], [v[0] for v in b.values()], level)
    return None


def signed_rank(d: np.ndarray, level: float, tie: float) -> Answer:
    """Signed-rank test (Pratt) by counting the signs of the ranks; Walsh-average intervals."""
    ranks = doubled_ranks(np.abs(d), tie)
    kept = [r for r, v in zip(ranks, d, strict=True) if v != 0]
    observed = sum(r for r, v in zip(ranks, d, strict=True) if v > 0)
    counts = sign_counts(kept)
    p = two_sided(counts, observed)
    walsh = sorted((x + y) / 2 for i, x in enumerate(d) for y in d[i:])
    null = sign_counts(range(1, len(d) + 1))
    return median(walsh), p, order_interval(walsh, null, level), order_interval(walsh, null, 2 * level)


def sign_flip(d: np.ndarray, level: float, tie: float) -> Answer:
    """Sign-flip test by all sign vectors; intervals from the means of all non-empty subsets."""
    sums, sizes = np.zeros(1), np.zeros(1)
    for value in d:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    flipped = 2 * sums - d.sum()
    slack = max(tie * len(d), 2e-15 * np.abs(d).sum())
    p = float((np.abs(flipped) >= abs(d.sum()) - slack).mean())
    means = np.sort(sums[1:] / sizes[1:])
    ends = []
    for a in (level, 2 * level):
        k = floor(a / 2 * 2 ** len(d) * (1 + 1e-9))
        ends.append(None if k == 0 else (float(means[k - 1]), float(means[2 ** len(d) - k - 1])))
    return float(d.mean()), p, ends[0], ends[1]


def rank_test(a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]], level: float) -> Answer:
    """Rank test by counting subsets of the mid-ranks; intervals from the ordered differences."""
    ranks = doubled_ranks(np.array([v[1] for v in (*a, *b)]))
    p = two_sided(subset_counts(ranks, len(a)), sum(ranks[: len(a)]))
    differences = sorted(x[0] - y[0] for x in a for y in b)
    size = len(a) * (len(a) + 1) // 2
    null = Counter({s - size: n for s, n in subset_counts(list(range(1, len(a) + len(b) + 1)), len(a)).items()})
    intervals = [order_interval(differences, null, x) for x in (level, 2 * level)]
    return median(differences), p, intervals[0], intervals[1]


def permutation(a: Sequence[float], b: Sequence[float], level: float) -> Answer:
    """Permutation test of Welch t by all splits; intervals by bisection on its p."""
    n, m = len(a), len(b)
    first, second = np.array(a), np.array(b)
    estimate = float(first.mean() - second.mean())
    members = np.zeros((comb(n + m, n), n + m))
    for row, chosen in enumerate(combinations(range(n + m), n)):
        members[row, list(chosen)] = 1.0

    def p_of(theta: float) -> float:
        pooled = np.concatenate([first - theta, second])
        pooled = (pooled - pooled.mean()) / (np.ptp(pooled) or 1.0)
        sums, squares = members @ pooled, members @ pooled**2
        variance = (squares - sums**2 / n) / (n * (n - 1))
        variance += ((pooled**2).sum() - squares - sums**2 / m) / (m * (m - 1))
        gap = np.abs(sums / n + sums / m)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(variance > 1e-14, gap / np.sqrt(variance), np.where(gap > 1e-12, inf, 0.0))
        return float((t >= t[0] * (1 - 1e-9)).mean())

    spread = 4 * float(np.ptp(first) + np.ptp(second))
    ends: list[Ends] = []
    for a_level in (level, 2 * level):
        sides = [bisected(p_of, estimate, sign * spread, a_level) for sign in (-1, 1)]
        ends.append(None if sides[0] is None or sides[1] is None else (sides[0], sides[1]))
    return estimate, p_of(0.0), ends[0], ends[1]


def bisected(p_of: Callable[[float], float], inner: float, reach: float, level: float) -> float | None:
    """Return where the p falls to the level, going out from the estimate, or None if it never does."""
    outer = inner + reach
    if p_of(outer) > level * (1 + 1e-9):
        return None
    for _ in range(60):
        middle = (inner + outer) / 2
        if p_of(middle) > level * (1 + 1e-9):
            inner = middle
        else:
            outer = middle
    return inner


def doubled_ranks(values: np.ndarray, slack: float | None = None) -> list[int]:
    """Return twice the mid-ranks; values within ``slack`` (1e-9 of the largest magnitude) are tied."""
    finite = np.abs(values[np.isfinite(values)])
    slack = 1e-9 * (finite.max() if finite.size else 0.0) if slack is None else slack
    order = sorted(range(len(values)), key=lambda i: float(values[i]))
    ranks, start = [0] * len(values), 0
    for stop in range(1, len(values) + 1):
        if stop < len(values) and tied(values[order[stop]], values[order[stop - 1]], slack):
            continue
        for i in order[start:stop]:
            ranks[i] = start + 1 + stop
        start = stop
    return ranks


def tied(x: float, y: float, slack: float) -> bool:
    """Return whether two neighbours are tied."""
    return bool(x == y or abs(x - y) <= slack)


def sign_counts(weights: Iterable[int]) -> Counter[int]:
    """Return how many sign vectors give each sum of positive weights."""
    counts: Counter[int] = Counter({0: 1})
    for weight in weights:
        grown = Counter(counts)
        for total, count in counts.items():
            grown[total + weight] += count
        counts = grown
    return counts


def subset_counts(weights: Sequence[int], size: int) -> Counter[int]:
    """Return how many subsets of a size give each sum."""
    tables: list[Counter[int]] = [Counter({0: 1}), *(Counter() for _ in range(size))]
    for weight in weights:
        for k in range(size, 0, -1):
            for total, count in tables[k - 1].items():
                tables[k][total + weight] += count
    return tables[size]


def two_sided(counts: Mapping[int, int], observed: int) -> float:
    """Return min(1, twice the smaller tail)."""
    total = sum(counts.values())
    upper = sum(n for value, n in counts.items() if value >= observed)
    lower = sum(n for value, n in counts.items() if value <= observed)
    return min(1.0, 2 * min(upper, lower) / total)


def order_interval(ordered: Sequence[float], null: Mapping[int, int], level: float) -> Ends:
    """Return the order statistics that invert a rank test, or None."""
    total, tail, k = sum(null.values()), 0, 0
    for value in sorted(null):
        tail += null[value]
        if tail / total > level / 2 * (1 + 1e-9):
            break
        k = value + 1
    return None if k == 0 else (float(ordered[k - 1]), float(ordered[len(ordered) - k]))


def median(ordered: Sequence[float]) -> float:
    """Return the median of ordered values."""
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else float((ordered[middle - 1] + ordered[middle]) / 2)


def close(x: Any, y: Any) -> bool:
    """Return whether two numbers, intervals or nulls agree to 1e-7."""
    if x is None or y is None:
        return x is None and y is None
    if isinstance(x, tuple):
        return all(close(p, q) for p, q in zip(x, y, strict=True))
    return bool(abs(x - y) <= 1e-7 * max(1.0, abs(x), abs(y)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
