"""Installed plug-ins: entry points that announce rewards and environments, and what keeps one from being imported.

Each is tried in a process of its own, for the code is another's: what raises, hangs, prints or ends its process at
import is told as a defect of that plug-in and costs whoever asks nothing. Nothing stays loaded.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Container
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

REWARDS, ENVIRONMENTS = "lockstep.rewards", "lockstep.environments"
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


def installed(group: str) -> list[EntryPoint]:
    """Return the plug-ins of a group, by name; none of them is loaded."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def identities(used: Container[str]) -> dict[str, str]:
    """Return {name: package, version, start of the SHA-256 of its Python files} of the plug-ins among ``used``."""
    points = [point for group in (REWARDS, ENVIRONMENTS) for point in installed(group) if point.name in used]
    return {point.name: _identity(point) for point in points}


def _identity(point: EntryPoint) -> str:
    package = point.dist
    named = f"{package.name} {package.version}" if package is not None else point.value
    return f"{named} ({_digest(point.module.partition('.')[0])})"


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
