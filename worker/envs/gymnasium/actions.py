"""The way of an action from a policy's row of numbers to what an environment is handed, for every space (tasks.md 1).

A space is taken apart into leaves in its own order (``Dict`` in the order of its keys as the space has them, sorted
unless it was given an ordered dictionary). Choices become one head each, a ``Box`` one Gaussian head. Nothing here
draws or remembers anything. Axes: E environment, C columns of a row, H heads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.spec.sections import CLIP
from worker.envs.base import HeadSpec
from worker.envs.gymnasium.door import LARGEST

#: A row of numbers, real ones in the units of the environment, to what one leaf or the whole space is handed.
_Native = Callable[[Sequence[float]], Any]
_TANH = "tanh"
_WRAP = "register the environment wrapped in gymnasium.wrappers.TransformAction"


class UnsupportedSpace(ValueError):  # noqa: N818 - says what is wrong, not that something is
    """A space that no policy here serves; the message names the wrapper that helps."""


@dataclass(frozen=True)
class _Leaf:
    """One part of a space that is not made of parts.

    Attributes:
        heads: in the order of their columns.
        native: takes a row and gives the part's value, made anew; a choice below 0 raises ``ValueError``.
        low, high: bounds of each column of a ``Box``, float64; empty for choices.
    """

    heads: list[HeadSpec]
    native: _Native
    low: np.ndarray
    high: np.ndarray


class ActionDoor:
    """Heads of an action space, and what its environment is handed.

    Args:
        space: of the environment.

    Attributes:
        heads: in the order of their columns.
        num_columns: C.

    Raises:
        UnsupportedSpace: the space, or a part of it, has neither a fixed number of choices nor a density.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        leaves: list[_Leaf] = []
        self.native: _Native = _taken_apart(space, "action", leaves)
        self.heads = [head for leaf in leaves for head in leaf.heads]
        names = [head.name for head in self.heads]
        if not names or len(set(names)) < len(names):
            why = "has two parts of one name" if names else "has no part to choose"
            raise UnsupportedSpace(f"action space {space} {why}; {_WRAP}")
        self.num_columns = sum(head.columns for head in self.heads)
        kinds = [head.is_gaussian for head in self.heads for _ in range(head.columns)]
        self._real = [column for column, is_real in enumerate(kinds) if is_real]
        self._low, self._high = (np.concatenate([getattr(leaf, end) for leaf in leaves]) for end in ("low", "high"))
        self._space = space

    def check(self, bounds: str) -> None:
        """Raise ``UnsupportedSpace`` when ``action.bounds`` asks to map to bounds that are not finite."""
        if bounds != CLIP and not (np.isfinite(self._low).all() and np.isfinite(self._high).all()):
            told = f"action.bounds={bounds!r} maps to bounds; action space {self._space} has ones infinite in float32"
            raise UnsupportedSpace(f"{told}; use clip, or give it bounds with gymnasium.wrappers.RescaleAction")

    def record(self) -> array[Any]:
        """Return an empty record of executed rows."""
        return array("d" if self._real else "q")

    def executed(self, actions: Tensor, bounds: str) -> Tensor:
        """Return what is executed of a policy's actions [E, C]: float64, real numbers between their bounds.

        Actions of choices alone are returned as they are.
        """
        if not self._real:
            return actions
        rows = actions.double().numpy()
        rows[:, self._real] = self._between(rows[:, self._real], bounds)
        return torch.from_numpy(rows)

    def _between(self, u: np.ndarray, bounds: str) -> np.ndarray:
        """Return samples u [E, columns of Box leaves] between the bounds."""
        if bounds != CLIP:
            unit = np.tanh(u) if bounds == _TANH else np.clip(u, -1.0, 1.0)
            u = self._low + (unit + 1.0) * 0.5 * (self._high - self._low)
        # which takes away what rounding adds, too
        between: np.ndarray = np.minimum(np.maximum(u, self._low), self._high)
        return between


def _taken_apart(space: spaces.Space[Any], name: str, leaves: list[_Leaf]) -> _Native:
    """Append the leaves of ``space`` and return what gives its value of a row."""
    if isinstance(space, spaces.Dict):
        parts = {key: _taken_apart(part, f"{name}_{key}", leaves) for key, part in space.spaces.items()}
        return lambda row: {key: part(row) for key, part in parts.items()}
    if isinstance(space, spaces.Tuple):
        members = [_taken_apart(part, f"{name}_{i}", leaves) for i, part in enumerate(space.spaces)]
        return lambda row: tuple(member(row) for member in members)
    make = next((make for kind, make in _LEAVES.items() if isinstance(space, kind)), None)
    if make is None:
        kind = type(space).__name__
        raise UnsupportedSpace(f"action space {space}: a {kind} has no fixed number of choices; {_WRAP}")
    start = sum(head.columns for leaf in leaves for head in leaf.heads)
    leaf = make(space, name, start)
    leaves.append(leaf)
    return leaf.native


def _discrete(space: Any, name: str, at: int) -> _Leaf:
    # scalars of numpy's own, as gymnasium's vector environments hand on
    choices = [np.dtype(space.dtype).type(space.start + i) for i in range(int(space.n))]

    def native(row: Sequence[float]) -> Any:
        choice = int(row[at])
        if choice < 0:
            _legal([choice])
        return choices[choice]

    return _choices([HeadSpec(name, len(choices))], native)


def _multi_discrete(space: Any, name: str, at: int) -> _Leaf:
    starts = np.asarray(space.start, dtype=space.dtype)
    heads = [HeadSpec(f"{name}_{i}", int(n)) for i, n in enumerate(space.nvec.flat)]
    stop = at + len(heads)
    return _choices(heads, lambda row: np.array(_legal(row[at:stop]), dtype=space.dtype).reshape(space.shape) + starts)


def _multi_binary(space: Any, name: str, at: int) -> _Leaf:
    heads = [HeadSpec(f"{name}_{i}", 2) for i in range(int(np.prod(space.shape)))]
    stop = at + len(heads)
    return _choices(heads, lambda row: np.array(_legal(row[at:stop]), dtype=space.dtype).reshape(space.shape))


def _legal(choices: Sequence[float]) -> Sequence[float]:
    if min(choices, default=0) < 0:
        raise ValueError(f"action {list(choices)} is outside its mask")
    return choices


def _choices(heads: list[HeadSpec], native: _Native) -> _Leaf:
    return _Leaf(heads, native, np.zeros(0), np.zeros(0))


def _box(space: Any, name: str, at: int) -> _Leaf:
    if not np.issubdtype(space.dtype, np.floating):
        told = f"action space {space}: a Box of integers has no density; declare it as MultiDiscrete, or as a Box of"
        raise UnsupportedSpace(f"{told} float32 and {_WRAP} to round it")
    low, high = (_bounds(end) for end in (space.low, space.high))
    # where it has no bound of its own, a uniform control draws from an interval of two beside 0 or the other bound
    least = np.where(np.isfinite(low), low, np.minimum(-1.0, np.where(np.isfinite(high), high, 1.0) - 2.0))
    most = np.where(np.isfinite(high), high, np.maximum(1.0, least + 2.0))
    head = HeadSpec(name, len(low), bounds=tuple(zip(least.tolist(), most.tolist(), strict=True)))
    stop = at + head.size
    heads = [head] if head.size else []
    return _Leaf(heads, lambda row: np.array(row[at:stop], dtype=space.dtype).reshape(space.shape), low, high)


def _bounds(end: np.ndarray) -> np.ndarray:
    """Return bounds of a Box, infinite where they lie beyond float32, in which policies act."""
    bounds = np.asarray(end, dtype=np.float64).reshape(-1)
    return np.where(np.abs(bounds) <= LARGEST, bounds, np.copysign(np.inf, bounds))


_LEAVES: Mapping[type[Any], Callable[[Any, str, int], _Leaf]] = {
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Box: _box,
}
