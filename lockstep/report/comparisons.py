"""The comparisons of the report: pairs, the registered test, companions and effect sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.report.numbers import ends, number
from lockstep.stats.companions import MIN_REPLICATES, TTest, bca, effect_sizes, equivalence, paired_t, row_mean, welch
from lockstep.stats.paired import sign_flip, signed_rank
from lockstep.stats.scores import FlooredArm
from lockstep.stats.unpaired import a12, brunner_munzel, mann_whitney, permutation_mean
from lockstep.stats.verdict import Design, PairResult, paired_differences

_RESAMPLES = 9_999


def comparison(pair: PairResult, design: Design, sign: float, blocks: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return one comparison a - b as JSON data; differences are oriented (positive: a is better).

    ``sign`` turns oriented scores back into raw units; ``blocks`` maps positions to replicates.
    """
    test, evidence = pair.test, pair.evidence
    return {
        "a": pair.a.label,
        "b": pair.b.label,
        "pairs": _pairs(pair, design, sign, blocks),
        "test": test.name if test else None,
        "estimate": number(evidence.estimate) if test else None,
        "se": number(test.se) if test else None,
        "p": number(evidence.p),
        "p_adj": number(pair.p_adjusted),
        "p_method": test.method if test else None,
        "alpha_used": design.level,
        "min_p": number(evidence.min_p),
        "ci_superiority": ends(evidence.ci_superiority),
        "ci_equivalence": ends(evidence.ci_equivalence),
        "coverage": number(evidence.ci_superiority.coverage) if evidence.ci_superiority else None,
        "verdict": pair.verdict.code,
        "reason": pair.verdict.reason,
        "better": pair.better,
        "flags": sorted({*pair.verdict.flags, *(test.flags if test else ())}),
        "e_value": number(test.e_value) if test else None,
        "companions": companions(pair.a, pair.b, design),
        "effect": _effect(pair.a, pair.b),
    }


def companions(x: FlooredArm, y: FlooredArm, design: Design) -> dict[str, Any]:
    """Return the robustness p values and intervals that are printed beside the registered test."""
    if min(x.values.size, y.values.size) < 2:
        return {}
    return _paired_companions(x, y, design) if design.paired else _unpaired_companions(x, y, design)


def _paired_companions(x: FlooredArm, y: FlooredArm, design: Design) -> dict[str, Any]:
    d = paired_differences(x, y)
    found = {
        "signed_rank_p": number(signed_rank(d).p.two_sided),
        "sign_flip_p": number(sign_flip(d, design.rng()).two_sided),
        **_t_companions(paired_t(d), design),
    }
    if d.size >= MIN_REPLICATES:
        interval = bca(d, row_mean, 1 - design.level, _RESAMPLES, design.rng()).interval
        found["bca_ci_mean"] = None if np.ptp(d) == 0 else ends(interval)
    return found


def _unpaired_companions(x: FlooredArm, y: FlooredArm, design: Design) -> dict[str, Any]:
    return {
        "rank_p": number(mann_whitney(x.ranked, y.ranked, design.rng()).p.two_sided),
        "permutation_p": number(permutation_mean(x.values, y.values, design.rng()).p_two_sided),
        "brunner_munzel_p": number(brunner_munzel(x.ranked, y.ranked, design.rng()).p),
        **_t_companions(welch(x.values, y.values), design),
    }


def _t_companions(test: TTest, design: Design) -> dict[str, Any]:
    tost = None
    if design.sesoi is not None and design.estimand != "p_superiority":
        tost = equivalence(test, design.sesoi, design.level).p
    return {"t_p": number(test.p), "t_ci": ends(test.interval(design.level)), "tost_p": number(tost)}


def _effect(x: FlooredArm, y: FlooredArm) -> dict[str, Any]:
    if min(x.values.size, y.values.size) == 0:
        return {"A12": None, "cliffs_delta": None, "g": None}
    share = a12(x.ranked, y.ranked)
    g = effect_sizes(x.values, y.values).g
    return {"A12": number(share), "cliffs_delta": number(2 * share - 1), "g": number(g)}


def _pairs(pair: PairResult, design: Design, sign: float, blocks: dict[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    if not design.paired:
        return []
    a, b = pair.a, pair.b
    d = paired_differences(a, b) if a.values.size else np.zeros(0)
    return [
        {
            "replicate": blocks[a.label][int(a.replicates[i])],
            "a": number(sign * a.values[i]),
            "b": number(sign * b.values[i]),
            "difference": number(d[i]),
        }
        for i in range(d.size)
    ]
