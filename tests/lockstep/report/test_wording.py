# ruff: noqa: E501 - a template is easier to hold against its sentence in one line
"""No verdict sentence may be false: each is read back and held against facts counted from scores.csv alone.

The checker knows scores.csv, the registration and the counting of ``recompute`` (numpy only); nothing else of the report.
Every word of a sentence must belong to a template that is checked here.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from math import comb, inf, isfinite
from typing import Any

import numpy as np
import pytest

from lockstep.report import build_report, scores_csv
from lockstep.report.recompute import Answer, permutation, rank_test, sign_flip, signed_rank
from tests.lockstep.report.factories import Cell, make_analysis, make_inputs

_N = r"[+-]?\d[\d.]*(?:e[+-]?\d+)?(?: pp| nats)?(?: lower| higher)?(?: pp| nats)?"
_AMOUNT = rf"(?P<est>{_N}) \[(?P<level>[\d.]+) % CI (?P<low>{_N}), (?P<high>{_N})\]"
_ON = r"on \S+(?: \(lower is better\))?"
_INSIDE = rf"[\d.]+ % CI {_N} to {_N} inside \+/-{_N}"
_OPEN = rf"estimate {_N}, (?:[\d.]+ % CI {_N} to {_N}|no interval at this n)"
_SIZES = r"n = (?P<n>[\d-]+) replicates per arm"
_MORE = (
    rf"(?: A new experiment with about [\d-]+(?: or more)? replicates(?: \([\d.e+-]+ device-hours\))? would find {_N} with 80 % power\.| Even 300 "
    rf"replicates would not find {_N} with 80 % power\.| How many replicates are needed cannot be estimated from these\.)?"
)
_FAILED = (
    r"all (?P<k>\d+) replicates of `(?P<worse>\w+)` failed and none of the (?P<m>\d+) of `(?P<sound>\w+)`, Fisher exact p "
    r"(?P<fisher>[=<] [\d.]+)"
)


class Facts:
    """What can be counted from scores.csv and the registration."""

    def __init__(self, text: str, registration: Mapping[str, Any]) -> None:
        analysis = registration["analysis"]
        self.labels = [arm["label"] for arm in registration["arms"]]
        self.estimand, self.paired, self.alpha = analysis["estimand"], analysis["paired"], analysis["alpha"]
        self.sesoi, self.control, self.asked = analysis["sesoi"], analysis["control"], analysis["comparisons"]
        sign = 1.0 if analysis["primary"]["direction"] == "max" else -1.0
        rows = [r for r in csv.DictReader(io.StringIO(text)) if r["status"] != "lost"]
        self.ranked: dict[str, dict[int, float]] = {label: {} for label in self.labels}
        for row in rows:
            good = row["status"] == "ok" and isfinite(float(row["raw"]))
            self.ranked[row["arm"]][int(row["replicate"])] = sign * float(row["raw"]) if good else -inf
        self.counts = {a: (sum(v == -inf for v in own.values()), len(own)) for a, own in self.ranked.items()}
        self.floor = min(
            [sign * analysis["failure"]["floor"], *(v for o in self.ranked.values() for v in o.values() if v > -inf)]
        )
        if self.paired:
            shared = set.intersection(*(set(own) for own in self.ranked.values()))
            self.ranked = {a: {r: v for r, v in own.items() if r in shared} for a, own in self.ranked.items()}

    def values(self, label: str) -> list[float]:
        """Return the scores of an arm, failures at the floor."""
        return [self.floor if v == -inf else v for _, v in sorted(self.ranked[label].items())]

    def location(self, label: str) -> float:
        """Return where an arm stands."""
        values = self.values(label)
        if self.estimand == "mean":
            return float(np.mean(values))
        return float(np.median([(x + y) / 2 for i, x in enumerate(values) for y in values[i:]]))

    def compare(self, a: str, b: str, level: float) -> Answer:
        """Return estimate, p and both intervals of a - b."""
        x, y = self.ranked[a], self.ranked[b]
        known = [abs(v) for own in (x, y) for v in own.values() if v > -inf]
        tie = 1e-9 * max(known, default=0.0)
        if self.paired:
            d = np.array(self.values(a)) - np.array(self.values(b))
            d[np.abs(d) <= tie] = 0.0
            return sign_flip(d, level, tie) if self.estimand == "mean" else signed_rank(d, level, tie)
        if self.estimand == "mean":
            return permutation(self.values(a), self.values(b), level)
        pairs = [
            list(zip(self.values(label), own.values(), strict=True))
            for label, own in ((a, self.sorted(a)), (b, self.sorted(b)))
        ]
        return rank_test(pairs[0], pairs[1], level)

    def sorted(self, label: str) -> dict[int, float]:
        """Return rank scores in the order of replicates."""
        return dict(sorted(self.ranked[label].items()))


def amount(text: str) -> float:
    """Return the oriented number behind ``+1.2 pp`` or ``1.2 lower``."""
    value = float(re.match(r"[+-]?\d[\d.]*(?:e[+-]?\d+)?", text)[0])  # type: ignore[index]
    return -value if "higher" in text else value


def same(text: str, value: float | None, oriented: bool = True) -> bool:
    """Return whether a printed number is a value rounded to three digits."""
    if value is None:
        return False
    shown = amount(text) if oriented else float(text)
    return abs(shown - value) <= 0.0051 * max(abs(value), abs(shown)) + 1e-7


def p_same(text: str, p: float) -> bool:
    """Return whether a printed p is p, and on its side of alpha."""
    if text.startswith("<"):
        return p < 1e-4
    return abs(float(text[2:]) - p) <= (0.0005 if p >= 0.01 else 0.00005) + 1e-12


def winner(m: re.Match[str], facts: Facts) -> None:
    label = m["w"]
    rivals = [other for other in facts.labels if other != label]
    rival = m["rival"] or m["loser"]
    estimate, p, interval, _ = facts.compare(label, rival, facts.alpha)
    assert same(m["est"], estimate)
    assert interval is not None
    assert same(m["low"], interval[0])
    assert same(m["high"], interval[1])
    assert p_same(m["p"], p)
    for other in rivals:
        theirs = facts.compare(label, other, facts.alpha)
        assert theirs[0] > 0
        assert theirs[1] <= min(facts.alpha, p) * (1 + 1e-9), "the p shown is the largest, and all reject"
        assert m["hedge"] or (theirs[2] is not None and theirs[2][0] > facts.sesoi) or "does not matter" in m[0]
        if "does not matter" in m[0]:
            assert theirs[2] is not None
    if "does not matter" in m[0]:
        inner = facts.compare(label, m["close"] or m["loser"], facts.alpha)[3]
        assert inner is not None
        assert same(m["elow"], inner[0])
        assert same(m["ehigh"], inner[1])
        assert max(map(abs, inner)) < facts.sesoi
    assert m["count"] is None or int(m["count"]) == len(rivals)
    sized(m["n"], facts)


def by_failures(m: re.Match[str], facts: Facts) -> None:
    (k, n), (j, size) = facts.counts[m["worse"]], facts.counts[m["sound"]]
    assert (k, j) == (n, 0)
    assert (int(m["k"]), int(m["m"])) == (len(facts.values(m["worse"])), len(facts.values(m["sound"])))
    assert size > 1


def equivalent(m: re.Match[str], facts: Facts) -> None:
    pairs = [(a, b) for i, a in enumerate(facts.labels) for b in facts.labels[i + 1 :]]
    a, b = (m["a"], m["b"]) if m["a"] else pairs[0]
    interval = facts.compare(a, b, facts.alpha)[3]
    assert interval is not None
    assert same(m["low"], interval[0])
    assert same(m["high"], interval[1])
    for first, second in pairs:
        found = facts.compare(first, second, facts.alpha)[3]
        assert found is not None
        assert max(map(abs, found)) < facts.sesoi
        assert max(map(abs, found)) <= max(map(abs, interval)) + 1e-9, "the widest is shown"
    sized(m["n"], facts)


def open_question(m: re.Match[str], facts: Facts) -> None:
    treatment, baseline = m["a"], m["b"]
    assert baseline == facts.control or facts.labels.index(treatment) > facts.labels.index(baseline)
    best = max(map(facts.location, facts.labels))
    assert max(facts.location(treatment), facts.location(baseline)) >= best - 1e-9, "the leader is one of them"
    estimate, _, interval, _ = facts.compare(treatment, baseline, facts.alpha)
    assert same(m["est"], estimate)
    if m["low"] is None:
        assert interval is None
    else:
        assert interval is not None
        assert same(m["low"], interval[0])
        assert same(m["high"], interval[1])
    sized(m["n"], facts)


def family(m: re.Match[str], facts: Facts) -> None:
    asked = [(a, b) for i, a in enumerate(facts.labels) for b in facts.labels[i + 1 :]]
    asked = [pair for pair in asked if facts.asked != "vs_control" or facts.control in pair]
    assert m["count"] is None or int(m["count"]) == len(asked)
    ps = {frozenset(pair): facts.compare(*pair, facts.alpha)[1] for pair in asked}
    order = sorted(ps, key=lambda pair: ps[pair])
    adjusted, running = {}, 0.0
    for i, pair in enumerate(order):
        running = adjusted[pair] = max(running, min(1.0, (len(order) - i) * ps[pair]))
    clauses = m["clauses"].split("; ")
    named = set()
    for clause in clauses:
        c = re.fullmatch(_CLAUSE, clause)
        assert c is not None, clause
        first, second = c["first"], c["second"] or facts.control
        assert second is not None
        pair = frozenset((first, second))
        named.add(pair)
        if c["word"]:
            level = 1 - float(c["level"]) / 100
            estimate = facts.compare(first, second, level)[0]
            assert (estimate > 0) == (c["word"] == "better")
            assert same(c["est"], estimate)
            assert p_same(c["p"], adjusted[pair])
            assert adjusted[pair] <= facts.alpha * (1 + 1e-9)
        elif c["inside"]:
            low, high = amount(c["elow"]), amount(c["ehigh"])
            assert max(abs(low), abs(high)) < facts.sesoi * 1.006
        elif c["open"] and adjusted[pair] <= facts.alpha:
            assert any(k for k, _ in facts.counts.values()), "rejected, and still called open without a failure"
    assert named == set(ps)
    sized(m["n"], facts)


def sized(text: str, facts: Facts) -> None:
    sizes = sorted({len(facts.values(label)) for label in facts.labels})
    assert text == (str(sizes[0]) if sizes[0] == sizes[-1] else f"{sizes[0]}-{sizes[-1]}")


def tie(m: re.Match[str], facts: Facts) -> None:
    tied = re.findall(r"`(\w+)`", m["tied"])
    for text, claims in (("beats", True), ("was not shown to beat", False)):
        for label, rest in re.findall(rf"`(\w+)` (?:beats .*? but )?{text} ((?:`\w+`(?:, | and )?)+)", m["rest"]):
            for other in re.findall(r"`(\w+)`", rest):
                estimate, p, _, _ = facts.compare(label, other, facts.alpha)
                if claims:
                    assert estimate > 0
                    assert p <= facts.alpha * (1 + 1e-9)
    assert 2 <= len(tied) < len(facts.labels)


def doubt_mean(m: re.Match[str], facts: Facts) -> None:
    gap = float(np.mean(facts.values(m["a"])) - np.mean(facts.values(m["b"])))
    raw = -gap if facts_is_min(facts) else gap
    assert same(re.sub(r" (pp|nats)$", "", m["est"]), raw)


def facts_is_min(facts: Facts) -> bool:
    return facts.floor < -100.0 or any(v < -0.0 and v > -inf for own in facts.ranked.values() for v in own.values())


def doubt_failures(m: re.Match[str], facts: Facts) -> None:
    assert (int(m["k"]), int(m["kn"])) == facts.counts[m["a"]]
    assert (int(m["j"]), int(m["jn"])) == facts.counts[m["b"]]


def identical(_: re.Match[str], facts: Facts) -> None:
    first = facts.values(facts.labels[0])
    assert all(facts.values(label) == first for label in facts.labels)


def no_score(_: re.Match[str], facts: Facts) -> None:
    hopeless = [a for a in facts.labels if all(v == -inf for v in facts.ranked[a].values())]
    assert len(hopeless) >= 2


def unreachable(m: re.Match[str], facts: Facts) -> None:
    sized(m["n"], facts)
    smallest = min(len(facts.values(label)) for label in facts.labels)
    ways = 2**smallest if facts.paired else comb(2 * smallest, smallest)
    assert 2 / ways > float(m["alpha"])


_CLAUSE = re.compile(
    rf"`(?P<first>\w+)`(?: against `(?P<second>\w+)`)?(?: is (?P<word>better|worse)(?:, by an amount that does not matter)?, "
    rf"{_AMOUNT}(?:, {_INSIDE})?, [\w -]+, p (?P<p>[=<] [\d.]+)| is (?:better|worse): {_FAILED}|(?P<inside> shows no meaningful difference"
    rf"(?:, [\d.]+ % CI (?P<elow>{_N}) to (?P<ehigh>{_N}))? inside \+/-{_N})| gave identical scores| cannot be judged at this n|"
    rf"(?P<open> is not settled, {_OPEN}))"
)
_TEMPLATES: tuple[tuple[str, Callable[[re.Match[str], Facts], None]], ...] = (
    (
        rf"`(?P<w>\w+)` (?:beats|is better, by an amount that does not matter, than) (?:every other arm|`(?P<loser>\w+)`) {_ON}: "
        rf"{_AMOUNT}(?: against `(?P<rival>\w+)`)?, [\w -]+ p (?P<p>[=<] [\d.]+)(?: \(largest of (?P<count>\d+) comparisons\))?, "
        rf"{_SIZES}, smallest effect of interest {_N}\.(?P<hedge> The true advantage may be smaller than {_N}\.)?"
        rf"(?: The amount does not matter: the [\d.]+ % CI(?: against `(?P<close>\w+)`)?, (?P<elow>{_N}) to (?P<ehigh>{_N}), lies "
        rf"inside \+/-{_N}\.)?",
        winner,
    ),
    (
        rf"`\w+` beats (?:every other arm|`\w+`) {_ON}: {_FAILED}, {_SIZES}\.(?: The true advantage may be smaller than {_N}\.)?",
        by_failures,
    ),
    (
        rf"No meaningful difference {_ON}: [\d.]+ % CI (?P<low>{_N}) to (?P<high>{_N})(?: \(`(?P<a>\w+)` minus `(?P<b>\w+)`"
        rf"(?:, the widest of \d+ comparisons)?\))? lies inside \+/-{_N} \(n = (?P<n>[\d-]+)\)\.",
        equivalent,
    ),
    (
        rf"Not settled: estimate (?P<est>{_N}), (?:[\d.]+ % CI (?P<low>{_N}) to (?P<high>{_N})|no interval at this n) {_ON} \(`(?P<a>\w+)` minus "
        rf"`(?P<b>\w+)`, [\w -]+, {_SIZES}\)\.(?: The answer depends on the score given to failed runs\.)?{_MORE}",
        open_question,
    ),
    (
        rf"(?:Against the control `\w+` on|On) \S+(?: \(lower is better\))?: (?P<clauses>.*) \((?:p and intervals adjusted over "
        rf"(?P<count>\d+) comparisons \(Holm\), )?{_SIZES}, smallest effect of interest {_N}\)\.{_MORE}",
        family,
    ),
    (
        rf"(?P<tied>(?:`\w+`(?:, | and )?)+) tie at the top {_ON}: .*? not shown to be worse than `\w+`(?:, and among them the "
        rf"[\d.]+ % CI {_N} to {_N} lies inside \+/-{_N})? \({_SIZES}\)\.(?P<rest>.*) The set was chosen by the data: error control "
        r"is per pair\.",
        tie,
    ),
    (
        rf"But the mean says otherwise: the mean of `(?P<a>\w+)` minus that of `(?P<b>\w+)` is (?P<est>{_N})(?: \[90 % CI {_N}, {_N}\])?"
        rf"(?:, not inside \+/-{_N})?\.",
        doubt_mean,
    ),
    (
        r"But the failures say otherwise: `(?P<a>\w+)` failed in (?P<k>\d+) of (?P<kn>\d+) replicates, `(?P<b>\w+)` in (?P<j>\d+) of "
        r"(?P<jn>\d+) \(Fisher exact p [=<] [\d.]+\)\.",
        doubt_failures,
    ),
    (r"All scores are identical: [^.]*\.", identical),
    (r"Every run that was compared failed: there is no score to compare\.", no_score),
    (
        r"n = (?P<n>[\d-]+) cannot reach alpha = (?P<alpha>\d[\d.]*)(?: \([\d.]+ over \d+ comparisons\))? with this test\.",
        unreachable,
    ),
)


def check(sentence: str, facts: Facts) -> None:
    """Read every template off the sentence and hold it against the facts; nothing may be left over."""
    left = sentence.strip()
    while left:
        for pattern, holds in _TEMPLATES:
            found = re.match(pattern, left)
            if found is not None:
                holds(found, facts)
                left = left[found.end() :].strip()
                break
        else:
            raise AssertionError(f"no template: {left!r} in {sentence!r}")


def random_experiment(rng: np.random.Generator) -> tuple[dict[str, list[Cell]], dict[str, Any]]:
    """Return scores and an analysis: two or three arms, ties, failures, losses, both directions, every family."""
    arms, n, paired = int(rng.integers(2, 4)), int(rng.integers(5, 8)), bool(rng.random() < 0.6)
    lower = bool(rng.random() < 0.3)
    centre = 60.0 + rng.normal(size=arms) * rng.choice([0.0, 1.0, 4.0])
    step = rng.choice([0.0, 1.0, 5.0])
    shared, fail = rng.normal(size=n) * 3, rng.choice([0.0, 0.1, 0.4])
    scores: dict[str, list[Cell]] = {}
    for k in range(arms):
        values = centre[k] + shared + rng.normal(size=n) * rng.choice([0.3, 1.0, 3.0])
        values = np.round(values / step) * step if step else values
        cells: list[Cell] = [float(np.clip(v, 1.0, 99.0)) for v in values]
        broken, gone = rng.random(n) < (fail if rng.random() < 0.5 else 0.0), rng.random(n) < 0.02
        scores[f"arm{k}"] = ["lost" if g else "failed" if b else v for v, b, g in zip(cells, broken, gone, strict=True)]
    asked = rng.choice(["winner", "vs_control", "all_pairs"])
    fields: dict[str, Any] = {
        "estimand": str(rng.choice(["mean", "shift"])),
        "paired": paired,
        "comparisons": str(asked),
        "control": "arm0" if asked == "vs_control" else None,
        "pairwise_adjust": "holm",
        "sesoi": float(rng.choice([0.5, 2.0, 6.0])),
    }
    if lower:
        fields |= {"primary": {"metric": "eval/loss", "direction": "min"}, "failure": {"floor": 100.0}}
    return scores, fields


def checked(seeds: range) -> dict[str, int]:
    """Check the sentence of a random experiment for every seed; return how often each verdict came."""
    codes: dict[str, int] = {}
    for seed in seeds:
        scores, fields = random_experiment(np.random.Generator(np.random.Philox(key=seed)))
        inputs = make_inputs(scores, make_analysis(len(scores["arm0"]), **fields))
        report = build_report(inputs)
        facts = Facts(scores_csv(inputs), report["registration"])
        if min(len(facts.values(label)) for label in facts.labels) < 2:
            continue
        try:
            check(report["verdict"]["sentence"], facts)
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {report['verdict']['sentence']}") from wrong
        codes[report["verdict"]["code"]] = codes.get(report["verdict"]["code"], 0) + 1
    return codes


@pytest.mark.long
def test_random_sentences_are_true() -> None:
    assert len(checked(range(25))) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 125))
def test_two_thousand_random_sentences_are_true(first: int) -> None:
    assert len(checked(range(first, first + 125))) >= 4


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("+5.04", "+6.04"),
        ("beats", "is better, by an amount that does not matter, than `arm1` and"),
        ("n = 6", "n = 7"),
    ],
)
def test_a_false_sentence_is_noticed(true: str, false: str) -> None:
    scores: dict[str, list[Cell]] = {"arm0": [65.04 + i for i in range(6)], "arm1": [60.0 + i for i in range(6)]}
    inputs = make_inputs(scores, make_analysis(6))
    report = build_report(inputs)
    facts, sentence = Facts(scores_csv(inputs), report["registration"]), report["verdict"]["sentence"]
    check(sentence, facts)
    assert true in sentence
    with pytest.raises(AssertionError):
        check(sentence.replace(true, false), facts)
