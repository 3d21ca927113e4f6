"""Guardrails: one-sided non-inferiority of the winner on other metrics, each at alpha.

``pass``: the upper 1 - 2 alpha bound of harm is below the margin. ``harm``: the lower bound of harm
is above 0 with p <= alpha. ``unproven``: neither. The failure rate is an implicit guardrail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.domain.stats.attain import within
from app.domain.stats.design import Design
from app.domain.stats.experiment import location
from app.domain.stats.failures import fisher
from app.domain.stats.registered import registered_test
from app.domain.stats.scores import ArmScores, FlooredArm, resolve_floor, usable

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


def guardrail(winner: ArmScores, rival: ArmScores, design: Design, margin: float, relative: bool) -> GuardrailResult:
    """Judge the winner's harm on one oriented metric against one rival.

    ``margin``: raw units, or a share of the rival's location when ``relative``.
    """
    own = replace(design, mode="fixed", estimand="shift" if design.estimand == "p_superiority" else design.estimand)
    floor, _ = resolve_floor([winner, rival], None)
    ours, theirs = usable([winner, rival], floor, own.paired)
    if min(ours.values.size, theirs.values.size) < 2:
        return GuardrailResult(rival.label, UNPROVEN, None, None, None, None)
    limit = margin * abs(location(theirs, own.estimand)) if relative else margin
    return _judge(ours, theirs, own, limit)


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


def worst_state(states: Sequence[str]) -> str:
    """Return harm if any, else unproven if any, else pass."""
    return HARM if HARM in states else UNPROVEN if UNPROVEN in states else PASS


def _judge(ours: FlooredArm, theirs: FlooredArm, design: Design, margin: float) -> GuardrailResult:
    # rival minus winner: positive means that the winner does harm
    test = registered_test(theirs, ours, design)
    upper = test.ci_equivalence.high if test.ci_equivalence else None
    lower = test.ci_superiority.low if test.ci_superiority else None
    if upper is not None and upper < margin:
        state = PASS
    elif lower is not None and lower > 0 and within(test.p, design.level):
        state = HARM
    else:
        state = UNPROVEN
    return GuardrailResult(theirs.label, state, test.estimate, upper, margin, test.p)
