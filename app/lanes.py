"""Lanes: calls of workers and calls of people, each with threads and connections of its own.

A call that waits for a connection holds a thread, and threads are what all calls share: were one lane to take them all,
heartbeats would wait behind pages although they have connections to spare. So each lane lets in no more calls at a time
than it has connections; the others wait in the event loop, where waiting costs nobody anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from app.errors import BusyError
from app.services.context import Context
from app.store.engine import Lane

ArgumentsP = ParamSpec("ArgumentsP")
ResultT = TypeVar("ResultT")
#: Key of a connection's scope: the lane of its route; without one it is for people.
LANE = "lockstep_lane"
_PASSES = "lockstep_passes"
_WAIT_SECONDS = 30.0
#: Threads beside those of the lanes, for what needs no database.
_SPARE_THREADS = 16


class Gate:
    """Lets in so many calls at a time, in order of arrival.

    Args:
        lane: whose it is.
        places: calls at a time.
    """

    def __init__(self, lane: Lane, places: int) -> None:
        self._lane, self._limiter = lane, CapacityLimiter(places)
        self._threads = CapacityLimiter(inf)  # what passes the gate is bounded by it

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold a place for the block.

        Raises:
            BusyError: none became free within half a minute.
        """
        me = object()
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._limiter.acquire_on_behalf_of(me)
        except TimeoutError:
            setting = f"LOCKSTEP_POOL_{self._lane.upper()}"
            told = f"{self._limiter.total_tokens:g} calls for {self._lane} are being answered ({setting})"
            raise BusyError(f"{told} and none ended within {_WAIT_SECONDS:g} s; try again") from None
        try:
            yield
        finally:
            self._limiter.release_on_behalf_of(me)

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
        self.workers = Way(workers, Gate("workers", pools.workers - 1))
        self.people = Way(ctx.on("people"), Gate("people", pools.people))
        #: One place of the lane is the desk's, where all claims of this process wait (``app.claiming``).
        self.claims = Way(workers, Gate("workers", 1))
        threads = to_thread.current_default_thread_limiter()
        threads.total_tokens = max(threads.total_tokens, pools.workers + pools.people + _SPARE_THREADS)


def way_of(connection: HTTPConnection) -> Way:
    """Return the lane of a call."""
    lanes: Lanes = connection.app.state.lanes
    return lanes.workers if connection.scope.get(LANE) == "workers" else lanes.people


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
