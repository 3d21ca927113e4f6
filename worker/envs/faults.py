"""Faults of the user's code: an environment, a reward function or a plug-in that raises or breaks its own spaces.

Whoever calls such code names the work, so that the sentence of the cause says where it failed, with the last line of
the user's own traceback. What is raised while something is built is a ``ValueError`` (the configuration is refused);
later it is an ``EnvironmentFault``. Memory that runs out on the device passes through: that has a cause of its own.
No torch: processes that only step environments import this.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from worker.envs.inside import INSIDE

#: What the user's code may raise; a script's ``sys.exit`` must not end the training process without a word.
RAISED = (Exception, SystemExit)
_OUT_OF_MEMORY = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
#: Packages whose frames in a traceback are no code of the user's.
_NOT_THEIRS = {*sys.stdlib_module_names, "__main__", "app", "gymnasium", "lockstep", "numpy", "torch", "worker"}


class EnvironmentFault(RuntimeError):  # noqa: N818 - says what is at fault
    """The user's environment or reward raised, or returned what its spaces forbid; the message names where."""


class BadValue(ValueError):  # noqa: N818 - says what was returned
    """An environment returned what its spaces or the interface of environments forbid."""


def unfit(value: float) -> str:
    """Return why a number is none of float32, in which policies are trained, and the remedy, as a clause."""
    if math.isfinite(value):
        return "which float32 cannot hold (it ends at 3.4e+38): scale or clip it"
    return "which is not finite"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out on a device, without importing torch for it."""
    return any(f"{kind.__module__}.{kind.__name__}" in _OUT_OF_MEMORY for kind in type(error).__mro__)


class Told(Exception):  # noqa: N818 - what it says is an error of its own
    """What the user's code raised in another process: the last line of its traceback."""


def last_line(error: BaseException) -> str:
    """Return the last line of the traceback of an error."""
    if isinstance(error, Told):
        return str(error)
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def raised_in(error: BaseException) -> str:
    """Return file and line of the user's code that an error comes from, as the end of a sentence; empty without one."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    if isinstance(first, SyntaxError) and first.filename:  # of a file that was never run: it has no frame
        return f"; raised in {first.filename}, line {first.lineno}"
    places = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in traceback.walk_tb(first.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THEIRS
    ]
    return f"; raised in {places[-1]}" if places else ""


def what_went_wrong(error: BaseException) -> str:
    """Return what code of the user's did, as the predicate of a sentence."""
    return f"returned {error}" if isinstance(error, BadValue) else f"raised {last_line(error)}"


@contextmanager
def playing(work: str) -> Iterator[None]:
    """Run code of the user's; what it raises is an ``EnvironmentFault`` of ``work``, and so is a hang in it."""
    try:
        with INSIDE.doing(work):
            yield
    except EnvironmentFault:
        raise
    except RAISED as error:
        if is_out_of_memory(error):
            raise
        raise EnvironmentFault(f"{work} {what_went_wrong(error)}") from error


@contextmanager
def building(what: str) -> Iterator[None]:
    """Build something of the user's; what is raised is a ``ValueError`` that names the field ``what``."""
    try:
        with INSIDE.doing(f"building {what}"):
            yield
    except RAISED as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(f"{what} cannot be built: {last_line(error)}") from error
