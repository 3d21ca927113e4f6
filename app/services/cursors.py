"""Opaque cursors of pages and streams."""

from __future__ import annotations

import base64
import json
from typing import Any

from app.errors import InvalidError
from lockstep.text import control_at


def encode_cursor(*parts: Any) -> str:
    """Return an opaque cursor."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_cursor(text: str) -> list[Any]:
    """Return the parts of a cursor.

    Raises:
        InvalidError: when it is not one of ours.
    """
    try:
        padded = text + "=" * (-len(text) % 4)
        parts = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
    except (ValueError, UnicodeError) as error:
        raise InvalidError("the cursor is not one that this server gave", code="bad_cursor") from error
    if not isinstance(parts, list) or control_at(parts) is not None:
        raise InvalidError("the cursor is not one that this server gave", code="bad_cursor")
    return parts
