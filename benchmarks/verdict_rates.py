"""How often a verdict is wrong in terms of the mean: false winners, false equivalences, power on discrete scores.

Six kinds of scores that runs really have, 6, 10 and 20 replicates, paired (independent arms) and unpaired; the whole
registered analysis under ``mean`` (the default) and under ``shift`` (the default before). Bars: a false winner where
the means are equal in at most .06 + 2 standard errors, a false equivalence at the margin in at most .07, learned .5
against .3 EQUIVALENT in at most .05, power on shares of ten episodes within .02 of the exact test's. A cell of ``mean``
that misses its bar must be in ``EXPLAINED`` or the exit code is 1. Writes benchmarks/results/verdict_rates.json after
every cell; ``--resume`` keeps the cells that the file already holds.

    nice python -m benchmarks.verdict_rates [repetitions] [largest n] [--resume]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import exp, nan, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated import each_on_its_core, write_rates
from lockstep.stats.exact import within
from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.registered import Design
from lockstep.stats.scores import ArmScores, arm_scores
from lockstep.stats.shapes import true_level
from lockstep.stats.verdict import EQUIVALENT, SUPERIOR_VERDICTS

RESULT = Path(__file__).parent / "results" / "verdict_rates.json"
ALPHA, FLOOR = 0.05, 0.0
Scores = NDArray[np.float64]
#: Scores of one arm whose mean is raised by the given amount; NaN is a failed run.
Draw = Callable[[np.random.Generator, int, float], Scores]


@dataclass(frozen=True)
class Kind:
    """Two arms with equal means before the second is raised, and the smallest effect of interest."""

    name: str
    sesoi: float
    first: Draw
    second: Draw


def normal(sd: float) -> Draw:
    return lambda rng, n, up: 60.0 + up + sd * rng.standard_normal(n)


def skewed(sd: float, fail: float = 0.0) -> Draw:
    """Log-normal scores around 60; a share fails and stands at 0, and ``up`` raises the mean of all runs."""
    shape = 0.8
    unit = sqrt((exp(shape**2) - 1) * exp(shape**2))

    def draw(rng: np.random.Generator, n: int, up: float) -> Scores:
        standard = (np.exp(shape * rng.standard_normal(n)) - exp(shape**2 / 2)) / unit
        values = 60.0 + up / (1 - fail) + sd * standard
        return np.where(rng.random(n) < fail, np.nan, values)

    return draw


def learned(share: float) -> Draw:
    """Runs that learned score about 90, others about 20; ``up`` raises the share by up / 70."""
    return lambda rng, n, up: np.where(rng.random(n) < share + up / 70.0, 90.0, 20.0) + 3.0 * rng.standard_normal(n)


def successes(share: float) -> Draw:
    return lambda rng, n, up: np.asarray(10.0 * rng.binomial(10, share + up / 100.0, n), dtype=np.float64)


KINDS = (
    Kind("normal", 4.0, normal(4.0), normal(4.0)),
    Kind("log-normal, 10 % failures", 20.0, skewed(4.0, 0.1), skewed(4.0, 0.1)),
    Kind("learned .5 against .5", 14.0, learned(0.5), learned(0.5)),
    Kind("SD 1:4", 8.0, normal(2.0), normal(8.0)),
    Kind("skewed against narrow", 6.0, skewed(6.0), normal(1.0)),
    Kind("success rates of 10 episodes", 10.0, successes(0.75), successes(0.75)),
)
#: Place of the scores with a long tail on one side only.
_SKEWED = 4
#: Cells of ``mean`` whose false winners or equivalences miss the bar, each with the reason.
EXPLAINED: dict[tuple[str, str, int, bool], str] = {
    (
        "false winner",
        "skewed against narrow",
        n,
        paired,
    ): "the long tail is usually not seen in few runs: the sample mean lies too low, and so does its spread"
    for n in (6, 10, 20)
    for paired in (True, False)
}


@dataclass(frozen=True)
class Cell:
    """One simulated rate against its bar."""

    what: str
    scores: str
    estimand: str
    n: int
    paired: bool
    rate: float
    repetitions: int
    bar: float
    explained: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Return what the rate is of."""
        return self.what, self.scores, self.estimand, self.n, self.paired, self.repetitions

    @property
    def standard_error(self) -> float:
        """Return the standard error of the rate."""
        return sqrt(self.rate * (1 - self.rate) / self.repetitions)

    @property
    def passed(self) -> bool:
        """Return whether the rate keeps its bar."""
        return self.rate <= self.bar


@dataclass(frozen=True)
class Simulation:
    """A cell whose rate is still to be found, and how."""

    cell: Cell
    rate: Callable[[], float]


def simulations(repetitions: int, largest: int) -> Iterator[Simulation]:
    """Yield every cell, the quick ones first."""
    # unpaired arms of ten have 184,756 splits each time: they come last
    sizes = ((True, 6), (True, 10), (True, 20), (False, 6), (False, 20), (False, 10))
    for paired, n in (size for size in sizes if size[1] <= largest):
        # failures are judged under three treatments: they come last among equals
        for key in (0, 2, 3, 4, 5, 1):
            for estimand in ("mean", "shift"):
                yield from _false_claims(KINDS[key], key, estimand, n, paired, repetitions)
        yield _silent(n, paired, repetitions)
        yield from _learned_unequal(n, paired, repetitions)
        yield from _discrete_power(n, paired, repetitions)


def _false_claims(kind: Kind, key: int, estimand: str, n: int, paired: bool, repetitions: int) -> Iterator[Simulation]:
    slack = 2 * sqrt(0.06 * 0.94 / repetitions)
    for what, up, bar in (("false winner", 0.0, 0.06 + slack), ("false equivalence", kind.sesoi, 0.07)):
        reason = EXPLAINED.get((what, kind.name, n, paired)) if estimand == "mean" else None
        cell = Cell(what, kind.name, estimand, n, paired, nan, repetitions, bar, reason)
        yield Simulation(cell, partial(_false_claim_rate, kind, key, cell, up))


def _false_claim_rate(kind: Kind, key: int, cell: Cell, up: float) -> float:
    # the equivalence interval is asked for where it matters: it costs as much as the test
    design = Design(cell.paired, cell.estimand, kind.sesoi, ALPHA, FLOOR, equivalence=up > 0)
    rng, n = np.random.Generator(np.random.Philox(key=1000 * cell.n + 10 * key + cell.paired)), cell.n
    found = [_verdict(kind.first(rng, n, 0.0), kind.second(rng, n, up), design) for _ in range(cell.repetitions)]
    wrong = [code in SUPERIOR_VERDICTS if up == 0 else code == EQUIVALENT for code in found]
    return sum(wrong) / cell.repetitions


def _silent(n: int, paired: bool, repetitions: int) -> Simulation:
    """Return how often a false winner on skewed scores carries no word about the skewness."""
    cell = Cell("false winner without SKEWED", KINDS[_SKEWED].name, "mean", n, paired, nan, repetitions, 1.0)
    return Simulation(cell, partial(_silent_rate, cell))


def _silent_rate(cell: Cell) -> float:
    kind, n, silent = KINDS[_SKEWED], cell.n, 0
    design = Design(cell.paired, "mean", kind.sesoi, ALPHA, FLOOR, equivalence=False)
    rng = np.random.Generator(np.random.Philox(key=1000 * n + 10 * _SKEWED + cell.paired))
    for _ in range(cell.repetitions):
        arms = _arms(kind.first(rng, n, 0.0), kind.second(rng, n, 0.0))
        result, _ = analyse_with_sensitivity(arms, design)
        if result.verdict in SUPERIOR_VERDICTS:
            level = true_level(result.pairs[0].a, result.pairs[0].b, design, ALPHA)
            silent += level is None or not level.is_off
    return silent / cell.repetitions


def _learned_unequal(n: int, paired: bool, repetitions: int) -> Iterator[Simulation]:
    """Yield how often .5 against .3 is called equivalent although the means are 14 apart and 10 matters."""
    for estimand in ("mean", "shift"):
        cell = Cell("false equivalence", "learned .5 against .3", estimand, n, paired, nan, repetitions, 0.05)
        yield Simulation(cell, partial(_learned_rate, cell))


def _learned_rate(cell: Cell) -> float:
    design = Design(cell.paired, cell.estimand, 10.0, ALPHA, FLOOR)
    rng, n = np.random.Generator(np.random.Philox(key=2000 * cell.n + cell.paired)), cell.n
    found = [_verdict(learned(0.5)(rng, n, 0.0), learned(0.3)(rng, n, 0.0), design) for _ in range(cell.repetitions)]
    return sum(code == EQUIVALENT for code in found) / cell.repetitions


def _discrete_power(n: int, paired: bool, repetitions: int) -> Iterator[Simulation]:
    """Yield how much power the verdict loses against the exact test alone, success rates .9 against .7."""
    what, scores = "power below the exact test's", "success rates of 10 episodes"
    for estimand in ("mean", "shift"):
        cell = Cell(what, scores, estimand, n, paired, nan, repetitions, 0.02)
        yield Simulation(cell, partial(_lost_power, cell))


def _lost_power(cell: Cell) -> float:
    design = Design(cell.paired, cell.estimand, 5.0, ALPHA, FLOOR, equivalence=False)
    rng, n, lost = np.random.Generator(np.random.Philox(key=3000 * cell.n + cell.paired)), cell.n, 0
    for _ in range(cell.repetitions):
        result, _ = analyse_with_sensitivity(_arms(successes(0.9)(rng, n, 0.0), successes(0.7)(rng, n, 0.0)), design)
        p = result.pairs[0].evidence.p
        lost += p is not None and within(p, ALPHA) and result.verdict not in SUPERIOR_VERDICTS
    return lost / cell.repetitions


def _verdict(first: Scores, second: Scores, design: Design) -> str:
    return analyse_with_sensitivity(_arms(first, second), design)[0].verdict


def _arms(first: Scores, second: Scores) -> list[ArmScores]:
    return [
        arm_scores(label, [float(v) for v in values], ["failed" if np.isnan(v) else "ok" for v in values])
        for label, values in (("a", first), ("b", second))
    ]


def main(repetitions: int, largest: int, resume: bool) -> int:
    """Simulate every cell; 1 when one of the default estimand misses its bar without an explanation."""
    start, known = time.perf_counter(), _kept() if resume else {}
    asked = list(simulations(repetitions, largest))
    done = {place: replace(s.cell, rate=known[s.cell.key].rate) for place, s in enumerate(asked) if s.cell.key in known}
    others = [cell for key, cell in known.items() if key not in {s.cell.key for s in asked}]
    left = [place for place in range(len(asked)) if place not in done]
    for place, rate in each_on_its_core(lambda place: asked[place].rate(), left):
        done[place] = replace(asked[place].cell, rate=rate)
        _write([*(done[place] for place in sorted(done)), *others], time.perf_counter() - start)
        _print(done[place])
    return 1 if any(c.estimand == "mean" and not c.passed and c.explained is None for c in done.values()) else 0


def _print(cell: Cell) -> None:
    mark = "" if cell.passed else "  above the bar" + (f" ({cell.explained})" if cell.explained else "")
    pairing = "paired" if cell.paired else "unpaired"
    print(f"{cell.what}, {cell.scores}, {cell.estimand}, n = {cell.n} {pairing}: {cell.rate:.4f}{mark}", flush=True)


def _kept() -> dict[tuple[object, ...], Cell]:
    """Return the cells that the file holds; the draws of a cell hang on nothing but the cell."""
    fields = set(Cell.__dataclass_fields__)
    rows = json.loads(RESULT.read_text())["cells"] if RESULT.exists() else []
    cells = [Cell(**{name: value for name, value in row.items() if name in fields}) for row in rows]
    return {cell.key: cell for cell in cells}


def _write(done: list[Cell], seconds: float) -> None:
    about = "false claims in terms of the mean under the default (mean) and the default before (shift)"
    shown = [asdict(c) | {"standard_error": round(c.standard_error, 5), "passed": c.passed} for c in done]
    write_rates(RESULT, about, seconds, cells=shown)


if __name__ == "__main__":
    words = sys.argv[1:]
    given = [int(word) for word in words if word != "--resume"]
    numbers = [*given, *[2000, 20][len(given) :]]
    sys.exit(main(numbers[0], numbers[1], "--resume" in words))
