"""Whether training names another arm than the evaluation does: a caution, which changes no verdict.

Policies act otherwise when they are judged (by their most likely actions, say, instead of drawn ones), on other
episodes and under other limits, so that the arm that was ahead in training may be the worse one of the two that were
judged. A reader of the curves must be told, or he takes the verdict for a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.report.inputs import MetricScores, ReportInputs
from lockstep.report.numbers import ends, number
from lockstep.spec.metrics import shown_of
from lockstep.stats.estimands import claimed_pairs
from lockstep.stats.exact import within
from lockstep.stats.registered import Design, as_estimand, registered_test
from lockstep.stats.results import Interval
from lockstep.stats.scores import FlooredArm
from lockstep.stats.verdict import ExperimentResult, PairResult

TRAINING_DISAGREES = "TRAINING_DISAGREES"


@dataclass(frozen=True)
class Opposed:
    """A claim of the headline against which training speaks.

    ``difference``: mean of ``ahead`` minus that of ``better`` over the last tenth of training, oriented and so above 0,
    in units of ``metric``; ``interval`` at 1 - ``level``.
    """

    better: str
    ahead: str
    metric: str
    difference: float
    interval: Interval
    level: float


def opposed(
    inputs: ReportInputs, scores: MetricScores, result: ExperimentResult, design: Design
) -> tuple[Opposed, ...]:
    """Return the claims of the headline that an arm is better, of which training shows the other one ahead.

    Both must be clear: the evaluation, as the headline claims it, and training, where the test of the difference of
    means at the level of the claim rejects in favour of the other arm. The score of a run in training is the mean of
    the last tenth of its values of the metric that corresponds to the primary one; runs that failed have none. Null
    hypothesis: the arms are exchangeable in training (within a block when paired). Unit: the replicate.
    """
    superior = [pair for pair in claimed_pairs(result, design) if pair.superior]
    found = (_against(pair, inputs, scores, design) for pair in superior)
    return tuple(item for item in found if item is not None)


def opposed_section(found: tuple[Opposed, ...], sign: float) -> list[dict[str, Any]]:
    """Return the section of the report, in raw units."""
    return [
        {
            "better": item.better,
            "ahead": item.ahead,
            "metric": item.metric,
            "difference": number(sign * item.difference),
            "ci": ends(item.interval if sign > 0 else item.interval.negated()),
            "level": item.level,
        }
        for item in found
    ]


def _against(pair: PairResult, inputs: ReportInputs, scores: MetricScores, design: Design) -> Opposed | None:
    better, worse = str(pair.better), str(pair.worse)
    metric = shown_of(scores.metric).training
    values = [_trained(label, metric, inputs, scores) for label in (worse, better)]
    if design.paired:
        shared = sorted(values[0].keys() & values[1].keys())
        values = [{replicate: own[replicate] for replicate in shared} for own in values]
    if min(map(len, values)) < 2:
        return None
    level = pair.evidence.level
    ahead, behind = (_arm(label, own) for label, own in zip((worse, better), values, strict=True))
    test = registered_test(ahead, behind, replace(as_estimand(design, "mean"), equivalence=False))
    interval = test.intervals(level)[0]
    if interval is None or interval.low <= 0 or not within(test.p, level):
        return None
    return Opposed(better, worse, metric, test.estimate, interval, level)


def _trained(label: str, metric: str, inputs: ReportInputs, scores: MetricScores) -> dict[int, float]:
    """Return where each analysed replicate of an arm ended its training, oriented."""
    sign = 1.0 if scores.direction == "max" else -1.0
    blocks = scores.blocks[label]
    rows = [row for row in inputs.learning if row.arm == label and row.metric == metric and row.replicate in blocks]
    return {row.replicate: sign * row.end for row in rows}


def _arm(label: str, by_replicate: dict[int, float]) -> FlooredArm:
    replicates = sorted(by_replicate)
    values = np.array([by_replicate[r] for r in replicates], dtype=np.float64)
    return FlooredArm(label, values, values, np.array(replicates, dtype=np.intp))
