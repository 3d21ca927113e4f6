"""The comparisons of the report: pairs, the registered test, companions and effect sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

from lockstep.report.findings.clock import Clock
from lockstep.report.inputs import ReportInputs
from lockstep.report.numbers import ends, number
from lockstep.stats.companions import MIN_REPLICATES, TTest, bca, effect_sizes, equivalence, paired_t, row_mean, welch
from lockstep.stats.estimands import other_quantities
from lockstep.stats.exact import within
from lockstep.stats.paired import sign_flip, signed_rank
from lockstep.stats.registered import Design, PairTest, noise, paired_differences
from lockstep.stats.results import Interval, scaled
from lockstep.stats.scores import ArmScores, FlooredArm
from lockstep.stats.sequential import early_stop
from lockstep.stats.shares import fisher
from lockstep.stats.unpaired import a12, brunner_munzel, mann_whitney, permutation_mean, seeded_splits
from lockstep.stats.verdict import INVALID, NO_INFERENCE, PairResult

_RESAMPLES = 9_999


def comparison(
    pair: PairResult, design: Design, sign: float, blocks: Mapping[str, tuple[int, ...]], judged: bool
) -> dict[str, Any]:
    """Return one comparison a - b as JSON data; differences are oriented (positive: a is better).

    ``sign`` turns oriented scores back into raw units; ``blocks`` maps positions to replicates; ``judged``: whether
    this comparison was asked for by itself and so carries a verdict, else it is information.
    """
    test, evidence = pair.test, pair.evidence
    inference = pair.verdict.code not in (NO_INFERENCE, INVALID)
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
        "alpha_used": evidence.level,
        "min_p": number(evidence.min_p),
        "ci_superiority": ends(evidence.ci_superiority),
        "ci_equivalence": ends(evidence.ci_equivalence),
        "coverage": number(evidence.ci_superiority.coverage) if evidence.ci_superiority else None,
        "inference": inference,
        "in_family": pair.in_family,
        "look": pair.look,
        "verdict": pair.verdict.code if judged or not inference else None,
        "reason": pair.verdict.reason,
        "better": pair.better if judged else None,
        "fisher_p": number(evidence.failures_p) if pair.by_failures else None,
        "flags": sorted({*pair.verdict.flags, *(test.flags if test else ())}),
        "e_value": number(test.e_value) if test else None,
        "companions": companions(pair.a, pair.b, design),
        "effect": _effect(pair.a, pair.b),
    }


def early_stop_rows(inputs: ReportInputs, clock: Clock, pairs: Sequence[PairResult]) -> tuple[dict[str, Any], ...]:
    """Return the median-unbiased estimates of the comparisons that were won before the last look."""
    return tuple(row for pair in pairs if (row := _early_stop_row(inputs, clock, pair)) is not None)


def _early_stop_row(inputs: ReportInputs, clock: Clock, pair: PairResult) -> dict[str, Any] | None:
    """Return the median-unbiased estimate of a comparison won before the last look, oriented; None otherwise.

    Its interval has the overall level of the design; ``estimate`` is the plain one beside it.
    """
    looks, evidence = inputs.analysis.looks, pair.evidence
    if pair.look is None or pair.look == clock.num_looks or not pair.superior or pair.by_failures or not evidence.p:
        return None
    # a comparison of a family has its share of every look's level
    share = evidence.level / clock.levels[pair.look - 1]
    z = [-float(ndtri(level * share / 2)) for level in clock.levels]
    found = early_stop(looks.at, z, pair.look, -float(ndtri(evidence.p / 2)), inputs.analysis.alpha * share)
    shares = sorted((found.low * evidence.estimate, found.high * evidence.estimate))
    return {
        "a": pair.a.label,
        "b": pair.b.label,
        "look": pair.look,
        "n": min(pair.a.values.size, pair.b.values.size),
        "level": inputs.analysis.alpha * share,
        "estimate": number(evidence.estimate),
        "median_unbiased": number(found.median_unbiased * evidence.estimate),
        "ci": [number(end) for end in shares],
    }


def quantity_row(pair: PairResult, design: Design, arms: Sequence[ArmScores]) -> dict[str, Any]:
    """Return mean difference, shift, failures and (with a threshold) shares that learned, side by side.

    Differences are oriented; intervals at 1 - a of the fixed analysis, unadjusted.
    """
    by_label = {arm.label: arm for arm in arms}
    counts = [(by_label[x].num_failures, by_label[x].num_outcomes) for x in (pair.a.label, pair.b.label)]
    tests = other_quantities(pair, design)
    return {
        "a": pair.a.label,
        "b": pair.b.label,
        "registered": design.estimand,
        **{name: _quantity(tests.get(name), pair.evidence.level) for name in ("mean", "shift", "learned")},
        "failures": [list(count) for count in counts],
        "fisher_p": number(fisher([[k, n - k] for k, n in counts])),
    }


def _quantity(test: PairTest | None, level: float) -> dict[str, Any] | None:
    if test is None:
        return None
    reachable = within(test.min_p, level)
    interval = test.intervals(level)[0]
    return {
        "test": test.name,
        "estimate": number(test.estimate),
        "ci": ends(interval),
        "p": number(test.p) if reachable else None,
    }


def companions(x: FlooredArm, y: FlooredArm, design: Design) -> dict[str, Any]:
    """Return the robustness p values and intervals that are printed beside the registered test."""
    if min(x.values.size, y.values.size) < 2:
        return {}
    return _paired_companions(x, y, design) if design.paired else _unpaired_companions(x, y, design)


def _paired_companions(x: FlooredArm, y: FlooredArm, design: Design) -> dict[str, Any]:
    d = paired_differences(x, y)
    found = {
        "signed_rank_p": number(signed_rank(d, noise(x, y)).p.two_sided),
        "sign_flip_p": number(sign_flip(d, design.rng(), noise(x, y)).two_sided),
        **_t_companions(paired_t(d), design),
    }
    if d.size >= MIN_REPLICATES:
        units, unit = scaled(d)
        interval = bca(units, row_mean, 1 - design.level, _RESAMPLES, design.rng()).interval
        found["bca_ci_mean"] = None if np.ptp(d) == 0 else ends(Interval(unit * interval.low, unit * interval.high))
    return found


def _unpaired_companions(x: FlooredArm, y: FlooredArm, design: Design) -> dict[str, Any]:
    return {
        "rank_p": number(mann_whitney(x.ranked, y.ranked, design.rng()).p.two_sided),
        "permutation_p": number(_permutation_p(x, y, design)),
        "brunner_munzel_p": number(brunner_munzel(x.ranked, y.ranked, design.rng()).p),
        **_t_companions(welch(x.values, y.values), design),
    }


def _permutation_p(x: FlooredArm, y: FlooredArm, design: Design) -> float:
    splits = seeded_splits(x.values.size, y.values.size, design.seed)
    return permutation_mean(x.values, y.values, splits=splits).p_two_sided


def _t_companions(test: TTest, design: Design) -> dict[str, Any]:
    tost = None
    if design.sesoi is not None and design.estimand in ("mean", "shift"):
        tost = equivalence(test, design.sesoi, design.level).p
    return {"t_p": number(test.p), "t_ci": ends(test.interval(design.level)), "tost_p": number(tost)}


def _effect(x: FlooredArm, y: FlooredArm) -> dict[str, Any]:
    if min(x.values.size, y.values.size) == 0:
        return {"A12": None, "cliffs_delta": None, "g": None}
    share = a12(x.ranked, y.ranked)
    g = effect_sizes(x.values, y.values).g
    return {"A12": number(share), "cliffs_delta": number(2 * share - 1), "g": number(g)}


def _pairs(
    pair: PairResult, design: Design, sign: float, blocks: Mapping[str, tuple[int, ...]]
) -> list[dict[str, Any]]:
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
