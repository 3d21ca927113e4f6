"""Ends what a supervisor leaves behind when it is killed: a process beside it that waits for nothing else.

A supervisor that ends itself ends its children and what they started. One that gets SIGKILL cannot: what its training
processes started, in sessions of their own too, would go on and hold the device. All of them have the mark of their
supervisor in their environment; a program that wipes its environment escapes this and nothing else does. Standard
library alone, so that it starts in milliseconds and is small.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: Variable that marks what descends from a supervisor.
MARK = "LOCKSTEP_SUPERVISOR"
_AGAIN_SECONDS, _PATIENCE_SECONDS = 0.02, 10.0


def start(mark: str) -> subprocess.Popen[bytes] | None:
    """Start the process; it acts when this one has ended and with it the pipe between them. None: not on Linux."""
    if sys.platform != "linux":
        return None
    return subprocess.Popen(  # noqa: S603 - our own file
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def marked(mark: str) -> list[int]:
    """Return the processes of this user that have the mark and are no zombies."""
    wanted, found = f"{MARK}={mark}\0".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if wanted in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def bury(mark: str) -> None:
    """Kill what has the mark until nothing has: one may have forked meanwhile."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while (left := marked(mark)) and time.monotonic() < give_up:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN_SECONDS)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    bury(sys.argv[1])
