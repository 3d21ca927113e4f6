"""The folder of one start of a supervisor: it is held while the process lives, and what nobody holds is cleared.

Two starts for one device may share a folder of folders, as two containers with one volume do, whose host locks are
apart: the server refuses the second, which must not have cleared what the first has not sent yet.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sys
from pathlib import Path

from lockstep.address import BadAddress

_HELD = "held"


class WorkFolder:
    """A new folder below ``root``, held until ``close``.

    Args:
        root: folder of the device; what a start that has ended left there goes, for it belongs to a lost lease.

    Raises:
        BadAddress: nothing can be written there.
    """

    def __init__(self, root: Path) -> None:
        try:
            self._begin(root)
        except OSError as error:
            raise unwritable(root, error) from error

    def _begin(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        turn = _locked(root / _HELD, fcntl.LOCK_EX)  # another start would clear what is not held yet
        for path in root.iterdir():
            if path.is_dir() and not path.is_symlink() and not _is_held(path):
                shutil.rmtree(path, ignore_errors=True)
        self.path = root / secrets.token_hex(8)
        self.path.mkdir()
        self._descriptor = _locked(self.path / _HELD, fcntl.LOCK_EX)
        os.close(turn)

    def close(self) -> None:
        """Clear it and let it go."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.let_go()

    def let_go(self) -> None:
        """Hold it no longer, as a process that is killed."""
        os.close(self._descriptor)


def unwritable(folder: Path, error: OSError) -> BadAddress:
    """Return the refusal of a folder that takes no files."""
    told = f"nothing can be written to the folder {folder} ({error.strerror})"
    return BadAddress(f"{told}; correct its rights, make room, or choose another with --work-dir")


def _locked(path: Path, how: int) -> int:
    """Return the descriptor of a file that is locked, unless its file system knows no locks.

    Raises:
        BlockingIOError: it is not waited for, and another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError as error:
        sys.stderr.write(f"{path} cannot be locked ({error.strerror}): run one worker in this folder\n")
    return descriptor


def _is_held(folder: Path) -> bool:
    """Return whether a living process holds a folder."""
    try:
        os.close(_locked(folder / _HELD, fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    except OSError:  # of another user: what cannot be cleared is left
        return False
    return False
