"""How one environment of a task is built, from the registry of Gymnasium or by the factory of a package.

No torch: processes that only step environments import this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit, TransformReward

from lockstep.quoting import quoted
from lockstep.spec.environments.gymnasium import ATARI
from lockstep.spec.text.problems import meant, nearest
from worker.envs.faults import building
from worker.envs.gymnasium.packages import register

ENTRY_POINTS = "lockstep.environments"
_ATARI_FRAMES = 4


class _Choices(spaces.Discrete):
    """A Discrete space with a plain test of membership: environments ask it at every step."""

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a member."""
        return 0 <= int(x) - int(self.start) < int(self.n) if type(x) is np.int64 else super().contains(x)


def registered(name: str) -> Callable[..., Any] | None:
    """Load the factory that a package registers under a name, None where none does."""
    point = next(iter(entry_points(group=ENTRY_POINTS, name=name)), None)
    return None if point is None else cast("Callable[..., Any]", point.load())


def build_one(section: Mapping[str, Any], *, training: bool = False) -> gymnasium.Env[Any, Any]:
    """Build an environment from an ``env`` section, else raise ``ValueError``.

    Args:
        section: ``id``, ``kwargs``, ``max_episode_steps`` and ``wrappers``.
        training: whether what wrappers change for training alone is changed.
    """
    return builder(section, training=training)()


def builder(section: Mapping[str, Any], *, training: bool = False) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return what builds such environments as ``build_one`` does: who has the task is looked up here, once for all.

    To look it up reads the metadata of every package that is installed, which takes longer than to build a small task.
    """
    name = str(section["id"])
    if ATARI in (section.get("wrappers") or ()):
        raw = builder({"id": name, "kwargs": {"frameskip": 1, **(section.get("kwargs") or {})}})
        return lambda: _atari(section, raw(), training=training)
    with building(named(section)):
        factory = registered(name)
        if factory is None:
            register(name)
    if factory is not None:
        return lambda: _of_package(section, factory)
    _refuse_unknown(name)
    return lambda: _of_gymnasium(section)


def named(section: Mapping[str, Any]) -> str:
    """Return what is built from an ``env`` section, for people; long ``kwargs`` leave room for what follows."""
    kwargs = section.get("kwargs")
    return f"env.id={section['id']!r}" + (f" with env.kwargs={quoted(dict(kwargs))}" if kwargs else "")


def _of_package(section: Mapping[str, Any], factory: Callable[..., Any]) -> gymnasium.Env[Any, Any]:
    limit = section.get("max_episode_steps")
    with building(named(section)):
        own = cast("gymnasium.Env[Any, Any]", factory(**(section.get("kwargs") or {})))
        return own if limit is None else TimeLimit(own, limit)


def _of_gymnasium(section: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    kwargs, limit = section.get("kwargs") or {}, section.get("max_episode_steps")
    with building(named(section)):
        if limit is not None and "max_episode_steps" in kwargs:
            raise ValueError("env.max_episode_steps and max_episode_steps of env.kwargs are the same limit; keep one")
        # by the registry alone: "module:name" would import what a spec names. The order of calls is ours to keep
        spec = replace(gymnasium.spec(versioned(str(section["id"]))), order_enforce=False)
        limited = {} if limit is None else {"max_episode_steps": limit}
        env = gymnasium.make(spec, disable_env_checker=True, **{**kwargs, **limited})
    space = vars(env.unwrapped).get("action_space")
    if type(space) is spaces.Discrete and space.dtype == np.int64:
        env.unwrapped.action_space = _Choices(space.n, start=space.start)
    return env


def _refuse_unknown(name: str) -> None:
    """Raise ``ValueError`` where neither Gymnasium nor a package here has a task of this name."""
    if versioned(name) in gymnasium.registry:
        return
    if ":" in name:
        raise ValueError(f"env.id={name!r}: write the name behind the colon: a specification imports no module")
    own = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    told = nearest(name, {*gymnasium.registry, *own})
    if own and meant(name, {*gymnasium.registry, *own}) is None:
        told = f"packages here register {', '.join(own)}; Gymnasium has {nearest(name, gymnasium.registry, '')}"
    raise ValueError(f"env.id={name!r}: no package that is installed here has it; {' '.join(told.split())}")


def _atari(section: Mapping[str, Any], raw: gymnasium.Env[Any, Any], *, training: bool) -> gymnasium.Env[Any, Any]:
    """Prepare a game as Machado et al. (2018) do; in training the loss of a life ends it and signs are paid."""
    limit = section.get("max_episode_steps")
    with building(f"env.id={section['id']!r} with env.wrappers [{ATARI}]"):
        env: gymnasium.Env[Any, Any] = AtariPreprocessing(raw, terminal_on_life_loss=training)
        if training:
            env = TransformReward(env, lambda reward: float(np.sign(float(reward))))
        env = FrameStackObservation(env, _ATARI_FRAMES)
        return env if limit is None else TimeLimit(env, limit)


def versioned(name: str) -> str:
    """Return a name without a version with that of its newest one, as ``gymnasium.make`` does."""
    newest = max((s for s in gymnasium.registry.values() if s.name == name), key=lambda s: s.version or 0, default=None)
    return name if newest is None else newest.id
