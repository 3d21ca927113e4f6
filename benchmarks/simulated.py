"""What benchmarks of the statistics share: rates from simulation, kept as JSON with the versions that made them."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy

Result = TypeVar("Result")


def each_on_its_core(function: Callable[[int], Result], places: list[int]) -> Iterator[tuple[int, Result]]:
    """Yield (place, result) as they come, one process a core; a result hangs on its place alone, so order is free."""
    cores = len(os.sched_getaffinity(0))
    # forked, so that the function need not be pickled: it may close over anything
    with ProcessPoolExecutor(cores, multiprocessing.get_context("fork"), _take, (function,)) as pool:
        running = {pool.submit(_result, place): place for place in places}
        for done in as_completed(running):
            yield running[done], done.result()


_taken: list[Callable[[int], Any]] = []


def _take(function: Callable[[int], Any]) -> None:
    _taken[:] = [function]


def _result(place: int) -> Any:
    return _taken[0](place)


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
