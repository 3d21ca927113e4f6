"""What tells the other API processes on one PostgreSQL database that something was written.

A hint and never the truth: everybody looks by itself every second or two, so that a notice that is lost costs time and
no data. A notice says who sends it and nothing else; several writes within a fifth of a second are one notice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

import psycopg
from sqlalchemy import make_url, text
from sqlalchemy.exc import SQLAlchemyError

from app.store.database.engine import Store
from lockstep.logs import get_logger

_CHANNEL = "lockstep"
_PAUSE_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_LONGEST_PAUSE = 30.0
#: Within so long a process hears what it tells itself, or it hears nothing.
_ECHO_SECONDS = 5.0
_log = get_logger("notices")


class _DeafError(Exception):
    """What is told is not heard; a pooler of transactions takes LISTEN and drops what comes."""


class Notices:
    """Sends notices of this process and hears those of the other ones, in two threads.

    Args:
        store: the database.
        listen_url: URL by which to listen, on a connection of its own that no pooler shares out.
        woken: called when another process has written.
    """

    def __init__(self, store: Store, listen_url: str, woken: Callable[[], None]) -> None:
        self._store, self._woken = store, woken
        self._url = make_url(listen_url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._me = secrets.token_hex(8)
        self._echo = f"{_CHANNEL}_{self._me}"
        self._trouble: str | None = None
        self._stop = threading.Event()
        #: Set it when something was written here.
        self.written = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_for_ever, name="notices-out", daemon=True),
            threading.Thread(target=self._hear_for_ever, name="notices-in", daemon=True),
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them; what was written last is told before."""
        self._stop.set()
        self.written.set()
        for thread in self._threads:
            thread.join(timeout=2 * _LOOK_SECONDS)

    def _send_for_ever(self) -> None:
        is_last = False
        while not is_last:
            self.written.wait()
            self.written.clear()
            is_last = self._stop.is_set()
            try:
                self._tell(_CHANNEL)
                if is_last:
                    self._tell(self._echo)  # which ends the other thread's waiting
            except Exception as error:  # a hint: the other processes look by themselves
                _log.warning("a notice was not sent", reason=type(error).__name__)
            self._stop.wait(_PAUSE_SECONDS)

    def _tell(self, channel: str) -> None:
        with self._store.engine.begin() as connection:
            connection.execute(text("SELECT pg_notify(:channel, :me)"), {"channel": channel, "me": self._me})

    def _hear_for_ever(self) -> None:
        pause = _LOOK_SECONDS
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._hear()
            except (psycopg.Error, SQLAlchemyError, _DeafError) as error:
                pause = _LOOK_SECONDS if time.monotonic() - began > _LONGEST_PAUSE else min(_LONGEST_PAUSE, 2 * pause)
                self._note(str(error).strip()[:200])
                self._stop.wait(pause)

    def _note(self, trouble: str | None) -> None:
        """Log what is wrong once, whatever number of times it is tried again, and its end."""
        if trouble is not None and trouble != self._trouble:
            _log.warning("notices are not heard; what others write is seen a second or two later", reason=trouble)
        elif trouble is None and self._trouble is not None:
            _log.info("notices are heard again")
        self._trouble = trouble

    def _hear(self) -> None:
        with psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(f"LISTEN {_CHANNEL}; LISTEN {self._echo}")
            self._woken()  # whatever was told while nobody listened
            self._tell(self._echo)
            deaf_after, is_heard = time.monotonic() + _ECHO_SECONDS, False
            while not self._stop.is_set():
                heard = list(connection.notifies(timeout=_LOOK_SECONDS, stop_after=1))
                if any(notice.payload != self._me for notice in heard):
                    self._woken()
                if not is_heard and any(notice.channel == self._echo for notice in heard):
                    is_heard = True
                    self._note(None)
                if not is_heard and time.monotonic() > deaf_after:
                    raise _DeafError("a pooler of transactions takes LISTEN; set LOCKSTEP_LISTEN_URL past it")
