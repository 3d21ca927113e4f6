"""What a registered analysis may not ask for: refusals, warnings and expected power.

Every refusal has a code, a JSON pointer, a sentence and the nearest legal design
(statistics.md 2.1). Rules see plain facts of the experiment, never the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import Any

from pydantic import ValidationError

from lockstep.quoting import quoted
from lockstep.spec.inference.analysis import AnalysisSpec, analysis_hash, complete_analysis, default_analysis, reach_of
from lockstep.spec.inference.design import design_of
from lockstep.spec.inference.power import expected_power, level_to_beat, num_tests
from lockstep.spec.metrics import REWARD_PREFIXES, find_metric, is_reward_dependent, primary_candidates, registered
from lockstep.spec.text.faults import problems_of
from lockstep.spec.text.problems import Problem, nearest
from lockstep.stats.exact import min_p, smallest_n, within
from lockstep.stats.registered import wager_of
from lockstep.stats.sequential import look_levels

__all__ = [
    "AnalysisSpec",
    "analysis_hash",
    "complete_analysis",
    "default_analysis",
    "level_to_beat",
    "num_tests",
    "problems_from_validation_error",
    "seed_problems",
    "validate_analysis",
]


#: No experiment has more replicates than this.
_MOST_BLOCKS = 1000


@dataclass(frozen=True)
class _Facts:
    labels: tuple[str, ...]
    replicates: int
    arms_differ_in_reward: bool
    env_kind: str


def validate_analysis(
    analysis: AnalysisSpec,
    *,
    labels: Sequence[str],
    replicates: int,
    kind: str = "ab",
    arms_differ_in_reward: bool = True,
    env_kind: str = "morphogenesis",
) -> tuple[list[Problem], list[str]]:
    """Return refusals and warnings of an analysis; takes well under 50 ms.

    Args:
        analysis: the section as submitted; defaults are completed here.
        labels: arm labels in order.
        replicates: ``experiment.replicates``.
        kind: ``ab`` or ``aa``.
        arms_differ_in_reward: whether any two arms have different reward settings.
        env_kind: ``morphogenesis`` or ``gymnasium``.
    """
    full = complete_analysis(analysis, kind=kind, replicates=replicates, env_kind=env_kind)
    facts = _Facts(tuple(labels), replicates, arms_differ_in_reward, env_kind)
    problems = [*_metric_problems(full, facts), *_field_problems(full, facts)]
    if full.inference == "full":
        problems += _inference_problems(full)
        if not problems:
            problems += _reach_problems(full, len(facts.labels))
    return problems, [f"{p.code} {p.pointer}: {p.message}; {p.remedy}" for p in _warnings(full, facts)]


def seed_problems(
    analysis: AnalysisSpec, *, shares_seeds: bool = True, used_in_tuning: Sequence[str] = ()
) -> list[Problem]:
    """Return refusals about replicate seeds.

    Args:
        analysis: the section as submitted.
        shares_seeds: whether all arms share replicate seeds.
        used_in_tuning: ids of linked tuning experiments that used this experiment's root seed.
    """
    problems = []
    if used_in_tuning:
        linked = ", ".join(used_in_tuning)
        message = f"experiment.seed was already used while tuning ({linked}); it would favour the tuned arm"
        problems.append(_found("E_SEED_REUSED", "/experiment/seed", message, "choose a seed that no tuning used"))
    if analysis.paired and not shares_seeds:
        message = "analysis.paired true needs arms that share replicate seeds"
        problems.append(_found("E_PAIRING", "/analysis/paired", message, "set analysis.paired to false"))
    return problems


def problems_from_validation_error(error: ValidationError, data: Any) -> list[Problem]:
    """Return what the schema finds wrong with an ``analysis`` section, with the codes of statistics.md 2.1."""
    found = problems_of(AnalysisSpec, data, error, root=("analysis",))
    return [replace(problem, code=_field_code(problem.pointer, data)) for problem in found]


def _metric_problems(analysis: AnalysisSpec, facts: _Facts) -> Iterator[Problem]:
    primary, at = analysis.primary.metric, "/analysis/primary/metric"
    offered = list(primary_candidates(facts.env_kind))
    is_known = find_metric(primary) is not None or primary.startswith(REWARD_PREFIXES)
    if is_known and is_reward_dependent(primary) and facts.arms_differ_in_reward:
        message = (
            f"primary metric {quoted(primary)} is computed from each arm's own training reward, and the arms differ "
            "in reward: their returns are in different currencies"
        )
        yield _found("E_REWARD_DEPENDENT", at, message, f"choose one of {', '.join(offered)}")
        return
    others = [(f"/analysis/guardrails/{i}/metric", g.metric) for i, g in enumerate(analysis.guardrails)]
    others += [(f"/analysis/secondary/{i}/metric", s.metric) for i, s in enumerate(analysis.secondary)]
    others += [("/analysis/curve/metric", analysis.curve.metric)] if analysis.curve else []
    scored = [name for name, metric in registered().items() if facts.env_kind in metric.env_kinds]
    named = [(at, primary, offered)]
    named += [(place, name, scored) for place, name in others if not name.startswith(REWARD_PREFIXES)]
    for place, name, known in named:
        if name not in scored:
            message = f"metric {quoted(name)} is not scored by the evaluator of {facts.env_kind} environments"
            yield _found("E_METRIC_UNKNOWN", place, message, nearest(name, known, "choose one of"))


def _field_problems(analysis: AnalysisSpec, facts: _Facts) -> Iterator[Problem]:
    yield from _pairing_problems(analysis)
    yield from _control_problems(analysis, facts)
    yield from _replicate_problems(analysis, facts)


def _pairing_problems(analysis: AnalysisSpec) -> Iterator[Problem]:
    if analysis.paired and analysis.estimand == "p_superiority":
        message = "analysis.estimand p_superiority is defined for unpaired arms only"
        yield _found(
            "E_PAIRING", "/analysis/estimand", message, "set analysis.estimand to shift, or analysis.paired to false"
        )
    if analysis.looks.mode == "anytime" and not analysis.paired:
        message = "analysis.looks.mode anytime uses e-values of paired differences"
        yield _found("E_ANYTIME_UNPAIRED", "/analysis/looks/mode", message, "set analysis.paired to true")
    if analysis.looks.mode == "anytime" and analysis.looks.e_value == "betting" and reach_of(analysis) is None:
        message = f"analysis.looks.e_value betting needs scores with two bounds; {analysis.primary.metric} has not two"
        yield _found("E_BETTING_UNBOUNDED", "/analysis/looks/e_value", message, "set analysis.looks.e_value to sign")


def _control_problems(analysis: AnalysisSpec, facts: _Facts) -> Iterator[Problem]:
    known = ", ".join(facts.labels)
    if analysis.comparisons == "vs_control" and analysis.control is None:
        yield _found(
            "E_CONTROL",
            "/analysis/control",
            "analysis.comparisons vs_control needs a control arm",
            f"name one of {known}",
        )
    if analysis.control is not None and analysis.control not in facts.labels:
        message = f"analysis.control {quoted(analysis.control)} is not an arm"
        yield _found("E_CONTROL", "/analysis/control", message, f"name one of {known}")


def _replicate_problems(analysis: AnalysisSpec, facts: _Facts) -> Iterator[Problem]:
    planned, largest = analysis.replicates.planned, analysis.replicates.max
    if planned is None or largest is None:
        raise ValueError("analysis.replicates is not resolved: call complete_analysis first")
    at = "/analysis/replicates"
    if planned != facts.replicates:
        message = f"analysis.replicates.planned is {planned}, experiment.replicates is {facts.replicates}"
        yield _found("E_REPLICATES", f"{at}/planned", message, f"set both to {planned}, or leave the first out")
    elif planned > largest:
        message = f"experiment.replicates {planned} exceeds analysis.replicates.max {largest}"
        yield _found("E_REPLICATES", f"{at}/max", message, f"set analysis.replicates.max to {planned}")
    elif analysis.looks.mode == "planned":
        yield from _look_order_problems(analysis, planned, largest)


def _look_order_problems(analysis: AnalysisSpec, planned: int, largest: int) -> Iterator[Problem]:
    at = analysis.looks.at
    if not at or any(b <= a for a, b in pairwise(at)) or at[0] < 1:
        message = f"analysis.looks.at must be increasing numbers of blocks, got {list(at)}"
        yield _found("E_LOOKS", "/analysis/looks/at", message, "use for example at: [7, 14, 20]")
    elif planned not in at:
        message = f"experiment.replicates {planned} is none of the looks {list(at)}"
        yield _found("E_LOOKS", "/analysis/replicates/planned", message, _set_replicates(at[-1]))
    elif at[-1] != largest:
        message = f"the last look is at {at[-1]} blocks, and analysis.replicates.max is {largest}"
        yield _found("E_LOOKS", "/analysis/looks/at", message, f"set analysis.replicates.max to {at[-1]}")


def _set_replicates(number: int) -> str:
    return f"set experiment.replicates to {number}, and analysis.replicates with it where you give that"


def _inference_problems(analysis: AnalysisSpec) -> Iterator[Problem]:
    yield from _sesoi_problems(analysis)
    yield from _threshold_problems(analysis)
    metric = find_metric(analysis.primary.metric)
    floor = analysis.failure.floor
    if floor is None or not isfinite(floor):
        worst = None if metric is None else metric.worst_bound
        hint = "a finite score no run can fall below" if worst is None else f"for example {worst:g}"
        message = "analysis.failure.floor must be a finite number: runs may diverge, and a failure is an outcome"
        yield _found("E_FLOOR", "/analysis/failure/floor", message, f"set analysis.failure.floor to {hint}")
        return
    yield from _floor_bound_problems(analysis, floor)


def _sesoi_problems(analysis: AnalysisSpec) -> Iterator[Problem]:
    sesoi = analysis.sesoi
    if sesoi is None or not isfinite(sesoi) or sesoi <= 0:
        message = f"analysis.sesoi must be a finite number > 0 in raw units of the primary metric, got {sesoi}"
        yield _found("E_SESOI", "/analysis/sesoi", message, "name the smallest difference worth acting on")
    elif analysis.estimand == "p_superiority" and sesoi >= 0.5:
        message = f"analysis.sesoi of p_superiority is a distance from .5 and must be < .5, got {sesoi}"
        yield _found("E_SESOI", "/analysis/sesoi", message, "use for example 0.1")
    elif analysis.estimand == "learned" and sesoi >= 1:
        message = f"analysis.sesoi of estimand learned is a difference of shares and must be < 1, got {sesoi:g}"
        yield _found("E_SESOI", "/analysis/sesoi", message, "use for example 0.2 (20 runs of 100)")
    elif analysis.estimand in ("mean", "shift"):
        yield from _sesoi_range_problems(analysis, sesoi)


def _sesoi_range_problems(analysis: AnalysisSpec, sesoi: float) -> Iterator[Problem]:
    metric = find_metric(analysis.primary.metric)
    if metric is None or metric.lower is None or metric.upper is None or sesoi < metric.upper - metric.lower:
        return
    span = f"{metric.lower:g} to {metric.upper:g}"
    message = f"analysis.sesoi is {sesoi:g}, but {metric.name} goes from {span}: no two arms can differ by more"
    remedy = f"use a difference of that scale, for example {(metric.upper - metric.lower) / 50:g}"
    yield _found("E_SESOI", "/analysis/sesoi", message, remedy)


def _threshold_problems(analysis: AnalysisSpec) -> Iterator[Problem]:
    given, at = analysis.threshold, "/analysis/threshold"
    if given is None:
        if analysis.estimand == "learned":
            message = (
                "analysis.estimand learned needs analysis.threshold, the raw score from which on a run has learned"
            )
            yield _found(
                "E_THRESHOLD", at, message, "name a score of the primary metric, or set analysis.estimand to mean"
            )
        return
    if not isfinite(given):
        yield _found("E_THRESHOLD", at, f"analysis.threshold must be a finite number, got {given}", "name a raw score")
        return
    metric = find_metric(analysis.primary.metric)
    if metric is None:
        return
    low, high = metric.lower, metric.upper
    if (low is not None and given < low) or (high is not None and given > high):
        message = f"analysis.threshold {given:g} lies outside of {metric.name}, {low} to {high} {metric.unit}"
        yield _found("E_THRESHOLD", at, message, "name a score that a run can reach")


def _floor_bound_problems(analysis: AnalysisSpec, floor: float) -> Iterator[Problem]:
    metric = find_metric(analysis.primary.metric)
    if metric is None:
        return
    upward = analysis.primary.direction == "max"
    bound = metric.lower if upward else metric.upper
    if bound is not None and (floor > bound if upward else floor < bound):
        message = f"analysis.failure.floor {floor:g} is better than the worst {metric.name}, {bound:g} {metric.unit}"
        yield _found("E_FLOOR", "/analysis/failure/floor", message, f"set analysis.failure.floor to {bound:g}")


def _reach_problems(analysis: AnalysisSpec, num_arms: int) -> Iterator[Problem]:
    largest = analysis.replicates.max or 1
    if analysis.looks.mode == "anytime":
        wager = wager_of(design_of(analysis, analysis.alpha))
        if not within(wager.min_p(largest), analysis.alpha):
            need = next(n for n in range(largest + 1, _MOST_BLOCKS) if within(wager.min_p(n), analysis.alpha))
            message = f"no {wager.kind} e-value of {largest} blocks can reach 1/alpha = {1 / analysis.alpha:g}"
            yield _found("E_ALPHA_UNREACHABLE", "/analysis/alpha", message, _set_replicates(need))
        return
    if analysis.looks.mode == "planned":
        early = [*_early_looks(analysis, num_arms)]
        if early:
            yield from early
            return
    level = level_to_beat(analysis, num_arms)
    paired = analysis.paired and not _falls_back(analysis, largest)
    if within(min_p(paired, largest), level):
        return
    need = smallest_n(level, analysis.paired)
    unit = ("block" if paired else "replicate") + ("" if largest == 1 else "s") + ("" if paired else " per arm")
    message = (
        f"with {largest} {unit} the smallest two-sided p of the "
        f"exact test is {min_p(paired, largest):.4g}, above the level {level:.4g} it must beat"
    )
    yield _found("E_ALPHA_UNREACHABLE", "/analysis/alpha", message, _set_replicates(need))


def _falls_back(analysis: AnalysisSpec, blocks: int) -> bool:
    return analysis.small_n_fallback == "unpaired_rank" and 4 <= blocks < 6


def _early_looks(analysis: AnalysisSpec, num_arms: int) -> Iterator[Problem]:
    """Yield the first look at which nothing can be decided, with the nearest row of looks that can all decide."""
    levels = look_levels(analysis.looks.at, analysis.looks.boundary, analysis.alpha)
    for k, (n, level) in enumerate(zip(analysis.looks.at, levels, strict=True)):
        own = level / num_tests(analysis, num_arms)
        if within(min_p(analysis.paired, n), own):
            continue
        possible = _possible_looks(analysis, num_arms)
        remedy = f"set analysis.looks.at to {possible}"
        if possible[-1] != analysis.looks.at[-1]:
            remedy += f" and {_set_replicates(possible[-1])}"
        message = f"look {k + 1} after {n} blocks cannot reach its own level {own:.4g}"
        yield _found("E_LOOK_UNREACHABLE", f"/analysis/looks/at/{k}", message, remedy)
        return


def _possible_looks(analysis: AnalysisSpec, num_arms: int) -> list[int]:
    """Return the looks as given, each moved on to where its level can be reached; the levels move with the looks."""
    looks = list(analysis.looks.at)
    while True:
        moved: list[int] = []
        for n, level in zip(looks, look_levels(looks, analysis.looks.boundary, analysis.alpha), strict=True):
            least = smallest_n(level / num_tests(analysis, num_arms), analysis.paired)
            moved.append(max(n, least, moved[-1] + 1 if moved else 0))
        if moved == looks:
            return looks
        looks = moved


def _warnings(analysis: AnalysisSpec, facts: _Facts) -> Iterator[Problem]:
    largest = analysis.replicates.max or 1
    if analysis.inference == "none":
        message = "no inference possible: this analysis is a demonstration and will never name a winner"
        remedy = "use at least 6 replicates, a sesoi and a failure floor"
        yield _found("W_NO_INFERENCE", "/analysis/inference", message, remedy)
    elif largest < 10 and analysis.secondary:
        message = f"robust summaries and bootstrap intervals need 10 replicates; {largest} are planned"
        yield _found("W_FEW_REPLICATES", "/analysis/replicates/max", message, "plan 10 or more for them")
    yield from _power_warnings(analysis, facts)
    yield from _betting_warnings(analysis)
    effort = analysis.tuning_effort or {}
    if len(set(effort.values())) > 1 or (effort and set(effort) != set(facts.labels)):
        message = f"declared tuning effort differs between arms: {dict(sorted(effort.items()))}"
        yield _found("W_TUNING_UNEQUAL", "/analysis/tuning_effort", message, "tune every arm with the same effort")
    metric = find_metric(analysis.primary.metric)
    if metric is not None and metric.direction != analysis.primary.direction:
        message = f"{metric.name} is usually better when {metric.direction}imal, but direction is the opposite"
        yield _found("W_DIRECTION", "/analysis/primary/direction", message, f"check direction: {metric.direction}")


def _power_warnings(analysis: AnalysisSpec, facts: _Facts) -> Iterator[Problem]:
    if analysis.pilot_sd is None or analysis.sesoi is None or analysis.inference == "none":
        return
    if not isfinite(analysis.sesoi) or analysis.sesoi <= 0:
        return
    power = expected_power(analysis, len(facts.labels), analysis.pilot_sd)
    if power is not None and power < 0.5:
        message = f"expected power at {analysis.sesoi:g} is {power:.2f} with the pilot SD {analysis.pilot_sd:g}"
        yield _found("W_LOW_POWER", "/analysis/replicates/max", message, "plan more replicates or a larger sesoi")


def _betting_warnings(analysis: AnalysisSpec) -> Iterator[Problem]:
    """Warn where bets within the bounds of the metric must stay too small to notice what was declared to matter."""
    sesoi, largest = analysis.sesoi, analysis.replicates.max or 1
    wager = wager_of(design_of(analysis, analysis.alpha))
    if analysis.looks.mode != "anytime" or wager.kind != "betting" or wager.reach is None:
        return
    if sesoi is None or not 0 < sesoi <= wager.reach:
        return
    fewest = wager.fewest(sesoi, analysis.alpha, _MOST_BLOCKS)
    if fewest is None or fewest > largest:
        needs = f"{fewest} blocks" if fewest else f"more than {_MOST_BLOCKS} blocks"
        message = (
            f"e_value betting allows for differences of up to {wager.reach:g}, so that {needs} are needed even if "
            f"every one differs by {sesoi:g}; {largest} are planned"
        )
        remedy = "name e_value sign if differences are symmetric when the arms are equal, or use planned looks"
        yield _found("W_BETTING_SLOW", "/analysis/looks/e_value", message, remedy)


def _found(code: str, at: str, message: str, remedy: str) -> Problem:
    return Problem(at, code, message, remedy)


_FIELD_CODES = {"sesoi": "E_SESOI", "control": "E_CONTROL", "failure": "E_FLOOR", "paired": "E_PAIRING"}
_BAYES_WORDS = ("bayes", "posterior", "credible")


def _field_code(at: str, data: Any) -> str:
    head, _, rest = at.removeprefix("/analysis/").partition("/")
    if head == "looks" and any(word in str(data["looks"]).lower() for word in _BAYES_WORDS):
        return "E_BAYES_STOP"
    if head == "primary" and rest == "direction":
        return "E_DIRECTION"
    return _FIELD_CODES.get(head, "E_ANALYSIS_FIELD")
