"""docs/rewards.md is what the code says, and what environments of both families hand over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tests.worker.envs.kit  # noqa: F401 - registers the task
from worker.commands.reward_reference import fields_of, markdown
from worker.envs.gymnasium.checking.reward_check import play
from worker.envs.gymnasium.rewards import Transition
from worker.envs.morph.episode.trial import played
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.rewards.context import RewardContext, SlotState

ROOT = Path(__file__).parents[2]
DTYPES = {"int64": torch.int64, "float32": torch.float32, "float64": torch.float64, "bool": torch.bool}


def keeps(told: str, value: Any, sizes: dict[str, int]) -> None:
    """Hold a value against a type as the page tells it: ``[E, O] float32``."""
    shape, dtypes = re.findall(r"\[([A-Z, ]+)\] (.*)", told.strip("{}").removeprefix("name: "))[0]
    assert isinstance(value, Tensor)
    assert tuple(value.shape) == tuple(sizes[axis] for axis in shape.split(", ")), told
    assert value.dtype in {DTYPES[name] for name in DTYPES if name in dtypes}, told
    assert value.device.type == "cpu"


def hold(record: Any, kind: type[Any], sizes: dict[str, int]) -> None:
    for field in fields_of(kind):
        value = getattr(record, field.name)
        if field.type.startswith("["):
            keeps(field.type, value, sizes)
        if field.type.startswith("[") and field.meaning.endswith("always there."):
            assert not torch.isnan(value.double()).any(), field.name


def test_page_is_what_the_records_say() -> None:
    assert (ROOT / "docs" / "rewards.md").read_text() == markdown(), "lockstep reward contract > docs/rewards.md"


@pytest.mark.parametrize(
    ("task", "num_numbers", "num_columns", "dtype"),
    [("CartPole-v1", 4, 1, torch.int64), ("Pendulum-v1", 3, 1, torch.float64), ("Kit-v0", 12, 3, torch.float64)],
)
def test_transitions_of_gymnasium_tasks_are_as_told(
    task: str, num_numbers: int, num_columns: int, dtype: torch.dtype
) -> None:
    steps = play({"id": task}).steps
    sizes = {"E": 8, "O": num_numbers, "C": num_columns}
    for step, after in pairwise(steps):
        hold(step, Transition, sizes)
        assert step.action.dtype == dtype
        assert not (step.terminated & step.truncated).any()
        for value in step.info.values():
            keeps("[E] float32", value, sizes)
        goes_on = ~(step.terminated | step.truncated)
        assert torch.equal(step.next_observation[goes_on], after.observation[goes_on])
    ended = [step for step in steps if bool((step.terminated | step.truncated).any())]
    assert ended or task == "Pendulum-v1"


def test_transitions_of_morphogenesis_are_as_told() -> None:
    steps, _ = played("digits_tiny", seconds=0.0)
    blended = torch.tensor([Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED])
    for index, ctx in enumerate(steps):
        num_envs, num_slots = ctx.pre.stage.shape
        sizes = {"E": num_envs, "S": num_slots}
        hold(ctx, RewardContext, sizes)
        for state in (ctx.pre, ctx.post):
            hold(state, SlotState, sizes)
            measured = ~state.contribution.isnan()
            assert not (measured & ~torch.isin(state.stage, blended)).any()
            assert torch.equal(state.cf.isnan(), ~measured.any(1))
            empty = state.germinated_at < 0
            assert (state.params[empty] == 0).all()
        assert torch.equal(ctx.target_slot < 0, ctx.op == Op.WAIT)
        assert ctx.t.tolist() == [index] * num_envs
    assert any(_any(~ctx.post.contribution.isnan()) for ctx in steps)


def _any(flags: Iterable[Any]) -> bool:
    return bool(torch.as_tensor(flags).any())
