"""Planned power against the power of the pipeline itself, for twenty designs of six kinds.

Planned: ``lockstep.stats.power``, 20,000 simulated experiments in batches. Simulated: fresh experiments, each
through the whole registered analysis, 4,000 a design: a standard error of at most .8 points. The bar is three points.
Writes benchmarks/results/planned_power.json after every design; ``--resume`` keeps those that it already holds. The
exit code is 1 on a miss.

    nice python -m benchmarks.planned_power [repetitions] [--resume]
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulated import each_on_its_core, write_rates
from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.power import Look, Plan, Scenario, outlook
from lockstep.stats.registered import Design
from lockstep.stats.scores import ArmScores, arm_scores
from lockstep.stats.sequential import look_levels
from lockstep.stats.verdict import ExperimentResult, conclude, is_answered

RESULT = Path(__file__).parent / "results" / "planned_power.json"
BAR = 0.03
STANDARD = Scenario()
MEAN = Design(estimand="mean", sesoi=1.0, floor=-50.0, adjust="holm", equivalence=False)


@dataclass(frozen=True)
class Case:
    """A design with a scenario and an effect."""

    kind: str
    plan: Plan
    scenario: Scenario
    effect: float


def case(kind: str, n: int, effect: float, arms: int = 2, scenario: Scenario = STANDARD, **fields: Any) -> Case:
    return Case(kind, Plan(replace(MEAN, **fields), arms, (Look(n, 0.05),)), scenario, effect)


def looks(at: tuple[int, ...], boundary: str, effect: float) -> Case:
    levels = look_levels(at, boundary, 0.05)
    plan = Plan(replace(MEAN, equivalence=True), 2, tuple(Look(n, a) for n, a in zip(at, levels, strict=True)))
    return Case("looks", plan, Scenario(1.0), effect)


CASES = (
    case("two arms", 6, 1.5),
    case("two arms", 10, 1.0),
    case("two arms", 20, 0.6),
    case("two arms", 12, 1.2, paired=False),
    case("two arms", 14, 1.0, estimand="shift"),
    case("winner of several", 10, 1.0, 3),
    case("winner of several", 10, 1.0, 4),
    case("winner of several", 10, 1.0, 8),
    case("corrected family", 10, 1.0, 4, comparisons="all_pairs"),
    case("corrected family", 12, 1.0, 3, comparisons="vs_control", control="arm0"),
    case("corrected family", 9, 1.2, 3, comparisons="all_pairs", estimand="shift"),
    looks((7, 14, 20), "pocock", 0.8),
    looks((9, 18), "obf", 0.7),
    looks((10, 20, 30), "pocock", 0.6),
    case("anytime", 10, 1.0, mode="anytime"),
    case("anytime", 20, 0.8, mode="anytime"),
    case("failures and few values", 30, 1.0, scenario=Scenario(failure=0.1), estimand="shift"),
    case("failures and few values", 20, 1.0, scenario=Scenario(failure=0.05)),
    case("failures and few values", 12, 1.0, scenario=Scenario(step=0.5)),
    case("failures and few values", 12, 1.0, scenario=Scenario(step=0.5), estimand="shift", paired=False),
)


def simulated(found: Case, repetitions: int, rng: np.random.Generator) -> float:
    """Return how often the pipeline names the arm that is better."""
    return sum(_names(found, rng) for _ in range(repetitions)) / repetitions


def _names(found: Case, rng: np.random.Generator) -> bool:
    plan, scenario = found.plan, found.scenario
    n, raised = plan.looks[-1].n, 1 if plan.design.comparisons == "vs_control" else 0
    spread = scenario.sd / sqrt(2) if plan.design.paired else scenario.sd
    values = spread * rng.standard_normal((plan.num_arms, n))
    values[raised] += found.effect
    if scenario.step is not None:
        values = np.round(values / scenario.step) * scenario.step
    failed = rng.random(values.shape) < scenario.failure
    result, label = _first_crossing(plan, values, failed), f"arm{raised}"
    if plan.design.comparisons == "winner":
        return result.winner == label
    return next(p for p in result.pairs if p.involves(label)).better == label


def _first_crossing(plan: Plan, values: np.ndarray, failed: np.ndarray) -> ExperimentResult:
    result: ExperimentResult | None = None
    for look in plan.looks:
        design = replace(plan.design, level=look.level)
        now, _ = analyse_with_sensitivity(_arms(values[:, : look.n], failed[:, : look.n]), design)
        if result is not None:
            pairs = [old if old.is_settled else new for old, new in zip(result.pairs, now.pairs, strict=True)]
            now = conclude(now.arms, pairs, design, now.adjustment, now.floor, now.flags)
        result = now
        if is_answered(result):
            break
    assert result is not None
    return result


def _arms(values: np.ndarray, failed: np.ndarray) -> list[ArmScores]:
    return [
        arm_scores(f"arm{k}", [float(v) for v in row], ["failed" if f else "ok" for f in bad])
        for k, (row, bad) in enumerate(zip(values, failed, strict=True))
    ]


def planned_power(found: Case) -> float:
    """Return the planned power, averaged over ten seeds of the engine."""
    return float(np.mean([outlook(found.plan, found.scenario, found.effect, seed).power for seed in range(10)]))


def described(plan: Plan) -> str:
    """Return a design in words."""
    design, at = plan.design, ", ".join(str(look.n) for look in plan.looks)
    pairing = "paired" if design.paired else "unpaired"
    return f"{design.estimand}, {pairing}, {design.comparisons}, {design.mode}, {plan.num_arms} arms, n = {at}"


def main(repetitions: int, resume: bool) -> int:
    """Compare every design; 1 when one differs by more than the bar."""
    start = time.perf_counter()
    kept = json.loads(RESULT.read_text())["rows"] if resume and RESULT.exists() else []
    rows = {at: row for at, case in enumerate(CASES) for row in kept if _is_of(row, case, repetitions)}
    about = "planned power (batched rule) against simulated power (the pipeline), bar 3 points"

    def row_at(place: int) -> dict[str, Any]:
        return compared(CASES[place], repetitions, np.random.Generator(np.random.Philox(key=place)))

    for place, row in each_on_its_core(row_at, [place for place in range(len(CASES)) if place not in rows]):
        rows[place] = row
        mark = "" if row["passed"] else "  DIFFERS"
        powers = f"planned {row['planned']:.3f}, simulated {row['simulated']:.3f}"
        print(f"{row['kind']}: {row['design']}: {powers}{mark}", flush=True)
        write_rates(RESULT, about, time.perf_counter() - start, rows=[rows[at] for at in sorted(rows)])
    return 0 if all(row["passed"] for row in rows.values()) else 1


def compared(found: Case, repetitions: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return planned and simulated power of a design."""
    planned, true = planned_power(found), simulated(found, repetitions, rng)
    return {
        "kind": found.kind,
        "design": described(found.plan),
        "effect_sd": found.effect,
        "failure": found.scenario.failure,
        "step": found.scenario.step,
        "planned": planned,
        "simulated": true,
        "standard_error": round(sqrt(true * (1 - true) / repetitions), 5),
        "repetitions": repetitions,
        "passed": abs(planned - true) <= BAR,
    }


def _is_of(row: dict[str, Any], found: Case, repetitions: int) -> bool:
    own = described(found.plan), found.effect, found.scenario.failure, found.scenario.step, repetitions
    return own == tuple(row[name] for name in ("design", "effect_sd", "failure", "step", "repetitions"))


if __name__ == "__main__":
    words = sys.argv[1:]
    given = [int(word) for word in words if word != "--resume"]
    sys.exit(main(given[0] if given else 4000, "--resume" in words))
