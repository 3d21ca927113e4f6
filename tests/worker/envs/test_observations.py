"""From what an environment returns to a row of numbers and the bytes of images, for every observation space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.worker.envs.kit import Kit
from worker.envs.faults import BadValue
from worker.envs.gymnasium.actions import UnsupportedSpace
from worker.envs.gymnasium.observations import ObservationDoor


def written(space: spaces.Space[Any], value: Any) -> tuple[np.ndarray, np.ndarray]:
    door = ObservationDoor(space)
    vector = np.full(door.spec.num_features, 9.0, np.float32)
    pixels = np.full(sum(int(np.prod(image)) for image in door.spec.images), 9, np.uint8)
    door.write(value, vector, pixels)
    return vector, pixels


@pytest.mark.parametrize(
    ("space", "value", "row", "normal"),
    [
        (spaces.Box(-9.0, 9.0, (2, 2), np.float64), [[1, 2], [3, 4.5]], [1, 2, 3, 4.5], "1111"),
        (spaces.Box(0, 9, (2,), np.int32), [7, 8], [7, 8], "11"),
        (spaces.Discrete(4, start=-1), np.int64(1), [0, 0, 1, 0], "0000"),
        (spaces.Discrete(2), 1, [0, 1], "00"),
        (spaces.MultiDiscrete(np.array([[2], [3]]), start=np.array([[0], [5]])), [[1], [5]], [0, 1, 1, 0, 0], "00000"),
        (spaces.MultiBinary((2, 2)), [[1, 0], [0, 1]], [1, 0, 0, 1], "0000"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, ())]), (0, 0.5), [1, 0, 0.5], "001"),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Dict({"z": spaces.Box(0.0, 1.0, (1,))})}),
            {"b": 1, "a": {"z": [0.25]}},
            [0.25, 0, 1],
            "100",
        ),
    ],
)
def test_each_space_is_a_row_in_its_own_order(
    space: spaces.Space[Any], value: Any, row: list[float], normal: str
) -> None:
    vector, pixels = written(space, value)
    assert vector.tolist() == row
    assert pixels.size == 0
    assert "".join(str(int(x)) for x in ObservationDoor(space).spec.continuous) == normal


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [
        ((12, 10, 3), (3, 12, 10)),
        ((3, 12, 10), (3, 12, 10)),
        ((4, 12, 10, 3), (12, 12, 10)),
        ((4, 3, 12, 10), (12, 12, 10)),
    ],
)
def test_images_are_bytes_with_their_channels_first(
    shape: tuple[int, ...], channels_first: tuple[int, int, int]
) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    assert ObservationDoor(space).spec.images == (channels_first,)
    value = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    vector, pixels = written(space, value)
    last = shape[-1] == 3
    expected = np.moveaxis(value, -1, -3) if last else value
    assert vector.size == 0
    assert np.array_equal(pixels.reshape(channels_first), expected.reshape(channels_first))


@pytest.mark.parametrize("value", [[0.0, -1e300], [np.inf, -1e300]])
def test_a_number_that_float32_cannot_hold_is_named_with_its_place(value: list[float]) -> None:
    parts = {"arm": spaces.Discrete(3), "speed": spaces.Box(-np.inf, np.inf, (2,), np.float64)}
    with pytest.raises(BadValue, match=r"holds -1e\+300 in component 1 of speed, which float32 cannot hold"):
        written(spaces.Dict(parts), {"arm": 0, "speed": value})


def test_black_and_white_images_span_the_bytes_and_small_boxes_of_bytes_are_numbers() -> None:
    _, pixels = written(spaces.Box(0, 1, (10, 10, 1), np.bool_), np.eye(10, dtype=bool)[..., None])
    assert sorted(set(pixels.tolist())) == [0, 255]
    assert ObservationDoor(spaces.Box(0, 255, (3, 3, 3), np.uint8)).spec.images == ()


def test_a_dictionary_of_everything_keeps_images_apart() -> None:
    kit = Kit()
    shown, _ = kit.reset(seed=1)
    vector, pixels = written(kit.observation_space, shown)
    assert np.array_equal(pixels.reshape(3, 12, 10), shown["camera"].transpose(2, 0, 1))
    goal, pose = np.eye(3)[shown["goal"] - 1].tolist(), shown["pose"][0].astype(np.float32).tolist()
    assert vector.tolist() == [0, 0, *goal, *pose, 1, 0, 1, 0, 0]
    assert ObservationDoor(kit.observation_space).parts == [
        "camera: an image, channels last, 3 x 12 x 10, bytes",
        "flags: 2 numbers 0 or 1",
        "goal: one-hot of 3",
        "pose.0: 2 numbers",
        "pose.1: one-hot of 2 and 3",
    ]


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Discrete(3), 3, "the observation 3, which is outside of its space Discrete(3)"),
        (spaces.Discrete(3), 0.5, "an observation of dtype float64, its space has int64"),
        (spaces.MultiBinary(2), [0, 2], "outside of its space MultiBinary(2)"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, "an observation with ['b'], its space has ['a']"),
        (spaces.Dict({"a": spaces.Discrete(2)}), 1, "an observation with one int, its space has ['a']"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (1,), "an observation of 1 parts, its space has 2"),
        (spaces.Box(0, 255, (12, 12, 1), np.uint8), np.full((12, 12, 1), 300), "an image with values from 300 to 300"),
    ],
)
def test_what_a_space_forbids_is_named(space: spaces.Space[Any], value: Any, words: str) -> None:
    with pytest.raises(BadValue) as raised:
        written(space, value)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(3), "a Text has no fixed number of components"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "a Sequence has no fixed number"),
        (spaces.Graph(spaces.Discrete(2), None), "a Graph has no fixed number"),
        (spaces.Tuple([]), "has no part"),
    ],
)
def test_what_has_no_fixed_layout_is_refused_with_what_helps(space: spaces.Space[Any], words: str) -> None:
    with pytest.raises(UnsupportedSpace, match="TransformObservation") as refused:
        ObservationDoor(space)
    assert words in str(refused.value)
