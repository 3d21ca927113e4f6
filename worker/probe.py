"""What this installation can do, asked in a process of its own so that the supervisor stays light.

``python -m worker.probe devices`` lists GPUs as the CUDA runtime sees them; ``abilities`` lists data
sets with fingerprints, registered rewards and environments, and versions. JSON on standard output.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from worker.train.abilities import datasets, environments, rewards

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


def abilities(data_dir: Path | None) -> dict[str, Any]:
    """Return what may be assigned to a worker of this installation."""
    return {
        "datasets": datasets(data_dir),
        "rewards": rewards(),
        "environments": environments(),
        "versions": versions(),
    }


def main() -> None:
    """Print what is asked for."""
    directory = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    found = devices() if sys.argv[1] == "devices" else abilities(directory)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
