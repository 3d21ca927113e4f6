"""Workers that wait for work in this process: one look at the database serves all of them.

Every commit may be news for somebody who waits. Were each of them to ask for itself, a thousand idle workers would make
a thousand transactions of every round that one busy worker hands in.
"""

from __future__ import annotations

import asyncio
import contextlib

from app.lanes import Way
from app.services import scheduling
from lockstep.logs import get_logger

_log = get_logger("claims")
#: A burst of commits settles into one look.
_PAUSE_SECONDS = 0.02


class Desk:
    """Where claims wait; used by one event loop.

    Args:
        way: the lane of workers.
    """

    def __init__(self, way: Way) -> None:
        self._ctx, self._gate = way.ctx, way.gate
        self._waiting: dict[asyncio.Event, str] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """How many claims wait."""
        return len(self._waiting)

    async def wait(self, worker_id: str, seconds: float) -> None:
        """Return once there may be something to tell a worker, at the latest after so many seconds."""
        called = asyncio.Event()
        self._waiting[called] = worker_id
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await called.wait()
        finally:
            del self._waiting[called]

    async def _look(self) -> None:
        """Look at every ring of the bell and every tick, for as long as anybody waits."""
        with self._ctx.bell.listening() as rung:
            while self._waiting:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._ctx.settings.tick_seconds):
                        await rung.wait()
                await asyncio.sleep(_PAUSE_SECONDS)
                rung.clear()
                await self._call()

    async def _call(self) -> None:
        """Wake those for whom there is something; everybody when the server stops or the database does not answer."""
        waiting = set(self._waiting.values())
        called = waiting
        if not self._ctx.bell.is_closed:
            try:
                called = await self._gate.run(scheduling.called, self._ctx, waiting)
            except Exception as error:  # each of them finds out by its own question, and is answered
                _log.warning("no look for those who wait for work", reason=type(error).__name__)
        for event, worker_id in self._waiting.items():
            if worker_id in called:
                event.set()
