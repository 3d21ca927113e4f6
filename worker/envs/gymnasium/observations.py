"""The way of an observation from what an environment returns to a row of numbers, for every space (tasks.md 2).

A space is taken apart into leaves in its own order (``Dict`` in the order of its keys as the space has them, sorted
unless it was given an ordered dictionary). Images are kept apart, as bytes; everything else is one vector: numbers as
they are, choices one-hot. Nothing here remembers anything. Axes: O vector components, P bytes of all images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from worker.envs.base import ObsSpec
from worker.envs.faults import BadValue, unfit
from worker.envs.gymnasium.actions import UnsupportedSpace
from worker.envs.gymnasium.door import observation_of

#: Writes one value of a space into rows [O] float32 and [P] uint8.
_Write = Callable[[Any, np.ndarray, np.ndarray], None]
_WRAP = "register the environment wrapped in gymnasium.wrappers.TransformObservation"
#: Least longest edge of what is taken for an image.
_MIN_EDGE = 10


@dataclass
class _Rows:
    """What the leaves before have taken of the two rows.

    Attributes:
        continuous: of each vector component, whether statistics may normalise it.
        low, high: what its space says of each vector component.
        parts: what is told of each leaf.
        names: of each leaf in the vector, with its first component.
        images: (channels, height, width) of each.
        num_pixels: bytes of all of them.
    """

    continuous: list[bool] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)
    images: list[tuple[int, int, int]] = field(default_factory=list)
    num_pixels: int = 0


class ObservationDoor:
    """Layout of an observation space, and how its values are written.

    Args:
        space: of the environment.

    Attributes:
        write: writes a value into its rows; what its space forbids raises ``BadValue``.
        spec: the layout.
        parts: a phrase for each leaf, for people.
        low, high: [O] float32, what its space says of each vector component.

    Raises:
        UnsupportedSpace: the space, or a part of it, has no fixed number of components.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        rows = _Rows()
        self.write: _Write = _taken_apart(space, "", rows)
        if not rows.parts:
            raise UnsupportedSpace(f"observation space {space} has no part; {_WRAP}")
        continuous = torch.tensor(rows.continuous, dtype=torch.bool)
        sentinel = torch.zeros_like(continuous)
        self.spec = ObsSpec(len(continuous), continuous, sentinel, images=tuple(rows.images))
        self.parts = rows.parts
        self._names = rows.names
        self.low, self.high = (np.array(ends, dtype=np.float32) for ends in (rows.low, rows.high))

    def fault_at(self, component: int, value: float) -> BadValue:
        """Return the fault of a number that is none of float32, in a component of the vector."""
        return _fault_at(component, value, self._names)


def _fault_at(component: int, value: float, names: Sequence[tuple[int, str]]) -> BadValue:
    first, name = next((start, name) for start, name in reversed(names) if start <= component)
    place = f"component {component - first}" + (f" of {name}" if len(names) > 1 else "")
    return BadValue(f"an observation that holds {value:g} in {place}, {unfit(value)}")


def _taken_apart(space: spaces.Space[Any], name: str, rows: _Rows) -> _Write:
    """Take the place of ``space`` in the rows and return what writes its values."""
    if isinstance(space, spaces.Dict):
        named = {key: _taken_apart(part, f"{name}.{key}", rows) for key, part in space.spaces.items()}
        return lambda value, vector, pixels: _write_dict(named, value, vector, pixels)
    if isinstance(space, spaces.Tuple):
        members = [_taken_apart(part, f"{name}.{i}", rows) for i, part in enumerate(space.spaces)]
        return lambda value, vector, pixels: _write_tuple(members, value, vector, pixels)
    make = next((make for kind, make in _LEAVES.items() if isinstance(space, kind)), None)
    if make is None:
        kind = type(space).__name__
        raise UnsupportedSpace(f"observation space {space}: a {kind} has no fixed number of components; {_WRAP}")
    return make(space, name.removeprefix(".") or "observation", rows)


def _write_dict(parts: Mapping[str, _Write], value: Any, vector: np.ndarray, pixels: np.ndarray) -> None:
    if not isinstance(value, Mapping) or value.keys() != parts.keys():
        found = sorted(map(str, value)) if isinstance(value, Mapping) else f"one {type(value).__name__}"
        raise BadValue(f"an observation with {found}, its space has {sorted(parts)}")
    for key, write in parts.items():
        write(value[key], vector, pixels)


def _write_tuple(members: list[_Write], value: Any, vector: np.ndarray, pixels: np.ndarray) -> None:
    if not isinstance(value, tuple | list) or len(value) != len(members):
        found = f"{len(value)} parts" if isinstance(value, tuple | list) else f"one {type(value).__name__}"
        raise BadValue(f"an observation of {found}, its space has {len(members)}")
    for write, part in zip(members, value, strict=True):
        write(part, vector, pixels)


def _box(space: Any, name: str, rows: _Rows) -> _Write:
    if space.dtype in (np.uint8, np.bool_) and len(space.shape) in (3, 4) and max(space.shape[-3:]) >= _MIN_EDGE:
        return _image(space, name, rows)
    shape, dtype, size = tuple(space.shape), np.dtype(space.dtype), int(np.prod(space.shape))
    start, stop = _taken(rows, name, size, f"{size} numbers", (space.low, space.high), continuous=True)

    def write(value: Any, vector: np.ndarray, pixels: np.ndarray) -> None:  # noqa: ARG001 - one call for all
        values, row = observation_of(value, shape, dtype), vector[start:stop]
        values = values if values.ndim == 1 else values.reshape(-1)
        if values.itemsize <= row.itemsize:
            row[:] = values
        else:
            _narrow(values, row, start, rows.names)

    return write


def _narrow(values: np.ndarray, row: np.ndarray, start: int, names: Sequence[tuple[int, str]]) -> None:
    """Write numbers of more bits than the row's components, which are float32."""
    try:
        with np.errstate(over="raise"):
            row[:] = values
    except FloatingPointError as error:
        at = int(np.where(np.isfinite(values), np.abs(values), 0.0).argmax())
        raise _fault_at(start + at, values[at], names) from error


def _image(space: Any, name: str, rows: _Rows) -> _Write:
    """Bytes of an image, or of a stack of them, channels first; a Box of truth values is black and white."""
    shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    first = len(shape) - 3
    is_first = shape[first] < min(shape[first + 1 :])
    order = [*range(first), *([first, first + 1, first + 2] if is_first else [first + 2, first, first + 1])]
    *leading, height, width = (shape[axis] for axis in order)
    channels, scale = int(np.prod(leading)), 255 if dtype == np.bool_ else 1
    start = rows.num_pixels
    stop = rows.num_pixels = start + channels * height * width
    rows.images.append((channels, height, width))
    stack = f"a stack of {shape[0]} images" if first else "an image"
    told = f"channels {'first' if is_first else 'last'}, {channels} x {height} x {width}, bytes"
    rows.parts.append(f"{name}: {stack}, {told}")

    def write(value: Any, vector: np.ndarray, pixels: np.ndarray) -> None:  # noqa: ARG001 - one call for all
        values = observation_of(value, shape, dtype)
        if values.dtype != dtype and ((values < 0) | (values > np.iinfo(np.uint8).max)).any():
            raise BadValue(f"an image with values from {values.min()} to {values.max()}, its space has bytes")
        pixels[start:stop] = values.transpose(order).reshape(-1) * scale

    return write


def _discrete(space: Any, name: str, rows: _Rows) -> _Write:
    return _one_hot(space, (), [int(space.n)], np.asarray(space.start), name, rows)


def _multi_discrete(space: Any, name: str, rows: _Rows) -> _Write:
    sizes = [int(n) for n in space.nvec.flat]
    return _one_hot(space, tuple(space.shape), sizes, np.asarray(space.start).reshape(-1), name, rows)


def _one_hot(
    space: Any, shape: tuple[int, ...], sizes: list[int], starts: np.ndarray, name: str, rows: _Rows
) -> _Write:
    dtype, counts = np.dtype(space.dtype), np.array(sizes)
    told = f"one-hot of {' and '.join(map(str, sizes))}"
    start, stop = _taken(rows, name, sum(sizes), told, (0.0, 1.0), continuous=False)
    offsets = start + np.cumsum([0, *sizes[:-1]])

    def write(value: Any, vector: np.ndarray, pixels: np.ndarray) -> None:  # noqa: ARG001 - one call for all
        index = observation_of(value, shape, dtype).reshape(-1).astype(np.int64) - starts
        if (index < 0).any() or (index >= counts).any():
            raise BadValue(f"the observation {value!r}, which is outside of its space {space}")
        vector[start:stop] = 0.0
        vector[offsets + index] = 1.0

    return write


def _multi_binary(space: Any, name: str, rows: _Rows) -> _Write:
    shape, dtype, size = tuple(space.shape), np.dtype(space.dtype), int(np.prod(space.shape))
    start, stop = _taken(rows, name, size, f"{size} numbers 0 or 1", (0.0, 1.0), continuous=False)

    def write(value: Any, vector: np.ndarray, pixels: np.ndarray) -> None:  # noqa: ARG001 - one call for all
        values = observation_of(value, shape, dtype)
        if ((values != 0) & (values != 1)).any():
            raise BadValue(f"the observation {value!r}, which is outside of its space {space}")
        vector[start:stop] = values.reshape(-1)

    return write


def _taken(rows: _Rows, name: str, size: int, told: str, ends: tuple[Any, Any], *, continuous: bool) -> tuple[int, int]:
    start = len(rows.continuous)
    rows.continuous += [continuous] * size
    for kept, end in zip((rows.low, rows.high), ends, strict=True):
        with np.errstate(over="ignore"):  # what float32 cannot hold bounds nothing
            kept += np.broadcast_to(np.asarray(end).astype(np.float32).reshape(-1), size).tolist()
    rows.parts.append(f"{name}: {told}")
    rows.names.append((start, name))
    return start, start + size


_LEAVES: Mapping[type[Any], Callable[[Any, str, _Rows], _Write]] = {
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
}
