"""What an environment hands over, held against Gymnasium's interface and its own spaces before anything uses it.

Each function returns the plain value or raises ``BadValue``, whose text follows "environment .. in step .. returned".
One number that is not finite would stay in running statistics for good, and numpy would broadcast some observations of
the wrong shape. Whether observations are finite is asked once a step for all environments, by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.quoting import shortened
from worker.envs.faults import BadValue, unfit

#: Largest finite number of float32.
LARGEST = float(np.finfo(np.float32).max)
#: Kinds of number: each may be written as those after it, and not the other way round.
_KINDS: Mapping[str, int] = {"b": 0, "u": 1, "i": 1, "f": 2}
_STEP = "(observation, reward, terminated, truncated, info)"
_RESET = "(observation, info)"


def step_values(returned: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return what a step returned as five values."""
    observation, reward, terminated, truncated, info = _values(returned, 5, _STEP)
    return observation, reward, terminated, truncated, info


def reset_values(returned: Any) -> tuple[Any, Any]:
    """Return what a reset returned as two values."""
    observation, info = _values(returned, 2, _RESET)
    return observation, info


def _values(returned: Any, number: int, names: str) -> Any:
    if isinstance(returned, tuple | list) and len(returned) == number:
        return returned
    counted = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"one {type(returned).__name__}"
    raise BadValue(f"{counted}, not the {number} of Gymnasium's interface {names}")


def observation_of(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an observation as an array of its space's shape and of a kind of number that the space's dtype holds.

    Lists and tuples are arrays; float64 for a space of float32 is accepted, numbers with a fraction for a space of
    integers are not.
    """
    try:
        found: np.ndarray = value if type(value) is np.ndarray else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise BadValue(f"an observation that is no array: {error}") from error
    if found.dtype is not dtype and _KINDS.get(found.dtype.kind, 3) > _KINDS[dtype.kind]:
        raise BadValue(f"an observation of dtype {found.dtype}, its space has {dtype}")
    if found.shape != shape:
        raise BadValue(f"an observation of the shape {found.shape}, its space has {shape}")
    return found


def reward_of(value: Any) -> float:
    """Return a reward: any number, or anything that holds exactly one; it must be finite as float32."""
    reward: float = value if type(value) is float else _one_number(value)
    if not abs(reward) <= LARGEST:
        raise BadValue(f"the reward {reward:g}, {unfit(reward)}")
    return reward


def _one_number(value: Any) -> float:
    held = np.asarray(value, dtype=object) if isinstance(value, list | tuple) else value
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(held.item() if hasattr(held, "item") else held)
    except OverflowError as error:
        raise BadValue(f"a reward beyond what float32 can hold: {_brief(value)}") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadValue(f"a reward that is no single number: {_brief(value)}") from error


def is_true(value: Any, name: str) -> bool:
    """Return ``terminated`` or ``truncated`` as a truth value; None and text are none."""
    if type(value) is bool:
        return value
    try:
        return bool(int(value.item() if hasattr(value, "item") else value))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadValue(f"{name} as {_brief(value)}, which is neither true nor false") from error


def _brief(value: Any) -> str:
    return shortened(" ".join(repr(value).split()))
