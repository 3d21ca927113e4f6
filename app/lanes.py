"""Lanes: calls of workers and calls of people, each with threads and connections of its own.

A call that waits for a connection holds a thread, and threads are what all calls share: were one lane to take them all,
heartbeats would wait behind pages although they have connections to spare. So each lane lets in no more calls at a time
than it has connections; the others wait in the event loop, where waiting costs nobody anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from app.errors import BusyError
from app.services.context import Context
from app.store.database.engine import Lane

ArgumentsP = ParamSpec("ArgumentsP")
ResultT = TypeVar("ResultT")
#: Key of a connection's scope: the lane of its route; without one it is for people.
LANE = "lockstep_lane"
_PASSES = "lockstep_passes"
#: One place is for heartbeats alone to so many of the lane.
_BEATS_SHARE = 3
_WAIT_SECONDS = 30.0
#: Threads beside those of the lanes, for what needs no database.
_SPARE_THREADS = 16


class Line:
    """Who waits for one of so many places, in order of arrival; some places are not for everybody.

    Args:
        places: calls at a time.
        kept: how many of these are for the urgent alone, who may take any.
    """

    def __init__(self, places: int, kept: int = 0) -> None:
        self.places, self._free, self._common = places, places, places - kept
        self._waiting: dict[bool, deque[tuple[int, asyncio.Future[None]]]] = {True: deque(), False: deque()}
        self._arrivals = count()

    async def enter(self, *, urgent: bool) -> None:
        """Wait for a place and take it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting[urgent].append((next(self._arrivals), turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place came with the cancel
                self.leave(urgent=urgent)
            raise

    def leave(self, *, urgent: bool) -> None:
        """Give a place back."""
        self._free += 1
        self._common += not urgent
        self._admit()

    def _admit(self) -> None:
        while self._free:
            heads = [kind for kind in (True, False) if self._head(urgent=kind) and (kind or self._common)]
            if not heads:
                return
            urgent = min(heads, key=lambda kind: self._waiting[kind][0][0])
            _, turn = self._waiting[urgent].popleft()
            turn.set_result(None)
            self._free -= 1
            self._common -= not urgent

    def _head(self, *, urgent: bool) -> bool:
        """Say whether somebody waits; who has gone is forgotten."""
        line = self._waiting[urgent]
        while line and line[0][1].done():
            line.popleft()
        return bool(line)


class Gate:
    """Lets calls of one kind in.

    Args:
        lane: whose it is.
        line: where they wait.
        urgent: whether places kept for the urgent are theirs too.
    """

    def __init__(self, lane: Lane, line: Line, *, urgent: bool = False) -> None:
        self._lane, self._line, self._urgent = lane, line, urgent
        self._threads = CapacityLimiter(inf)  # what passes the gate is bounded by it

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold a place for the block.

        Raises:
            BusyError: none became free within half a minute.
        """
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._line.enter(urgent=self._urgent)
        except TimeoutError:
            setting = f"LOCKSTEP_POOL_{self._lane.upper()}"
            told = f"{self._line.places} calls for {self._lane} are being answered ({setting})"
            raise BusyError(f"{told} and none ended within {_WAIT_SECONDS:g} s; try again") from None
        try:
            yield
        finally:
            self._line.leave(urgent=self._urgent)

    async def run(
        self, act: Callable[ArgumentsP, ResultT], *given: ArgumentsP.args, **named: ArgumentsP.kwargs
    ) -> ResultT:
        """Run a function in a thread, on a place of its own.

        Raises:
            BusyError: as ``passing``.
        """
        async with self.passing():
            return await to_thread.run_sync(partial(act, *given, **named), limiter=self._threads)


@dataclass(frozen=True)
class Way:
    """A lane as a route meets it: the parts of use cases with its connections, and its gate."""

    ctx: Context
    gate: Gate


class Lanes:
    """The two lanes that calls come by; exports have connections too, and threads of their own.

    Args:
        ctx: of the process.
    """

    def __init__(self, ctx: Context) -> None:
        pools = ctx.settings.pools
        workers = ctx.on("workers")
        line = Line(pools.workers - 1, kept=(pools.workers - 1) // _BEATS_SHARE)
        self.workers = Way(workers, Gate("workers", line))
        self.people = Way(ctx.on("people"), Gate("people", Line(pools.people)))
        #: Others may wait for a row that somebody holds, a crowd of them for one: heartbeats keep places of their own.
        self.beats = Way(workers, Gate("workers", line, urgent=True))
        #: One place of the lane is the desk's, where all claims of this process wait (``app.claiming``).
        self.claims = Way(workers, Gate("workers", Line(1)))
        threads = to_thread.current_default_thread_limiter()
        threads.total_tokens = max(threads.total_tokens, pools.workers + pools.people + _SPARE_THREADS)


def way_of(connection: HTTPConnection) -> Way:
    """Return the lane of a call."""
    lanes: Lanes = connection.app.state.lanes
    match connection.scope.get(LANE):
        case "workers":
            return lanes.workers
        case "beats":
            return lanes.beats
    return lanes.people


@asynccontextmanager
async def passing(connection: HTTPConnection) -> AsyncIterator[None]:
    """Hold a place of the call's lane for the block."""
    async with way_of(connection).gate.passing():
        connection.scope[_PASSES] = True
        yield


async def in_lane(
    connection: HTTPConnection, act: Callable[ArgumentsP, ResultT], *given: ArgumentsP.args, **named: ArgumentsP.kwargs
) -> ResultT:
    """Run a function in a thread, on the place that the call holds, else on one for this function alone."""
    if _PASSES in connection.scope:
        return await run_in_threadpool(act, *given, **named)
    return await way_of(connection).gate.run(act, *given, **named)
