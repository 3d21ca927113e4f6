"""A child's output as log lines of its runs."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import IO

from lockstep import protocol as p
from worker.supervision.spool import Spool
from worker.supervision.supervisor import END_OF_LOG

_LEVELS = re.compile(r"\b(debug|info|warning|error)\b", re.IGNORECASE)
_LINES_PER_SECOND = 200
_READ_BYTES = 65_536


class LogReader:
    """Puts lines into the spool; progress bars collapse, long lines and floods are cut and counted.

    Attributes:
        last_lines: the newest lines, for the account of a child that dies without a word.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._lock = threading.Lock()
        self._seq = 0
        self._second, self._count = 0, 0
        self.last_lines: deque[str] = deque(maxlen=20)

    def read(self, source: IO[bytes]) -> None:
        """Read until the stream ends, or the process is free for another assignment."""
        for raw in lines(source):
            if raw == END_OF_LOG:
                return
            self.take(raw)

    def take(self, raw: str) -> None:
        """Put one line into the spool."""
        text = raw.rstrip("\r").rpartition("\r")[2]  # a carriage return overwrites what stood there
        now = int(time.monotonic())
        self._second, self._count = (now, self._count + 1) if now == self._second else (now, 1)
        if not text.strip():
            return
        if self._count > _LINES_PER_SECOND:
            self._spool.dropped_logs += 1
            return
        self._append(text)

    def tell(self, account: str) -> None:
        """Put the account of an error into the spool, whole, whatever the flood of other lines is."""
        for text in account.splitlines():
            self._append(text, "error")

    def _append(self, text: str, level: str | None = None) -> None:
        found = _LEVELS.search(text[:40])
        known = level or (found.group(1).lower() if found else "info")
        with self._lock:  # output is read beside the frames
            self._seq += 1
            self.last_lines.append(text[:500])
            self._spool.append("log", {"seq": self._seq, "level": known, "text": text[: p.MAX_LOG_LINE_BYTES]})


def lines(source: IO[bytes]) -> Iterator[str]:
    """Yield lines, cut at 64 KiB so that a line without end cannot fill memory."""
    while raw := source.readline(_READ_BYTES):
        yield raw.decode(errors="replace").rstrip("\n")
