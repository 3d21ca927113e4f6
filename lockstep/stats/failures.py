"""Failures as outcomes: their rate, and how far the verdict leans on them.

Omitting failed runs rewards fragile arms: an arm whose weak replicates die would be called better.
Unit: the replicate.

Guardrails: one-sided non-inferiority of the winner on other metrics, each at alpha.

``pass``: the upper 1 - 2 alpha bound of harm is below the margin. ``harm``: the lower bound of harm
is above 0 with p <= alpha. ``unproven``: neither. The failure rate is an implicit guardrail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.special import betaincinv
from scipy.stats import fisher_exact

from lockstep.stats.exact import within
from lockstep.stats.results import Interval
from lockstep.stats.scores import (
    ArmScores,
    FlooredArm,
    losses_filled_against,
    resolve_floor,
    usable,
    without_failures,
    worst_score,
)
from lockstep.stats.verdict import (
    INCONCLUSIVE,
    INVALID,
    Design,
    ExperimentResult,
    PairVerdict,
    analyse,
    location,
    registered_test,
)

FLOOR_SENSITIVE = "FLOOR_SENSITIVE"


@dataclass(frozen=True)
class Sensitivity:
    """Verdict under each variant; None where the variant does not apply."""

    floor: str | None = None
    omit: str | None = None
    lost: str | None = None


def clopper_pearson(k: int, n: int, level: float = 0.95) -> Interval:
    """Return the exact interval of a rate k/n; [0, 1] for n = 0."""
    if not 0 <= k <= n:
        raise ValueError(f"need 0 <= k <= n, got {k} of {n}")
    if n == 0:
        return Interval(0.0, 1.0)
    tail = (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return Interval(low, high)


def fisher(table: Sequence[Sequence[int]]) -> float:
    """Return Fisher's exact two-sided p of a 2 x 2 table [[failed, ok], [failed, ok]]."""
    return float(fisher_exact([list(row) for row in table]).pvalue)


def analyse_with_sensitivity(
    arms: Sequence[ArmScores], design: Design, void_gate: str | None = None
) -> tuple[ExperimentResult, Sensitivity]:
    """Analyse, recompute under other treatments of failures and losses, and downgrade if needed.

    (i) floor replaced by the worst successful score: a different verdict becomes INCONCLUSIVE
    (``FLOOR_SENSITIVE``); (ii) failures omitted: flag ``DRIVEN_BY_FAILURES``; (iii) losses filled
    against the winner: flag ``LOSS_SENSITIVE``.
    """
    result = analyse(arms, design, void_gate)
    if result.verdict == INVALID or design.inference == "none":
        return result, Sensitivity()
    floor_variant = omit_variant = lost_variant = None
    flags: set[str] = set(result.flags)
    if any(arm.failed.any() for arm in arms):
        floor_variant = analyse(arms, replace(design, floor=worst_score(arms)))
        omit_variant = analyse(without_failures(arms), design)
        flags |= {"DRIVEN_BY_FAILURES"} if _differs(result, omit_variant) else set()
    if result.winner is not None and any(arm.lost.any() for arm in arms):
        lost_variant = analyse(losses_filled_against(arms, result.winner, result.floor), design)
        flags |= {"LOSS_SENSITIVE"} if _differs(result, lost_variant) else set()
    found = Sensitivity(_code(floor_variant), _code(omit_variant), _code(lost_variant))
    result = replace(result, flags=tuple(sorted(flags)))
    return (result if floor_variant is None else _downgraded(result, floor_variant)), found


def _downgraded(result: ExperimentResult, variant: ExperimentResult) -> ExperimentResult:
    lowered = PairVerdict(INCONCLUSIVE, reason=FLOOR_SENSITIVE)
    pairs = tuple(
        replace(pair, verdict=replace(lowered, flags=pair.verdict.flags))
        if (pair.verdict.code, pair.better) != (other.verdict.code, other.better)
        else pair
        for pair, other in zip(result.pairs, variant.pairs, strict=True)
    )
    if not _differs(result, variant):
        return replace(result, pairs=pairs)
    return replace(result, pairs=pairs, verdict=INCONCLUSIVE, reason=FLOOR_SENSITIVE, winner=None, p_max=None)


def _differs(result: ExperimentResult, variant: ExperimentResult) -> bool:
    return (result.verdict, result.winner) != (variant.verdict, variant.winner)


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
