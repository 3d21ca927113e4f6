"""Which tasks Gymnasium and installed packages have here, with their arguments: a server can refuse others at once.

Tasks of one constructor stand together: a package may register a thousand under one. The constructor is loaded and
its signature read; nothing is built.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from worker.envs.arguments import arguments_of
from worker.envs.faults import RAISED
from worker.envs.gymnasium.packages import register_all

#: Gymnasium's own: this is read before a package registers more.
OWN_TASKS = frozenset(gymnasium.registry)
#: What ``gymnasium.make`` takes itself, for every task.
_OF_MAKE = ("max_episode_steps", "render_mode")


def tasks() -> list[dict[str, Any]]:
    """Return groups: ``ids``, and the ``arguments`` that they take (None: any) or the ``defect`` of their package."""
    register_all()
    found: dict[str, tuple[Any, list[str]]] = {}
    for name, spec in sorted(gymnasium.registry.items()):
        key = spec.entry_point if isinstance(spec.entry_point, str) else f"{name}: a function"
        if key not in found:
            found[key] = spec, []
        found[key][1].append(name)
    return [{"ids": ids, **_constructor(spec)} for spec, ids in found.values()]


def _constructor(spec: EnvSpec) -> dict[str, Any]:
    if spec.entry_point is None:
        return {"defect": "it has only a vectorised form"}
    try:
        factory = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        names = arguments_of(factory)
    except RAISED as error:  # code of others, whose packages may be missing
        return {"defect": f"{type(error).__name__}: {error}"[:300]}
    return {"arguments": None if names is None else sorted({*names, *_OF_MAKE})}
