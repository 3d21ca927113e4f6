"""Failures as outcomes: their rate, and how far the verdict leans on them.

Omitting failed runs rewards fragile arms: an arm whose weak replicates die would be called better.
Unit: the replicate.

Guardrails: one-sided non-inferiority of the winner on other metrics, each at alpha.

``pass``: the upper 1 - 2 alpha bound of harm is below the margin. ``harm``: the lower bound of harm
is above 0 with p <= alpha / (guardrails x rivals). ``unproven``: neither. The failure rate is an implicit guardrail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.stats.estimands import claimed_pairs, quantity_flags
from lockstep.stats.exact import within
from lockstep.stats.registered import Design, registered_test
from lockstep.stats.scores import (
    ArmScores,
    FlooredArm,
    losses_filled_against,
    resolve_floor,
    usable,
    without_failures,
    worst_score,
)
from lockstep.stats.shares import fisher
from lockstep.stats.verdict import (
    DIFFERENT_BUT_NEGLIGIBLE,
    DRIVEN_BY_FAILURES,
    INCONCLUSIVE,
    INVALID,
    SUPERIOR_VERDICTS,
    WINNER,
    ExperimentResult,
    PairResult,
    PairVerdict,
    analyse,
    conclude,
    location,
)

FLOOR_SENSITIVE = "FLOOR_SENSITIVE"
LOSS_SENSITIVE = "LOSS_SENSITIVE"


@dataclass(frozen=True)
class Sensitivity:
    """Verdict under each variant; None where the variant does not apply."""

    floor: str | None = None
    omit: str | None = None
    lost: str | None = None


def analyse_with_sensitivity(
    arms: Sequence[ArmScores], design: Design, void_gate: str | None = None
) -> tuple[ExperimentResult, Sensitivity]:
    """Analyse, recompute under other treatments of failures and losses, and claim no more than all of them allow.

    (i) floor replaced by the worst successful score: the weaker of two claims that name the same arm, else
    INCONCLUSIVE (``FLOOR_SENSITIVE``); (ii) failures omitted: flag ``DRIVEN_BY_FAILURES``; (iii) losses filled
    against the claimed arms: flag ``LOSS_SENSITIVE``. Claims that the means or the failures contradict are flagged.
    """
    result = analyse(arms, design, void_gate)
    if result.verdict == INVALID or design.inference == "none":
        return result, Sensitivity()
    floor_variant = omit_variant = lost_variant = None
    flags: set[str] = set()
    if any(arm.failed.any() for arm in arms):
        floor_variant = analyse(arms, replace(design, floor=worst_score(arms)))
        omit_variant = analyse(without_failures(arms), design)
        flags |= {DRIVEN_BY_FAILURES} if _differs(result, omit_variant) else set()
        result = _weaker(result, floor_variant, design)
    named = tuple(dict.fromkeys(pair.better for pair in result.claims if pair.better is not None))
    if named and any(arm.lost.any() for arm in arms):
        lost_variant = analyse(losses_filled_against(arms, named, result.floor), design)
        flags |= {LOSS_SENSITIVE} if _differs(result, lost_variant) else set()
    flags |= {*result.flags, *quantity_flags(result, arms, design)}
    found = Sensitivity(_code(floor_variant), _code(omit_variant), _code(lost_variant))
    return replace(result, flags=tuple(sorted(flags))), found


def _weaker(result: ExperimentResult, variant: ExperimentResult, design: Design) -> ExperimentResult:
    """Return the conclusion from what both treatments of failures allow to say about each comparison."""
    pairs = [
        replace(pair, verdict=_weaker_verdict(pair, other))
        for pair, other in zip(result.pairs, variant.pairs, strict=True)
    ]
    found = conclude(result.arms, pairs, design, result.adjustment, result.floor, result.flags)
    if found.verdict == INCONCLUSIVE and (_differs(found, result) or _differs(found, variant)):
        return replace(found, reason=FLOOR_SENSITIVE)
    if any(FLOOR_SENSITIVE in pair.verdict.flags for pair in claimed_pairs(found, design)):
        return found
    # a comparison of which the headline says nothing
    return replace(found, flags=tuple(flag for flag in found.flags if flag != FLOOR_SENSITIVE))


def _weaker_verdict(pair: PairResult, other: PairResult) -> PairVerdict:
    ours, theirs = pair.verdict, other.verdict
    if (ours.code, ours.better) == (theirs.code, theirs.better):
        return ours
    sensitive = tuple(dict.fromkeys((*ours.flags, FLOOR_SENSITIVE)))
    if not (pair.superior and pair.superior == other.superior):
        return PairVerdict(INCONCLUSIVE, 0, FLOOR_SENSITIVE, sensitive)
    if DIFFERENT_BUT_NEGLIGIBLE in (ours.code, theirs.code):
        # one says that the size does not matter, the other denies it: both say "better", neither how much
        return replace(ours, code=WINNER, flags=sensitive)
    return replace(ours, code=max(ours.code, theirs.code, key=SUPERIOR_VERDICTS.index))


def _differs(result: ExperimentResult, variant: ExperimentResult) -> bool:
    return _claim(result) != _claim(variant)


def _claim(result: ExperimentResult) -> tuple[object, ...]:
    return result.verdict, result.winner, result.treatments_better


def _code(result: ExperimentResult | None) -> str | None:
    return None if result is None else result.verdict


PASS, HARM, UNPROVEN = "pass", "harm", "unproven"


@dataclass(frozen=True)
class GuardrailResult:
    """State against one rival; harm is positive, in raw units (a rate for failures)."""

    rival: str
    state: str
    estimate: float | None
    bound: float | None
    margin: float | None
    p: float | None


@dataclass(frozen=True)
class Margin:
    """The harm that is allowed: raw units, or a share of the rival's location when ``relative``."""

    value: float
    relative: bool = False


def guardrail(
    winner: ArmScores, rival: ArmScores, design: Design, margin: Margin, harm_level: float | None = None
) -> GuardrailResult:
    """Judge the winner's harm on one oriented metric against one rival.

    ``pass`` at 1 - 2 x the design's level; ``harm`` at ``harm_level`` (default: the design's level).
    """
    # threshold and probability belong to the primary metric: harm is judged in units of its own
    kept = {"p_superiority": "shift", "learned": "mean"}.get(design.estimand, design.estimand)
    own = replace(design, mode="fixed", estimand=kept)
    floor, _ = resolve_floor([winner, rival], None)
    ours, theirs = usable([winner, rival], floor, own.paired)
    if min(ours.values.size, theirs.values.size) < 2:
        return GuardrailResult(rival.label, UNPROVEN, None, None, None, None)
    limit = margin.value * abs(location(theirs, own)) if margin.relative else margin.value
    return _judge(ours, theirs, own, limit, own.level if harm_level is None else harm_level)


def failure_guardrail(winner: ArmScores, rival: ArmScores, alpha: float) -> GuardrailResult:
    """Judge whether the winner fails more often than a rival (Fisher)."""
    counts = [(arm.num_failures, arm.num_outcomes) for arm in (winner, rival)]
    (k, n), (other_k, other_n) = counts
    if n == 0 or other_n == 0:
        return GuardrailResult(rival.label, UNPROVEN, None, None, None, None)
    p = fisher([[k, n - k], [other_k, other_n - other_k]])
    excess = k / n - other_k / other_n
    state = PASS if excess <= 0 else HARM if within(p, alpha) else UNPROVEN
    return GuardrailResult(rival.label, state, excess, None, None, p)


def _judge(ours: FlooredArm, theirs: FlooredArm, design: Design, margin: float, harm_level: float) -> GuardrailResult:
    # rival minus winner: positive means that the winner does harm
    test = registered_test(theirs, ours, design)
    upper_interval, lower_interval = test.intervals(design.level)[1], test.intervals(harm_level)[0]
    upper = upper_interval.high if upper_interval else None
    lower = lower_interval.low if lower_interval else None
    if upper is not None and upper < margin:
        state = PASS
    elif lower is not None and lower > 0 and within(test.p, harm_level):
        state = HARM
    else:
        state = UNPROVEN
    return GuardrailResult(theirs.label, state, test.estimate, upper, margin, test.p)
