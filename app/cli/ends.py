"""How a command ends when it cannot do what was asked: one sentence, and a code that scripts can tell apart.

1: the server, the specification or the experiment says no. 2: wrongly called or configured. 3: what it needs is away.
"""

from __future__ import annotations

import os
import sys

import httpx
import typer

from lockstep.address import BadAddress
from lockstep.client import ApiError, Client
from lockstep.spec.problems import InvalidSpecError


def run(app: typer.Typer, arguments: list[str], *, name: str = "lockstep") -> None:
    """Run a command; refusals, a missing server and files that cannot be used end the process with a sentence."""
    try:
        app(args=arguments, prog_name=name)
    except ApiError as error:
        _end(
            f"no answer from {Client().url}: {error}" if error.is_away else f"refused: {error}",
            3 if error.is_away else 1,
        )
    except InvalidSpecError as error:
        _end("\n".join(f"refused: {item}" for item in error.problems), 1)
    except BadAddress as error:
        _end(f"error: {error}", 2)
    except httpx.TransportError as error:
        _end(f"no answer from {Client().url} ({error}); start one with `lockstep serve`, or name it: LOCKSTEP_URL", 3)
    except BrokenPipeError:  # who reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _end(f"error: {error.filename or 'a file'}: {error.strerror or error}", 2)


def reach(*, patience: float = 0.0, timeout: float = 60.0) -> Client:
    """Return a client of the server; what cannot be reached is told at once, or after ``patience`` seconds."""
    return Client(patience=patience, timeout=timeout)


def fail(error: Exception | str, code: int) -> typer.Exit:
    """Say what went wrong and return the exit to raise."""
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(code)


def _end(sentence: str, code: int) -> None:
    typer.echo(sentence, err=True)
    sys.exit(code)
