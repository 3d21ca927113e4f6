"""Exports as they are written, each into a file without a name, for all who asked for the same before that began.

A thread writes, and it alone uses the database; readers follow the file, each at a pace of its own. Whoever asks while
the same export waits for its turn shares it: what is read from the database is read later than that, so it is as new
as an export of one's own, and a hundred who ask at once cost the server one file rather than a hundred, one by one.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from starlette.concurrency import run_in_threadpool

#: Writes an export; ends early when its event is set.
Write = Callable[[BinaryIO, threading.Event], None]
#: Exports that are written at once. Two take turns at the interpreter and take as long as one after the other, while
#: they and what answers them in the database leave other requests no processor: on two cores, with 12 stalled
#: readers, their p99 was 302 ms with two writers and 130 ms with one.
_WRITERS = 1
_CHUNK_BYTES = 64 * 1024
_POLL_SECONDS = 0.1


class Export:
    """One export and its file; used by one event loop, but for the thread that writes.

    Args:
        write: writes the file.
        writers: run ``write``.
        folder: where the file lies.
    """

    def __init__(self, write: Write, writers: Executor, folder: Path) -> None:
        self.num_readers, self.has_begun = 0, False
        self._write, self._stop = write, threading.Event()
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - ``end`` closes it
        self._job = writers.submit(self._fill)
        self._written = asyncio.wrap_future(self._job)

    def _fill(self) -> None:
        self.has_begun = True  # before anything is read: who asks from now on may have seen what this will lack
        self._loop.call_soon_threadsafe(self._begun.set_result, None)
        if not self._stop.is_set():
            self._write(self._file, self._stop)
            self._file.flush()

    async def read(self, position: int) -> bytes:
        """Return what follows a position as soon as it is there, nothing at the end; raise what the writer raised."""
        # who waits for a turn looks at no file: three hundred of them would keep the event loop from everybody else
        await asyncio.wait((self._begun, self._written), return_when=asyncio.FIRST_COMPLETED)
        while True:
            is_whole = self._written.done()  # asked first: what is written after this is read in the next turn
            chunk = await run_in_threadpool(os.pread, self._file.fileno(), _CHUNK_BYTES, position)
            if chunk:
                return chunk
            if is_whole:
                self._written.result()
                return b""
            await asyncio.wait((self._written,), timeout=_POLL_SECONDS)

    async def end(self) -> None:
        """Tell the thread, wait for it, and close the file."""
        self._stop.set()
        self._job.cancel()  # which leaves a job that has begun: it is waited for
        try:
            await asyncio.gather(self._written, return_exceptions=True)
        finally:
            self._file.close()


class Exports:
    """The exports of this process that somebody reads, or waits for."""

    def __init__(self) -> None:
        self._writers = ThreadPoolExecutor(_WRITERS, "export")
        self._newest: dict[Hashable, Export] = {}

    @asynccontextmanager
    async def reading(self, what: Hashable, write: Write, folder: Path) -> AsyncIterator[Export]:
        """Hold an export for the block; the last who leaves it ends it.

        Args:
            what: names its content; who asks for the same may get the same file.
            write: writes it.
            folder: where the file lies.
        """
        export = self._newest.get(what)
        if export is None or export.has_begun:
            export = self._newest[what] = Export(write, self._writers, folder)
        export.num_readers += 1
        try:
            yield export
        finally:
            export.num_readers -= 1
            if not export.num_readers:
                if self._newest.get(what) is export:
                    del self._newest[what]
                await export.end()

    def stop(self) -> None:
        """Let no further export begin."""
        self._writers.shutdown(wait=False, cancel_futures=True)
