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
import threading
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
        self._root, self.path = root, root / secrets.token_hex(8)
        self._descriptor, self._is_open, self._lock = self._taken(), True, threading.Lock()

    def keep(self) -> None:
        """Hold it still, and anew where it or its lock was deleted, as what clears old files does.

        Raises:
            BadAddress: nothing can be written there any more.
        """
        with self._lock:
            if self._is_open and not self._is_there():
                former, self._descriptor = self._descriptor, self._taken()
                os.close(former)

    def close(self) -> None:
        """Clear it and let it go."""
        self.let_go()
        shutil.rmtree(self.path, ignore_errors=True)

    def let_go(self) -> None:
        """Hold it no longer, as a process that is killed."""
        with self._lock:
            os.close(self._descriptor)
            self._is_open = False

    def _taken(self) -> int:
        """Return the descriptor by which the folder is held, made where it is not there."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            turn = _locked(self._root / _HELD, fcntl.LOCK_EX)  # another start would clear what is not held yet
            try:
                for path in self._root.iterdir():
                    if path != self.path and path.is_dir() and not path.is_symlink() and not _is_held(path):
                        shutil.rmtree(path, ignore_errors=True)
                self.path.mkdir(exist_ok=True)
                return _locked(self.path / _HELD, fcntl.LOCK_EX)
            finally:
                os.close(turn)
        except OSError as error:
            raise unwritable(self._root, error) from error

    def _is_there(self) -> bool:
        """Return whether what holds it lies in its place; it is never old to what clears old files."""
        try:
            os.utime(self._descriptor)
            return os.path.samestat((self.path / _HELD).stat(), os.fstat(self._descriptor))
        except OSError:
            return False


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
