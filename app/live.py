"""The live hub: one tailing task per process, one read per tick, a bounded buffer per reader.

A reader never slows the tail or another reader: beyond its buffer deltas are dropped and it is told
(``lagged``); status, truncate and end frames are never dropped. No reader holds a database session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from app.lanes import Way
from app.services.context import Context
from app.services.experiments import live
from app.services.experiments.live import Batch, Interest, Position
from app.services.operations import METRICS, server_epoch
from app.store.database.opening import why_away
from lockstep.logs import get_logger

MAX_BUFFER_BYTES = 256 * 1024
#: What is committed within so short a time of the first ring travels together.
_GATHER_SECONDS = 0.02
#: Another process may have written and its notice been lost: so often it is looked in any case.
_LOOK_SECONDS = 1.0
_log = get_logger("live")


@dataclass(eq=False)
class Reader:
    """One subscriber of one experiment; those of one interest that have seen the same share their position."""

    experiment_id: str
    interest: Interest
    position: Position
    ready: bool = False
    lagged: bool = False
    closed: bool = False
    size: int = 0
    outbox: deque[tuple[str, str]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, kind: str, text: str) -> None:
        """Queue a serialised frame; a delta beyond the buffer is dropped and remembered."""
        if kind == "delta" and (self.lagged or self.size + len(text) > MAX_BUFFER_BYTES):
            if not self.lagged:
                METRICS.lagged_frames.inc()
            self.lagged = True
            return
        self.outbox.append((kind, text))
        self.size += len(text)
        self.wake.set()

    def take(self) -> str | None:
        """Return the next frame, a ``lagged`` frame once the buffer has drained, or None."""
        if self.outbox:
            _, text = self.outbox.popleft()
            self.size -= len(text)
            return text
        if self.lagged:
            self.lagged = False
            return dump({"type": "lagged", "cursor": self.position.cursor()})
        return None


def dump(frame: dict[str, Any]) -> str:
    """Serialise a frame as strict JSON."""
    return json.dumps(frame, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


class Hub:
    """Tails the store for all readers of this process."""

    def __init__(self, way: Way) -> None:
        self._ctx, self._gate = way.ctx, way.gate
        self._readers: dict[str, set[Reader]] = {}
        self._positions: dict[str, Position] = {}
        self._task: asyncio.Task[None] | None = None
        self.stopping = asyncio.Event()
        self._epoch: str | None = None

    def start(self) -> None:
        """Start the tailing task in the running loop."""
        self._task = asyncio.create_task(self._tail(), name="live-tail")

    async def stop(self) -> None:
        """Tell every reader to leave and end the tail."""
        self.stopping.set()
        for readers in self._readers.values():
            for reader in readers:
                reader.closed = True
                reader.wake.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def num_readers(self) -> int:
        """How many readers are subscribed."""
        return sum(len(readers) for readers in self._readers.values())

    async def open(self, experiment_id: str, interest: Interest, after: str | None) -> Reader:
        """Subscribe from a cursor, or from a snapshot when there is none.

        A reader that goes away while it catches up leaves nothing behind.
        """
        position = Position.parse(after) if after is not None else Position()
        reader = Reader(experiment_id, interest, position)
        try:
            await self._bring_up(reader, from_snapshot=after is None)
        except BaseException:  # the store is away, or the client: its task is cancelled
            self.close(reader)
            raise
        return reader

    async def _bring_up(self, reader: Reader, *, from_snapshot: bool) -> None:
        """Read what the reader has missed; it is registered before the last of it is read, so nothing falls between.

        What it reads and what the tail brings may overlap: that is dropped by its sequence number.
        """
        name = reader.experiment_id
        if from_snapshot:
            frame, reader.position = await self._gate.run(live.snapshot, self._ctx, name, reader.interest)
            reader.push("snapshot", dump(frame))
        await self._catch_up(reader)
        self._readers.setdefault(name, set()).add(reader)
        place = self._positions.setdefault(name, reader.position.copy())
        while not reader.position.covers(place):
            await self._catch_up(reader)
        reader.ready = True  # nothing awaits between the check and this line: no batch falls between
        await self._end_if_over(reader)

    def close(self, reader: Reader) -> None:
        """Unsubscribe."""
        reader.closed = True
        reader.wake.set()
        readers = self._readers.get(reader.experiment_id, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(reader.experiment_id, None)
            self._positions.pop(reader.experiment_id, None)

    async def follow(self, reader: Reader) -> AsyncIterator[str]:
        """Yield serialised frames until the reader is closed."""
        while not reader.closed or reader.outbox:
            text = reader.take()
            if text is not None:
                yield text
                continue
            if reader.closed:
                return
            reader.wake.clear()
            if not reader.outbox and not reader.closed:
                await reader.wake.wait()

    async def _catch_up(self, reader: Reader) -> None:
        more = True
        while more and not reader.closed:
            batch = await self._gate.run(live.read_batch, self._ctx, reader.experiment_id, reader.position)
            _deliver(reader, batch)
            more = batch.more

    async def _end_if_over(self, reader: Reader) -> None:
        """A reader that comes after the end is told so, also when its cursor lies behind the event."""
        frame = await self._gate.run(live.last_end, self._ctx, reader.experiment_id)
        if frame is not None and not any(kind == "end" for kind, _ in reader.outbox):
            reader.push("end", dump({**frame, "cursor": reader.position.cursor()}))

    async def _tail(self) -> None:
        """Tick after a ring, soon if the last tick was long ago; a ring during a tick makes the next one."""
        clock, period = asyncio.get_running_loop().time, 1.0 / self._ctx.settings.live_hz
        due = clock()
        with self._ctx.bell.listening() as rung:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await rung.wait()
                await asyncio.sleep(max(_GATHER_SECONDS, due - clock()))
                due = clock() + period
                rung.clear()
                if await self._ticked():
                    rung.set()

    async def _ticked(self) -> bool:
        """Tick; return whether there is more to read at once."""
        try:
            return await self._tick()
        except Exception as error:
            # the store may be away for a while; readers keep their positions and nothing is lost
            reason = why_away(error)
            if reason is not None:
                _log.warning("the database does not answer; live streams wait for it", reason=reason)
            else:
                _log.exception("live tail failed; it goes on")
            return False

    async def _tick(self) -> bool:
        watched = {name: position for name, position in self._positions.items() if self._readers.get(name)}
        if not watched:
            return False
        batches, epoch = await self._gate.run(_read_all, self._ctx, watched)
        if self._epoch is not None and epoch != self._epoch:
            self._resync()
        self._epoch = epoch
        for experiment_id, batch in batches.items():
            self._spread(experiment_id, batch)
        return any(batch.more for batch in batches.values())

    def _spread(self, experiment_id: str, batch: Batch) -> None:
        hub_position = self._positions.get(experiment_id)
        if hub_position is None:
            return
        groups: dict[int, list[Reader]] = {}
        for reader in self._readers.get(experiment_id, ()):
            if reader.ready:
                groups.setdefault(id(reader.position), []).append(reader)
        made: dict[tuple[Interest, str], tuple[Position, list[tuple[str, str]]]] = {}
        for readers in groups.values():
            position, interest = readers[0].position, readers[0].interest
            key = (interest, position.cursor())
            if key not in made:
                frames = live.frames_of(batch, position, interest)
                made[key] = (position, [(frame["type"], dump(frame)) for frame in frames])
            position, texts = made[key]
            for reader in readers:
                reader.position = position  # who wants and has seen the same goes on as one: a frame is made once
                for kind, text in texts:
                    reader.push(kind, text)
        live.advance(hub_position, batch)

    def _resync(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.position = Position()
                reader.push("resync", dump({"type": "resync"}))


def _deliver(reader: Reader, batch: Batch) -> None:
    for frame in live.frames_of(batch, reader.position, reader.interest, live=False):
        reader.push("catch_up" if frame["type"] == "delta" else frame["type"], dump(frame))


def _read_all(ctx: Context, positions: dict[str, Position]) -> tuple[dict[str, Batch], str]:
    batches = {}
    for experiment_id, position in positions.items():
        batch = live.read_batch(ctx, experiment_id, position)
        if batch.events or batch.points:
            batches[experiment_id] = batch
    return batches, server_epoch(ctx)
