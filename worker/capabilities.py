"""What this installation can train: data sets with fingerprints, registered rewards and environments.

Every reward mode is checked on random transitions here, at the start of a worker. A registered mode that
fails is announced with its defect, so that whoever submits it reads the reason; it is never assigned. A
built-in mode that fails means a broken installation and raises.

What this installation can do, asked in a process of its own so that the supervisor stays light.

``python -m worker.capabilities devices`` lists GPUs as the CUDA runtime sees them; ``capabilities`` lists data
sets with fingerprints, registered rewards and environments, and versions. JSON on standard output.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lockstep import plugins
from lockstep.protocol import environment_fault, reward_fault
from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.tasks import REWARD_MODES, TASKS
from lockstep.spec.text.schemas import schema_fault
from worker.envs import reward_plugins
from worker.envs.arguments import arguments_of
from worker.envs.families import load as load_family
from worker.envs.family import EnvironmentFamily
from worker.envs.faults import RAISED, EnvironmentFault
from worker.envs.morph.rewards import check_mode, make_builtin
from worker.envs.morph.task.data import load
from worker.envs.paid import RewardDefect
from worker.envs.reward_plugins import RewardPlugin

_DATASETS = ("digits", "synth", "pydoc", "cifar10", "text")
_GAMMA = 0.99
#: What a mode that names no task is told of the task while it is checked.
_TASK, _ID = "digits_tiny", "self-check"


class Unimportable(Exception):  # noqa: N818 - says what is wrong
    """A plug-in cannot be imported; the message says why."""


class Unfit(Exception):  # noqa: N818 - says what is wrong
    """A registered mode fails its check; the message says why."""


#: Errors whose message is a sentence of ours.
_PLAIN = (Unimportable, Unfit, plugins.NameTaken, ValueError, EnvironmentFault, RewardDefect)


def datasets(data_dir: Path | None) -> dict[str, str]:
    """Return {data set: fingerprint} of those that load; the others cannot be assigned here."""
    found = {}
    for name in _DATASETS:
        try:
            found[name] = load(name, data_dir).fingerprint()
        except (ValueError, OSError):
            continue
    return found


def rewards() -> dict[str, dict[str, Any]]:
    """Check every mode and return the registered ones with what the API needs to judge a spec.

    An entry holds ``version``, ``env_kinds``, ``schema`` and, where the mode breaks the contract of reward
    functions or cannot be loaded, ``defect`` with the reason.

    Raises:
        RewardDefect: a built-in mode is defective.
        NameTaken: a registered mode has the name of another one.
    """
    _refuse_clashes(plugins.REWARDS, plugins.builtin_rewards())
    for name in REWARD_MODES:
        check_mode(make_builtin(name, {}, gamma=_GAMMA, task=_TASK))
    return {point.name: announced(point) for point in plugins.installed(plugins.REWARDS)}


def environments() -> dict[str, dict[str, Any]]:
    """Return families whose package is installed and registered environments, with their schemas.

    Raises:
        NameTaken: a registered environment has the name of another one, of a family, or of a task of one.
    """
    _refuse_clashes(plugins.ENVIRONMENTS, taken_environments())
    found: dict[str, dict[str, Any]] = {}
    for name in _packages():
        found[name] = {}
    for point in plugins.installed(plugins.ENVIRONMENTS):
        try:
            found[point.name] = _schema_of(loaded(point))
        except RAISED as error:  # code of others; the reason is announced
            found[point.name] = {"defect": reason(error)}
    return found


def taken_environments() -> dict[str, str]:
    """Return the names that no registered environment may have: families and what their packages come with."""
    own = {name: f"a task of {kind}" for kind, family in _packages().items() for name in family.own_tasks()}
    return {**own, **dict.fromkeys(FAMILIES, "a family of environments")}


def _refuse_clashes(group: str, taken: Mapping[str, str]) -> None:
    told = plugins.clashes(group, taken)
    if told:
        raise plugins.NameTaken("; ".join(told.values()))


def _schema_of(factory: Any) -> dict[str, Any]:
    """Return the schema that a registered environment declares, or else the names of its arguments; {}: takes any.

    A batched simulator says ``is_batched`` beside it.
    """
    is_batched = any(family.is_batched is not None and family.is_batched(factory) for family in _packages().values())
    batched = {"is_batched": True} if is_batched else {}
    declared = getattr(factory, "schema", None)
    if declared is not None:
        fault = schema_fault(declared)
        if fault is not None:
            raise Unfit(fault)
        return {"properties": declared.get("properties", {}), **batched}
    names = arguments_of(factory)
    return batched if names is None else {"properties": {name: {} for name in names}, **batched}


def tasks() -> dict[str, list[dict[str, Any]]]:
    """Return the registries of the installed families that have one."""
    return {name: family.tasks() for name, family in _packages().items() if family.tasks is not None}


def _packages() -> dict[str, EnvironmentFamily]:
    """Return the families whose optional package is installed."""
    return {name: load_family(name) for name, family in FAMILIES.items() if family.is_package and _is_installed(name)}


def announced(point: EntryPoint) -> dict[str, Any]:
    """Check a mode of an installed package; return what the API is told of it."""
    facts: dict[str, Any] = {"version": "unknown", "schema": {}}
    try:
        plugin = reward_plugins.read(point.name, loaded(point))
        facts = {"version": plugin.version, "schema": dict(plugin.schema)}
        facts |= {"env_kinds": list(plugin.env_kinds), "tasks": list(plugin.tasks)}
        check_reward(plugin)
    except RAISED as error:  # code of others; the reason is announced
        facts["defect"] = reason(error)
    return facts


def check_reward(plugin: RewardPlugin) -> None:
    """Check a registered mode in every family that it serves and that is installed; a defect raises."""
    for kind in plugin.env_kinds:
        if not _is_installed(kind):
            continue  # it serves nobody here, which is no defect of the mode
        family = load_family(kind)
        task = next((name for name in plugin.tasks if kind_of(name) == kind), None)
        section = {"task": task or _TASK, "id": task or _ID}
        try:
            family.check_reward(family.reward(plugin.name, {}, _GAMMA, section), task)
        except RAISED as error:
            hint = _hint(plugin, error)
            if hint is None:
                raise
            raise Unfit(f"{reason(error)}; {hint}") from error


def _hint(plugin: RewardPlugin, error: BaseException) -> str | None:
    """Return what a factory may have left unsaid where its check fails, with the remedy."""
    if not hasattr(plugin.factory, "env_kinds"):
        told = f"its factory names no env_kinds, so it was checked as one of {plugin.env_kinds[0]}"
        return f"{told}: for Gymnasium tasks write env_kinds = ('gymnasium',)"
    if not plugin.tasks and isinstance(error, ValueError):
        return (
            f"its factory names no tasks, so it was built for {_TASK!r} or {_ID!r}: name those that it serves in tasks"
        )
    return None


def kind_of(task: str) -> str:
    """Return the family of which a name is a task: one that is no task of morphogenesis is Gymnasium's."""
    return "morphogenesis" if task in TASKS else "gymnasium"


def loaded(point: EntryPoint) -> Any:
    """Load what another process could import: a plug-in that ends its process is no end of this worker.

    Raises:
        Unimportable: it could not.
    """
    defect = plugins.defect(point)
    if defect is not None:
        raise Unimportable(defect)
    return point.load()


def _is_installed(kind: str) -> bool:
    return not FAMILIES[kind].is_package or importlib.util.find_spec(kind) is not None


def reason(error: BaseException) -> str:
    """Return in a line why a plug-in cannot be used."""
    told = str(error) if isinstance(error, _PLAIN) else f"{type(error).__name__}: {error}"
    return " ".join(told.split())[:500]


_PACKAGES = ("lockstep", "torch", "numpy", "scikit-learn", "safetensors", "gymnasium")


def devices() -> list[dict[str, Any]]:
    """Return every GPU by UUID."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        text = str(properties.uuid)
        found.append(
            {
                "uid": text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}",
                "model": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": f"{properties.major}{properties.minor}",
            }
        )
    return found


def versions() -> dict[str, str]:
    """Return the versions of what computes, and of plug-ins the code too."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["cuda"] = str(torch.version.cuda or "none")
    names = {point.name for group in (plugins.REWARDS, plugins.ENVIRONMENTS) for point in plugins.installed(group)}
    return found | {plugins.version_key(name): code for name, code in plugins.identities(names).items()}


def capabilities(data_dir: Path | None) -> dict[str, Any]:
    """Return what may be assigned to a worker of this installation, or under ``refused`` why nothing may."""
    try:
        own = {
            "rewards": {name: _usable(facts, reward_fault(facts)) for name, facts in rewards().items()},
            "environments": {name: _usable(facts, environment_fault(facts)) for name, facts in environments().items()},
        }
    except plugins.NameTaken as error:
        return {"refused": str(error)}
    return {"datasets": datasets(data_dir), **own, "tasks": tasks(), "versions": versions()}


def _usable(facts: dict[str, Any], fault: str | None) -> dict[str, Any]:
    """Return what is announced of a plug-in, or the reason why the server would not take it."""
    return facts if fault is None else {"defect": fault}


def answer(descriptor: int, question: str, data_dir: Path | None = None) -> None:
    """Write what is asked for, and that alone: what plug-ins print goes to standard error.

    Args:
        descriptor: to write to.
        question: ``devices`` or ``capabilities``.
        data_dir: where data sets lie.
    """
    os.dup2(2, 1)
    with os.fdopen(descriptor, "w") as output:
        output.write(json.dumps(devices() if question == "devices" else capabilities(data_dir)))


def main() -> None:
    """Answer on standard output."""
    answer(os.dup(1), sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None)


if __name__ == "__main__":
    main()
