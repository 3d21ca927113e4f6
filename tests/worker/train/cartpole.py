"""CartPole for 100,000 steps: ``python -m tests.worker.train.cartpole SEED`` writes the mean of the last 20 returns."""

from __future__ import annotations

import sys
from itertools import islice

import torch

from tests.worker.train.cases import block, trainer

_STEPS_PER_ROUND = 4 * 128


def learnt(seed: int) -> float:
    """Return the mean of the last 20 training returns."""
    # the first fifth of the benchmark's 500,000 steps, on its learning rate schedule
    plan = block(
        {"preset": "gym_classic", "env": {"id": "CartPole-v1"}, "budget": {"rounds": 500_000 // _STEPS_PER_ROUND}},
        [{"label": "A"}, {"label": "B"}],
        seed=seed,
        only=(0,),
        eval={"every_rounds": 10_000},
    )
    returns: list[float] = []
    for record in islice(trainer(plan).rounds(0), 100_000 // _STEPS_PER_ROUND):
        returns += [float(row["episode_reward"]) for row in record.runs[0].episodes]
    return sum(returns[-20:]) / 20


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(f"{learnt(int(sys.argv[1]))}\n")
