"""Stored files by content hash, inside one root; names given by clients are metadata only."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from app.errors import BusyError, StartupError, TooLargeError
from app.settings import Settings
from app.store.database import folders

_CHUNK_BYTES = 2**20
#: What the system says where nothing is, or a symbolic link or another thing that holds no object.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True)
class Stored:
    """A file that was written: its SHA-256 (hex) and size in bytes."""

    sha256: str
    size_bytes: int


class FileStore:
    """Content-addressed files under ``root/ab/abcdef..``.

    Args:
        root: the folder.
        min_free_bytes: with less room on its disk nothing is taken.

    Attributes:
        identity: name of the folder.
        incoming: folder for what is not whole yet, and for what is deleted after use; on the disk of the data, while
            the system's folder for such files may be memory.

    Raises:
        StartupError: the folders cannot be made or written.
    """

    def __init__(self, root: Path, *, min_free_bytes: int = 0) -> None:
        self.root = root.resolve()
        self._min_free = min_free_bytes
        self.incoming = self.root / "incoming"
        folders.make_folder(self.incoming, "LOCKSTEP_DATA_DIR")
        self.check()
        self.identity = self._identity()

    @classmethod
    def of(cls, settings: Settings) -> FileStore:
        """Return the store of a server with these settings."""
        return cls(settings.data_dir / "files", min_free_bytes=settings.min_free_bytes)

    def _identity(self) -> str:
        """Return the name of this folder, which it is given once: servers that share it share the name."""
        path = self.root / "identity"
        if not path.exists():
            mine = self.incoming / secrets.token_hex(16)
            mine.write_text(secrets.token_hex(8), encoding="ascii")
            folders.hand_over(mine)
            # of several that begin at once the last one names it; another's name is forgotten when that one has ended
            mine.replace(path)
        return path.read_text(encoding="ascii")

    def has(self, sha256: str) -> bool:
        """Return whether an object lies here."""
        file = self.open(sha256)
        if file is not None:
            file.close()
        return file is not None

    def check(self) -> None:
        """Find out whether files can be stored now.

        Raises:
            StartupError: no right or no room; names the folder and the remedy.
        """
        folders.check_writable(self.incoming, "LOCKSTEP_DATA_DIR")
        if (short := self._shortage()) is not None:
            raise StartupError(short)

    def _shortage(self) -> str | None:
        """Return what to say where the disk has less room than must stay free."""
        free = folders.free_bytes(self.root)
        if free >= self._min_free:
            return None
        told = f"the disk of {self.root} has {free / 2**20:.0f} MiB free, less than LOCKSTEP_MIN_FREE_BYTES"
        return f"{told} ({self._min_free / 2**20:.0f} MiB); make room: delete experiments, or give it a larger disk"

    def put(self, chunks: Iterable[bytes], *, max_bytes: int) -> Stored:
        """Write chunks, fsync and rename into place; an object that exists is left as it is.

        Raises:
            TooLargeError: beyond ``max_bytes``; nothing stays.
            BusyError: the disk is nearly full; who asks again later may find room.
        """
        if (short := self._shortage()) is not None:
            raise BusyError(short)
        temporary = self.incoming / secrets.token_hex(16)
        try:
            stored = self._write(temporary, chunks, max_bytes)
            target = self.path(stored.sha256)
            target.parent.mkdir(exist_ok=True)
            with _folder(target.parent) as folder:
                if folder is None:
                    raise BusyError(f"the folder {target.parent.name} of the stored files is a symbolic link; mend it")
                os.replace(temporary, target.name, dst_dir_fd=folder)
        finally:
            temporary.unlink(missing_ok=True)
        return stored

    def put_piece(self, key: str, offset: int, piece: bytes) -> None:
        """Keep a piece of what is not whole yet; the same one again changes nothing.

        Args:
            key: name of the whole among what comes in, of letters and digits.
            offset: where the piece begins, in bytes.
            piece: its content.

        Raises:
            BusyError: the disk is nearly full.
        """
        if (short := self._shortage()) is not None:
            raise BusyError(short)
        descriptor = os.open(self.incoming / key, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(offset)
            file.write(piece)

    @contextmanager
    def pieces(self, key: str) -> Iterator[Iterator[bytes]]:
        """Yield what the pieces of a key make up, in chunks; they are gone after the block."""
        path = self.incoming / key
        try:
            with path.open("rb") as file:
                yield iter(partial(file.read, _CHUNK_BYTES), b"")
        finally:
            path.unlink(missing_ok=True)

    def _write(self, path: Path, chunks: Iterable[bytes], max_bytes: int) -> Stored:
        digest, size = hashlib.sha256(), 0
        with path.open("wb") as file:
            for chunk in chunks:
                size += len(chunk)
                if size > max_bytes:
                    raise TooLargeError(f"the file exceeds {max_bytes} bytes", code="artifact_too_large")
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return Stored(digest.hexdigest(), size)

    def path(self, sha256: str) -> Path:
        """Return where an object lies, inside the root."""
        if len(sha256) != 64 or not all(char in "0123456789abcdef" for char in sha256):
            raise ValueError("not a SHA-256 in hex")
        return self.root / sha256[:2] / sha256

    def open(self, sha256: str) -> BinaryIO | None:
        """Return an object for reading, None where there is none: a symbolic link in its place is not followed.

        What is looked at is what is opened, so nothing can be put in its place in between.
        """
        path = self.path(sha256)
        with _folder(path.parent) as folder:
            if folder is None:
                return None
            try:
                opened = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            except OSError as error:
                if error.errno in _ABSENT:
                    return None
                raise
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return os.fdopen(opened, "rb")
        os.close(opened)
        return None

    def read(self, sha256: str) -> bytes | None:
        """Return an object whole, or None when it is missing or does not match its hash."""
        file = self.open(sha256)
        if file is None:
            return None
        with file:
            content = file.read()
        return content if hashlib.sha256(content).hexdigest() == sha256 else None

    def older_than(self, seconds: float) -> list[tuple[str, int]]:
        """Return hash and size of every object that was written longer ago; what was left half written goes."""
        before = time.time() - seconds
        found = []
        for path in self.root.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                state = path.lstat()
                if state.st_mtime >= before or not stat.S_ISREG(state.st_mode):
                    continue
                if path.parent == self.incoming:
                    path.unlink()
                elif len(path.name) == 64:
                    found.append((path.name, state.st_size))
        return found

    def remove(self, sha256: str, *, older_than: float = 0.0) -> bool:
        """Remove an object that no row names any more, unless it was written again within so many seconds.

        It is taken away first and looked at then: what is uploaded meanwhile lies in its place and stays.
        """
        away = self.incoming / secrets.token_hex(16)
        try:
            self.path(sha256).rename(away)
        except FileNotFoundError:
            return False
        if older_than and away.lstat().st_mtime >= time.time() - older_than:
            away.replace(self.path(sha256))
            return False
        away.unlink()
        return True


@contextmanager
def _folder(path: Path) -> Iterator[int | None]:
    """Open a folder for the block, so that what stands in its place later changes nothing; None where it is none."""
    opened = None
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
    try:
        yield opened
    finally:
        if opened is not None:
            os.close(opened)
