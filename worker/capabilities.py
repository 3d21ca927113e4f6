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
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lockstep import plugins
from lockstep.spec.families import FAMILIES
from lockstep.spec.tasks import REWARD_MODES
from worker.envs.arguments import arguments_of
from worker.envs.families import load as load_family
from worker.envs.family import EnvironmentFamily
from worker.envs.faults import RAISED
from worker.envs.morph.rewards import check_mode, make_reward
from worker.envs.morph.task.data import load

_DATASETS = ("digits", "synth", "pydoc", "cifar10", "text")
_GAMMA = 0.99
#: What a mode is told of the task while it is checked.
_SELF_CHECK = {"task": "digits_tiny", "id": "self-check"}
#: Whom a registered reward serves when it does not say.
_DEFAULT_KIND = "morphogenesis"


class Unimportable(Exception):  # noqa: N818 - says what is wrong
    """A plug-in cannot be imported; the message says why."""


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
    """
    for name in REWARD_MODES:
        check_mode(make_reward(name, {}, gamma=_GAMMA, task="digits_tiny"))
    builtin = {mode for family in FAMILIES.values() for mode in family.reward_modes}
    return {p.name: _announced(p) for p in plugins.installed(plugins.REWARDS) if p.name not in builtin}


def environments() -> dict[str, dict[str, Any]]:
    """Return families whose package is installed and registered environments, with their schemas."""
    found: dict[str, dict[str, Any]] = {}
    for name in _packages():
        found[name] = {}
    for point in plugins.installed(plugins.ENVIRONMENTS):
        try:
            found[point.name] = _schema_of(_loaded(point))
        except RAISED as error:  # code of others; the reason is announced
            found[point.name] = {"defect": _reason(error)}
    return found


def _schema_of(factory: Any) -> dict[str, Any]:
    """Return the schema that a registered environment declares, or else the names of its arguments; {}: takes any.

    A batched simulator says ``is_batched`` beside it.
    """
    is_batched = any(family.is_batched is not None and family.is_batched(factory) for family in _packages().values())
    batched = {"is_batched": True} if is_batched else {}
    declared = getattr(factory, "schema", None)
    if declared is not None:
        return {**declared, **batched}
    names = arguments_of(factory)
    return batched if names is None else {"properties": {name: {} for name in names}, **batched}


def tasks() -> dict[str, list[dict[str, Any]]]:
    """Return the registries of the installed families that have one."""
    return {name: family.tasks() for name, family in _packages().items() if family.tasks is not None}


def _packages() -> dict[str, EnvironmentFamily]:
    """Return the families whose optional package is installed."""
    return {name: load_family(name) for name, family in FAMILIES.items() if family.is_package and _is_installed(name)}


def _announced(point: EntryPoint) -> dict[str, Any]:
    facts: dict[str, Any] = {"version": "unknown", "env_kinds": [_DEFAULT_KIND], "schema": {}}
    try:
        factory = _loaded(point)
        facts["env_kinds"] = list(getattr(factory, "env_kinds", (_DEFAULT_KIND,)))
        facts["schema"] = dict(getattr(factory, "schema", {}))
        facts["version"] = str(factory.version)
        for kind in facts["env_kinds"]:
            if not _is_installed(kind):
                continue  # it serves nobody here, which is no defect of the mode
            family = load_family(kind)
            family.check_reward(family.reward(point.name, {}, _GAMMA, _SELF_CHECK))
    except RAISED as error:  # code of others; the reason is announced
        facts["defect"] = _reason(error)
    return facts


def _loaded(point: EntryPoint) -> Any:
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


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, Unimportable) else f"{type(error).__name__}: {error}"[:500]


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
    """Return the versions of what computes."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["cuda"] = str(torch.version.cuda or "none")
    return found


def capabilities(data_dir: Path | None) -> dict[str, Any]:
    """Return what may be assigned to a worker of this installation."""
    return {
        "datasets": datasets(data_dir),
        "rewards": rewards(),
        "environments": environments(),
        "tasks": tasks(),
        "versions": versions(),
    }


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
