"""What every use case is given: store, settings, files, and the bell that wakes waiting calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from app.services.artifacts import FileStore
from app.services.throttling import Throttle
from app.settings import Settings
from app.store.database.engine import Lane, Store
from app.store.records.points import MetricNames


class Bell:
    """Wakes long-polls and the live hub of this process after a commit; a hint, never the truth."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._threads: set[threading.Event] = set()
        self._heralds: set[threading.Event] = set()
        self._is_closed = False
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def is_closed(self) -> bool:
        """Whether the server stops, so that nobody should wait any more."""
        return self._is_closed

    def close(self) -> None:
        """Wake everybody for the last time: who asks from now on does not wait."""
        self._is_closed = True
        self.wake()

    def ring(self) -> None:
        """Wake everybody after a commit of this process, and have the other ones told; callable from any thread."""
        with self._lock:
            heralds = list(self._heralds)
        for herald in heralds:
            herald.set()
        self.wake()

    def wake(self) -> None:
        """Wake everybody in this process; callable from any thread."""
        with self._lock:
            waiters, self._waiters = self._waiters | self._listeners, set()
            threads = list(self._threads)
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
        for thread_event in threads:
            thread_event.set()

    async def wait(self, seconds: float) -> None:
        """Wait for the next ring, at most ``seconds``."""
        if self._is_closed:
            return
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiters.add(entry)
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiters.discard(entry)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Yield an event of the running loop that every ring sets, also one that comes while nobody waits for it."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            self._listeners.add(entry)
        try:
            yield event
        finally:
            with self._lock:
                self._listeners.discard(entry)

    def subscribe(self, event: threading.Event) -> None:
        """Set ``event`` whenever everybody is woken."""
        with self._lock:
            self._threads.add(event)

    def herald(self, event: threading.Event) -> None:
        """Set ``event`` at every ring of this process, for who tells the other ones."""
        with self._lock:
            self._heralds.add(event)


@dataclass(frozen=True)
class Context:
    """The parts a use case works with."""

    store: Store
    settings: Settings
    files: FileStore
    names: MetricNames
    bell: Bell
    logins: Throttle = field(default_factory=Throttle)

    def on(self, lane: Lane) -> Context:
        """Return the same parts with the connections of a lane."""
        return replace(self, store=self.store.on(lane))


@dataclass(frozen=True)
class Actor:
    """Who asks.

    Attributes:
        name: how events and lists call them; two may have the same.
        role: for rights.
        request_id: for the record.
        identity: who they are, for ownership; None: the name, which is one of this program's own.
        key: idempotency key of the request.
    """

    name: str
    role: str
    request_id: str = "-"
    identity: str | None = None
    key: str | None = None

    @property
    def principal(self) -> str:
        """Who they are: what experiments, idempotency keys and a share of the devices belong to."""
        return self.name if self.identity is None else self.identity

    def may_steer(self, owner: str) -> bool:
        """Return whether the actor may change an experiment of ``owner``."""
        return self.role in ("operator", "admin", "local") or (self.role == "submitter" and self.principal == owner)
