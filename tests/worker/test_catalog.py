"""Names and sizes that the API validates by are those of what the worker builds."""

from __future__ import annotations

import pytest

from lockstep.spec.tasks import BLUEPRINT_NAMES, BLUEPRINTS, HEADS, REWARD_MODES, TASKS, Topology
from worker.envs.morph.life.actions import head_specs
from worker.envs.morph.network.blueprints import build_core
from worker.envs.morph.rewards.registry import registered_modes
from worker.envs.morph.task.data import load


def test_reward_modes_are_those_of_the_worker() -> None:
    assert set(REWARD_MODES) <= set(registered_modes())


def test_heads_are_those_of_the_policy() -> None:
    assert tuple(head.name for head in head_specs(3)) == HEADS


@pytest.mark.parametrize("topology", list(BLUEPRINTS))
def test_every_blueprint_that_may_be_named_can_be_built(topology: Topology) -> None:
    for name in BLUEPRINTS[topology]:
        assert build_core(BLUEPRINT_NAMES.index(name), topology, 16) is not None


@pytest.mark.parametrize("name", ["digits_tiny", "synth_small"])
def test_sizes_of_a_task_are_those_of_its_data(name: str) -> None:
    task, arrays = TASKS[name], load(TASKS[name].dataset, None)
    assert (task.train_size, task.val_size) == (len(arrays.splits["train"]), len(arrays.splits["val"]))
