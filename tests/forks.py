"""Acts in processes of their own without the seconds that a new program takes to import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence


def in_a_process(act: Callable[[], object]) -> str:
    """Act in a fork of this process; return what it printed as errors, and the exception that it ended with."""
    [said] = at_once([act])
    return said


def at_once(acts: Sequence[Callable[[], object]]) -> list[str]:
    """Act in forks that run side by side; return what each said, as above."""
    running = [_begun(act) for act in acts]
    said = []
    for child, reading in running:
        with os.fdopen(reading, encoding="utf-8") as pipe:
            said.append(pipe.read())
        os.waitpid(child, 0)
    return said


def _begun(act: Callable[[], object]) -> tuple[int, int]:
    """Begin to act in a fork; return its pid and the descriptor from which to read what it says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
        try:
            act()
        except BaseException as error:  # whatever it is, the test shows it
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(0)
    os.close(writing)
    return child, reading
