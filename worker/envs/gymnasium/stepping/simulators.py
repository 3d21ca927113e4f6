"""Simulators of Gymnasium's own small tasks that step any number of environments in one call.

Stepped one by one, such a task costs more for its calls than for its physics. Each simulator here has the numbers of
Gymnasium's own environment bit for bit, or it is not used: ``simulator_of`` gives one only where the code that is
installed is the code that it was written after, where nothing but a time limit is wrapped around it, and where a trial
on this host gave the same bits (a library may have a sine of its own for arrays). Axes: N environment, S state,
O observation.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, Protocol, cast

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.utils import seeding
from gymnasium.wrappers import TimeLimit

#: Steps of the trial, and the sizes of batch in which they are taken again: odd ones leave a rest to vector registers.
_TRIAL_STEPS, _TRIAL_BATCHES = 400, (1, 3, 8, 37, 400)
_TRIAL_SEED = 20_261
#: Of the code that every task here runs through, besides its own.
_AROUND = (TimeLimit.step, TimeLimit.reset, gymnasium.Env.reset, seeding.np_random)
_AROUND_CODE = "a7b4997ce356b29d"


class Simulator(Protocol):
    """Physics of a task, without memory: what is between two calls is in the states.

    Attributes:
        num_state: S.
        real: whether actions are real numbers; their column is then float32 as the task is handed it.
    """

    num_state: int
    real: bool

    def reset(self, draw: np.random.Generator) -> np.ndarray:
        """Return the state [S] in which an episode begins."""
        ...

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the states [S, N] after actions [N], rewards [N] float64 and which episodes have ended [N]."""
        ...

    def observe(self, state: np.ndarray) -> np.ndarray:
        """Return the observations [O, N] of states [S, N], float64 as they are before they are rounded."""
        ...


class _CartPole:
    num_state, real = 4, False
    _pole_mass, _total_mass, _pole_mass_length = 0.1, 0.1 + 1.0, 0.1 * 0.5
    _angle, _place = 12 * 2 * math.pi / 360, 2.4

    def reset(self, draw: np.random.Generator) -> np.ndarray:
        return draw.uniform(low=-0.05, high=0.05, size=(4,))

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, speed, angle, turning = state
        force = np.where(action == 1, 10.0, -10.0)
        cosine, sine = np.cos(angle), np.sin(angle)
        # the order of operations is Gymnasium's
        pushed = (force + self._pole_mass_length * np.square(turning) * sine) / self._total_mass
        turn = (9.8 * sine - cosine * pushed) / (
            0.5 * (4.0 / 3.0 - self._pole_mass * np.square(cosine) / self._total_mass)
        )
        push = pushed - self._pole_mass_length * turn * cosine / self._total_mass
        after = np.empty_like(state)
        after[0], after[1] = x + 0.02 * speed, speed + 0.02 * push
        after[2], after[3] = angle + 0.02 * turning, turning + 0.02 * turn
        fallen = (np.abs(after[0]) > self._place) | (np.abs(after[2]) > self._angle)
        return after, np.ones(len(action)), fallen

    def observe(self, state: np.ndarray) -> np.ndarray:
        return state


class _MountainCar:
    num_state, real = 2, False

    def reset(self, draw: np.random.Generator) -> np.ndarray:
        return np.array([draw.uniform(low=-0.6, high=-0.4), 0.0])

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # the task asks the C library for each cosine: numpy's own of an array may be another
        slope = np.array([math.cos(angle) for angle in (3 * state[0]).tolist()])
        after = np.empty_like(state)
        speed = np.clip(state[1] + ((action - 1) * 0.001 + slope * (-0.0025)), -0.07, 0.07)
        after[0] = np.clip(state[0] + speed, -1.2, 0.6)
        after[1] = np.where((after[0] == -1.2) & (speed < 0), 0.0, speed)
        return after, np.full(len(action), -1.0), (after[0] >= 0.5) & (after[1] >= 0)

    def observe(self, state: np.ndarray) -> np.ndarray:
        return state


class _Pendulum:
    num_state, real = 2, True
    _high = np.array([np.pi, 1.0])

    def reset(self, draw: np.random.Generator) -> np.ndarray:
        return draw.uniform(low=-self._high, high=self._high)

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        angle, speed = state
        torque = np.clip(action, -2.0, 2.0)
        away = ((angle + np.pi) % (2 * np.pi)) - np.pi
        costs = _squares(away) + 0.1 * _squares(speed) + 0.001 * _squares(torque)
        after = np.empty_like(state)
        after[1] = np.clip(speed + (3 * 10.0 / (2 * 1.0) * np.sin(angle) + 3.0 * torque) * 0.05, -8, 8)
        after[0] = angle + after[1] * 0.05
        return after, -costs, np.zeros(len(action), dtype=bool)

    def observe(self, state: np.ndarray) -> np.ndarray:
        return np.stack([np.cos(state[0]), np.sin(state[0]), state[1]])


def _squares(values: np.ndarray) -> np.ndarray:
    """Return the squares as the task has them of single numbers: the C library's power."""
    return np.array([value**2 for value in values])


#: Class of Gymnasium -> its simulator and the digest of the code that it was written after (1.4.0).
_KNOWN: Mapping[type[Any], tuple[type[Any], str]] = {
    CartPoleEnv: (_CartPole, "4cbda38963082ac1"),
    MountainCarEnv: (_MountainCar, "c2e5b21d382b7bfa"),
    PendulumEnv: (_Pendulum, "2dc4838360745066"),
}


def may_have_simulator(name: str) -> bool:
    """Return whether a task may have one, by what Gymnasium's registry says it is."""
    spec = gymnasium.registry.get(name)
    return spec is not None and spec.entry_point in {f"{kind.__module__}:{kind.__name__}" for kind in _KNOWN}


def simulator_of(env: gymnasium.Env[Any, Any], kwargs: Mapping[str, Any]) -> tuple[Simulator, int | None] | None:
    """Return what steps a task in batches and its limit of steps; None where only the task itself can.

    Args:
        env: as it was built; its state is lost.
        kwargs: what it was built with; any may change its physics.
    """
    limit: int | None = None
    inner: Any = env
    if type(inner) is TimeLimit:
        if _METHODS & {*vars(inner)}:
            return None
        limit, inner = getattr(inner, _LIMIT), inner.env
    kind = type(inner)
    # a limit among the arguments is that of the wrapper
    if set(kwargs) - {"max_episode_steps"} or kind not in _KNOWN or not _is_untouched(inner):
        return None
    simulator, code = _KNOWN[kind]
    parts = (kind.__init__, kind.step, kind.reset, *(getattr(kind, name) for name in _BESIDE.get(kind, ())))
    if _digest(parts) != code or _digest(_AROUND) != _AROUND_CODE or not _is_exact(cast("Hashable", kind)):
        return None
    return simulator(), limit


#: What a package may have put in the place of a method, in one object.
_METHODS = frozenset(("step", "reset"))
#: Attributes that say nothing of how a task steps: where it comes from, and where an episode of it stands.
_OF_NO_STEP = frozenset(("spec", "state", "last_u", "steps_beyond_terminated", "_np_random", "_np_random_seed"))


def _is_untouched(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether a task is as its class makes it: a package may hand over one with another gravity, or step."""
    own, made = ({n: v for n, v in vars(one).items() if n not in _OF_NO_STEP} for one in (env, type(env)()))
    return own.keys() == made.keys() and all(_is_same(own[name], made[name]) for name in own)


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, type(other)) and bool(np.all(one == other))


#: Other functions of a task that its numbers go through.
_BESIDE: Mapping[type[Any], tuple[str, ...]] = {PendulumEnv: ("_get_obs",)}
#: Where a time limit keeps its number of steps; its code is compared, too.
_LIMIT = "_max_episode_steps"


def _digest(parts: tuple[Any, ...]) -> str:
    """Return a digest of the source of functions; empty where it cannot be read."""
    try:
        # of the code itself: of a function that wraps another, the source of the other would be read
        text = "\n".join(inspect.getsource(part.__code__) for part in parts)
    except (AttributeError, OSError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _is_exact(kind: Any) -> bool:
    """Return whether the simulator of a class has its bits here: resets, and steps in batches of several sizes."""
    simulator, env = _KNOWN[kind][0](), kind()
    draw = np.random.default_rng(_TRIAL_SEED)
    before, actions, told = [], [], []
    for index in range(_TRIAL_STEPS):
        if index % 100 == 0:
            shown, _ = env.reset(seed=index)
            own = simulator.reset(seeding.np_random(index)[0])
            if not (np.array_equal(own, env.state) and np.array_equal(_seen(simulator, own[:, None])[0], shown)):
                return False
        before.append(np.array(env.state, dtype=np.float64))
        action = np.float32(draw.uniform(-2.5, 2.5)) if simulator.real else np.int64(draw.integers(env.action_space.n))
        shown, reward, ended, _, _ = env.step(np.array([action]) if simulator.real else action)
        actions.append(action)
        told.append((np.array(env.state, dtype=np.float64), shown, float(reward), bool(ended)))
        if ended:
            env.reset(seed=1000 + index)
    return all(
        _agrees(simulator, before[at : at + size], actions[at : at + size], told[at : at + size])
        for size in _TRIAL_BATCHES
        for at in range(0, _TRIAL_STEPS, size)
    )


def _agrees(simulator: Simulator, before: list[np.ndarray], actions: list[Any], told: list[Any]) -> bool:
    after, rewards, ended = simulator.step(np.stack(before, axis=1), np.array(actions))
    states, shown, paid, ends = zip(*told, strict=True)
    same = np.array_equal(after.T, np.stack(states)) and np.array_equal(_seen(simulator, after), np.stack(shown))
    return bool(same and np.array_equal(rewards, np.array(paid)) and np.array_equal(ended, np.array(ends)))


def _seen(simulator: Simulator, state: np.ndarray) -> np.ndarray:
    """Return observations [N, O] float32."""
    return simulator.observe(state).T.astype(np.float32)
