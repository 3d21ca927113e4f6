"""Background tasks of the server process: the scheduling tick, the sweep, reports of what has ended, webhooks.

A thread each: building a report may take seconds, as may a receiver, and the sweep must keep its rhythm meanwhile.
All they do is idempotent and guarded in the database, so that any number of API processes may run them and a crash
at any line loses nothing. The sweep, which looks at everything, is one process's at a time
(app.services.queue.leading).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from app.delivery import Courier
from app.services import disks, retention
from app.services.context import Context
from app.services.operations import METRICS
from app.services.queue import leading, scheduling, sharing
from app.services.results import finishing
from app.services.training import sweeping
from app.store.database.opening import why_away
from lockstep.logs import get_logger

_log = get_logger("background")
#: Between two looks for what need not be kept.
_UPKEEP_SECONDS = 300.0
#: A duty that takes longer is left: its transaction is undone with its connection, and another process does it again.
_JOIN_SECONDS = 0.5


class BackgroundTasks:
    """The threads of periodic work, each at one thing at a time: sweep and schedule, build reports, send."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._slow = ctx, ctx.on("exports")
        self._swept = self._ticked = self._kept_up = float("-inf")
        self._courier = Courier(self._slow)
        self._me = secrets.token_hex(8)
        self._loops = [
            _Loop(ctx, "queue", self._sweep_and_tick),
            _Loop(ctx, "reports", self._finish),
            _Loop(ctx, "webhooks", self._send),
            _Loop(ctx, "upkeep", self._keep_up),
        ]

    def start(self) -> None:
        """Start the threads."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """End the threads, wait a little for them, and give the sweep to another process."""
        self._courier.ask_to_stop()
        for loop in self._loops:
            loop.ask_to_stop()
        for loop in self._loops:
            loop.join()
        try:
            leading.resign(self._ctx, self._me)
        except Exception as error:  # the next leader waits until this one's term is over
            _log.warning("the sweep was not handed over", reason=why_away(error) or repr(error))

    def _sweep_and_tick(self) -> None:
        now = time.monotonic()
        if now - self._swept >= self._ctx.settings.sweep_seconds:
            if leading.is_leader(self._ctx, self._me):
                METRICS.lease_expiries.inc(sweeping.sweep(self._ctx))
                sharing.share(self._ctx)
            disks.announce(self._ctx)
            self._swept = now
        if now - self._ticked >= self._ctx.settings.tick_seconds:
            scheduling.tick(self._ctx)
            self._ticked = now

    def _keep_up(self) -> None:
        now = time.monotonic()
        if now - self._kept_up < _UPKEEP_SECONDS:
            return
        self._kept_up = now
        if leading.is_leader(self._ctx, self._me):
            while retention.purge(self._slow):
                pass
        METRICS.freed_bytes.inc(retention.collect_files(self._slow))
        self._slow.store.bound_log()

    def _finish(self) -> None:
        finishing.finish_due(self._slow)

    def _send(self) -> None:
        self._courier.send_due()


class _Loop:
    """A thread that acts at every ring of the bell, at least every tick, at most every 50 ms."""

    def __init__(self, ctx: Context, name: str, act: Callable[[], None]) -> None:
        self._period = min(ctx.settings.tick_seconds, ctx.settings.sweep_seconds)
        self._act = act
        self._rung = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        ctx.bell.subscribe(self._rung)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()
        self._rung.set()

    def join(self) -> None:
        self._thread.join(timeout=_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._act()
            except Exception as error:
                # the database may be away; the work is idempotent and is done again
                METRICS.database_errors.inc()
                reason = why_away(error)
                if reason is not None:
                    _log.warning("the database does not answer; background work waits for it", reason=reason)
                else:
                    _log.exception("a duty failed; it is done again")
                self._stop.wait(1.0)
            self._rung.wait(self._period)
            self._rung.clear()
            self._stop.wait(0.05)
