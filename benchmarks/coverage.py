"""Coverage and false winners of the registered analysis for four kinds of scores and two to four arms.

Identical arms, paired, n = 10, signed-rank with its Walsh interval, the whole pipeline with its failure
rule. A row passes when coverage is at least 95 % and the false-winner rate at most its level, both
within the 99 % binomial band. Writes benchmarks/results/coverage.json; ends with 1 on a miss.

    python -m benchmarks.coverage [repetitions]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.stats.calibrate import SEVERAL_EQUAL_RATE, binomial_band
from lockstep.stats.failures import analyse_with_sensitivity
from lockstep.stats.registered import Design
from lockstep.stats.scores import arm_scores
from lockstep.stats.verdict import SUPERIOR_VERDICTS

RESULT = Path(__file__).parent / "results" / "coverage.json"
N, FLOOR = 10, -10.0
SIGNED_RANK_10 = 0.048828125  # attained level of the exact test at n = 10
DESIGN = Design(estimand="shift", sesoi=1.0, floor=FLOOR, adjust="holm")
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

KINDS: dict[str, Draw] = {
    "normal": lambda rng, k: rng.standard_normal((k, N)),
    "heavy-tailed (t, 3 df)": lambda rng, k: rng.standard_t(3, (k, N)),
    "skewed (log-normal)": lambda rng, k: np.exp(rng.standard_normal((k, N))) - np.exp(0.5),
    "20 % crash": lambda rng, k: np.where(rng.random((k, N)) < 0.2, np.nan, rng.standard_normal((k, N))),
}


def experiment(scores: NDArray[np.float64]) -> tuple[bool, bool | None]:
    """Return (is there a winner?, does the interval of the first pair cover the true shift 0?)."""
    arms = [
        arm_scores(f"arm{k}", [float(v) for v in row], ["failed" if np.isnan(v) else "ok" for v in row])
        for k, row in enumerate(scores)
    ]
    result, _ = analyse_with_sensitivity(arms, DESIGN)
    test = result.pairs[0].test
    interval = test.intervals(DESIGN.level)[0] if test is not None else None
    covered = None if interval is None else interval.low <= 0.0 <= interval.high
    return result.winner is not None and result.verdict in SUPERIOR_VERDICTS, covered


def row(name: str, draw: Draw, num_arms: int, repetitions: int, rng: np.random.Generator) -> dict[str, object]:
    outcomes = [experiment(draw(rng, num_arms)) for _ in range(repetitions)]
    covered = [c for _, c in outcomes if c is not None]
    winners = sum(winner for winner, _ in outcomes) / repetitions
    coverage = sum(covered) / len(covered)
    level = SIGNED_RANK_10 if num_arms == 2 else SEVERAL_EQUAL_RATE
    most, least = binomial_band(level, repetitions)[1], binomial_band(0.95, len(covered))[0]
    return {
        "scores": name,
        "arms": num_arms,
        "repetitions": repetitions,
        "false_winners": winners,
        "at_most": most,
        "coverage": coverage,
        "at_least": least,
        "passed": winners <= most and coverage >= least,
    }


def main(repetitions: int) -> int:
    start = time.perf_counter()
    rows = []
    for index, (name, draw) in enumerate(KINDS.items()):
        for num_arms in (2, 3, 4):
            rng = np.random.Generator(np.random.Philox(key=100 * index + num_arms))
            rows.append(row(name, draw, num_arms, repetitions, rng))
            found = rows[-1]
            print(
                f"{name:24} K = {num_arms}  false winners {found['false_winners']:.4f} <= {found['at_most']:.4f}  "
                f"coverage {found['coverage']:.4f} >= {found['at_least']:.4f}  {'ok' if found['passed'] else 'MISS'}"
            )
    document = {
        "about": "identical arms, paired, n = 10, signed-rank, winner rule",
        "date": datetime.now(UTC).date().isoformat(),
        "lockstep": version("lockstep"),
        "seconds": round(time.perf_counter() - start, 1),
        "rows": rows,
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(found["passed"] for found in rows) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
