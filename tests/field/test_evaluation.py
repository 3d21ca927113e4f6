"""Field lessons L53, L54 and L60 of evaluation: every episode counts, long is no hang, what is opened is closed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.worker.train.cases import CPU, GYM, GYM_ARMS, block, train, trainer
from worker.envs.faults import EnvironmentFault
from worker.train.block import BlockTrainer, ConfigRefused


class _Endless(gymnasium.Env[Any, Any]):
    """Pays 1 a step and never ends; counts what is opened and closed, and may fail to open or to step."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)
    opened = closed = steps = 0
    most, longest = math.inf, math.inf

    def __init__(self) -> None:
        if type(self).opened >= type(self).most:
            raise ValueError("no more licences")
        type(self).opened += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 - of the interface
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002 - of the interface
        type(self).steps += 1
        if type(self).steps > type(self).longest:
            raise ValueError("worn out")
        return np.zeros(1, dtype=np.float32), 1.0, False, False, {}

    def close(self) -> None:
        type(self).closed += 1


gymnasium.register("Endless-v0", entry_point=lambda **_: _Endless())
ENDLESS = {"id": "Endless-v0"}


def test_l53_an_episode_that_does_not_end_counts_with_its_return_at_the_cap() -> None:
    records = train(block(GYM, GYM_ARMS, env=ENDLESS, eval={"max_steps": 40}))
    for run in records[-1].runs:
        assert [row["native_return"] for row in run.eval_episodes] == [40.0, 40.0]
        assert {(row["env_steps"], row["outcome"]) for row in run.eval_episodes} == {(40, "capped")}
        assert run.metrics["eval/native_return_mean"] == 40.0


def test_l54_evaluation_shows_progress_at_every_step() -> None:
    told: list[tuple[int, int]] = []
    plan = block(GYM, GYM_ARMS, env=ENDLESS, eval={"max_steps": 40}, budget={"rounds": 1})
    held = BlockTrainer(plan, CPU, progress=lambda *at: told.append(at))
    before = len(told)
    held.evaluator.evaluate(held.runs, 0)
    assert len(told) - before >= 40


@pytest.fixture
def counted() -> Iterator[type[_Endless]]:
    """The endless environment with its counts at 0; its limits are lifted in the end."""
    _Endless.opened = _Endless.closed = _Endless.steps = 0
    yield _Endless
    _Endless.most = _Endless.longest = math.inf


@pytest.mark.usefixtures("counted")
def test_l60_every_environment_that_was_opened_is_closed() -> None:
    held = trainer(block(GYM, GYM_ARMS, env=ENDLESS, eval={"max_steps": 5}))
    held.warm_up()
    list(held.rounds(0))
    still_open = _Endless.opened - _Endless.closed
    assert still_open == held.num_envs * len(held.runs), "those that train"
    held.close()
    assert _Endless.opened == _Endless.closed


@pytest.mark.parametrize("limit", ["most", "longest"])
def test_l60_environments_of_an_evaluation_that_fails_are_closed_too(counted: type[_Endless], limit: str) -> None:
    held = trainer(block(GYM, GYM_ARMS, env=ENDLESS, eval={"max_steps": 5}))
    training = held.num_envs * len(held.runs)
    setattr(counted, limit, training + 2)  # to build, or to step, the third environment of the evaluation fails
    counted.steps = training
    with pytest.raises((ConfigRefused, EnvironmentFault), match=r"no more licences|worn out"):
        held.evaluator.evaluate(held.runs, 0)
    held.close()
    assert counted.opened > training
    assert counted.opened == counted.closed
