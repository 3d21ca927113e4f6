"""How a command ends when it cannot do what was asked: one sentence, and a code that scripts can tell apart.

1: the server, the specification or the experiment says no. 2: wrongly called. 3: what it needs is away, or its settings
cannot be used.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from app.cli.called import called
from lockstep.address import BadAddress, by_way, hidden
from lockstep.quoting import quoted
from lockstep.ranges import NumberT, number_within
from lockstep.spec.text.problems import InvalidSpecError

if TYPE_CHECKING:
    from lockstep.client import Client

_NO_ROOM = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)


def run(app: typer.Typer, arguments: list[str], *, name: str = "lockstep") -> None:
    """Run a command; refusals, a missing server and files that cannot be used end the process with a sentence."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name in a script that the terminal cannot show
    try:
        app(args=arguments, prog_name=name)
    except BrokenPipeError:  # who reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        told = ended_by(error)
        if told is None:
            raise
        typer.echo(told[0], err=True)
        sys.exit(told[1])


def ended_by(error: Exception) -> tuple[str, int] | None:
    """Return what to say of an error that people can mend, and the exit code; None of any other."""
    import httpx

    from lockstep.client import ApiError, MissingPackage
    from lockstep.exchange import reason_of

    if isinstance(error, ApiError):
        if error.is_away or error.is_foreign:
            return f"no answer from {_server()}: {error}{_way()}", 3
        return f"refused: {error}", 1
    if isinstance(error, InvalidSpecError):
        return "\n".join(f"refused: {item}" for item in error.problems), 1
    if isinstance(error, BadAddress):
        return f"error: {error}", 3
    if isinstance(error, MissingPackage):
        return f"error: {error}", 2
    if isinstance(error, httpx.TransportError):
        why = f"no answer from {_server()} ({reason_of(error)}){_way()}"
        return f"{why}; start one with `{called()} serve`, or name it: LOCKSTEP_URL", 3
    if isinstance(error, OSError):
        told = f"error: {error.filename or 'a file'}: {error.strerror or error}"
        return (f"{told}; make room there, or name another place", 3) if error.errno in _NO_ROOM else (told, 2)
    return None


def _server() -> str:
    return hidden(reach().url)


def _way() -> str:
    return by_way(reach().url)


def reach(*, patience: float = 0.0, timeout: float = 60.0) -> Client:
    """Return a client of the server; what cannot be reached is told at once, or after ``patience`` seconds."""
    from lockstep.client import Client

    return Client(patience=patience, timeout=timeout)


def within(low: NumberT, high: NumberT) -> Callable[[str], NumberT]:
    """Return the parser of an option: a number of a range, a whole one where the range is of whole numbers."""

    def number(text: str) -> NumberT:
        try:
            return number_within(text, low, high)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return number


def an_id(kind: str) -> Callable[[str], str]:
    """Return the parser of an id that begins with ``kind``; blanks around it are no part of it."""

    def name(text: str) -> str:
        if re.fullmatch(rf"{kind}_[0-9a-z]{{4,40}}", text.strip()) is None:
            raise typer.BadParameter(f"use an id that begins with {kind}_, not {quoted(text)}")
        return text.strip()

    return name


def fail(error: Exception | str, code: int) -> typer.Exit:
    """Say what went wrong and return the exit to raise."""
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(code)
