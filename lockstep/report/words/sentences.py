"""Verdict sentences: who is compared with whom, by how much, and what is open.

Templates of statistics.md 14, each filled from the comparisons it speaks of. ``+`` means better under a metric of
which more is better; for the others "lower" and "higher" are spelt out, so that a sign cannot be misread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.report.facing import treatment_of
from lockstep.report.findings.clock import Clock
from lockstep.report.findings.learning import Learning
from lockstep.report.findings.opposed import Opposed
from lockstep.report.numbers import difference_unit, digits_beside, exact, joined, p_text, percent, plain, signed
from lockstep.spec.inference.analysis import AnalysisSpec
from lockstep.stats.estimands import Contradiction
from lockstep.stats.power import MOST, Needed
from lockstep.stats.results import Interval
from lockstep.stats.verdict import (
    DIFFERENT_BUT_NEGLIGIBLE,
    EQUIVALENT,
    IDENTICAL_RUNS,
    INVALID,
    NO_INFERENCE,
    SUPERIOR_VERDICTS,
    TIE_AT_TOP,
    WINNER,
    WINNER_MEANINGFUL,
    ExperimentResult,
    PairResult,
)

WINNER_WITH_HARM = "WINNER_WITH_HARM"
_WINNERS = (WINNER_MEANINGFUL, WINNER, WINNER_WITH_HARM)


@dataclass(frozen=True)
class Doubt:
    """A contradiction of the claim about a - b, with the 90 % interval of the mean difference (oriented)."""

    found: Contradiction
    mean_interval: Interval | None


@dataclass(frozen=True)
class VerdictFacts:
    """What a verdict sentence may mention."""

    code: str
    reason: str | None
    result: ExperimentResult
    analysis: AnalysisSpec
    level: float
    more: Needed | None
    hours_per_block: float | None
    void_detail: str
    lost: str = ""
    harmed: tuple[str, ...] = ()
    kind: str = "ab"
    spread: Mapping[str, float | None] | None = None
    doubts: tuple[Doubt, ...] = ()
    clock: Clock | None = None
    extendable: bool = False
    early: Sequence[Mapping[str, Any]] = ()
    unlearned: Learning | None = None
    opposed: tuple[Opposed, ...] = ()
    is_untrained: bool = False

    @property
    def metric(self) -> str:
        """Return the primary metric, and that less of it is better where it is so."""
        name = self.analysis.primary.metric
        return f"{name} (lower is better)" if self.lower_is_better else name

    @property
    def lower_is_better(self) -> bool:
        """Return whether a smaller score is better."""
        return self.analysis.primary.direction == "min" and self.analysis.estimand in ("mean", "shift")

    @property
    def unit(self) -> str:
        """Return the unit of a difference with a leading space, or nothing."""
        unit = difference_unit(self.analysis.primary.metric, self.analysis.estimand)
        return f" {unit}" if unit else ""

    @property
    def sesoi(self) -> str:
        """Return the smallest effect of interest with its unit."""
        return f"{exact(self.analysis.sesoi)}{self.unit}"


def verdict_sentence(facts: VerdictFacts) -> str:
    """Return the verdict line."""
    if facts.code == INVALID:
        return f"Not analysed: {facts.void_detail}."
    if facts.code == NO_INFERENCE:
        return _no_inference(facts)
    early = "".join(f" {_early(facts, row)}" for row in facts.early)
    claim = _claim(facts) if facts.unlearned is None else _unlearned(facts, facts.unlearned)
    cautions = [_doubt(facts, doubt) for doubt in facts.doubts] + [_opposed(facts, item) for item in facts.opposed]
    return " ".join([claim + early, *cautions])


def decisive_pair(result: ExperimentResult) -> PairResult | None:
    """Return the comparison on which the headline hangs: that of the leader, or of the family, with the largest p."""
    asked = [p for p in result.pairs if p.in_family]
    if len(asked) == len(result.pairs):
        asked = [p for p in result.pairs if p.involves(result.leader)]
    claimed = result.claims or asked
    return max(claimed, key=lambda p: 1.0 if p.deciding_p is None else p.deciding_p) if claimed else None


def lost_text(cause: str, text: str, count: int, planned: int, arms: Sequence[str]) -> str:
    """Return in a sentence why blocks gave no result, and in whose code the fault is where it is that of some arms."""
    blocks = "block" if planned == 1 else "blocks"
    code = f" in the code of arm{'s' * (len(arms) > 1)} {joined([f'`{arm}`' for arm in arms])}" if arms else ""
    return f"{count} of {planned} {blocks} failed with cause {cause}{code}: {text.rstrip('.')}."


def range_text(low: int, high: int) -> str:
    """Return ``9`` or ``9-15``."""
    return str(low) if low == high else f"{low}-{high}"


def _claim(facts: VerdictFacts) -> str:
    if facts.code in (*_WINNERS, DIFFERENT_BUT_NEGLIGIBLE) and facts.result.winner is not None:
        return _winner(facts)
    if _is_family(facts):
        return _family(facts)
    if facts.code == EQUIVALENT:
        return _equivalent(facts)
    if facts.code == TIE_AT_TOP:
        return _tie(facts)
    return _identical(facts) if facts.code == IDENTICAL_RUNS else _inconclusive(facts)


def _is_family(facts: VerdictFacts) -> bool:
    asked = facts.analysis.comparisons
    family = asked == "vs_control" or (asked == "all_pairs" and len(facts.result.arms) > 2)
    return family and facts.code != IDENTICAL_RUNS


def _seen_from(pair: PairResult, label: str | None) -> tuple[float, Interval | None, Interval | None]:
    """Return estimate, superiority and equivalence interval of a pair with ``label`` first."""
    e = pair.evidence
    if label == pair.a.label:
        return e.estimate, e.ci_superiority, e.ci_equivalence
    sup, eq = e.ci_superiority, e.ci_equivalence
    return -e.estimate, sup.negated() if sup else None, eq.negated() if eq else None


def _digits(facts: VerdictFacts, value: float) -> int:
    """Return with how many digits a difference is told, so that it stands on its side of what matters."""
    return digits_beside(abs(value), facts.analysis.sesoi or 0.0)


def _bound(facts: VerdictFacts, value: float) -> str:
    digits = _digits(facts, value)
    if not facts.lower_is_better:
        return signed(value, digits)
    return "0" if value == 0 else f"{plain(abs(value), digits)} {'lower' if value > 0 else 'higher'}"


def _amount(facts: VerdictFacts, value: float) -> str:
    digits = _digits(facts, value)
    if not facts.lower_is_better or value == 0:
        return f"{signed(value, digits)}{facts.unit}"
    return f"{plain(abs(value), digits)}{facts.unit} {'lower' if value > 0 else 'higher'}"


def _span(facts: VerdictFacts, interval: Interval) -> str:
    return f"{_bound(facts, interval.low)} to {_bound(facts, interval.high)}{facts.unit}"


def _effect(facts: VerdictFacts, pair: PairResult, label: str | None) -> str:
    estimate, interval, _ = _seen_from(pair, label)
    amount = _amount(facts, estimate)
    if interval is None:
        return f"{amount} [no interval: complete separation]"
    bounds = f"{_bound(facts, interval.low)}, {_bound(facts, interval.high)}"
    return f"{amount} [{percent(1 - pair.evidence.level)} % CI {bounds}]"


def _test(pair: PairResult) -> str:
    if pair.test is None:
        return "no test"
    return f"exact {pair.test.name}" if pair.test.method == "exact" else pair.test.name


def _sizes(facts: VerdictFacts) -> str:
    sizes = sorted({arm.values.size for pair in facts.result.pairs for arm in (pair.a, pair.b)})
    return range_text(sizes[0], sizes[-1])


def _n(facts: VerdictFacts) -> str:
    return f"n = {_sizes(facts)} replicates per arm"


def _failed(pair: PairResult, label: str | None) -> str:
    """Return why failures decided: every run of the other arm failed and none of ``label``."""
    worse = pair.other(label or "")
    sizes = {arm.label: arm.values.size for arm in (pair.a, pair.b)}
    return (
        f"all {sizes[worse]} replicates of `{worse}` failed and none of the {sizes[label or '']} of `{label}`, "
        f"Fisher exact p {p_text(pair.evidence.failures_p)}"
    )


def _winner(facts: VerdictFacts) -> str:
    pair, label = decisive_pair(facts.result), facts.result.winner
    if pair is None or label is None:
        raise ValueError("a winner verdict needs a winner")
    rivals = len(facts.result.arms) - 1
    against = "every other arm" if rivals > 1 else f"`{pair.other(label)}`"
    beats = f"`{label}` beats {against} on {facts.metric}"
    if facts.code == DIFFERENT_BUT_NEGLIGIBLE:
        beats = f"`{label}` is better, by an amount that does not matter, than {against} on {facts.metric}"
    if pair.by_failures:
        text = f"{beats}: {_failed(pair, label)}, {_n(facts)}."
    else:
        largest = f" (largest of {rivals} comparisons)" if rivals > 1 else ""
        than = f" against `{pair.other(label)}`" if rivals > 1 else ""
        test = f"{_test(pair)} p {p_text(pair.deciding_p, facts.level)}{largest}"
        text = f"{beats}: {_effect(facts, pair, label)}{than}, {test}, "
        text += f"{_n(facts)}, smallest effect of interest {facts.sesoi}."
    if facts.code != DIFFERENT_BUT_NEGLIGIBLE and facts.result.weakest != WINNER_MEANINGFUL:
        text += f" The true advantage may be smaller than {facts.sesoi}."
    if facts.code == DIFFERENT_BUT_NEGLIGIBLE:
        text += _negligible(facts, label)
    return text + _harm(facts)


def _negligible(facts: VerdictFacts, label: str) -> str:
    """Return the interval by which a lead does not matter: the widest, of the rivals over whom it is small."""
    small = [p for p in facts.result.claims if p.verdict.code == DIFFERENT_BUT_NEGLIGIBLE]
    spans = [(p, inner) for p in small if (inner := _seen_from(p, label)[2]) is not None]
    if not spans:
        return ""
    pair, inner = max(spans, key=lambda item: max(abs(item[1].low), abs(item[1].high)))
    than = f" against `{pair.other(label)}`" if len(facts.result.arms) > 2 else ""
    level = percent(1 - 2 * pair.evidence.level)
    return f" The amount does not matter: the {level} % CI{than}, {_span(facts, inner)}, lies inside +/-{facts.sesoi}."


def _harm(facts: VerdictFacts) -> str:
    if not facts.harmed:
        return ""
    return f" It does harm on {joined(facts.harmed)} and must not be promoted automatically."


def _family(facts: VerdictFacts) -> str:
    """Return one clause for every registered comparison: what is settled first, then what is open."""
    pairs = [p for p in facts.result.pairs if p.in_family]
    control = facts.analysis.control if facts.analysis.comparisons == "vs_control" else None
    order = sorted(pairs, key=lambda p: (not p.superior, p.verdict.code != EQUIVALENT))
    clauses = [_clause(facts, pair, control) for pair in order]
    asked = f"Against the control `{control}` on {facts.metric}" if control else f"On {facts.metric}"
    correction = "within-block max-T" if facts.result.adjustment == "max_t" else "Holm"
    over = f"p and intervals adjusted over {len(pairs)} comparisons ({correction}), " if len(pairs) > 1 else ""
    text = f"{asked}: {'; '.join(clauses)} ({over}{_n(facts)}, smallest effect of interest {facts.sesoi})."
    text += _harm(facts)
    return text if facts.result.treatments_better or facts.code == EQUIVALENT else text + _more_text(facts)


def _clause(facts: VerdictFacts, pair: PairResult, control: str | None) -> str:
    first = pair.other(control) if control else pair.better or pair.b.label
    named = f"`{first}`" if control else f"`{first}` against `{pair.other(first)}`"
    code, adjusted = pair.verdict.code, "" if pair.p_adjusted is None else f", p {p_text(pair.p_adjusted, facts.level)}"
    if pair.by_failures:
        return f"{named} is {'better' if pair.better == first else 'worse'}: {_failed(pair, pair.better)}"
    if code in SUPERIOR_VERDICTS:
        size = ", by an amount that does not matter" if code == DIFFERENT_BUT_NEGLIGIBLE else ""
        word = "better" if pair.better == first else "worse"
        inner = f", {_inside(facts, pair, first)}" if code == DIFFERENT_BUT_NEGLIGIBLE else ""
        return f"{named} is {word}{size}, {_effect(facts, pair, first)}{inner}, {_test(pair)}{adjusted}"
    if code == EQUIVALENT:
        return f"{named} shows no meaningful difference, {_inside(facts, pair, first)}"
    if code == IDENTICAL_RUNS:
        return f"{named} gave identical scores"
    if code == NO_INFERENCE:
        return f"{named} cannot be judged at this n"
    return f"{named} is not settled, {_open_effect(facts, pair, first)}"


def _inside(facts: VerdictFacts, pair: PairResult, first: str) -> str:
    """Return that the equivalence interval lies inside the smallest effect of interest."""
    interval = _seen_from(pair, first)[2]
    span = "" if interval is None else f"{percent(1 - 2 * pair.evidence.level)} % CI {_span(facts, interval)} "
    return f"{span}inside +/-{facts.sesoi}"


def _open_effect(facts: VerdictFacts, pair: PairResult, first: str) -> str:
    """Return the estimate of what is not settled, with its interval and the level of that."""
    estimate, interval, _ = _seen_from(pair, first)
    if interval is None:
        return f"estimate {_amount(facts, estimate)}, no interval at this n"
    return f"estimate {_amount(facts, estimate)}, {percent(1 - pair.evidence.level)} % CI {_span(facts, interval)}"


def _equivalent(facts: VerdictFacts) -> str:
    known = [(p, p.evidence.ci_equivalence) for p in facts.result.pairs if not p.evidence.identical]
    spans = [(p, interval) for p, interval in known if interval is not None]
    if not spans:
        return f"No meaningful difference on {facts.metric}: all differences are 0 (n = {_sizes(facts)})."
    pair, widest = max(spans, key=lambda item: max(abs(item[1].low), abs(item[1].high)))
    count = len(facts.result.pairs)
    first = treatment_of(pair.a.label, pair.b.label, facts.analysis.control)
    _, _, shown = _seen_from(pair, first)
    widest_of = f", the widest of {count} comparisons" if count > 1 else ""
    of = f" (`{first}` minus `{pair.other(first)}`{widest_of})"
    level = percent(1 - 2 * facts.level)
    return (
        f"No meaningful difference on {facts.metric}: {level} % CI {_span(facts, shown or widest)}{of} "
        f"lies inside +/-{facts.sesoi} (n = {_sizes(facts)})."
    )


def _tie(facts: VerdictFacts) -> str:
    result, best = facts.result, facts.result.best_set
    others = [f"`{label}`" for label in best if label != result.leader]
    were = "was" if len(others) == 1 else "were"
    tied = joined([f"`{label}`" for label in best])
    text = f"{tied} tie at the top on {facts.metric}: {joined(others)} {were} not shown to be worse than "
    text += f"`{result.leader}`"
    among = [p for p in result.pairs if p.a.label in best and p.b.label in best and not p.evidence.identical]
    spans = [p.evidence.ci_equivalence for p in among if p.evidence.ci_equivalence is not None]
    widest = max(spans, key=lambda i: max(abs(i.low), abs(i.high)), default=None)
    if widest is not None:
        level = percent(1 - 2 * facts.level)
        text += f", and among them the {level} % CI {_span(facts, widest)} lies inside +/-{facts.sesoi}"
    beaten = [label for label in (arm.label for arm in result.arms) if label not in best]
    clauses = [clause for label in best if (clause := _beaten(result, label, beaten))]
    return f"{text} ({_n(facts)}). {' '.join(clauses)} The set was chosen by the data: error control is per pair."


def _beaten(result: ExperimentResult, label: str, rest: Sequence[str]) -> str:
    """Return which of the other arms this one was, and was not, shown to beat."""
    shown = {p.worse for p in result.pairs if p.superior and p.better == label}
    yes, no = [f"`{r}`" for r in rest if r in shown], [f"`{r}`" for r in rest if r not in shown]
    parts = [f"beats {joined(yes)}" if yes else "", f"was not shown to beat {joined(no)}" if no else ""]
    return f"`{label}` {' but '.join(part for part in parts if part)}."


_ALIKE = {
    EQUIVALENT: "Equivalent",
    IDENTICAL_RUNS: "Identical",
    TIE_AT_TOP: "A tie",
    DIFFERENT_BUT_NEGLIGIBLE: "A difference that does not matter",
}


def _unlearned(facts: VerdictFacts, found: Learning) -> str:
    """Return the claim behind the caution that it says nothing of trained policies, and what shows that."""
    who = {1: f"`{found.arms[0]}` has not", 2: "neither arm has"}.get(len(found.arms), "no arm has")
    text = f"{_ALIKE[facts.code]}, but {who} learned: train longer. {_claim(facts)}"
    if found.metric is None or found.change is None or found.interval is None:
        return f"{text} No run reached the threshold {exact(facts.analysis.threshold)}."
    sign = -1.0 if facts.analysis.primary.direction == "min" else 1.0
    change = f"{_signed(facts, sign * found.change)} [90 % CI {_raw_bounds(facts, found.interval, sign)}]"
    small = "" if found.interval.low <= 0 else f", less than the smallest effect of interest {facts.sesoi}"
    return f"{text} From the first round to the last tenth of training {found.metric} changed by {change}{small}."


def _identical(facts: VerdictFacts) -> str:
    if facts.kind == "aa":
        return "All replicates are identical, as an A/A experiment must be: the difference is exactly 0."
    return (
        "All scores are identical: the changed setting had no effect on the metric, was not applied, or the metric is "
        "at its limit."
    )


def _inconclusive(facts: VerdictFacts) -> str:
    pair = decisive_pair(facts.result)
    text = "Not settled"
    if pair is not None and facts.result.leader is not None:
        first = treatment_of(pair.a.label, pair.b.label, facts.analysis.control)
        text += f": {_open_effect(facts, pair, first)}"
        text += f" on {facts.metric} (`{first}` minus `{pair.other(first)}`, {_test(pair)}, {_n(facts)})"
    text += "."
    if facts.reason == "FLOOR_SENSITIVE":
        return text + " The answer depends on the score given to failed runs."
    return text + _more_text(facts)


def _more_text(facts: VerdictFacts) -> str:
    """Return what would settle it: longer training, or so many replicates, as an extension only where one may be."""
    if facts.reason == "FLOOR_SENSITIVE" or facts.clock is None:
        return ""
    looks = facts.clock.num_looks if facts.analysis.looks.mode == "planned" else 0
    if looks and facts.extendable:
        return f" The next registered look is after {facts.analysis.looks.at[facts.clock.look or 0]} complete blocks."
    if facts.is_untrained:
        return " Training has not moved the policies by as much as matters: train longer (budget.rounds) first."
    if facts.more is None:
        return " How many replicates are needed cannot be estimated from these."
    low, high = facts.more.plugin, facts.more.upper80
    if low is None:
        return f" Even {MOST} replicates would not find {facts.sesoi} with 80 % power."
    seen = facts.clock.complete if facts.extendable else 0
    if low <= seen:
        return f" With this many replicates {facts.sesoi} is found with 80 % power."
    span = f"{low - seen} or more" if high is None else range_text(low - seen, high - seen)
    hours = _hours(facts, [low - seen] if high is None else [low - seen, high - seen])
    if facts.extendable:
        return f" About {span} more replicates{hours} would find {facts.sesoi} with 80 % power."
    return f" A new experiment with about {span} replicates{hours} would find {facts.sesoi} with 80 % power."


def _hours(facts: VerdictFacts, counts: Sequence[int]) -> str:
    if not facts.hours_per_block:
        return ""
    span = [plain(facts.hours_per_block * count, 2) for count in counts]
    return f" ({'-'.join(dict.fromkeys(span))} device-hours)"


def _doubt(facts: VerdictFacts, doubt: Doubt) -> str:
    found = doubt.found
    if found.kind == "failures":
        (k, n), (j, m) = found.failures
        counts = f"`{found.a}` failed in {k} of {n} replicates, `{found.b}` in {j} of {m}"
        return f"But the failures say otherwise: {counts} (Fisher exact p {p_text(found.fisher_p)})."
    in_units = facts.analysis.estimand in ("mean", "shift")
    unit = facts.unit if in_units else f" {difference_unit(facts.analysis.primary.metric)}".rstrip()
    sign = -1.0 if facts.analysis.primary.direction == "min" else 1.0
    first, second, interval = found.a, found.b, doubt.mean_interval
    if treatment_of(first, second, facts.analysis.control) == second:
        first, second, interval, way = second, first, interval.negated() if interval else None, -1.0
    else:
        way = 1.0
    amount = f"{_signed(facts, way * sign * found.mean_difference)}{unit}"
    bounds = "" if interval is None else f" [90 % CI {_raw_bounds(facts, interval, sign)}]"
    outside = f", not inside +/-{facts.sesoi}" if found.kind == "margin" else ""
    means = f"the mean of `{first}` minus that of `{second}` is {amount}{bounds}{outside}"
    return f"But the mean says otherwise: {means}."


def _opposed(facts: VerdictFacts, item: Opposed) -> str:
    """Return that training names the other arm, and which of the two counts."""
    sign = -1.0 if facts.analysis.primary.direction == "min" else 1.0
    unit = f" {difference_unit(facts.analysis.primary.metric)}".rstrip()
    amount = f"{signed(sign * item.difference)}{unit}"
    bounds = f"{percent(1 - item.level)} % CI {_raw_bounds(facts, item.interval, sign)}"
    return (
        f"But training points to `{item.ahead}`: over the last tenth of it {item.metric} of `{item.ahead}` minus that "
        f"of `{item.better}` was {amount} [{bounds}]. The verdict is on the policies as they were evaluated."
    )


def _early(facts: VerdictFacts, row: Mapping[str, Any]) -> str:
    """Return the estimate of a comparison that was won at an early look, freed of the look's optimism."""
    looks = facts.clock.num_looks if facts.clock else 0
    first, second, way = (row["a"], row["b"], 1.0) if row["estimate"] > 0 else (row["b"], row["a"], -1.0)
    low, high = sorted(way * end for end in row["ci"])
    return (
        f"`{first}` against `{second}` was won at look {row['look']} of {looks} (n = {row['n']}): the median-unbiased "
        f"estimate is {_amount(facts, way * row['median_unbiased'])} [{percent(1 - row['level'])} % CI "
        f"{_bound(facts, low)}, {_bound(facts, high)}]."
    )


def _signed(facts: VerdictFacts, value: float) -> str:
    return signed(value, _digits(facts, value))


def _raw_bounds(facts: VerdictFacts, interval: Interval, sign: float) -> str:
    low, high = (interval.low, interval.high) if sign > 0 else (-interval.high, -interval.low)
    return f"{_signed(facts, low)}, {_signed(facts, high)}"


def _no_inference(facts: VerdictFacts) -> str:
    sizes = {arm.label: arm.values.size for arm in facts.result.arms}
    if facts.reason == "ONE_REPLICATE":
        if set(sizes.values()) == {1}:
            return "One replicate per arm: this compares two runs, not two configurations."
        few = joined([f"`{label}` has {size}" for label, size in sizes.items() if size < 2])
        return f"At least two usable replicates per arm are needed: {few}. A single run is not a configuration."
    if facts.reason == "ALL_FAILED":
        return "Every run that was compared failed: there is no score to compare."
    if facts.reason == "NO_COMPLETE_BLOCKS":
        return f"No complete block: there is nothing to compare. {facts.lost}".rstrip()
    if facts.reason == "AA_DIFFERS":
        spread = facts.spread or {}
        return (
            f"Identical arms gave different scores: SD {plain(spread.get('nondeterminism_sd'))}{facts.unit} within "
            f"blocks against {plain(spread.get('seed_sd'))}{facts.unit} between replicates."
        )
    if facts.reason == "DEMONSTRATION":
        return "Demonstration: no inference was registered, so no verdict is offered."
    if facts.reason == "LOOK_NOT_REACHED":
        clock = facts.clock
        waits = "" if clock is None else f" It is due after {clock.due} complete blocks; {clock.complete} are complete."
        return f"The registered analysis is not due yet.{waits}"
    asked = [pair for pair in facts.result.pairs if pair.in_family]
    level = max((pair.evidence.level for pair in asked), default=facts.level)
    over = f" ({exact(round(facts.level, 4))} over {len(asked)} comparisons)" if level < facts.level else ""
    return f"n = {_sizes(facts)} cannot reach alpha = {exact(round(level, 4))}{over} with this test."
