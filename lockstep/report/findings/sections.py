"""Sections of the report beside the primary comparison: guardrails, secondaries, failures, panels.

Training summaries and cross-evaluation: printed for orientation, they never decide.

Data behind the plots: every replicate's score, profiles, and the statistic against its boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import ndtri

from lockstep.report.findings.clock import Clock
from lockstep.report.findings.staged import visible_scores
from lockstep.report.inputs import ArmFacts, CrossScore, MetricScores, ReportInputs
from lockstep.report.numbers import clipped, ends, number
from lockstep.spec.inference.analysis import AnalysisSpec
from lockstep.spec.inference.design import design_of
from lockstep.spec.inference.power import plan_of
from lockstep.stats.companions import (
    MIN_REPLICATES,
    best_arm,
    failure_probability,
    friedman,
    interquartile_mean,
    normal_factor,
    profile,
    reference_posterior,
)
from lockstep.stats.companions import paired_t as one_sample_t
from lockstep.stats.exact import within
from lockstep.stats.failures import Margin, failure_guardrail, guardrail
from lockstep.stats.multiplicity import benjamini_hochberg, dunnett_test, tukey
from lockstep.stats.power import Needed, Scenario, needed
from lockstep.stats.registered import (
    Design,
    PairTest,
    anytime_differences,
    paired_differences,
    registered_test,
    wager_of,
)
from lockstep.stats.results import scaled, sd
from lockstep.stats.scores import ArmScores, FlooredArm, resolve_floor, usable
from lockstep.stats.shapes import TrueLevel, true_level
from lockstep.stats.shares import clopper_pearson, fisher
from lockstep.stats.verdict import INVALID, NO_INFERENCE, ExperimentResult, PairResult, location

BH_RATE = 0.1
#: Most blocks for leave-one-out; beyond, a single block carries little and n tests take seconds.
_LEAVE_OUT_UP_TO = 30


def arm_table(result: ExperimentResult, scores: MetricScores, design: Design, sign: float) -> list[dict[str, Any]]:
    """Return one row per arm in raw units: n, failures, mean, location, SD, robust summaries."""
    rows = [_arm_row(arm, own, design, sign) for arm, own in zip(result.arms, scores.arms, strict=True)]
    ranges = ("mean_ci", "tolerance_95_95")
    return [row | {name: clipped(row[name], scores.metric) for name in ranges} for row in rows]


def guardrail_rows(
    inputs: ReportInputs, scores: MetricScores, result: ExperimentResult, clock: Clock
) -> list[dict[str, Any]]:
    """Return every registered guardrail and the implicit failure rate for each claim of the headline.

    ``harm`` is judged at alpha / (guardrails x rivals), because any one of them turns the verdict.
    """
    analysis = inputs.analysis
    design = replace(design_of(analysis, analysis.alpha), floor=None)
    claims = [(p.better, p.worse) for p in result.claims]
    guarded = [c for c in claims if analysis.control in (None, *c)] or claims
    harm_level = analysis.alpha / max(1, len(analysis.guardrails) * len(guarded))
    rows = []
    for guard in analysis.guardrails:
        own = {arm.label: arm for arm in visible_scores(inputs, guard.metric, clock).arms}
        relative = guard.max_harm is None
        margin = guard.max_harm_rel if guard.max_harm is None else guard.max_harm
        for winner, rival in guarded:
            found = guardrail(own[winner or ""], own[rival or ""], design, Margin(margin or 0.0, relative), harm_level)
            rows.append(_guard_row(guard.metric, winner or "", found))
    arms = {arm.label: arm for arm in scores.arms}
    level = analysis.alpha / max(1, len(claims))
    failures = [(w or "", failure_guardrail(arms[w or ""], arms[r or ""], level)) for w, r in claims]
    return rows + [_guard_row("failure rate", winner, found) for winner, found in failures]


def secondary_rows(inputs: ReportInputs, clock: Clock) -> list[dict[str, Any]]:
    """Return exploratory comparisons of every registered secondary metric, BH over all of them."""
    rows: list[dict[str, Any]] = []
    for choice in inputs.analysis.secondary:
        scores = visible_scores(inputs, choice.metric, clock)
        registered = design_of(inputs.analysis, inputs.analysis.alpha)
        design = replace(registered, mode="fixed", floor=None, equivalence=False)
        floor, _ = resolve_floor(scores.arms, None)
        for x, y in combinations(usable(scores.arms, floor, design.paired), 2):
            test = registered_test(x, y, design) if min(x.values.size, y.values.size) > 1 else None
            rows.append(
                {
                    "metric": choice.metric,
                    "a": x.label,
                    "b": y.label,
                    "estimate": number(test.estimate) if test else None,
                    "ci": ends(test.intervals(design.level)[0]) if test else None,
                    "p": number(test.p) if test else None,
                    "exploratory": True,
                }
            )
    for row, q in zip(rows, benjamini_hochberg([row["p"] for row in rows]), strict=True):
        row["q"] = number(q)
        row["below_q"] = q is not None and q <= BH_RATE
    return rows


def failure_rows(arms: Sequence[ArmScores]) -> list[dict[str, Any]]:
    """Return failures k of n with Clopper-Pearson and Fisher p against every other arm."""
    return [
        {
            "arm": arm.label,
            "k": arm.num_failures,
            "n": arm.num_outcomes,
            "ci": ends(clopper_pearson(arm.num_failures, arm.num_outcomes)),
            "fisher_p": {o.label: number(_fisher(arm, o)) for o in arms if o.label != arm.label},
        }
        for arm in arms
    ]


def leave_one_out_row(pair: PairResult | None, design: Design) -> dict[str, Any] | None:
    """Return the range of the registered test's p without each block in turn, for the deciding paired comparison.

    ``reason`` says why there is none: one block fewer could not reach the level whatever the scores are.
    """
    if pair is None or pair.test is None or not design.paired or design.mode == "anytime":
        return None
    n, level = pair.a.values.size, pair.evidence.level
    if not 3 <= n <= _LEAVE_OUT_UP_TO:
        return None
    section: dict[str, Any] = {
        "a": pair.a.label,
        "b": pair.b.label,
        "test": pair.test.name,
        "p_full": number(pair.test.p),
    }
    if not within(_without(pair, 0, design).min_p, level):
        reason = f"{n - 1} blocks cannot reach alpha = {level:.4g} with this test"
        return section | {"p_range": None, "flips": None, "reason": reason}
    ps = [_without(pair, i, design).p for i in range(n)]
    flips = any(within(p, level) != within(pair.test.p, level) for p in ps)
    return section | {"p_range": [number(min(ps)), number(max(ps))], "flips": flips, "reason": None}


def worst_level(pair: PairResult | None, result: ExperimentResult, design: Design) -> TrueLevel | None:
    """Return how far skewness pushes the level of a claim, the worst of them; without a claim, of the deciding pair."""
    judged = [p for p in (result.claims or (pair,)) if p is not None and p.verdict.code not in (INVALID, NO_INFERENCE)]
    levels = [true_level(p.a, p.b, design, p.evidence.level) for p in judged if not p.by_failures]
    return max((f for f in levels if f is not None), key=lambda f: f.simulated / f.nominal, default=None)


def _without(pair: PairResult, block: int, design: Design) -> PairTest:
    """Return the registered test of a comparison without one block."""
    kept = np.delete(np.arange(pair.a.values.size), block)
    left = [FlooredArm(arm.label, arm.values[kept], arm.ranked[kept], arm.replicates[kept]) for arm in (pair.a, pair.b)]
    return registered_test(left[0], left[1], design)


def bayes_panel(result: ExperimentResult, design: Design, scores: MetricScores) -> dict[str, Any] | None:
    """Return the reference posterior of every pair; None where it is undefined."""
    if not design.paired or design.sesoi is None or not all(arm.values.size for arm in result.arms):
        return None
    pairs = []
    for pair in result.pairs:
        posterior = reference_posterior(paired_differences(pair.a, pair.b), design.sesoi)
        row = (
            {"p_above": posterior.p_above, "p_rope": posterior.p_rope, "p_below": posterior.p_below}
            if posterior
            else None
        )
        first, second = (next(a for a in scores.arms if a.label == x.label) for x in (pair.a, pair.b))
        pairs.append(
            {
                "a": pair.a.label,
                "b": pair.b.label,
                "posterior": row,
                "p_fails_more": _fails(first, second, design),
            }
        )
    best = best_arm(np.column_stack([arm.values for arm in result.arms]), design.rng())
    labels = [arm.label for arm in result.arms]
    return {
        "pairs": pairs,
        "best_arm": None if best is None else dict(zip(labels, map(number, best[0]), strict=True)),
        "expected_loss": None if best is None else dict(zip(labels, map(number, best[1]), strict=True)),
        "error_controlled": False,
        "note": "reference posterior; never the verdict" + ("" if design.mode == "fixed" else "; not error-controlled"),
    }


def omnibus(result: ExperimentResult, design: Design) -> dict[str, Any] | None:
    """Return companions over three or more arms: Friedman, or Tukey, Games-Howell and Dunnett."""
    values = [arm.values for arm in result.arms]
    if len(values) < 3 or min(v.size for v in values) < 2:
        return None
    if design.paired:
        return {"friedman_p": number(friedman(np.column_stack(values)).p)}
    if any(np.ptp(v) == 0 for v in values):
        return None
    labels = [arm.label for arm in result.arms]
    section: dict[str, Any] = {
        name: {f"{labels[i]}|{labels[j]}": number(p) for (i, j), p in tukey(values, equal).items()}
        for name, equal in (("tukey_p", True), ("games_howell_p", False))
    }
    if design.control in labels:
        at = labels.index(design.control)
        others = [v for i, v in enumerate(values) if i != at]
        ps = dunnett_test(others, values[at], design.rng())[1]
        section["dunnett_p"] = dict(zip([x for x in labels if x != design.control], map(number, ps), strict=True))
    return section


def replicates_more(
    pair: PairResult | None, result: ExperimentResult, analysis: AnalysisSpec, design: Design
) -> Needed | None:
    """Return how many replicates in all find the smallest effect of interest with 80 % power; None if unknown.

    The registered rule is simulated on the scores of the deciding comparison: their spread, shape and failures, not
    the difference that was seen.
    """
    few = pair is None or min(pair.a.values.size, pair.b.values.size) < 3
    if pair is None or few or design.sesoi is None or analysis.estimand == "p_superiority":
        return None
    size = min(pair.a.values.size, pair.b.values.size)
    scores = np.array([np.where(np.isfinite(arm.ranked), arm.ranked, np.nan)[:size] for arm in (pair.a, pair.b)])
    if not np.isfinite(scores).any(axis=1).all():
        return None
    scenario = Scenario(pilot=tuple(tuple(float(v) for v in row) for row in scores.T))
    plan = plan_of(analysis, len(result.arms))
    return needed(plan, scenario, analysis.analysis_seed, size)


def pair_correlation(arms: Sequence[FlooredArm]) -> float | None:
    """Return the mean correlation between arms over blocks, None below three blocks or without variance."""
    if arms[0].values.size < 3 or any(np.ptp(arm.values) == 0 for arm in arms):
        return None
    matrix = np.corrcoef([scaled(arm.values)[0] for arm in arms])
    return float(np.mean([matrix[i, j] for i, j in combinations(range(len(arms)), 2)]))


def _arm_row(arm: FlooredArm, scores: ArmScores, design: Design, sign: float) -> dict[str, Any]:
    values, n = arm.values, arm.values.size
    many = n >= MIN_REPLICATES
    mean = float(values.mean()) if n else None
    spread_of_runs = sd(values) if n > 1 else None
    reach = normal_factor(n) * spread_of_runs if many and spread_of_runs is not None else None
    return {
        "arm": arm.label,
        "n": n,
        "failed": scores.num_failures,
        "mean": number(None if mean is None else sign * mean),
        "location": number(sign * location(arm, design)) if n else None,
        "mean_ci": ends(one_sample_t(sign * values).interval(0.05)) if n > 1 else None,
        "sd": number(spread_of_runs),
        "min": number(float((sign * values).min())) if n else None,
        "max": number(float((sign * values).max())) if n else None,
        "iqm": number(sign * interquartile_mean(values)) if many else None,
        "tolerance_95_95": None
        if reach is None or mean is None
        else sorted([sign * mean - reach, sign * mean + reach]),
    }


def _guard_row(metric: str, winner: str, guard: Any) -> dict[str, Any]:
    return {
        "metric": metric,
        "winner": winner,
        "rival": guard.rival,
        "state": guard.state,
        "estimate": number(guard.estimate),
        "bound": number(guard.bound),
        "margin": number(guard.margin),
        "p": number(guard.p),
    }


def _fisher(a: ArmScores, b: ArmScores) -> float | None:
    if a.num_outcomes == 0 or b.num_outcomes == 0:
        return None
    return fisher([[x.num_failures, x.num_outcomes - x.num_failures] for x in (a, b)])


def _fails(a: ArmScores, b: ArmScores, design: Design) -> float | None:
    if a.num_outcomes == 0 or b.num_outcomes == 0:
        return None
    counts = a.num_failures, a.num_outcomes, b.num_failures, b.num_outcomes
    return number(failure_probability(*counts, design.rng()))


def training_rows(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Return per arm: episodes, final, best and mean training figures, averaged over replicates.

    Training rewards of arms with different reward modes are in different currencies.
    """
    rows = []
    for arm in inputs.arms:
        own = [row for row in inputs.training if row.arm == arm.label]
        if own:
            rows.append(
                {
                    "arm": arm.label,
                    "reward_mode": arm.reward_mode,
                    "replicates": len(own),
                    "episodes": sum(row.episodes for row in own),
                    "final_accuracy": _mean(row.final_accuracy for row in own),
                    "best_accuracy": _mean(row.best_accuracy for row in own),
                    "mean_reward": _mean(row.mean_reward for row in own),
                }
            )
    return rows


def cross_scores(inputs: ReportInputs) -> dict[str, Any] | None:
    """Return the matrix policy arm x reward function, pooled over replicates and per replicate.

    None where it says no more than the evaluation: all arms have the same reward, and no other one was asked for. Arms
    that differ in their discount alone have the same reward.
    """
    modes = sorted({cell.mode for cell in inputs.cross_scores})
    own = {arm.label: _own_function(arm, inputs.arms, modes) for arm in inputs.arms}
    if not modes or (has_one_reward(inputs.arms) and {*modes} <= {*own.values()}):
        return None
    cells = []
    for arm in inputs.arms:
        for mode in modes:
            found = sorted(
                (c for c in inputs.cross_scores if c.arm == arm.label and c.mode == mode),
                key=lambda c: c.replicate,
            )
            if found:
                cells.append(_cell(arm.label, mode, found, own[arm.label] == mode))
    return {"modes": modes, "of_arms": _owners(own), "cells": cells}


def has_one_reward(arms: Sequence[ArmFacts]) -> bool:
    """Return whether all arms have the same reward function, whatever their discounts are."""
    return len({_reward_key(arm) for arm in arms}) == 1


def _reward_key(arm: ArmFacts, *, with_discount: bool = False) -> tuple[object, ...]:
    settings = [d for d in arm.differences if d.path.startswith("reward.") or (with_discount and d.path == "ppo.gamma")]
    return arm.reward_mode, *sorted((d.path, repr(d.value)) for d in settings)


def _own_function(arm: ArmFacts, arms: Sequence[ArmFacts], modes: Sequence[str]) -> str:
    """Return under what name an arm's reward was scored: its mode, or where arms share one, with the first owner."""
    if arm.reward_mode in modes:
        return str(arm.reward_mode)
    keys = [_reward_key(other, with_discount=True) for other in arms]
    return f"{arm.reward_mode}_arm{keys.index(_reward_key(arm, with_discount=True))}"


def _owners(own: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the arms of each function that is not named by its mode alone."""
    owners: dict[str, list[str]] = {}
    for label, name in own.items():
        owners.setdefault(name, []).append(label)
    return owners


def _cell(arm: str, mode: str, scores: list[CrossScore], is_own: bool) -> dict[str, Any]:
    means = [c.mean for c in scores if number(c.mean) is not None]
    return {
        "arm": arm,
        "mode": mode,
        "own_mode": is_own,
        "mean": _mean(c.mean for c in scores),
        "sd_between_replicates": number(float(np.std([m for m in means if m is not None], ddof=1)))
        if len(means) > 1
        else None,
        "episodes": sum(c.episodes for c in scores),
        "replicates": [
            {"replicate": c.replicate, "mean": number(c.mean), "sd": number(c.sd), "n": c.episodes} for c in scores
        ],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if number(v) is not None]
    return number(float(np.mean([v for v in known if v is not None]))) if known else None


_GRID = 101


def score_panel(result: ExperimentResult, scores: MetricScores, sign: float) -> list[dict[str, Any]]:
    """Return every replicate that enters the analysis, in raw units; failures stand at the floor."""
    return [
        {
            "arm": arm.label,
            "replicate": scores.blocks[arm.label][int(position)],
            "value": number(sign * float(value)),
            "status": "failed" if np.isneginf(ranked) else "ok",
        }
        for arm in result.arms
        for position, value, ranked in zip(arm.replicates, arm.values, arm.ranked, strict=True)
    ]


def profile_panel(result: ExperimentResult, sign: float) -> dict[str, Any] | None:
    """Return the share of replicates above tau on a common grid (raw units), from ten replicates on."""
    if min(arm.values.size for arm in result.arms) < MIN_REPLICATES:
        return None
    everything = sign * np.concatenate([arm.values for arm in result.arms])
    taus = np.linspace(float(everything.min()), float(everything.max()), _GRID)
    return {
        "tau": [number(float(t)) for t in taus],
        "arms": [
            {"arm": arm.label, "share": [float(s) for s in profile(sign * arm.values, taus)]} for arm in result.arms
        ],
    }


def nondeterminism(result: ExperimentResult) -> dict[str, float | None] | None:
    """Return the SD within blocks of identical arms against the SD between replicates, None below two blocks."""
    if min(arm.values.size for arm in result.arms) < 2:
        return None
    blocks, unit = scaled(np.column_stack([arm.values for arm in result.arms]))
    within, between = float(np.sqrt(blocks.var(axis=1, ddof=1).mean())), float(blocks.mean(axis=1).std(ddof=1))
    return {"nondeterminism_sd": number(unit * within), "seed_sd": number(unit * between)}


def sequential_panel(
    pair: PairResult | None, clock: Clock, design: Design, at: tuple[int, ...]
) -> dict[str, Any] | None:
    """Return the deciding comparison's statistic against its boundary, look by look or block by block."""
    if pair is None or not design.paired or pair.a.values.size < 2:
        return None
    base = {"a": pair.a.label, "b": pair.b.label, "mode": design.mode}
    if design.mode == "anytime":
        path = wager_of(design).path(anytime_differences(pair.a, pair.b, design))
        blocks = list(range(1, path.size + 1))
        return base | {"n": blocks, "e": [number(float(e)) for e in path], "threshold": 1 / design.level}
    if design.mode != "planned":
        return None
    z = [_z_at(pair, design, n) for n in at]
    return base | {"n": list(at), "z": z, "boundary": [number(-float(ndtri(a / 2))) for a in clock.levels]}


def _z_at(pair: PairResult, design: Design, n: int) -> float | None:
    """Return z = Phi^-1(1 - p/2) of the first n complete blocks, None when they are not there yet."""
    if pair.a.values.size < n:
        return None
    p = registered_test(_first(pair.a, n), _first(pair.b, n), design).p
    return number(-float(ndtri(p / 2)))


def _first(arm: FlooredArm, n: int) -> FlooredArm:
    return FlooredArm(arm.label, arm.values[:n], arm.ranked[:n], arm.replicates[:n])
