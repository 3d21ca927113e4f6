"""How this command was called, so that what it says to call next can be copied as it stands."""

from __future__ import annotations

import os
import shutil
import sys

NAME = "lockstep"


def called() -> str:
    """Return ``lockstep``, or the path by which it was called where the shell would not find it by its name."""
    first = sys.argv[0]
    if os.path.basename(first) != NAME or os.sep not in first:
        return NAME
    found = shutil.which(NAME)
    is_found = found is not None and os.path.realpath(found) == os.path.realpath(first)
    return NAME if is_found else first
