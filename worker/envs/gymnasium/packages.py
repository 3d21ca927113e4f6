"""Packages of others that register their tasks with Gymnasium only when they are asked to.

Such a task is named ``namespace/name``. The package is found by the entry point of its namespace in the group
``gymnasium.envs``, whose function registers, or in the table of those that register when they are imported. A training
process loads the one that its spec names and no other.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, PackageNotFoundError, version

import gymnasium

from lockstep import plugins
from worker.envs.faults import RAISED, building, last_line

GROUP = "gymnasium.envs"
#: Namespace -> (distribution, module) of packages that register at import and have no entry point.
_AT_IMPORT = {"ALE": ("ale-py", "ale_py")}


def register(task: str) -> None:
    """Let the package of a task's namespace register it, where it is installed and has not yet; else do nothing.

    Raises:
        ValueError: the package raised.
    """
    namespace, _, _ = task.rpartition("/")
    if not namespace or any(spec.namespace == namespace for spec in gymnasium.registry.values()):
        return
    for point in installed():
        if point.name == namespace:
            with building(f"env.id={task!r}: package {point.value!r}"):
                _run(point)


def register_all() -> None:
    """Let every package register, after each was imported in a process of its own; a bad one is told in the log."""
    for point in installed():
        defect = plugins.defect(point)
        try:
            if defect is None:
                _run(point)
        except RAISED as error:  # code of others
            defect = last_line(error)
        if defect is not None:
            sys.stderr.write(f"tasks of {point.name!r} are not known here: {defect}\n")


def installed() -> list[EntryPoint]:
    """Return the packages that can be asked, by their namespace; none of them is loaded."""
    points = {point.name: point for point in plugins.installed(GROUP)}
    for namespace, (distribution, module) in _AT_IMPORT.items():
        if _is_installed(distribution):
            points.setdefault(namespace, EntryPoint(namespace, module, GROUP))
    return list(points.values())


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _run(point: EntryPoint) -> None:
    loaded = point.load()
    if callable(loaded):
        loaded()
