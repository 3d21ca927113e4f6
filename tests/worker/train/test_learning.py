"""The whole trainer learns CartPole: the small version of ``benchmarks/gym_classic.py`` (training.md 8.5)."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.worker.train.cases import block, trainer

_STEPS_PER_ROUND = 4 * 128


@pytest.mark.parametrize("seed", [1, 2])
def test_cartpole_is_learnt_in_100_000_steps(seed: int) -> None:
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
    last = returns[-20:]
    assert sum(last) / len(last) >= 300
