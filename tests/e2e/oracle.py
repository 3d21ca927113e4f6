"""Independent code for the paired rank analysis: plain enumeration, nothing of lockstep.stats."""

from __future__ import annotations

import csv
import io
from itertools import product
from statistics import median


def paired_scores(text: str, metric: str, first: str, second: str) -> list[tuple[float, float]]:
    """Return (first, second) raw scores of the exported CSV, joined by replicate."""
    table: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["metric"] == metric and row["status"] == "ok" and row.get("kind", "score") in ("score", ""):
            table.setdefault(int(row["replicate"]), {})[row["arm"]] = float(row["raw"])
    return [(table[r][first], table[r][second]) for r in sorted(table) if {first, second} <= set(table[r])]


def walsh(differences: list[float]) -> list[float]:
    """Return the sorted Walsh averages."""
    n = len(differences)
    return sorted((differences[i] + differences[j]) / 2 for i in range(n) for j in range(i, n))


def ranks(values: list[float]) -> list[float]:
    """Return mid-ranks."""
    return [sum(o < value for o in values) + (sum(o == value for o in values) + 1) / 2 for value in values]


def signed_rank_p(differences: list[float]) -> float:
    """Two-sided exact p by all sign vectors; zeros are ranked and dropped (Pratt)."""
    rounded = [round(value, 12) for value in differences]
    ranked = [(rank, value) for rank, value in zip(ranks([abs(v) for v in rounded]), rounded, strict=True) if value]
    if not ranked:
        return 1.0
    observed = sum(rank for rank, value in ranked if value > 0)
    sums = [
        sum(rank for (rank, _), sign in zip(ranked, signs, strict=True) if sign)
        for signs in product((0, 1), repeat=len(ranked))
    ]
    low = sum(total <= observed + 1e-9 for total in sums) / len(sums)
    high = sum(total >= observed - 1e-9 for total in sums) / len(sums)
    return min(1.0, 2 * min(low, high))


def interval(differences: list[float], alpha: float) -> tuple[float, float] | None:
    """Invert the untied signed-rank test by order statistics of the Walsh averages."""
    n = len(differences)
    sums = [sum(i + 1 for i, sign in enumerate(signs) if sign) for signs in product((0, 1), repeat=n)]
    fitting = [v for v in range(n * (n + 1) // 2 + 1) if sum(s <= v for s in sums) / len(sums) <= alpha / 2]
    if not fitting:
        return None
    k = max(fitting) + 1
    averages = walsh(differences)
    return averages[k - 1], averages[len(averages) - k]


def estimate(differences: list[float]) -> float:
    """Return the Hodges-Lehmann estimate."""
    return median(walsh(differences))
