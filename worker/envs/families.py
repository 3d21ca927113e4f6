"""Every environment family by name, the worker's half; its packages are loaded when it is first used.

A new one is an entry here and in ``lockstep.spec.environments.families``.
"""

from __future__ import annotations

import importlib

from worker.envs.family import EnvironmentFamily

#: name -> module that has its ``FAMILY``
FAMILIES: dict[str, str] = {
    "gymnasium": "worker.envs.gymnasium.family",
    "morphogenesis": "worker.envs.morph.family",
}


def load(kind: str) -> EnvironmentFamily:
    """Return the family of an ``env.kind``.

    Raises:
        KeyError: there is none of that name.
        ModuleNotFoundError: a package that it needs is not installed.
    """
    family: EnvironmentFamily = importlib.import_module(FAMILIES[kind]).FAMILY
    return family
