"""Duties of the server process: the scheduling tick, the sweep, and reports of what has ended.

One thread. Everything it does is idempotent and guarded in the database, so that any number of API
processes may run it and a crash at any line loses nothing.
"""

from __future__ import annotations

import threading
import time

from app.logs import get_logger
from app.services import finishing, scheduling, sweeping
from app.services.context import Context
from app.services.operations import METRICS

_log = get_logger("duties")


class Duties:
    """The thread of periodic duties."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._rung = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duties", daemon=True)
        ctx.bell.subscribe(self._rung)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._rung.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        swept = ticked = float("-inf")
        while not self._stop.is_set():
            now = time.monotonic()
            try:
                if now - swept >= self._ctx.settings.sweep_seconds:
                    METRICS.lease_expiries.inc(sweeping.sweep(self._ctx))
                    swept = now
                if now - ticked >= self._ctx.settings.tick_seconds:
                    scheduling.tick(self._ctx)
                    ticked = now
                finishing.finish_due(self._ctx)
            except Exception:
                # the database may be away; duties are idempotent and are done again
                METRICS.database_errors.inc()
                _log.exception("a duty failed; it is done again")
                self._stop.wait(1.0)
            self._rung.wait(min(self._ctx.settings.tick_seconds, self._ctx.settings.sweep_seconds))
            self._rung.clear()
            self._stop.wait(0.05)
