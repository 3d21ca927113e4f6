"""What a registered analysis can find, before anything runs: power, the smallest effect found, replicates needed.

The registered rule itself is simulated (``lockstep.stats.power``). What scores will look like is assumed: normal with
an SD that was given or guessed, or as in an earlier experiment. Nothing here reads the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from lockstep.spec.inference.analysis import AnalysisSpec
from lockstep.spec.inference.design import design_of
from lockstep.stats.exact import min_p, within
from lockstep.stats.power import EXPERIMENTS, Look, Needed, Outlook, Plan, Scenario, detectable, needed, outlook
from lockstep.stats.sequential import look_levels

#: Effects of a power curve, in smallest effects of interest.
CURVE = (0.0, 1.0, 1.5, 2.0)
_GUESSED, _QUICK, _QUICK_DRAWS = 1_000, 300, 199
#: Scores of an earlier experiment: one row a block, one column an arm, raw units, NaN a failed run.
Pilot = Sequence[Sequence[float]]


@dataclass(frozen=True)
class PowerRow:
    """What a design finds under one assumption about its scores (raw units).

    ``curve``: what is found at the effects of ``CURVE``; ``needed``: blocks for 80 % power at the smallest effect of
    interest; ``pilot_size``: blocks of the earlier experiment, None for an assumed SD.
    """

    sd: float | None
    replicates: int
    level: float
    power: float | None
    minimum_detectable: float | None
    curve: tuple[Outlook, ...] = ()
    needed: Needed | None = None
    pilot_size: int | None = None


def level_to_beat(analysis: AnalysisSpec, num_arms: int) -> float:
    """Return the level that the decisive exact test must reach at the last look."""
    base = analysis.alpha
    if analysis.looks.mode == "planned":
        base = look_levels(analysis.looks.at, analysis.looks.boundary, analysis.alpha)[-1]
    return base / num_tests(analysis, num_arms)


def num_tests(analysis: AnalysisSpec, num_arms: int) -> int:
    """Return by how many comparisons the level is divided (1 for the winner rule and max-T)."""
    if analysis.comparisons == "winner":
        return 1
    if analysis.comparisons == "vs_control":
        return max(1, num_arms - 1)
    max_t = analysis.pairwise_adjust == "max_t" or (analysis.pairwise_adjust == "auto" and num_arms == 3)
    return 1 if max_t and analysis.paired else num_arms * (num_arms - 1) // 2


def plan_of(analysis: AnalysisSpec, num_arms: int) -> Plan:
    """Return the registered rule with its looks, oriented; the first arm stands for the control."""
    looks = analysis.looks
    largest = analysis.replicates.max or analysis.replicates.planned or 1
    at = [Look(largest, analysis.alpha)]
    if looks.mode == "planned":
        levels = look_levels(looks.at, looks.boundary, analysis.alpha)
        at = [Look(n, level) for n, level in zip(looks.at, levels, strict=True)]
    return Plan(design_of(analysis, analysis.alpha), num_arms, tuple(at))


def power_table(
    analysis: AnalysisSpec, num_arms: int, sds: Sequence[float] | None = None, pilot: Pilot | None = None
) -> tuple[PowerRow, ...]:
    """Return what a design finds over assumed SDs, or under the scores of a pilot.

    ``sds``: raw units, of paired differences when paired, within an arm otherwise. Default: the pilot SD when one is
    registered, else .5, 1 and 2 times the smallest effect of interest.
    """
    if analysis.estimand == "p_superiority" or (analysis.estimand == "learned" and pilot is None):
        # a probability has no effect in raw units, and an SD says nothing about who reaches a threshold
        return ()
    if pilot is not None:
        rows = tuple(tuple(_sign(analysis) * value for value in row) for row in pilot)
        return (_row(analysis, num_arms, Scenario(pilot=rows), len(rows)),)
    if sds is None:
        known, sesoi = analysis.pilot_sd, analysis.sesoi
        sds = (known,) if known else () if sesoi is None else tuple(sesoi * f for f in (0.5, 1.0, 2.0))
    return tuple(_row(analysis, num_arms, Scenario(sd=sd), None) for sd in sds)


def expected_power(analysis: AnalysisSpec, num_arms: int, sd: float) -> float | None:
    """Return a quick estimate of the power at the smallest effect of interest, None where nothing can be found."""
    plan = plan_of(analysis, num_arms)
    if not _is_reachable(analysis, plan) or not analysis.sesoi or analysis.estimand in ("learned", "p_superiority"):
        return None
    return outlook(plan, Scenario(sd=sd), analysis.sesoi, 0, _QUICK, _QUICK_DRAWS).power


def _row(analysis: AnalysisSpec, num_arms: int, scenario: Scenario, pilot_size: int | None) -> PowerRow:
    plan, sd = plan_of(analysis, num_arms), None if pilot_size is not None else scenario.sd
    n, level, sesoi = plan.looks[-1].n, level_to_beat(analysis, num_arms), analysis.sesoi
    if not _is_reachable(analysis, plan):
        return PowerRow(sd, n, level, None, None, pilot_size=pilot_size)
    least = detectable(plan, scenario)
    if not sesoi or not isfinite(sesoi):
        return PowerRow(sd, n, level, None, least, pilot_size=pilot_size)
    wanted = needed(plan, scenario, 0, pilot_size)
    # a guess is worth fewer experiments than what was measured
    repeats = EXPERIMENTS if pilot_size is not None or analysis.pilot_sd else _GUESSED
    curve = tuple(outlook(plan, scenario, effect * sesoi, 0, repeats) for effect in CURVE)
    return PowerRow(sd, n, level, curve[1].power, least, curve, wanted, pilot_size)


def _is_reachable(analysis: AnalysisSpec, plan: Plan) -> bool:
    n, level = plan.looks[-1].n, level_to_beat(analysis, plan.num_arms)
    return n >= 2 and within(min_p(analysis.paired, n), level)


def _sign(analysis: AnalysisSpec) -> float:
    return 1.0 if analysis.primary.direction == "max" else -1.0
