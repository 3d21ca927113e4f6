"""Opaque cursors of pages and streams."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from app.errors import InvalidError
from lockstep.text import control_at

#: Bytes that a packed cursor may unfold to.
_MAX_UNPACKED = 2**20


def encode_cursor(*parts: Any) -> str:
    """Return an opaque cursor."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_cursor(text: str) -> list[Any]:
    """Return the parts of a cursor.

    Raises:
        InvalidError: when it is not one of ours.
    """
    try:
        parts = json.loads(_decoded(text))
    except (ValueError, RecursionError) as error:
        raise bad_cursor() from error
    if not isinstance(parts, list) or control_at(parts) is not None:
        raise bad_cursor()
    return parts


def encode_numbers(numbers: Sequence[int]) -> str:
    """Return an opaque cursor of integers of 32 bits, packed: in a long row of like ones each takes next to nothing."""
    raw = struct.pack(f"<{len(numbers)}i", *numbers)
    planes = b"".join(raw[place::4] for place in range(4))  # bytes of one place together, most of them zero
    return base64.urlsafe_b64encode(zlib.compress(planes, 1)).decode().rstrip("=")


def decode_numbers(text: str) -> list[int]:
    """Return the numbers of a packed cursor.

    Raises:
        InvalidError: when it is not one of ours.
    """
    unpacking = zlib.decompressobj()
    try:
        planes = unpacking.decompress(_decoded(text), _MAX_UNPACKED)
    except (ValueError, zlib.error) as error:
        raise bad_cursor() from error
    count, rest = divmod(len(planes), 4)
    if not unpacking.eof or rest:
        raise bad_cursor()
    raw = bytearray(len(planes))
    for place in range(4):
        raw[place::4] = planes[place * count : (place + 1) * count]
    return list(struct.unpack(f"<{count}i", raw))


def bad_cursor() -> InvalidError:
    """Return the refusal of a text that is no cursor."""
    told = "the cursor is not one that this server gave, or what it names is gone; read from the first page again"
    return InvalidError(told, code="bad_cursor")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode((text + "=" * (-len(text) % 4)).encode("ascii"))
