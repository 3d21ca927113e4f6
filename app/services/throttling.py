"""How often one address may fail to log in."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_SECONDS = 60.0
#: Addresses that are remembered; beyond it those that failed longest ago are forgotten.
_MAX_ADDRESSES = 10_000


class Throttle:
    """Counts failures by address over the last minute, in this process: of each address the last ``limit`` ones.

    Args:
        limit: failures after which an address has to wait.
        clock: monotonic seconds.
    """

    def __init__(self, limit: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def wait(self, address: str) -> float:
        """Return for how many seconds an address may not try again, 0 when it may."""
        with self._lock:
            times = self._failures.get(address, deque())
            return max(0.0, times[0] + _SECONDS - self._clock()) if len(times) == self._limit else 0.0

    def failed(self, address: str) -> None:
        """Note a failure of an address."""
        with self._lock:
            times = self._failures.pop(address, deque(maxlen=self._limit))
            times.append(self._clock())
            self._failures[address] = times  # at the end: the newest
            if len(self._failures) > _MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]
