"""What benchmarks of the statistics share: rates from simulation, kept as JSON with the versions that made them."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy


def write_rates(path: Path, about: str, seconds: float, **rows: list[dict[str, Any]]) -> None:
    """Write rows under their name, with what they are about and the seconds that they took."""
    document = {
        "about": about,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "lockstep": version("lockstep"),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "python": platform.python_version(),
        },
        "seconds": round(seconds, 1),
        **rows,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
