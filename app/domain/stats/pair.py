"""The pair verdict: the decision table of statistics.md 4, first row that holds.

Bounds are strict, the comparison is mirrored so that the estimate is >= 0, and an unavailable
interval satisfies no condition.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.stats.attain import within
from app.domain.stats.results import Interval

INVALID = "INVALID"
NO_INFERENCE = "NO_INFERENCE"
IDENTICAL_RUNS = "IDENTICAL_RUNS"
WINNER_MEANINGFUL = "WINNER_MEANINGFUL"
WINNER = "WINNER"
DIFFERENT_BUT_NEGLIGIBLE = "DIFFERENT_BUT_NEGLIGIBLE"
EQUIVALENT = "EQUIVALENT"
INCONCLUSIVE = "INCONCLUSIVE"
#: Verdicts that name a better arm, strongest first.
SUPERIOR_VERDICTS = (WINNER_MEANINGFUL, WINNER, DIFFERENT_BUT_NEGLIGIBLE)
#: Verdicts under which no meaningful difference remains.
EQUAL_VERDICTS = (EQUIVALENT, DIFFERENT_BUT_NEGLIGIBLE, IDENTICAL_RUNS)


@dataclass(frozen=True)
class Evidence:
    """What the table reads, for the ordered pair first minus second (oriented).

    Attributes:
        p: two-sided p (adjusted where the comparison asks for it); None: not available.
        level: a.
        ci_superiority: interval at 1 - a.
        ci_equivalence: interval at 1 - 2a.
        estimate: point estimate.
        sesoi: delta.
        void_gate: name of a failed integrity gate of class void.
        num_usable: replicates of the smaller arm (complete blocks when paired).
        identical: paired and every difference is exactly 0.
        min_p: smallest attainable p.
        separated: complete separation, no interval: decide by p alone, at most WINNER.
        demonstration: inference none.
        identity_check: a single identical block may be called identical.
    """

    p: float | None
    level: float
    ci_superiority: Interval | None
    ci_equivalence: Interval | None
    estimate: float
    sesoi: float | None
    void_gate: str | None = None
    num_usable: int = 1_000_000
    identical: bool = False
    min_p: float = 0.0
    separated: bool = False
    demonstration: bool = False
    identity_check: bool = False


@dataclass(frozen=True)
class PairVerdict:
    """Verdict code; ``better`` is +1 (first), -1 (second) or 0."""

    code: str
    better: int = 0
    reason: str | None = None
    flags: tuple[str, ...] = ()


def pair_verdict(evidence: Evidence) -> PairVerdict:
    """Return the verdict of a pair by the first row of the table that holds."""
    early = _without_inference(evidence)
    if early is not None:
        return early
    if evidence.sesoi is None:
        raise ValueError("a verdict needs sesoi: register analysis.sesoi or inference none")
    sign = 1 if evidence.estimate >= 0 else -1
    superior, flags = _superior(evidence, sign)
    equivalent = evidence.ci_equivalence is not None and evidence.ci_equivalence.inside(evidence.sesoi)
    if superior:
        low = _lower(evidence.ci_superiority, sign)
        if low is not None and low > evidence.sesoi:
            return PairVerdict(WINNER_MEANINGFUL, sign, None, flags)
        return PairVerdict(DIFFERENT_BUT_NEGLIGIBLE if equivalent else WINNER, sign, None, flags)
    return PairVerdict(EQUIVALENT if equivalent else INCONCLUSIVE, 0, None, flags)


def is_superior(evidence: Evidence) -> int:
    """Return +1 or -1 when the first or the second arm is superior at level a, else 0."""
    if _without_inference(evidence) is not None:
        return 0
    sign = 1 if evidence.estimate >= 0 else -1
    return sign if _superior(evidence, sign)[0] else 0


def _without_inference(evidence: Evidence) -> PairVerdict | None:
    """Return the verdict of rows 1-4, or None."""
    if evidence.void_gate is not None:
        return PairVerdict(INVALID, reason=evidence.void_gate)
    enough = 1 if evidence.identity_check and evidence.identical else 2
    if evidence.num_usable < enough:
        return PairVerdict(NO_INFERENCE, reason="ONE_REPLICATE" if evidence.num_usable else "NO_COMPLETE_BLOCKS")
    if evidence.identical:
        return PairVerdict(IDENTICAL_RUNS)
    if evidence.demonstration:
        return PairVerdict(NO_INFERENCE, reason="DEMONSTRATION")
    if not within(evidence.min_p, evidence.level):
        return PairVerdict(NO_INFERENCE, reason="ALPHA_UNREACHABLE")
    return None


def _superior(evidence: Evidence, sign: int) -> tuple[bool, tuple[str, ...]]:
    """Return p <= a and lower bound > 0; a disagreement of the two is flagged and claims nothing."""
    rejects = evidence.p is not None and within(evidence.p, evidence.level)
    if evidence.separated:
        return rejects, ()
    low = _lower(evidence.ci_superiority, sign)
    bounded = low is not None and low > 0
    return rejects and bounded, ("TEST_INTERVAL_DISAGREE",) if rejects != bounded else ()


def _lower(interval: Interval | None, sign: int) -> float | None:
    if interval is None:
        return None
    return interval.low if sign > 0 else -interval.high
