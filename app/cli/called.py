"""How this command was called, so that what it says to call next can be copied as it stands."""

from __future__ import annotations

import os
import shutil
import sys

NAME = "lockstep"
#: Variable by which a command that is a program of its own knows how ``lockstep`` was called.
CALLED = "LOCKSTEP_CALLED"


def called() -> str:
    """Return ``lockstep``, or the path by which it was called where the shell would not find it by its name."""
    if os.environ.get(CALLED):
        return os.environ[CALLED]
    first = sys.argv[0]
    if os.path.basename(first) != NAME or os.sep not in first:
        return NAME
    found = shutil.which(NAME)
    is_found = found is not None and os.path.realpath(found) == os.path.realpath(first)
    return NAME if is_found else first
