"""Which code of the user's a training process is in, told through a small file that the process maps.

A process that hangs in an environment or a reward says nothing any more; its supervisor reads here whose code it is
in, and the hang is blamed on that. What is written costs three stores a step of an environment; until a file is
shared it goes to ordinary memory. One writer, the thread that trains. No torch: the supervisor imports this.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: What the first word says; the other two are the number of an environment and the step of its episode.
OUTSIDE, WORK, STEP, RESET = 0, 1, 2, 3
_HEAD, _SIZE = 24, 512


class Inside:
    """The place where this process says in whose code it is.

    Attributes:
        cells: what it is doing, and for a step or reset which environment and which step of its episode.
    """

    def __init__(self) -> None:
        self.enter(memoryview(bytearray(_SIZE)))

    def enter(self, place: memoryview) -> None:
        """Write to a place from now on: a process that trains several blocks has one for each."""
        self.cells, self._text = place[:_HEAD].cast("q"), place[_HEAD:]

    @contextmanager
    def doing(self, work: str) -> Iterator[None]:
        """Say that code of the user's does ``work``; inside of other such work that one stands."""
        cells = self.cells
        if cells[0] == OUTSIDE:
            told = work.encode()[: _SIZE - _HEAD]
            self._text[:] = told.ljust(_SIZE - _HEAD, b"\0")
            cells[0] = WORK
            try:
                yield
            finally:
                cells[0] = OUTSIDE
        else:
            yield


def shared(path: Path) -> memoryview:
    """Return a place that others read as a file; it is made anew."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.ftruncate(handle, _SIZE)
        return memoryview(mmap.mmap(handle, _SIZE))
    finally:
        os.close(handle)


#: Of this process.
INSIDE = Inside()


def read(path: Path, environment: str) -> str:
    """Return which code of the user's the writer of a file is in, in words; empty when it is in none, or there is none.

    Args:
        path: what the training process shares.
        environment: name of the environment that it trains in.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    if len(content) < _SIZE:
        return ""
    kind, number, step = memoryview(content)[:_HEAD].cast("q")
    if kind == WORK:
        return content[_HEAD:].rstrip(b"\0").decode(errors="replace").replace("\0", "")
    places = {STEP: f"in step {step} of its episode", RESET: "in reset"}
    return f"environment {environment!r} (number {number}) {places[kind]}" if kind in places else ""
