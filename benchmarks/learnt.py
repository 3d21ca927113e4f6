"""How far CartPole is learnt in the first fifth of its training, seed by seed: whether two versions learn alike.

    python -m benchmarks.learnt [--replicates 60] [--steps 100000]

A change that moves numbers by rounding moves every trajectory after some thousand steps, so single seeds say nothing
of it. Run in the checkouts of both versions, on one machine, this gives the mean of the last twenty training returns
of each replicate, with mean and SD over them; seeds are the same, trajectories are not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from benchmarks.gym_classic import specification
from benchmarks.packing import Way, blocks
from lockstep.spec.resolve import parse
from worker import numerics

_SEED = 7
_ROUND_STEPS = 4 * 128
#: Of the whole training, on whose learning rate schedule its beginning is trained here.
_STEPS = 500_000
_LAST = 20
_AT_ONCE = 20


def learnt(replicates: range, rounds: int) -> list[float]:
    """Train so many rounds of one arm, all replicates in one pack, and return the mean of each one's last returns."""
    spec = parse(specification("cartpole", _STEPS))
    way = Way(blocks(spec, replicates, stacked=True, seed=_SEED, arms=1), together=True, stacked=True)
    returns: dict[int, list[float]] = {replicate: [] for replicate in replicates}
    for replicate, record in way.records(rounds):
        returns[replicate] += [float(row["episode_reward"]) for row in record.runs[0].episodes]
    return [statistics.fmean(own[-_LAST:]) for own in returns.values()]


def main(arguments: list[str] | None = None) -> int:
    """Print what each replicate came to, and mean and SD over them, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=60)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args(arguments)
    numerics.set_up(deterministic=True, tf32=False, threads=1)
    found: list[float] = []
    for first in range(0, args.replicates, _AT_ONCE):
        found += learnt(range(first, min(first + _AT_ONCE, args.replicates)), args.steps // _ROUND_STEPS)
    spread = statistics.stdev(found) if len(found) > 1 else None
    sys.stdout.write(json.dumps({"mean": statistics.fmean(found), "sd": spread, "returns": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
