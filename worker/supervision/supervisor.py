"""One training child: start it with only its device visible, talk over two pipes, end its whole tree.

The child lives in its own session and process group; descendants that detach are adopted by this process (subreaper)
and killed with it. Should this process be killed, an undertaker (`undertaker.py`) kills whatever descends from
it, by a mark in the environment. What else this process has started (the fork server) is left alone. No torch here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from worker.supervision import undertaker

_PR_SET_CHILD_SUBREAPER = 36
#: What a child may inherit; device variables and secrets are not among it.
_ALLOWED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
FRAMES_FD, COMMANDS_FD = 3, 4
_KILL_SECONDS = 10.0
#: How long a process may take from its last frame to its end: threads, files and a device that are let go.
_EXIT_SECONDS = 60.0
_JOIN_SECONDS = 0.02
#: Last line that a process prints about an assignment when it is free for another.
END_OF_LOG = "\x1e end of log"
_LOOK_SECONDS, _PIECE_BYTES = 0.5, 2**20
#: Marks what descends from this process.
mark = secrets.token_hex(16)


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that none outlives a block (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def survived() -> Iterator[None]:
    """Have a process beside this one, while the block lasts, that ends what descends from it if it is killed."""
    watch = undertaker.start(mark)
    if watch is None:
        yield
        return
    others.add(watch)
    try:
        yield
    finally:
        with watch:  # the end of its input lets it act
            others.discard(watch)


class Process(Protocol):
    """What is asked of a process here; ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int:
        """Number of the process."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code."""
        ...


class Ends(NamedTuple):
    """Descriptors of a child: its ends of the pipes of frames, of commands, and of what it prints."""

    frames: int
    commands: int
    output: int


def inherited() -> dict[str, str]:
    """Return the environment of what trains, but for the device: no secret of the supervisor is in it."""
    allowed = {name: os.environ[name] for name in _ALLOWED if name in os.environ}
    return {
        **allowed,
        "LOCKSTEP_PARENT": str(os.getpid()),
        undertaker.MARK: mark,
        "PYTHONUNBUFFERED": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def spawn(command: list[str], environment: Mapping[str, str], ends: Ends) -> Process:
    """Start a program that trains.

    Args:
        command: program and arguments.
        environment: added to what is inherited.
        ends: of the pipes; the environment names the first two.
    """
    named = {"LOCKSTEP_FRAMES_FD": str(ends.frames), "LOCKSTEP_COMMANDS_FD": str(ends.commands)}
    return subprocess.Popen(  # noqa: S603 - the operator chose the command
        command,
        stdin=subprocess.DEVNULL,
        stdout=ends.output,
        stderr=subprocess.STDOUT,
        pass_fds=(ends.frames, ends.commands),
        env={**inherited(), **named, **environment},
        start_new_session=True,
    )


class Child:
    """A running child and its pipes.

    Args:
        start: starts it with its ends of the pipes.
    """

    def __init__(self, start: Callable[[Ends], Process]) -> None:
        frames, commands, output = os.pipe(), os.pipe(), os.pipe()
        try:
            self.process = start(Ends(frames[1], commands[0], output[1]))
        except Exception:
            for descriptor in (frames[0], commands[1], output[0]):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (frames[1], commands[0], output[1]):
                os.close(descriptor)
        self._frames = os.fdopen(frames[0], "rb")
        self._commands: IO[bytes] = os.fdopen(commands[1], "wb", buffering=0)
        #: Standard output and error of the child, merged.
        self.output: IO[bytes] = os.fdopen(output[0], "rb")
        self.started = time.monotonic()
        self.killed_by_us = False
        #: Whether it has said that another assignment may follow.
        self.is_free = False
        self.is_closed = False
        self._rest, self._heard = b"", deque[dict[str, Any]]()
        _children.append(self)

    def frames(self) -> Iterator[dict[str, Any]]:
        """Yield frames until the child is free, closes its pipe or has ended: what it left behind may hold it open."""
        while True:
            while self._heard:
                frame = self._heard.popleft()
                if frame["type"] == "free":
                    self.is_free = True
                    return
                yield frame
            has_ended = not self.is_alive()  # asked first: what it wrote before is read below
            came = self._hear(0.0 if has_ended else _LOOK_SECONDS)
            if came == 0 or (came is None and has_ended):
                return

    def _hear(self, seconds: float) -> int | None:
        """Take the frames that come within so many seconds; return their bytes, 0 at the end of the pipe."""
        if not select.select([self._frames], [], [], seconds)[0]:
            return None
        piece = os.read(self._frames.fileno(), _PIECE_BYTES)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self._heard.extend(map(json.loads, lines))
        return len(piece)

    def take_up(self) -> None:
        """Take a child that is free for another assignment."""
        self.is_free = False
        self._heard.clear()

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame; a child that has gone is no error here."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._commands.write(json.dumps(frame).encode() + b"\n")

    def ask_to_stop(self, seconds: float, *, for_good: bool = False) -> None:
        """First rung of the ladder: stop frame and SIGTERM, for round border and checkpoint."""
        self.send({"type": "stop", "deadline": seconds, "for_good": for_good})
        self._signal(signal.SIGTERM)

    def ask_where(self) -> None:
        """Have a trainer that listens to it (the built-in one) write its Python stack to the log, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)

    def freeze(self) -> None:
        """Halt the whole group where it stands (self-fence)."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen group go on."""
        self._signal(signal.SIGCONT)

    def is_elsewhere(self) -> bool:
        """Return whether the process is busy with what another assignment's user wrote: it has this one alone."""
        return False

    def join(self) -> None:
        """Wait until the process has ended or is free for another assignment; one that hangs at its exit is killed."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while self.is_alive() and not self.is_free:
            if time.monotonic() > deadline:
                self.kill()
                return
            if self._hear(_JOIN_SECONDS) == 0:
                time.sleep(_JOIN_SECONDS)
            self.is_free = any(frame["type"] == "free" for frame in self._heard)

    def end(self, *, politely: bool) -> None:
        """End what is left of the tree, after a moment to stop if that is polite, and close the pipes.

        One that is free is left to its starter.
        """
        if politely and self.is_free:
            return
        if politely and self.is_alive():
            self.ask_to_stop(1.0)
            with contextlib.suppress(Exception):
                self.process.wait(timeout=1.0)
        self.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def is_alive(self) -> bool:
        """Return whether the child itself still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Last rung: SIGKILL to the group and every remaining descendant but for ``others``, then reap."""
        if self.is_alive():
            self.killed_by_us = True
        self._signal(signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while left := self._remaining():
            for pid in left:  # again until none is left: one may have forked meanwhile
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self.process.wait()
        reap()

    def _remaining(self) -> list[int]:
        """Return what lives below this process, but for the child itself and the trees of ``others``."""
        spared = {process.pid for process in tuple(others)}
        return [pid for pid in descendants(os.getpid(), without=spared) if pid != self.process.pid]

    def close(self) -> None:
        """End what is left of the tree and close the pipes."""
        self.kill()
        self.forget()

    def forget(self) -> None:
        """Close the pipes of a child that has ended; no signal, for its pid may be another's by now."""
        self.is_closed = True
        with contextlib.suppress(ValueError):
            _children.remove(self)
        for pipe in (self._frames, self._commands, self.output):
            with contextlib.suppress(OSError):
                pipe.close()

    def exit_text(self) -> str:
        """Return how the child ended, for people."""
        code = self.process.poll()
        if code is None:
            return "still running"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"


#: Children of this process that nobody has closed.
_children: list[Child] = []
#: What else this process has started: the end of a child does not touch it.
others: set[Process] = set()


def descendants(root: int, *, without: Collection[int] = ()) -> list[int]:
    """Return all living descendants of a process, from /proc, without these and what descends from them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: list[int] = []
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier and pid not in found}
        frontier.difference_update(without)
        found.extend(frontier)
    return found


def reap() -> None:
    """Reap every adopted process that has ended (Linux); in containers too nobody stays a zombie.

    Of a process that somebody here asks for, its own object takes the exit code.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            known = [*others, *(child.process for child in _children)]
            asked = [process for process in known if process.pid == ended.si_pid]
            if asked:
                asked[0].poll()
            else:
                os.waitpid(ended.si_pid, 0)
