"""Running a coroutine from a test: in a thread of its own, for a browser in this process keeps a loop running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def awaited(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what a coroutine returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
