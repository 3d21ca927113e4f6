"""From a registered analysis to the design that tests and simulations of it share."""

from __future__ import annotations

from lockstep.spec.inference.analysis import AnalysisSpec, reach_of
from lockstep.stats.registered import Design


def design_of(analysis: AnalysisSpec, level: float, kind: str = "ab") -> Design:
    """Return the registered design in oriented units at the level in force."""
    floor = analysis.failure.floor
    sign = 1.0 if analysis.primary.direction == "max" else -1.0
    return Design(
        paired=analysis.paired,
        estimand=analysis.estimand,
        sesoi=analysis.sesoi,
        level=level,
        floor=None if floor is None else sign * floor,
        threshold=None if analysis.threshold is None else sign * analysis.threshold,
        comparisons=analysis.comparisons,
        control=analysis.control,
        adjust=analysis.pairwise_adjust,
        fallback=analysis.small_n_fallback,
        mode=analysis.looks.mode,
        e_value=analysis.looks.e_value,
        reach=reach_of(analysis),
        inference=analysis.inference,
        seed=analysis.analysis_seed,
        identity_check=kind == "aa",
    )
