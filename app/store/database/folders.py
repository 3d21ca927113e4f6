"""Folders of the server: whether it may write there, whether there is room, and whose is what it makes in them."""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import shutil
from pathlib import Path

from app.errors import StartupError

_PROBE_BYTES = 65_536
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def make_folder(folder: Path, setting: str) -> None:
    """Make a folder and those above it.

    Raises:
        StartupError: names the setting.
    """
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = f"the folder {folder} cannot be made ({error.strerror})"
        raise StartupError(f"{told}; correct its rights, or set {setting}") from error
    for made in reversed(missing):
        hand_over(made)


def hand_over(made: Path) -> None:
    """Give what the superuser has just made to the owner of its folder, who must write it later."""
    if os.geteuid() == 0:
        owner = made.parent.stat()
        os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=False)


def owner_of(path: Path) -> str:
    """Return the name of the owner of a file or folder, its number where it has no name."""
    number = path.stat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"number {number}"


def unwritable(path: Path) -> str:
    """Return why this process may not write a file or folder, and what to do, as the end of a sentence."""
    if not os.path.exists(path):
        return "is not there; put it back from a copy, or start anew"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "lies on a file system that is mounted read-only; mount it for writing, or name another"
    told = f"belongs to user {owner_of(path)} and is not writable for this process"
    return f"{told}; run as that user, or correct its rights"


def check_writable(folder: Path, setting: str) -> None:
    """Write a little into a folder and take it away again: only then is it known that there are rights and room.

    Raises:
        StartupError: names the setting.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StartupError(f"the folder {folder} {unwritable(folder)} ({setting})")
    probe = folder / f".probe-{secrets.token_hex(8)}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        told = f"nothing can be written to the folder {folder} ({error.strerror})"
        remedy = "make room on its disk" if error.errno in _NO_ROOM else "correct the rights of it"
        raise StartupError(f"{told}; {remedy}, or set {setting}") from error
    finally:
        probe.unlink(missing_ok=True)


def free_bytes(folder: Path) -> int:
    """Return how many bytes this process may still write to the disk of a folder."""
    return shutil.disk_usage(folder).free
