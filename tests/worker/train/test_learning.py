"""The whole trainer learns CartPole: the small version of ``benchmarks/gym_classic.py`` (training.md 8.5)."""

from __future__ import annotations

import pytest

from tests.worker.train.cases import block, trainer


@pytest.mark.parametrize("seed", [1, 2])
def test_cartpole_is_learnt_in_100_000_steps(seed: int) -> None:
    plan = block(
        {"preset": "gym_classic", "env": {"id": "CartPole-v1"}, "budget": {"rounds": 195}},
        [{"label": "A"}, {"label": "B"}],
        seed=seed,
        only=(0,),
        eval={"every_rounds": 195, "episodes": 3},
    )
    returns: list[float] = []
    for record in trainer(plan).rounds(0):
        returns += [float(row["episode_reward"]) for row in record.runs[0].episodes]
    last = returns[-20:]
    assert sum(last) / len(last) >= 300
