"""Pages of lists that are read whole: a cursor names the last thing of the page before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.services.experiments.cursors import bad_cursor, decode_cursor, encode_cursor


def cut(items: Sequence[dict[str, Any]], cursor: str | None, limit: int, *, key: str = "id") -> dict[str, Any]:
    """Return a page of things in their order; ``next`` is null at the end.

    Args:
        items: all of them.
        cursor: as the page before returned it, None for the first page.
        limit: things a page.
        key: what tells one from another.

    Raises:
        InvalidError: the cursor is none of ours, or what it names has left the list: begin anew.
    """
    first = 0
    if cursor is not None:
        last = decode_cursor(cursor)
        at = next((index for index, item in enumerate(items) if [item[key]] == last), None)
        if at is None:
            raise bad_cursor()
        first = at + 1
    shown = list(items[first : first + limit])
    return {"items": shown, "next": encode_cursor(shown[-1][key]) if first + limit < len(items) else None}
