"""Independent code for the paired analysis of the mean: plain enumeration, nothing of lockstep.stats."""

from __future__ import annotations

import csv
import io
from itertools import product
from math import floor


def paired_scores(text: str, metric: str, first: str, second: str) -> list[tuple[float, float]]:
    """Return (first, second) raw scores of the exported CSV, joined by replicate."""
    table: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["metric"] == metric and row["status"] == "ok" and row.get("kind", "score") in ("score", ""):
            table.setdefault(int(row["replicate"]), {})[row["arm"]] = float(row["raw"])
    return [(table[r][first], table[r][second]) for r in sorted(table) if {first, second} <= set(table[r])]


def estimate(differences: list[float]) -> float:
    """Return the mean difference."""
    return sum(differences) / len(differences)


def sign_flip_p(differences: list[float]) -> float:
    """Two-sided exact p of the mean by all sign vectors (Fisher 1935)."""
    sums = [
        abs(sum(d * s for d, s in zip(differences, signs, strict=True)))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    return sum(total >= abs(sum(differences)) - 1e-9 for total in sums) / len(sums)


def interval(differences: list[float], alpha: float) -> tuple[float, float] | None:
    """Invert the sign-flip test by order statistics of the means of all non-empty subsets (Hartigan 1969)."""
    chosen = [
        [d for d, taken in zip(differences, mask, strict=True) if taken]
        for mask in product((0, 1), repeat=len(differences))
    ]
    means = sorted(estimate(subset) for subset in chosen if subset)
    k = floor(alpha / 2 * len(chosen) + 1e-9)
    return (means[k - 1], means[len(means) - k]) if k else None
