"""What this installation can train: data sets with fingerprints, registered rewards and environments."""

from __future__ import annotations

import importlib.util
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from app.domain.catalog import GYM_REWARD_MODES, REWARD_MODES
from worker.envs.morph.data import load
from worker.envs.morph.rewards import registered_modes

_DATASETS = ("digits", "synth", "pydoc", "cifar10", "text")


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
    """Return registered (not built-in) reward modes with what the API needs to check them."""
    builtin = {*REWARD_MODES, *GYM_REWARD_MODES}
    found: dict[str, dict[str, Any]] = {}
    for point in entry_points(group="lockstep.rewards"):
        if point.name not in builtin:
            factory = point.load()
            found[point.name] = {
                "version": registered_modes().get(point.name, "0"),
                "env_kinds": list(getattr(factory, "env_kinds", ("morphogenesis",))),
                "schema": getattr(factory, "schema", {}),
            }
    return found


def environments() -> dict[str, dict[str, Any]]:
    """Return environment kinds and registered environments beyond morphogenesis."""
    found: dict[str, dict[str, Any]] = {}
    if importlib.util.find_spec("gymnasium") is not None:
        found["gymnasium"] = {}
    for point in entry_points(group="lockstep.environments"):
        found[point.name] = getattr(point.load(), "schema", {})
    return found
