"""A bounded queue on disk of what must reach the server, in order, each once.

Records are appended before they are sent and dropped after the acknowledgement. A full spool drops
log lines first (and counts them); points wait, never silently lost. The spool belongs to one lease.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a record lies: kind, byte offset and length."""

    kind: str
    offset: int
    length: int


class Spool:
    """First in, first out; one writer, one reader.

    Args:
        path: file to use; an old one is emptied.
        max_bytes: bound on what waits; beyond it logs are dropped and points make the writer wait.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w+b")
        self._path = path
        self._max = max_bytes
        self._places: deque[Place] = deque()
        self._size = 0
        self._end = 0
        self._changed = threading.Condition()
        self._closed = False
        self.dropped_logs = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._size

    def append(self, kind: str, record: dict[str, Any]) -> bool:
        """Append a record; return False when it was dropped (a log line in a full spool, or closed)."""
        body = json.dumps({"kind": kind, **record}, separators=(",", ":")).encode()
        with self._changed:
            while self._size + len(body) > self._max and self._places and not self._closed:
                if kind == "log":
                    self.dropped_logs += 1
                    return False
                self._changed.wait()
            if self._closed:
                return False
            self._file.seek(self._end)
            self._file.write(body)
            self._file.flush()
            self._places.append(Place(kind, self._end, len(body)))
            self._end += len(body)
            self._size += len(body)
            self._changed.notify_all()
        return True

    def next(self, timeout: float) -> dict[str, Any] | None:
        """Return the oldest record without removing it, or None after ``timeout`` seconds or a close."""
        with self._changed:
            if not self._places and not self._closed:
                self._changed.wait(timeout)
            if not self._places or self._closed:
                return None
            place = self._places[0]
            self._file.seek(place.offset)
            body = self._file.read(place.length)
        record: dict[str, Any] = json.loads(body)
        return record

    def following(self, kind: str, limit: int) -> list[dict[str, Any]]:
        """Return the records of one kind at the head of the queue, at most ``limit``, not removed."""
        with self._changed:
            places: list[Place] = []
            for place in self._places:
                if place.kind != kind or len(places) == limit:
                    break
                places.append(place)
            bodies = []
            for place in places:
                self._file.seek(place.offset)
                bodies.append(self._file.read(place.length))
        return [json.loads(body) for body in bodies]

    def acknowledge(self, count: int = 1) -> None:
        """Remove the oldest records."""
        with self._changed:
            if self._closed:
                return  # the lease was lost meanwhile: everything has been dropped
            for _ in range(count):
                self._size -= self._places.popleft().length
            start = self._places[0].offset if self._places else self._end
            if start == self._end or start > self._max:
                self._compact(start)
            self._changed.notify_all()

    def _compact(self, start: int) -> None:
        """Move what waits to the beginning of the file, so that a spool never empty stays bounded."""
        self._file.seek(start)
        rest = self._file.read(self._end - start)
        self._file.seek(0)
        self._file.write(rest)
        self._file.truncate()
        self._file.flush()
        self._places = deque(Place(place.kind, place.offset - start, place.length) for place in self._places)
        self._end = len(rest)

    def close(self) -> None:
        """Drop everything and wake who waits."""
        with self._changed:
            self._closed = True
            self._places.clear()
            self._size = 0
            self._changed.notify_all()
        self._file.close()
        with contextlib.suppress(OSError):  # its folder may be gone
            self._path.unlink()
