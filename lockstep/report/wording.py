"""Verdict sentences, from the fixed templates of statistics.md 14 only.

Never bare "significant", never "no difference" without equivalence, never "trend", never a p as a
chance; always units, n, interval and test.

The methods paragraph: generated from the registered analysis, one sentence per choice.

Plain words for readers who know no statistics: verdicts, flags and terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from lockstep.report.inputs import ReportInputs
from lockstep.report.numbers import difference_unit, exact, joined, p_text, percent, plain, signed
from lockstep.spec.analysis import AnalysisSpec
from lockstep.stats.planning import ReplicatesNeeded
from lockstep.stats.results import Interval
from lockstep.stats.verdict import (
    DIFFERENT_BUT_NEGLIGIBLE,
    EQUIVALENT,
    IDENTICAL_RUNS,
    INVALID,
    NO_INFERENCE,
    TIE_AT_TOP,
    WINNER,
    WINNER_MEANINGFUL,
    Design,
    ExperimentResult,
    PairResult,
)

WINNER_WITH_HARM = "WINNER_WITH_HARM"
_WINNERS = (WINNER_MEANINGFUL, WINNER, WINNER_WITH_HARM)


@dataclass(frozen=True)
class VerdictFacts:
    """What a verdict sentence may mention."""

    code: str
    reason: str | None
    result: ExperimentResult
    analysis: AnalysisSpec
    level: float
    more: ReplicatesNeeded | None
    hours_per_block: float | None
    void_detail: str
    harmed: tuple[str, ...] = ()
    kind: str = "ab"
    spread: Mapping[str, float | None] | None = None


def verdict_sentence(facts: VerdictFacts) -> str:
    """Return the verdict line."""
    if facts.code == INVALID:
        return f"Not analysed: {facts.void_detail}."
    if facts.code in _WINNERS:
        return _winner(facts)
    if facts.code == DIFFERENT_BUT_NEGLIGIBLE:
        return _negligible(facts)
    if facts.code == EQUIVALENT:
        return _equivalent(facts)
    if facts.code == TIE_AT_TOP:
        return _tie(facts)
    if facts.code == IDENTICAL_RUNS:
        return _identical(facts)
    return _no_inference(facts) if facts.code == NO_INFERENCE else _inconclusive(facts)


def decisive_pair(result: ExperimentResult) -> PairResult | None:
    """Return the comparison of the leader that decides: the one with the largest p."""
    own = [p for p in result.pairs if result.leader in (p.a.label, p.b.label)]
    return max(own, key=lambda p: 1.0 if p.evidence.p is None else p.evidence.p) if own else None


def seen_from(pair: PairResult, label: str) -> tuple[float, Interval | None, Interval | None]:
    """Return estimate, superiority and equivalence interval of a pair with ``label`` first."""
    e = pair.evidence
    if label == pair.a.label:
        return e.estimate, e.ci_superiority, e.ci_equivalence
    sup, eq = e.ci_superiority, e.ci_equivalence
    return -e.estimate, sup.negated() if sup else None, eq.negated() if eq else None


def range_text(low: int, high: int) -> str:
    """Return ``9`` or ``9-15``."""
    return str(low) if low == high else f"{low}-{high}"


def _span(interval: Interval) -> str:
    return f"{signed(interval.low)} to {signed(interval.high)}"


def _unit(facts: VerdictFacts) -> str:
    unit = difference_unit(facts.analysis.primary.metric, facts.analysis.estimand)
    return f" {unit}" if unit else ""


def _sesoi(facts: VerdictFacts) -> str:
    return f"{exact(facts.analysis.sesoi)}{_unit(facts)}"


def _effect(facts: VerdictFacts, pair: PairResult, label: str) -> str:
    estimate, interval, _ = seen_from(pair, label)
    unit = _unit(facts)
    if interval is None:
        return f"{signed(estimate)}{unit} [no interval: complete separation]"
    bounds = f"{signed(interval.low)}, {signed(interval.high)}"
    return f"{signed(estimate)}{unit} [{percent(1 - facts.level)} % CI {bounds}]"


def _test(pair: PairResult) -> str:
    if pair.test is None:
        return "no test"
    return f"exact {pair.test.name}" if pair.test.method == "exact" else pair.test.name


def _evidence(facts: VerdictFacts, pair: PairResult, comparisons: int) -> str:
    largest = f" (largest of {comparisons} comparisons)" if comparisons > 1 else ""
    return f"{_test(pair)} p {p_text(pair.evidence.p)}{largest}, n = {_n(facts)} replicates per arm"


def _n(facts: VerdictFacts) -> str:
    sizes = sorted({arm.values.size for arm in facts.result.arms})
    return range_text(sizes[0], sizes[-1])


def _winner(facts: VerdictFacts) -> str:
    pair, label = decisive_pair(facts.result), facts.result.winner
    if pair is None or label is None:
        raise ValueError("a winner verdict needs a winner")
    rivals = len(facts.result.arms) - 1
    against = "every other arm" if rivals > 1 else f"`{_other(pair, label)}`"
    text = (
        f"`{label}` beats {against} on {facts.analysis.primary.metric}: {_effect(facts, pair, label)}, "
        f"{_evidence(facts, pair, rivals)}, smallest effect of interest {_sesoi(facts)}."
    )
    weak = any(p.verdict.code != WINNER_MEANINGFUL for p in facts.result.pairs if p.better == label)
    text += f" The true advantage may be smaller than {_sesoi(facts)}." if weak else ""
    if facts.code == WINNER_WITH_HARM:
        text += f" It does harm on {joined(facts.harmed)} and must not be promoted automatically."
    return text


def _other(pair: PairResult, label: str) -> str:
    return pair.b.label if label == pair.a.label else pair.a.label


def _negligible(facts: VerdictFacts) -> str:
    pair, label = decisive_pair(facts.result), facts.result.winner
    if pair is None or label is None:
        raise ValueError("a negligible difference needs a better arm")
    rivals = len(facts.result.arms) - 1
    return (
        f"`{label}` is better, by an amount that does not matter: {_effect(facts, pair, label)} on "
        f"{facts.analysis.primary.metric}, {_evidence(facts, pair, rivals)}, smallest effect of interest "
        f"{_sesoi(facts)}."
    )


def _equivalent(facts: VerdictFacts) -> str:
    intervals = [(p, p.evidence.ci_equivalence) for p in facts.result.pairs]
    known = [(p, i) for p, i in intervals if i is not None and not p.evidence.identical]
    level = percent(1 - 2 * facts.level)
    metric, unit = facts.analysis.primary.metric, _unit(facts)
    if not known:
        return f"No meaningful difference on {metric}: all differences are 0 (n = {_n(facts)})."
    _, widest = max(known, key=lambda item: max(abs(item[1].low), abs(item[1].high)))
    of = f" (the widest of {len(intervals)} comparisons)" if len(intervals) > 1 else ""
    return (
        f"No meaningful difference on {metric}: {level} % CI {_span(widest)}{unit}{of} "
        f"lies inside +/-{_sesoi(facts)} (n = {_n(facts)})."
    )


def _tie(facts: VerdictFacts) -> str:
    best = facts.result.best_set
    inside = [p for p in facts.result.pairs if p.a.label in best and p.b.label in best]
    spans = [p.evidence.ci_equivalence for p in inside if p.evidence.ci_equivalence is not None]
    widest = max(spans, key=lambda i: max(abs(i.low), abs(i.high)), default=None)
    names = joined([f"`{label}`" for label in best])
    text = f"{names} tie at the top and beat the rest on {facts.analysis.primary.metric}: "
    if widest is not None:
        text += (
            f"among them the {percent(1 - 2 * facts.level)} % CI {_span(widest)}{_unit(facts)} "
            f"lies inside +/-{_sesoi(facts)} "
        )
    return text + f"(n = {_n(facts)}). The tied set was chosen by the data: error control is per pair."


def _identical(facts: VerdictFacts) -> str:
    if facts.kind == "aa":
        return "All replicates are identical, as an A/A experiment must be: the difference is exactly 0."
    if "ALL_FAILED" in facts.result.flags:
        return "All replicates are identical: every run failed, so nothing can be compared."
    return (
        "All scores are identical: the changed setting had no effect on the metric, was not applied, or the metric is "
        "at its limit."
    )


def _inconclusive(facts: VerdictFacts) -> str:
    pair, leader = decisive_pair(facts.result), facts.result.leader
    text = "Not settled"
    if pair is not None and leader is not None:
        estimate, interval, _ = seen_from(pair, leader)
        if interval is not None:
            text += f": CI {_span(interval)}{_unit(facts)}"
        else:
            text += f": estimate {signed(estimate)}{_unit(facts)}, no interval at this n"
        text += f" (`{leader}` minus `{_other(pair, leader)}`, {_test(pair)}, n = {_n(facts)} replicates per arm)"
    text += "."
    if facts.reason == "FLOOR_SENSITIVE":
        text += " The answer depends on the score given to failed runs."
    return text + _more_text(facts)


def _more_text(facts: VerdictFacts) -> str:
    if facts.more is None:
        return " How many more replicates are needed cannot be estimated; plan at least the floor."
    low, high = facts.more.more
    if high == 0:
        return ""
    hours = ""
    if facts.hours_per_block:
        span = [plain(facts.hours_per_block * count, 2) for count in (low, high)]
        hours = f" ({'-'.join(dict.fromkeys(span))} device-hours)"
    count = range_text(low, high)
    return f" About {count} more replicates{hours} would resolve {_sesoi(facts)} with 80 % power."


def _no_inference(facts: VerdictFacts) -> str:
    if facts.reason == "ONE_REPLICATE":
        return "One replicate per arm: this compares two runs, not two configurations."
    if facts.reason == "NO_COMPLETE_BLOCKS":
        return "No complete block: there is nothing to compare."
    if facts.reason == "AA_DIFFERS":
        spread = facts.spread or {}
        return (
            f"Identical arms gave different scores: SD {plain(spread.get('nondeterminism_sd'))}{_unit(facts)} within "
            f"blocks against {plain(spread.get('seed_sd'))}{_unit(facts)} between replicates."
        )
    if facts.reason == "DEMONSTRATION":
        return "Demonstration: no inference was registered, so no verdict is offered."
    if facts.reason == "LOOK_NOT_REACHED":
        return "The first registered look has not been reached: no analysis yet."
    return f"n = {_n(facts)} cannot reach alpha = {exact(round(facts.level, 4))} with this test."


def methods_sentence(analysis: AnalysisSpec, facts: Sequence[str]) -> str:
    """Return the methods paragraph from its parts, one sentence each."""
    head = (
        f"Primary metric {analysis.primary.metric} ({analysis.primary.aggregate}, direction "
        f"{analysis.primary.direction}); the unit of analysis is the replicate (one training run)."
    )
    return " ".join([head, *facts])


_NULL = "Null hypothesis: the arms are exchangeable"
_TESTS = {
    (
        True,
        "shift",
    ): f"Exact signed-rank test (Pratt zeros) with Walsh-average intervals. {_NULL} within a block.",
    (True, "mean"): "Exact sign-flip test of the mean difference, interval by inversion; exact under "
    "exchangeability within a block, approximate (up to .13 at a nominal .05) when differences are skewed.",
    (False, "shift"): f"Exact rank test with the Hodges-Lehmann interval. {_NULL}.",
    (False, "mean"): f"Permutation test of means, interval by inversion on the same splits. {_NULL}; "
    "studentised when the SD ratio exceeds 2 and arms differ in n.",
    (
        False,
        "p_superiority",
    ): "Brunner-Munzel test of P(better) = 1/2, guarded by the exact rank test below ten "
    "replicates and replaced by it under complete separation.",
}


def methods_sentences(inputs: ReportInputs, result: ExperimentResult, design: Design) -> list[str]:
    """Return the sentences: test, levels, multiplicity, looks, failures, seeds, hash."""
    analysis = inputs.analysis
    if analysis.inference == "none":
        return ["Demonstration: no inference was registered.", _registered(inputs)]
    unit = difference_unit(analysis.primary.metric, analysis.estimand)
    sesoi = f"{exact(analysis.sesoi)} {unit}".strip()
    scope = "for all arms" if analysis.paired else "for its arm"
    return [
        _registered_test(analysis),
        f"Two-sided level {exact(round(design.level, 5))}; smallest effect of interest {sesoi}.",
        _multiplicity(analysis, result, len(inputs.arms)),
        _looks(analysis),
        f"A failed run scores {exact(analysis.failure.floor)} and is never omitted; "
        f"a block lost to infrastructure is dropped {scope}.",
        f"Resampling starts from analysis seed {analysis.analysis_seed}; lockstep {inputs.code_version}, "
        f"scipy {scipy.__version__}, numpy {np.__version__}.",
        _registered(inputs),
    ]


def _registered_test(analysis: AnalysisSpec) -> str:
    if analysis.looks.mode == "anytime":
        return (
            f"Anytime-valid {analysis.looks.e_value} e-value of paired differences in replicate order; "
            "p = 1/max E, intervals by inversion of E < 1/alpha."
        )
    return _TESTS[analysis.paired, analysis.estimand]


def _multiplicity(analysis: AnalysisSpec, result: ExperimentResult, num_arms: int) -> str:
    if num_arms == 2:
        return "One comparison."
    if analysis.comparisons == "winner":
        text = "Winner rule: an arm wins only if it beats every other arm, each at the level, uncorrected. "
    else:
        text = f"Pair verdicts ({analysis.comparisons}) use adjusted p. "
    if result.adjustment == "max_t":
        strong = "strong control" if num_arms == 3 else "exact under the global null only"
        return text + f"Adjusted p: within-block max-T with the pair guard ({strong} at K = {num_arms})."
    return text + "Adjusted p: Holm over the exact pair p."


def _looks(analysis: AnalysisSpec) -> str:
    looks = analysis.looks
    if looks.mode == "planned":
        at = ", ".join(str(n) for n in looks.at)
        return f"Planned looks after {at} complete blocks with {looks.boundary} levels."
    if looks.mode == "anytime":
        return "The data may be looked at after any block."
    return f"One analysis at {analysis.replicates.planned} planned blocks."


def _registered(inputs: ReportInputs) -> str:
    return f"Analysis registered before training, SHA-256 {inputs.registered_hash[:12]}."


VERDICTS = {
    "WINNER_MEANINGFUL": (
        "good",
        "One arm is better, and even the cautious end of the interval exceeds the smallest effect of interest.",
    ),
    "WINNER": (
        "good",
        "One arm is better. How much is less sure: the advantage may be smaller than the effect of interest.",
    ),
    "WINNER_WITH_HARM": (
        "bad",
        "One arm is better on the primary metric, but it harms a metric that was to be protected.",
    ),
    "DIFFERENT_BUT_NEGLIGIBLE": ("good", "The arms do differ, but by less than what was declared to matter."),
    "EQUIVALENT": (
        "good",
        "Any remaining difference is smaller than what was declared to matter. That is a finding, not a lack of data.",
    ),
    "TIE_AT_TOP": (
        "good",
        "Several arms share the first place, with no meaningful difference among them, and beat the rest.",
    ),
    "IDENTICAL_RUNS": ("good", "Every pair of runs gave exactly the same score."),
    "INCONCLUSIVE": (
        "wait",
        "The data allow neither a winner nor equivalence. It does not mean that the arms are equal: more "
        "replicates "
        "are needed.",
    ),
    "NO_INFERENCE": (
        "wait",
        "There are too few replicates, or no inference was asked for: nothing is concluded.",
    ),
    "INVALID": ("bad", "A condition for a fair comparison was broken, so the scores are not interpreted."),
}

FLAGS = {
    "ALL_FAILED": "every run failed",
    "CANCELLED_BY_USER": "some runs were cancelled by a user",
    "DRIVEN_BY_FAILURES": "the verdict would differ if failed runs were left out (they are not)",
    "DRIVER_DIFFERS": "driver or library versions differ between runs",
    "EXPLORATORY_EXTENSION": "blocks were added after results were seen; they are shown apart",
    "FEW_REPLICATES": "an arm has fewer than two usable replicates",
    "FLOOR_ABOVE_SCORE": "a successful run scored below the registered failure score; the worst score was used instead",
    "FLOOR_ASSUMED": "no failure score was registered; failed runs stand at the worst score seen",
    "GUARDRAIL_UNPROVEN": "absence of harm is not proven on some guardrail: do not promote automatically",
    "HARDWARE_CONFOUNDED": "arms were not spread evenly over devices",
    "INCOMPLETE": "fewer blocks are complete than planned",
    "LOSS_SENSITIVE": "the verdict would differ if lost runs had gone against the winner",
    "MANY_LOST": "more than 10 % of blocks were lost to infrastructure",
    "NONDETERMINISTIC": "nondeterministic kernels were on",
    "RESUMED_RUNS": "some runs were resumed from a checkpoint",
    "REWARD_SHARED": "the primary metric depends on the reward, which is the same for all arms",
    "SEPARATED": "the arms do not overlap at all; only the exact rank test applies",
    "TEST_INTERVAL_DISAGREE": "test and interval disagree because of ties or discreteness; no claim is made",
    "ZERO_VARIANCE": "differences or scores have no spread; t statistics are undefined",
}

GLOSSARY = (
    (
        "Replicate",
        "one complete training run of one arm with its own random seed. Only replicates count as n.",
    ),
    (
        "Block",
        "one replicate of every arm, sharing random seeds, so that arms are compared under equal luck.",
    ),
    (
        "p",
        "how often a difference at least this large would arise if the arms were interchangeable. It is "
        "not the "
        "chance that an arm is better.",
    ),
    (
        "Interval (CI)",
        "the range of true differences that fit the data. A wide interval means little is known.",
    ),
    (
        "Smallest effect of interest",
        "the difference that was declared, before training, to be worth acting on.",
    ),
    ("Equivalent", "the interval lies wholly within the smallest effect of interest, on both sides of 0."),
    (
        "Failure",
        "a run that diverged. It counts, with a score fixed beforehand; leaving it out would reward fragile arms.",
    ),
    ("Lost", "a run that ended for reasons of infrastructure. Its block is left out for all arms."),
)
