"""From a policy's row of numbers to what an environment is handed, for every action space (tasks.md 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from worker.envs.gymnasium.actions import ActionDoor, UnsupportedSpace

BOX = spaces.Box(np.array([-2.0, 0.1], np.float32), np.array([0.3, 7.0], np.float32))
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi_discrete": spaces.MultiDiscrete(np.array([[3, 2], [4, 5]]), start=np.array([[1, 0], [-2, 3]])),
    "multi_binary": spaces.MultiBinary((2, 3)),
    "box": BOX,
    "box_of_rank_3": spaces.Box(-1.0, 1.0, (2, 1, 3), np.float64),
    "half": spaces.Box(-0.1, 0.3, (2,), np.float16),
    "nested": spaces.Dict(
        {
            "tool": spaces.Tuple([spaces.Discrete(2), BOX]),
            "arm": spaces.Dict({"grip": spaces.MultiBinary(2), "pull": spaces.Box(-3.0, 3.0, ())}),
        }
    ),
}


def rows_for(door: ActionDoor, rng: np.random.Generator, number: int) -> torch.Tensor:
    """Rows of legal choices and of samples far outside of any bounds."""
    columns = []
    for head in door.heads:
        for _ in range(head.columns):
            real, chosen = 20 * rng.standard_normal(number), rng.integers(head.size, size=number)
            columns.append(real if head.is_gaussian else chosen)
    rows = torch.from_numpy(np.stack(columns, axis=1))
    return rows.float() if any(head.is_gaussian for head in door.heads) else rows.long()


@pytest.mark.parametrize("bounds", ["clip", "rescale", "tanh"])
@pytest.mark.parametrize("name", list(SPACES))
def test_whatever_a_policy_draws_the_environment_gets_a_member_of_its_space_of_its_own(name: str, bounds: str) -> None:
    space, door = SPACES[name], ActionDoor(SPACES[name])
    door.check(bounds)
    executed = door.executed(rows_for(door, np.random.default_rng(1), 40), bounds).tolist()
    for row in executed:
        assert space.contains(door.native(row)), row
    before, handed = repr(door.native(executed[0])), door.native(executed[0])
    if isinstance(handed, np.ndarray):
        handed[...] = 0  # an environment may write to what it is handed
    assert repr(door.native(executed[0])) == before


def test_each_mode_maps_as_it_says() -> None:
    door, u = ActionDoor(BOX), torch.tensor([[-0.5, 0.5], [-9.0, 9.0]])
    low, high = BOX.low.astype(float), BOX.high.astype(float)
    assert door.executed(u, "clip").tolist() == [[-0.5, 0.5], [low[0], high[1]]]
    middle = [low[0] + 0.25 * (high[0] - low[0]), low[1] + 0.75 * (high[1] - low[1])]
    assert door.executed(u, "rescale").tolist() == [pytest.approx(middle), [low[0], high[1]]]
    shares = (np.tanh([-0.5, 0.5]) + 1) / 2
    assert door.executed(u, "tanh")[0].tolist() == pytest.approx(low + shares * (high - low))


def test_parts_have_heads_in_the_order_of_the_space() -> None:
    heads = ActionDoor(SPACES["nested"]).heads
    assert [(head.name, head.size, head.is_gaussian) for head in heads] == [
        ("action_arm_grip_0", 2, False),
        ("action_arm_grip_1", 2, False),
        ("action_arm_pull", 1, True),
        ("action_tool_0", 2, False),
        ("action_tool_1", 2, True),
    ]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(5), "a Text has no fixed number of choices; register the environment wrapped in gymnasium.wrap"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))]), "a Sequence has no fixed number"),
        (spaces.Graph(spaces.Discrete(2), None), "a Graph has no fixed number"),
        (spaces.Box(0, 9, (2,), np.int32), "a Box of integers has no density; declare it as MultiDiscrete"),
        (spaces.Dict({}), "has no part to choose"),
        (
            spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "a_b": spaces.Discrete(2)}),
            "two parts of one name",
        ),
    ],
)
def test_what_no_policy_serves_is_refused_with_what_helps(space: spaces.Space[Any], words: str) -> None:
    with pytest.raises(UnsupportedSpace, match="TransformAction") as refused:
        ActionDoor(space)
    assert words in str(refused.value)


@pytest.mark.parametrize("bounds", ["rescale", "tanh"])
def test_mapping_to_infinite_bounds_is_refused_and_clipping_to_them_changes_nothing(bounds: str) -> None:
    door = ActionDoor(spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, np.inf]), dtype=np.float64))
    with pytest.raises(UnsupportedSpace, match=rf"action.bounds='{bounds}' .* infinite .* use clip"):
        door.check(bounds)
    door.check("clip")
    assert door.executed(torch.tensor([[-1e6, -3.0]]), "clip").tolist() == [[-1e6, 0.0]]
    assert door.heads[0].bounds == ((-1.0, 1.0), (0.0, 2.0))  # a uniform control needs an interval


def test_bounds_beyond_float32_are_as_infinite_ones() -> None:
    door = ActionDoor(spaces.Box(-1.7e308, 1.7e308, (1,), np.float64))
    with pytest.raises(UnsupportedSpace, match="infinite in float32"):
        door.check("tanh")
    assert door.heads[0].bounds == ((-1.0, 1.0),)


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "multi_binary", "nested"])
def test_a_choice_outside_its_mask_raises(name: str) -> None:
    door = ActionDoor(SPACES[name])
    with pytest.raises(ValueError, match="outside its mask"):
        door.native([-1.0] * door.num_columns)
