"""Stored files by content hash, inside one root; names given by clients are metadata only."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.errors import BusyError, TooLargeError
from app.store.engine import StartupError


@dataclass(frozen=True)
class Stored:
    """A file that was written: its SHA-256 (hex) and size in bytes."""

    sha256: str
    size_bytes: int


class FileStore:
    """Content-addressed files under ``root/ab/abcdef..``.

    Attributes:
        incoming: folder for what is not whole yet, and for what is deleted after use; on the disk of the data, while
            the system's folder for such files may be memory.

    Raises:
        StartupError: the folders cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.incoming = self.root / "incoming"
        try:
            self.incoming.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = (
                f"the folder {self.incoming} cannot be made ({error.strerror}); correct its rights or LOCKSTEP_DATA_DIR"
            )
            raise StartupError(text) from error

    def put(self, chunks: Iterable[bytes], *, max_bytes: int) -> Stored:
        """Write chunks, fsync and rename into place; an object that exists is left as it is.

        Raises:
            TooLargeError: beyond ``max_bytes``; nothing stays.
        """
        temporary = self.incoming / secrets.token_hex(16)
        try:
            stored = self._write(temporary, chunks, max_bytes)
            target = self.path(stored.sha256)
            target.parent.mkdir(exist_ok=True)
            if target.parent.is_symlink():
                raise BusyError(f"the folder {target.parent.name} of the stored files is a symbolic link; mend it")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        return stored

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

    def held(self, sha256: str) -> Path | None:
        """Return where an object lies, None where it does not: a symbolic link in its place is not followed."""
        path = self.path(sha256)
        return path if path.is_file() and path.resolve() == path else None

    def read(self, sha256: str) -> bytes | None:
        """Return an object whole, or None when it is missing or does not match its hash."""
        path = self.held(sha256)
        try:
            content = path.read_bytes() if path is not None else None
        except FileNotFoundError:  # it went since
            content = None
        if content is None:
            return None
        return content if hashlib.sha256(content).hexdigest() == sha256 else None

    def remove(self, sha256: str) -> None:
        """Remove an object that no row names any more."""
        self.path(sha256).unlink(missing_ok=True)
