"""The facts that the API validates by equal what the worker's side computes."""

from __future__ import annotations

import pytest

from lockstep.spec import tasks
from worker.envs.morph.rewards.registry import registered_modes
from worker.envs.morph.task.tasks import TASKS


def test_reward_modes_are_those_of_the_worker() -> None:
    assert set(tasks.REWARD_MODES) <= set(registered_modes())


@pytest.mark.parametrize("name", list(tasks.TASKS))
def test_task_facts_equal_those_of_the_hosts(name: str) -> None:
    stated, actual = tasks.TASKS[name], TASKS[name]
    assert stated.host_params == actual.host.params()
    assert list(stated.slots) == list(actual.slots)
    assert stated.horizon == actual.horizon
    assert stated.batch_size == actual.batch_size
    assert stated.batches_per_step == actual.batches_per_step
    assert stated.pace == actual.pace
    assert stated.augment == actual.augment
    assert (stated.host["lr"], stated.graft["lr"]) == (actual.host_optim.lr, actual.graft_optim.lr)
