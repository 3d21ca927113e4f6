"""From looks to one result: analyse look after look, and let the first crossing stand.

Every look runs the whole registered analysis on the complete blocks it may see. A comparison that was settled at a look
keeps the verdict, p and interval of that look; once the question is answered no later look is made, and what finishes
afterwards is shown apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.report.findings.clock import Clock, due_analyses, is_complete
from lockstep.report.inputs import MetricScores, ReportInputs, metric_scores, score_table
from lockstep.spec.inference.design import design_of
from lockstep.stats.estimands import quantity_flags
from lockstep.stats.failures import Sensitivity, analyse_with_sensitivity
from lockstep.stats.registered import Design
from lockstep.stats.verdict import ExperimentResult, PairResult, conclude, is_answered


@dataclass(frozen=True)
class Judged:
    """The analysis that stands: when it was made, on what, and what it found.

    Attributes:
        clock: the look at which the question was answered, else the last one that is due.
        stopped: whether it was ended before its planned blocks, unplanned and unanswered.
        overrun: complete replicates that finished after the answer.
    """

    clock: Clock
    design: Design
    scores: MetricScores
    result: ExperimentResult
    sensitivity: Sensitivity
    stopped: bool
    overrun: tuple[int, ...]


def judge(inputs: ReportInputs, void_gate: str | None) -> Judged:
    """Return the analysis that stands."""
    earlier: tuple[PairResult, ...] = ()
    for clock in due_analyses(inputs):
        found = _at(inputs, clock, void_gate)
        found = replace(found, result=_with_settled(found, earlier))
        if is_answered(found.result):
            break
        earlier = found.result.pairs
    answered = is_answered(found.result)
    return replace(
        found,
        stopped=found.clock.cut and (found.clock.is_short or not answered),
        overrun=_later(inputs, found.clock) if answered else (),
    )


def visible_scores(inputs: ReportInputs, metric: str, clock: Clock) -> MetricScores:
    """Return the outcomes of a metric that an analysis may see."""
    alone = not inputs.analysis.paired and inputs.analysis.looks.mode == "fixed" and clock.reached
    return metric_scores(inputs, metric, clock.blocks, alone)


def _at(inputs: ReportInputs, clock: Clock, void_gate: str | None) -> Judged:
    design = design_of(inputs.analysis, clock.level, inputs.kind)
    scores = visible_scores(inputs, inputs.analysis.primary.metric, clock)
    result, sensitivity = analyse_with_sensitivity(scores.arms, design, void_gate)
    pairs = tuple(replace(pair, look=clock.look) for pair in result.pairs)
    return Judged(clock, design, scores, replace(result, pairs=pairs), sensitivity, False, ())


def _with_settled(judged: Judged, earlier: Sequence[PairResult]) -> ExperimentResult:
    """Return the result in which every comparison that was settled at an earlier look stands as it was."""
    result, design = judged.result, judged.design
    stands = {(p.a.label, p.b.label): p for p in earlier if p.in_family and p.is_settled}
    if not stands:
        return result
    pairs = [stands.get((p.a.label, p.b.label), p) for p in result.pairs]
    merged = conclude(result.arms, pairs, design, result.adjustment, result.floor, result.flags)
    flags = {*merged.flags, *quantity_flags(merged, judged.scores.arms, design)}
    return replace(merged, flags=tuple(sorted(flags)))


def _later(inputs: ReportInputs, clock: Clock) -> tuple[int, ...]:
    if clock.look is None:
        return ()
    table = score_table(inputs, inputs.analysis.primary.metric)
    return tuple(r for r in clock.seen if r not in clock.blocks and is_complete(inputs, table, r))
