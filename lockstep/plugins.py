"""Installed plug-ins: entry points that announce rewards and environments, and what keeps one from being imported.

Each is tried in a process of its own, for the code is another's: what raises, hangs, prints or ends its process at
import is told as a defect of that plug-in and costs whoever asks nothing. Nothing stays loaded.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Container, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from lockstep.spec.environments.families import FAMILIES

REWARDS, ENVIRONMENTS = "lockstep.rewards", "lockstep.environments"
_KINDS = {REWARDS: "reward", ENVIRONMENTS: "environment"}
_IMPORT_SECONDS = 60.0
_RAISED = 3
_IMPORT = f"""
import os, sys
from importlib.metadata import EntryPoint
try:
    EntryPoint(*sys.argv[1:]).load()
except BaseException as error:
    sys.stderr.write(f"\\n{{type(error).__name__}}: {{' '.join(str(error).split())}}\\n")
    sys.stderr.flush()
    os._exit({_RAISED})
os._exit(0)
"""
#: Prints the names of a registry in one line, after whatever packages print at their import.
_REGISTRY = "import gymnasium, json; print(); print(json.dumps([*gymnasium.registry]))"


class NameTaken(Exception):  # noqa: N818 - says what is wrong
    """A plug-in has a name that is taken; the message says by what, and the remedy."""


def clashes(group: str, taken: Mapping[str, str]) -> dict[str, str]:
    """Return a sentence for each name of a group that something else has too: one of the two would never be used.

    Args:
        group: of entry points.
        taken: names that no plug-in may have, and what each is.
    """
    told = {}
    for name, same in groupby(installed(group), key=lambda point: point.name):
        places = sorted(f"{package_of(point)} ({point.value})" for point in same)
        if name in taken:
            remedy = "give its entry point another name, or remove the package"
            told[name] = f"{_KINDS[group]} {name!r} of {places[0]} has the name of {taken[name]}; {remedy}"
        elif len(places) > 1:
            remedy = "remove one, or rename its entry point"
            told[name] = f"{_KINDS[group]} {name!r} is registered by {' and by '.join(places)}; {remedy}"
    return told


def builtin_rewards() -> dict[str, str]:
    """Return the names of built-in reward modes, and in words what they are."""
    return {mode: f"a built-in mode of {family.name}" for family in FAMILIES.values() for mode in family.reward_modes}


def installed(group: str) -> list[EntryPoint]:
    """Return the plug-ins of a group, by name; none of them is loaded."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def tasks_here() -> set[str]:
    """Return the environments of plug-ins and of Gymnasium's registry, which is read in a process of its own.

    Empty where Gymnasium is not installed or cannot be imported.
    """
    if find_spec("gymnasium") is None:
        return set()
    command = [sys.executable, "-c", _REGISTRY]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        return set()
    if ended.returncode != 0:
        return set()
    return {*json.loads(ended.stdout.splitlines()[-1]), *(point.name for point in installed(ENVIRONMENTS))}


def identities(used: Container[str]) -> dict[str, str]:
    """Return {name: package, version, start of the SHA-256 of its Python files} of the plug-ins among ``used``."""
    points = [point for group in (REWARDS, ENVIRONMENTS) for point in installed(group) if point.name in used]
    return {point.name: _identity(point) for point in points}


def version_key(name: str) -> str:
    """Return the name under which a worker announces the code of a plug-in among its versions."""
    return f"plug-in {name}"


def package_of(point: EntryPoint) -> str:
    """Return name and version of the package that a plug-in comes from."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def _identity(point: EntryPoint) -> str:
    return f"{package_of(point)} ({_digest(point.module.partition('.')[0])})"


def _digest(module: str) -> str:
    spec = find_spec(module)
    if spec is None:
        return "no files"
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    files = {str(path.relative_to(root)): path for root in roots for path in root.rglob("*.py")}
    if not roots and spec.origin is not None:
        files = {module: Path(spec.origin)}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def defect(point: EntryPoint) -> str | None:
    """Return in a line why a plug-in cannot be imported, None where it can."""
    command = [sys.executable, "-c", _IMPORT, point.name, point.value, point.group]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_IMPORT_SECONDS, check=False)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        return f"importing {point.value} took over {_IMPORT_SECONDS:.0f} s"
    if ended.returncode == 0:
        return None
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    last = lines[-1].strip()[:400] if lines else "without a word"
    if ended.returncode == _RAISED:
        return last
    if ended.returncode < 0:
        return f"importing {point.value} ended its process by {signal.Signals(-ended.returncode).name}"
    return f"importing {point.value} ended its process with code {ended.returncode} ({last})"
