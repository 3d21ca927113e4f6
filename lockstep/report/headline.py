"""The headline: verdict code, flags, whether it may be promoted, and the sentence.

Everything here follows from one analysis; nothing is computed from scores again. A claim is promotable only when
nothing that was checked speaks against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.report.findings.clock import Clock, cancelled_blocks, is_extendable, planned_blocks
from lockstep.report.findings.gates import Gate, failed_void
from lockstep.report.findings.learning import NOT_LEARNED, Learning
from lockstep.report.findings.opposed import TRAINING_DISAGREES, Opposed
from lockstep.report.findings.sections import nondeterminism, pair_correlation
from lockstep.report.findings.staged import Judged
from lockstep.report.inputs import MetricScores, ReportInputs
from lockstep.report.numbers import number
from lockstep.report.words.sentences import WINNER_WITH_HARM, Doubt, VerdictFacts, lost_text, verdict_sentence
from lockstep.spec.metrics import is_reward_dependent
from lockstep.stats.estimands import Contradiction, contradictions
from lockstep.stats.failures import HARM, UNPROVEN
from lockstep.stats.power import Needed
from lockstep.stats.registered import Design, as_estimand, registered_test, uses_unpaired_test
from lockstep.stats.shapes import TrueLevel
from lockstep.stats.verdict import (
    ALIKE_VERDICTS,
    IDENTICAL_RUNS,
    INCONCLUSIVE,
    INVALID,
    NO_INFERENCE,
    SUPERIOR_VERDICTS,
    TREATMENTS_BETTER,
    ExperimentResult,
    is_answered,
)

#: A claim with any of these stands, but not by itself: a person decides.
NOT_PROMOTABLE = frozenset(
    {
        "CANCELLED_BY_USER",
        "DRIVEN_BY_FAILURES",
        "ESTIMANDS_DISAGREE",
        "FLOOR_SENSITIVE",
        "GUARDRAIL_HARM",
        "GUARDRAIL_UNPROVEN",
        "INCOMPLETE",
        "LOSS_SENSITIVE",
        "MANY_LOST",
        "STOPPED_EARLY",
    }
)
_WINNERS = (*SUPERIOR_VERDICTS, WINNER_WITH_HARM)


@dataclass(frozen=True)
class Finding:
    """What the headline is written from."""

    inputs: ReportInputs
    gates: tuple[Gate, ...]
    stand: Judged
    guardrails: Sequence[Mapping[str, Any]]
    more: Needed | None
    early: tuple[Mapping[str, Any], ...]
    level: TrueLevel | None
    learning: Learning
    opposed: tuple[Opposed, ...] = ()

    @property
    def clock(self) -> Clock:
        """Return when the analysis that stands was made."""
        return self.stand.clock

    @property
    def design(self) -> Design:
        """Return the registered design."""
        return self.stand.design

    @property
    def scores(self) -> MetricScores:
        """Return the outcomes that were analysed."""
        return self.stand.scores

    @property
    def result(self) -> ExperimentResult:
        """Return what was found."""
        return self.stand.result

    @property
    def void(self) -> Gate | None:
        """Return the first failed gate of class void, or None."""
        return failed_void(self.gates)


def headline(finding: Finding) -> dict[str, Any]:
    """Return the ``verdict`` block of the report."""
    result, inputs = finding.result, finding.inputs
    code, reason = _code(finding)
    harmed = tuple(dict.fromkeys(row["metric"] for row in finding.guardrails if row["state"] == HARM))
    if harmed and code in SUPERIOR_VERDICTS:
        code = WINNER_WITH_HARM
    flags = _flags(finding, code)
    shown = code not in (INVALID, NO_INFERENCE)
    winner = result.winner if code in (*_WINNERS, TREATMENTS_BETTER) else None
    claimed = code if code in SUPERIOR_VERDICTS else result.weakest if code == TREATMENTS_BETTER else None
    return {
        "code": code,
        "level": finding.clock.level,
        "winner": winner,
        "treatments_better": list(result.treatments_better) if code == TREATMENTS_BETTER else [],
        "weakest": result.weakest if shown else None,
        "leader": result.leader if shown else None,
        "best_set": list(result.best_set) if shown else [],
        "better": winner,
        "reason": reason,
        "p_max": number(result.p_max) if code in (*_WINNERS, TREATMENTS_BETTER) else None,
        "flags": flags,
        "suffix": _suffix(finding, code),
        "settled": is_answered(result) and not finding.clock.is_short,
        "promotable": claimed in SUPERIOR_VERDICTS[:2] and not NOT_PROMOTABLE & set(flags),
        "sentence": verdict_sentence(
            VerdictFacts(
                code=code,
                reason=reason,
                result=replace(result, flags=tuple(flags)),
                analysis=inputs.analysis,
                level=finding.clock.level,
                more=finding.more,
                hours_per_block=_hours_per_block(inputs),
                void_detail=finding.void.detail if finding.void else "",
                lost=_lost(inputs),
                harmed=harmed,
                kind=inputs.kind,
                spread=nondeterminism(result) if reason == "AA_DIFFERS" else None,
                doubts=doubts(finding) if shown else (),
                clock=finding.clock,
                extendable=is_extendable(inputs, finding.clock),
                early=finding.early,
                unlearned=finding.learning if "NOT_LEARNED" in flags else None,
                opposed=finding.opposed if shown else (),
                is_untrained=finding.learning.state == NOT_LEARNED,
            )
        ),
    }


def _lost(inputs: ReportInputs) -> str:
    """Return why most of the blocks without a result have none, in a sentence."""
    if not inputs.lost_blocks:
        return ""
    most = max(inputs.lost_blocks, key=lambda item: len(item.replicates))
    return lost_text(most.cause, most.text, len(most.replicates), inputs.planned_blocks, most.arms)


def doubts(finding: Finding) -> tuple[Doubt, ...]:
    """Return what the means and the failures have against the claim, with the 90 % interval of each mean."""
    found = contradictions(finding.result, finding.scores.arms, finding.design)
    return tuple(Doubt(item, _mean_interval(finding, item)) for item in found)


def _mean_interval(finding: Finding, item: Contradiction) -> Any:
    arms = {arm.label: arm for arm in finding.result.arms}
    test = registered_test(arms[item.a], arms[item.b], as_estimand(finding.design, "mean"))
    return test.intervals(0.1)[0]


def _code(finding: Finding) -> tuple[str, str | None]:
    result = finding.result
    if not finding.clock.reached and result.verdict != INVALID:
        return NO_INFERENCE, "LOOK_NOT_REACHED"
    silent = finding.inputs.analysis.inference == "none"
    if silent and result.verdict not in (INVALID, IDENTICAL_RUNS, NO_INFERENCE):
        return NO_INFERENCE, _without_inference(finding)
    if result.reason == "DEMONSTRATION":
        return NO_INFERENCE, _without_inference(finding)
    return result.verdict, result.reason


def _without_inference(finding: Finding) -> str:
    """Return why nothing is concluded although there are scores: a demonstration, or an A/A that differs."""
    differs = finding.inputs.kind == "aa" and any(not pair.evidence.identical for pair in finding.result.pairs)
    return "AA_DIFFERS" if differs else "DEMONSTRATION"


def _flags(finding: Finding, code: str) -> list[str]:
    flags = {*finding.result.flags, *(g.flag for g in finding.gates if g.flag)}
    states = {row["state"] for row in finding.guardrails}
    arms = finding.scores.arms
    holds = {
        "REWARD_SHARED": is_reward_dependent(finding.scores.metric),
        "GUARDRAIL_UNPROVEN": UNPROVEN in states,
        "GUARDRAIL_HARM": HARM in states,
        "ALL_FAILED": all(arm.num_outcomes and arm.num_failures == arm.num_outcomes for arm in arms),
        "CANCELLED_BY_USER": bool(cancelled_blocks(finding.inputs)),
        "FEW_REPLICATES": code == NO_INFERENCE and any(arm.values.size < 2 for arm in finding.result.arms),
        "STOPPED_EARLY": finding.stand.stopped,
        "NEGATIVE_CORRELATION": _fallback_is_liberal(finding),
        "EXPLORATORY_EXTENSION": finding.inputs.extension is not None,
        "NOT_LEARNED": _is_empty(finding, code),
        TRAINING_DISAGREES: bool(finding.opposed) and code not in (INVALID, NO_INFERENCE),
        "SKEWED": bool(finding.result.claims) and finding.level is not None and finding.level.is_off,
    }
    return sorted(flags | {flag for flag, is_set in holds.items() if is_set})


def _is_empty(finding: Finding, code: str) -> bool:
    """Return whether arms are called alike that have not learned; of an A/A experiment nothing else is asked."""
    return code in ALIKE_VERDICTS and finding.inputs.kind != "aa" and finding.learning.state == NOT_LEARNED


def _fallback_is_liberal(finding: Finding) -> bool:
    """Return whether paired arms were compared as unpaired although their scores run against each other."""
    arms, design = finding.result.arms, finding.design
    if not design.paired or not uses_unpaired_test(design, min(arm.values.size for arm in arms)):
        return False
    return (pair_correlation(arms) or 0.0) < 0


def _suffix(finding: Finding, code: str) -> str | None:
    if finding.stand.stopped and code not in (INVALID, NO_INFERENCE):
        return f"@cancelled {finding.clock.complete} of {planned_blocks(finding.inputs)}"
    if finding.clock.look is not None and code not in (INVALID, NO_INFERENCE, INCONCLUSIVE):
        return f"@look {finding.clock.look}"
    if finding.design.mode == "anytime":
        return f"@anytime {min(arm.values.size for arm in finding.result.arms)}"
    return None


def _hours_per_block(inputs: ReportInputs) -> float | None:
    seconds = [run.device_seconds for run in inputs.runs if run.device_seconds is not None]
    blocks = {run.replicate for run in inputs.runs if run.device_seconds is not None}
    return sum(seconds) / 3600 / len(blocks) if blocks else None
