"""A/A calibration of the whole analysis pipeline at full size (statistics.md 12, modes 2 and 3).

Re-randomises replicates of one configuration 1,000 times and simulates 10,000 experiments of each
design; every rate must lie in its 99 % band. Writes benchmarks/results/calibration.json and ends
with 1 when a rate is outside.

Run: python -m benchmarks.calibration [repetitions of the simulations]
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from lockstep.stats.calibrate import Calibration, rerandomised_suite, simulated_suite

RESULT = Path(__file__).parent / "results" / "calibration.json"
RERANDOMISED = 1_000
#: The bar for 1,000 re-randomisations of each of K = 2, n = 10 and K = 4, n = 6.
BAR_SECONDS = 60.0


def main(repetitions: int) -> int:
    """Run both modes, print a table, write the result; 1 when a rate is outside its band."""
    start = time.perf_counter()
    found = rerandomised_suite(RERANDOMISED)
    seconds = time.perf_counter() - start
    found += simulated_suite(repetitions)
    total = time.perf_counter() - start
    print(table(found))
    print(f"mode 2 within {seconds:.1f} s (bar {BAR_SECONDS:.0f} s), all within {total:.0f} s")
    _write(found, seconds, total)
    return 0 if all(c.passed for c in found) else 1


def table(found: list[Calibration]) -> str:
    """Return a table in Markdown."""
    lines = ["| calibration | repetitions | rate | 99 % band | |", "|---|---|---|---|---|"]
    lines += [
        f"| {c.name} | {c.repetitions:,} | {c.rate:.4f} | {c.band[0]:.3f}-{c.band[1]:.3f} | {_state(c)} |"
        for c in found
    ]
    return "\n".join(lines)


def _state(c: Calibration) -> str:
    return "pass" if c.passed else "FAIL"


def _write(found: list[Calibration], mode_two: float, total: float) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "lockstep": version("lockstep"),
        "mode_2_seconds": round(mode_two, 1),
        "bar_seconds": BAR_SECONDS,
        "seconds": round(total, 1),
        "rows": [asdict(c) | {"passed": c.passed} for c in found],
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
