"""Processes that are workers, or lead to one: started again when they fail, drained together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence

import typer

#: Exit code of what cannot be used as it is, the device among it.
UNUSABLE = 3
#: Exit codes of a worker that another start would not change: retired, something cannot be used, token refused.
FINAL = (0, 2, UNUSABLE, 4)
_TERMINATED = 128 + signal.SIGTERM
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class Fleet:
    """Processes that are workers or lead to one; each is started again when it fails, and all are drained together.

    Args:
        commands: a program and its arguments for each. Its input ends when this process does.
        first_line: what each one reads from its input, whose end asks it to drain; None: SIGTERM does.
        first: number of the first one.
        environment: added to that of each.
        final: exit codes that another start would not change.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        first_line: str | None = None,
        *,
        first: int = 0,
        environment: Mapping[str, str] | None = None,
        final: Collection[int] = FINAL,
    ) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._first_line, self._final = first_line, final
        self._environment = {**os.environ, **(environment or {})}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._codes: dict[int, int] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(number, list(command)), name=f"worker-{number}")
            for number, command in enumerate(commands, start=first)
        ]

    def run(self) -> int:
        """Run them all to their end; return the highest exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=self.drain).start())
        return self.wait()

    def wait(self) -> int:
        """Run them all to their end, whoever listens to signals; return the highest exit code.

        Who calls this while they run waits for the same end.
        """
        with self._lock:
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
        for thread in self._threads:
            while thread.is_alive():  # a join without end would not let signals in
                thread.join(0.2)
        return max(self._codes.values(), default=0)

    def drain(self) -> None:
        """Ask every worker to stop at its next round border; none is started again."""
        self._stopping.set()
        with self._lock:
            for process in self._running.values():
                if self._first_line is None:
                    process.terminate()
                    continue
                assert process.stdin is not None  # noqa: S101 - for the type checker
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()

    def _keep(self, number: int, command: list[str]) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            code = self._run_once(number, command)
            if code in self._final or self._stopping.is_set():
                asked = self._stopping.is_set() and code == _TERMINATED  # before it listened to signals
                self._codes[number] = 0 if asked else code
                return
            pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(_LONGEST_PAUSE, 2 * pause)
            typer.echo(f"worker {number} ended with code {code}; it is started again in {pause:g} s", err=True)
            self._stopping.wait(pause)

    def _run_once(self, number: int, command: list[str]) -> int:
        with self._lock:
            if self._stopping.is_set():
                return 0
            try:
                # a session of its own: Ctrl-C reaches this process alone, which drains
                process = subprocess.Popen(  # noqa: S603 - our own command
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:  # the machine has no process or memory left for it now
                typer.echo(f"worker {number} cannot be started ({error.strerror})", err=True)
                return 1
            self._running[number] = process
            assert process.stdin is not None  # noqa: S101 - for the type checker
            if self._first_line is not None:
                with contextlib.suppress(BrokenPipeError):  # it has ended already: its code says why
                    process.stdin.write(f"{self._first_line}\n".encode())
                    process.stdin.flush()
        assert process.stdout is not None  # noqa: S101 - for the type checker
        with process.stdout:
            for line in process.stdout:
                typer.echo(f"[{number}] {line.decode(errors='replace').rstrip()}")
        code = process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with self._lock:
            del self._running[number]
        return 128 - code if code < 0 else code
