"""Whether the policies have learned: that arms do not differ says nothing while they are still where they began.

A trial can only show that two treatments are alike if it could have told a treatment from none (assay sensitivity, ICH
E10, 2000, 1.5): two arms that have not moved from their untrained start are alike whatever the changed setting does.
Unit: the block; episodes of a round are averaged before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import numpy as np

from lockstep.report.inputs import LearningRow, MetricScores, ReportInputs
from lockstep.report.numbers import ends, number
from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.metrics import find_metric
from lockstep.stats.companions import paired_t as one_sample_t
from lockstep.stats.registered import Design, has_learned
from lockstep.stats.results import Floats, Interval
from lockstep.stats.verdict import TIE_AT_TOP, ExperimentResult

#: What the records say of the arms that learn.
LEARNED, NOT_LEARNED, AT_ITS_BEST, NOT_KNOWN = "learned", "not learned", "at its best", "not known"
#: Level of the interval of the change: 90 %, so that 5 % of arms that stand still are said to have improved.
LEVEL = 0.1
_LAST_SHARE = 0.1


@dataclass(frozen=True)
class Learning:
    """What is known of learning: its state, and the change of the metric that says so, oriented.

    ``change``: mean over blocks of end minus start, in units of the metric; ``interval``: its 90 % t interval.
    """

    state: str
    arms: tuple[str, ...]
    metric: str | None = None
    blocks: int = 0
    change: float | None = None
    interval: Interval | None = None


def learning_row(arm: str, replicate: int, metric: str, by_round: Mapping[int, float]) -> LearningRow | None:
    """Return how a run began and ended: its first value, and the mean of the last tenth of them; None of one value."""
    known = [by_round[r] for r in sorted(by_round) if isfinite(by_round[r])]
    if len(known) < 2:
        return None
    last = known[-max(1, ceil(_LAST_SHARE * (len(known) - 1))) :]
    return LearningRow(arm, replicate, metric, known[0], float(np.mean(last)))


def learning(inputs: ReportInputs, scores: MetricScores, result: ExperimentResult, design: Design) -> Learning:
    """Return whether the arms that are called alike have learned.

    Learned: for some metric the interval of the change over training lies above 0, and the change is not less than the
    smallest effect of interest, within which an untrained policy would be otherwise. Under ``learned`` instead: some
    run has reached the registered threshold. At its best: the mean score is less than the smallest effect of interest
    from the bound of the metric, so that nothing is left to learn.
    """
    arms = _learners(inputs, result)
    if design.estimand == "learned" and design.threshold is not None:
        reached = any(has_learned(arm, design.threshold).any() for arm in result.arms if arm.label in arms)
        return Learning(LEARNED if reached else NOT_LEARNED, arms)
    if _is_at_best(scores, arms, design):
        return Learning(AT_ITS_BEST, arms)
    metrics = dict.fromkeys(row.metric for row in inputs.learning)
    found = [_of_metric(inputs, metric, arms, scores, design) for metric in metrics]
    told = [item for item in found if item is not None]
    return next((item for item in told if item.state == LEARNED), told[0] if told else Learning(NOT_KNOWN, arms))


def learning_section(found: Learning, sign: float) -> dict[str, Any]:
    """Return the section of the report, in raw units."""
    interval = found.interval if found.interval is None or sign > 0 else found.interval.negated()
    return {
        "state": found.state,
        "arms": list(found.arms),
        "metric": found.metric,
        "blocks": found.blocks,
        "change": number(None if found.change is None else sign * found.change),
        "ci": ends(interval),
    }


def _learners(inputs: ReportInputs, result: ExperimentResult) -> tuple[str, ...]:
    """Return the arms that learn; of a tie only those that tie."""
    alike = result.best_set if result.verdict == TIE_AT_TOP else tuple(arm.label for arm in inputs.arms)
    return tuple(arm.label for arm in inputs.arms if arm.policy in ALGORITHMS and arm.label in alike)


def _is_at_best(scores: MetricScores, arms: Collection[str], design: Design) -> bool:
    metric = find_metric(scores.metric)
    if metric is None or design.sesoi is None or design.estimand == "p_superiority":
        return False
    best = metric.upper if scores.direction == "max" else metric.lower
    values = np.concatenate([np.empty(0), *(arm.succeeded for arm in scores.arms if arm.label in arms)])
    return best is not None and values.size > 0 and abs(best - _sign(scores) * float(values.mean())) < design.sesoi


def _of_metric(
    inputs: ReportInputs, metric: str, arms: tuple[str, ...], scores: MetricScores, design: Design
) -> Learning | None:
    """Return what one metric says, None with fewer than two blocks."""
    changes = _changes(inputs, metric, arms, scores)
    if changes.size < 2:
        return None
    test = one_sample_t(changes)
    interval = test.interval(LEVEL) or Interval(test.estimate, test.estimate)  # every block changed by as much
    least = design.sesoi if design.estimand in ("mean", "shift") and design.sesoi is not None else 0.0
    state = LEARNED if interval.low > 0 and test.estimate >= least else NOT_LEARNED
    return Learning(state, arms, metric, int(changes.size), test.estimate, interval)


def _changes(inputs: ReportInputs, metric: str, arms: Collection[str], scores: MetricScores) -> Floats:
    """Return end minus start of each block that was analysed, oriented, a mean over its arms."""
    by_block: dict[int, list[float]] = {}
    for row in inputs.learning:
        if row.metric == metric and row.arm in arms and row.replicate in scores.blocks[row.arm]:
            by_block.setdefault(row.replicate, []).append(_sign(scores) * (row.end - row.start))
    return np.array([np.mean(by_block[r]) for r in sorted(by_block)], dtype=np.float64)


def _sign(scores: MetricScores) -> float:
    return 1.0 if scores.direction == "max" else -1.0
