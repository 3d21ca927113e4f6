"""The desk at which the claims of this process wait for work: one look at the database serves all of them.

Every commit may be news for somebody who waits. Were each claim to ask for itself, a thousand idle workers would make a
thousand transactions of every round that one busy worker hands in, and hold the places of those who cannot wait. So
claims wait in the event loop, and one task asks for all of them, on the one place of the lane that is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.lanes import Way
from app.services.context import Context
from app.services.operations import METRICS
from app.services.queue import claims
from app.store.database.opening import is_busy
from lockstep.logs import get_logger
from lockstep.protocol import Assignment

AnswerT = TypeVar("AnswerT")
_log = get_logger("claims")
#: A burst of commits settles into one look.
_PAUSE_SECONDS = 0.02
#: For so long a claim waits to be looked at once, even where it asked to wait for less.
_FIRST_LOOK_SECONDS = 25.0
#: Workers that are told in one transaction.
_TOLD_AT_ONCE = 50


class _Waiting:
    """A claim that waits.

    Args:
        worker_id: whose.
    """

    def __init__(self, worker_id: str) -> None:
        self.worker_id, self.answer = worker_id, asyncio.Future[Assignment | None]()
        self.looked_at, self._came = asyncio.Event(), time.monotonic()

    def note_look(self) -> None:
        """It has been looked at, and there is nothing for it yet."""
        if not self.looked_at.is_set():
            self.looked_at.set()
            METRICS.claim_seconds.observe(time.monotonic() - self._came)

    def end(self, answer: claims.Answer | Exception | None) -> None:
        """Answer it, unless it has given up."""
        self.note_look()
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class Desk:
    """Where claims wait; used by one event loop.

    Args:
        way: its place in the lane of workers.
    """

    def __init__(self, way: Way) -> None:
        self._ctx, self._gate = way.ctx, way.gate
        self._waiting: dict[_Waiting, None] = {}
        self._came = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """How many claims have been looked at and wait."""
        return sum(one.looked_at.is_set() for one in self._waiting)

    async def wait(self, worker_id: str, seconds: float) -> Assignment | None:
        """Return what there is for a worker, or None after so many seconds or when the server stops.

        Raises:
            AppError: the worker is to go.
        """
        me = _Waiting(worker_id)
        self._waiting[me] = None
        self._came.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_for_all())
        try:
            await asyncio.wait([me.answer], timeout=seconds)
            if not (me.answer.done() or me.looked_at.is_set()):
                await self._first_look(me, _FIRST_LOOK_SECONDS - seconds)
            return me.answer.result() if me.answer.done() else None
        finally:
            del self._waiting[me]
            me.answer.cancel()

    @staticmethod
    async def _first_look(me: _Waiting, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await me.looked_at.wait()

    async def _look_for_all(self) -> None:
        """Look when a claim comes, at every ring of the bell and every tick, for as long as anybody waits."""
        with self._ctx.bell.listening() as rung:
            while self._waiting:
                self._came.clear()
                rung.clear()
                if await self._look():
                    continue
                await self._news(rung)

    async def _news(self, rung: asyncio.Event) -> None:
        """Wait for a claim, or for a ring of the bell and those that follow it at once; a tick at the longest."""
        events = [asyncio.create_task(event.wait()) for event in (self._came, rung)]
        await asyncio.wait(events, timeout=self._ctx.settings.tick_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in events:
            task.cancel()
        if rung.is_set() and not self._came.is_set():
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _look(self) -> bool:
        """Look once for everybody who waits now; return whether to look again at once."""
        looked_for = list(self._waiting)
        if self._ctx.bell.is_closed:
            for one in looked_for:
                one.end(None)
            return False
        try:
            found = await self._ask(claims.look, [one.worker_id for one in looked_for])
            self._answer(looked_for, found.answers)
            for first in range(0, len(found.others), _TOLD_AT_ONCE):
                told = await self._ask(claims.tell, found.others[first : first + _TOLD_AT_ONCE])
                self._answer(looked_for, told)
        except Exception as error:
            _log.warning("no look for those who wait for work", reason=type(error).__name__)
            for one in looked_for if not is_busy(error) else []:  # who waits may wait for a place of the store too
                one.end(error.with_traceback(None))
            return False
        for one in looked_for:
            one.note_look()
        return found.goes_on

    async def _ask(self, act: Callable[[Context, Sequence[str]], AnswerT], worker_ids: Sequence[str]) -> AnswerT:
        return await self._gate.run(act, self._ctx, list(dict.fromkeys(worker_ids)))

    @staticmethod
    def _answer(looked_for: Sequence[_Waiting], answers: claims.Answers) -> None:
        for one in looked_for:
            if one.worker_id in answers:
                one.end(answers[one.worker_id])
