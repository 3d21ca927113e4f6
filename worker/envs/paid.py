"""What a reward function returned, held against its contract before anything is learnt from it (docs/rewards.md).

A function may be a package's own, so each way to break the contract is an ``EnvironmentFault`` of one sentence with
mode, arm, episode and remedy. Axes: E environment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.envs.faults import EnvironmentFault, playing, unfit

Episodes = Sequence[int] | NDArray[Any] | None


class RewardDefect(RuntimeError):  # noqa: N818 - names what is wrong with a mode
    """A registered mode breaks the contract of reward functions; the message names mode and rule."""


def payer(mode: str, arm: str, *, scores_only: bool = False) -> str:
    """Return who pays, in words: the mode, and the arm that it is paid to or whose episodes it scores."""
    if not arm:
        return f"reward mode {mode!r}"
    return (
        f"reward mode {mode!r} (it scores arm {arm!r} too)" if scores_only else f"reward mode {mode!r} of arm {arm!r}"
    )


@contextmanager
def paying(who: str, mode: str, episodes: Episodes) -> Iterator[None]:
    """Run a reward function without gradients; what it raises is an ``EnvironmentFault``, and so is a hang in it.

    Args:
        who: what ``payer`` says.
        mode: its name.
        episodes: [E] numbers of the running episodes; None where none run.
    """
    try:
        with playing(f"{who}{_when(episodes)}"), torch.no_grad():
            yield
    except EnvironmentFault as error:
        raise EnvironmentFault(f"{error}; correct it{advice(mode)}") from error.__cause__


def advice(mode: str) -> str:
    """Return how a mode that raised can be tried before it is trained with again."""
    return f", and try it with `lockstep reward check {mode}`"


def _when(episodes: Episodes) -> str:
    if episodes is None:
        return ""
    first, last = int(np.min(episodes)), int(np.max(episodes))
    return f" in episode {first}" if first == last else f" in episodes {first} to {last}"


def pair_of(who: str, returned: Any) -> tuple[Any, Any]:
    """Return the two values that a function of Gymnasium tasks returned."""
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return returned[0], returned[1]
    counted = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"
    raise EnvironmentFault(f"{who} returned {counted}; return two: the reward [E], and its components {{name: [E]}}")


def judged(
    who: str, reward: Any, components: Any, episodes: Episodes, valid: NDArray[np.bool_]
) -> tuple[Tensor, list[str]]:
    """Return rows [1 + N, E] float32, the reward and N components, and the components' names; else raise a fault.

    Args:
        who: what ``payer`` says.
        reward: as returned.
        components: as returned.
        episodes: [E] numbers of the running episodes; None where none run.
        valid: [E], whose values count; those of idle environments may be anything.
    """
    if not isinstance(components, Mapping):
        told = f"its components are a {type(components).__name__}, not a dictionary {{name: tensor [E]}}"
        raise EnvironmentFault(f"{who}: {told}; return one whose values sum to the reward")
    names, values = list(components), [reward, *components.values()]
    for row, value in enumerate(values):
        wrong = _wrong(value, len(valid))
        if wrong is not None:
            raise EnvironmentFault(f"{who}{_when(episodes)}: {_part(names, row)} {wrong}")
    rows = torch.stack([value.detach().to(torch.float32) for value in values])
    refuse_infinite(who, rows.numpy(), values, names, episodes, valid)
    return rows, names


def refuse_infinite(
    who: str,
    rows: NDArray[np.float32],
    values: Sequence[Any] | NDArray[Any],
    names: Sequence[str],
    episodes: Episodes,
    valid: NDArray[np.bool_],
) -> None:
    """Raise a fault where a value that counts is not finite as float32: ``rows`` [1 + N, E] of what was returned."""
    bad = ~np.isfinite(rows) & valid
    if np.count_nonzero(bad):
        row, index = (int(at) for at in np.argwhere(bad)[0])
        when = "" if episodes is None else f", episode {episodes[index]}"
        value = float(values[row][index])
        told = f"{_part(names, row)} is {value:g} in environment {index}{when}"
        if math.isfinite(value):
            raise EnvironmentFault(f"{who}: {told}, {unfit(value)}")
        remedy = "guard divisions and logarithms, and replace what is not measured (NaN) with torch.nan_to_num"
        raise EnvironmentFault(f"{who}: {told}; it must be finite: {remedy}")


def _part(names: Sequence[str], row: int) -> str:
    return "the reward" if row == 0 else f"component {names[row - 1]!r}"


def _wrong(value: Any, num_envs: int) -> str | None:
    """Return what keeps a value from being a tensor [E] of numbers on the CPU, with the remedy."""
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        remedy = f"torch.full(({num_envs},), {value})" if isinstance(value, int | float) else "torch.as_tensor"
        return f"is of type {kind}, not a tensor [{num_envs}]; compute it from the tensors it is given, or use {remedy}"
    if value.device.type != "cpu":
        return f"lies on {value.device}, not on the CPU, where all that the function is given lies; end with .cpu()"
    if value.is_complex():
        return f"is of {value.dtype}; return real numbers"
    if tuple(value.shape) != (num_envs,):
        return f"has the shape {tuple(value.shape)}, not ({num_envs},); return one number for each environment"
    return None
