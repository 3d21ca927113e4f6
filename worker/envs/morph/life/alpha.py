"""The alpha controller: a scalar ramp per slot, vectorised over environments and slots.

No tensors of a device are involved. Axes: E environments, S slots. ``retarget`` is legal only from
HOLD; ``step`` moves every ramp by one tick (environment.md 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

FloatES = NDArray[np.float64]
IntES = NDArray[np.int64]


class Ramp(IntEnum):
    """Direction of a ramp."""

    DOWN = -1
    HOLD = 0
    UP = 1


class Curve(IntEnum):
    """Shape of a ramp; the index in the alpha_curve head."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_6 = 2
    SIGMOID_12 = 3
    SIGMOID_24 = 4


# an array takes four times as long to be compared with a member of an enum as with an integer
DOWN, HOLD = int(Ramp.DOWN), int(Ramp.HOLD)
_LINEAR, _COSINE, _SIGMOID_6 = int(Curve.LINEAR), int(Curve.COSINE), int(Curve.SIGMOID_6)
_STEEPNESS = np.array([np.nan, np.nan, 6.0, 12.0, 24.0])


def shape(curve: IntES, t: FloatES) -> FloatES:
    """Return g(t) of each curve for t in [0, 1]: monotone, g(0) = 0, g(1) = 1."""
    cosine = (1.0 - np.cos(np.pi * t)) / 2.0
    k = np.where(curve >= _SIGMOID_6, _STEEPNESS[curve], 6.0)
    low, high = _logistic(-k / 2.0), _logistic(k / 2.0)
    # (s(k(t - 1/2)) - s(-k/2)) / (s(k/2) - s(-k/2))
    sigmoid = (_logistic(k * (t - 0.5)) - low) / (high - low)
    return np.select([curve == _LINEAR, curve == _COSINE], [t, cosine], sigmoid)


def _logistic(x: FloatES) -> FloatES:
    return 1.0 / (1.0 + np.exp(-x))


@dataclass
class AlphaController:
    """Ramps of all slots.

    Attributes:
        alpha, start, target: [E, S] in [0, 1].
        mode, curve, steps_total, steps_done: [E, S].
    """

    alpha: FloatES
    start: FloatES
    target: FloatES
    mode: IntES
    curve: IntES
    steps_total: IntES
    steps_done: IntES

    @classmethod
    def zeros(cls, num_envs: int, num_slots: int) -> AlphaController:
        """Return controllers at rest at alpha 0."""
        size = (num_envs, num_slots)

        def ints() -> IntES:
            return np.zeros(size, dtype=np.int64)

        return cls(np.zeros(size), np.zeros(size), np.zeros(size), ints(), ints(), ints(), ints())

    def clear(self, env: int, slot: int) -> None:
        """Put one slot to rest at alpha 0."""
        for array in vars(self).values():
            array[env, slot] = 0

    def snap(self, env: int, slot: int, alpha: float) -> None:
        """Set alpha at once."""
        self.clear(env, slot)
        self.alpha[env, slot] = self.start[env, slot] = self.target[env, slot] = alpha

    def retarget(self, where: tuple[int, int], target: float, steps: int, curve: Curve) -> None:
        """Start a ramp of ``steps`` ticks; 0 steps snap.

        Raises:
            ValueError: a ramp is under way, or the target is outside [0, 1].
        """
        if self.mode[where] != Ramp.HOLD:
            raise ValueError("a ramp is under way; retarget is legal only in mode HOLD")
        if not 0.0 <= target <= 1.0:
            raise ValueError(f"alpha target {target} is outside [0, 1]")
        self.start[where] = self.alpha[where]
        self.target[where], self.curve[where] = target, curve
        self.steps_total[where], self.steps_done[where] = steps, 0
        if steps == 0:
            self.alpha[where] = target
        else:
            self.mode[where] = np.sign(target - self.alpha[where])

    def is_at_rest(self) -> bool:
        """Say whether no ramp is under way."""
        return not np.count_nonzero(self.mode)  # HOLD is 0

    def step(self, running: NDArray[np.bool_]) -> None:
        """Advance every ramp of the environments in ``running`` [E] by one tick."""
        moving = (self.mode != HOLD) & running[:, None]
        self.steps_done += moving
        done = moving & (self.steps_done >= self.steps_total)
        t = self.steps_done / np.maximum(self.steps_total, 1)
        value = self.start + (self.target - self.start) * shape(self.curve, np.clip(t, 0.0, 1.0))
        # monotone: never step back, never overshoot
        forward = np.where(self.mode > 0, np.maximum(self.alpha, value), np.minimum(self.alpha, value))
        low, high = np.minimum(self.start, self.target), np.maximum(self.start, self.target)
        self.alpha[:] = np.where(moving, np.clip(forward, low, high), self.alpha)
        self.alpha[:] = np.where(done, self.target, self.alpha)
        self.mode[done] = HOLD
