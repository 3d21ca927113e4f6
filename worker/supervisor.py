"""One training child: start it with only its device visible, talk over two pipes, end its whole tree.

The child lives in its own session and process group; Linux kills it when this process dies, and
descendants that detach are adopted by this process (subreaper) and killed with it. The tree of another
child (a spare) is left alone. No torch here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_PR_SET_CHILD_SUBREAPER = 36
#: What a child may inherit; device variables and secrets are not among it.
_ALLOWED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
FRAMES_FD, COMMANDS_FD = 3, 4
_KILL_SECONDS = 10.0


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that none outlives a block (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Child:
    """A running child and its pipes.

    Args:
        command: program and arguments.
        environment: added to the allow-listed environment.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        frames_read, frames_write = os.pipe()
        commands_read, commands_write = os.pipe()
        inherited = {name: os.environ[name] for name in _ALLOWED if name in os.environ}
        extra = {
            "LOCKSTEP_PARENT": str(os.getpid()),
            "LOCKSTEP_FRAMES_FD": str(frames_write),
            "LOCKSTEP_COMMANDS_FD": str(commands_read),
            "PYTHONUNBUFFERED": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
        try:
            self.process = subprocess.Popen(  # noqa: S603 - the operator chose the command
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(frames_write, commands_read),
                env={**inherited, **extra, **environment},
                start_new_session=True,
            )
        except OSError:
            os.close(frames_read)
            os.close(commands_write)
            raise
        finally:
            os.close(frames_write)
            os.close(commands_read)
        self._frames = os.fdopen(frames_read, "rb")
        self._commands: IO[bytes] = os.fdopen(commands_write, "wb", buffering=0)
        self.started = time.monotonic()
        self.killed_by_us = False
        _children.append(self)

    @property
    def output(self) -> IO[bytes]:
        """Standard output and error of the child, merged."""
        if self.process.stdout is None:
            raise RuntimeError("the child was started without a pipe")
        return self.process.stdout

    def has_answered(self) -> bool:
        """Wait for the first frame; False when the child ended without one."""
        return bool(self._frames.peek(1))

    def frames(self) -> Iterator[dict[str, Any]]:
        """Yield frames until the child closes its pipe."""
        for line in self._frames:
            yield json.loads(line)

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame; a child that has gone is no error here."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._commands.write(json.dumps(frame).encode() + b"\n")

    def ask_to_stop(self, seconds: float) -> None:
        """First rung of the ladder: stop frame and SIGTERM, for round border and checkpoint."""
        self.send({"type": "stop", "deadline": seconds})
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

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def is_alive(self) -> bool:
        """Return whether the child itself still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Last rung: SIGKILL to the group and every remaining descendant that is not another child's, then reap."""
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
        """Return what lives below this process, but for the child itself and the trees of other children."""
        others = {child.process.pid for child in tuple(_children) if child is not self and child.is_alive()}
        return [pid for pid in descendants(os.getpid(), without=others) if pid != self.process.pid]

    def close(self) -> None:
        """End what is left of the tree and close the pipes."""
        self.kill()
        self.forget()

    def forget(self) -> None:
        """Close the pipes of a child that has ended; no signal, for its pid may be another's by now."""
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


#: Children of this process that nobody has closed; a kill of one spares the others. At most a running one and a spare.
_children: list[Child] = []


def default_command() -> list[str]:
    """Return the built-in trainer."""
    return [sys.executable, "-m", "worker.child"]


def descendants(root: int, *, without: Collection[int] = ()) -> list[int]:
    """Return all living descendants of a process, from /proc, without these and what descends from them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
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
    """Reap every adopted child that has ended; in containers too nobody stays a zombie."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
