"""How a name of any script is shown among other text. Alone, for a terminal's sake: it needs no package."""

from __future__ import annotations

#: Begin and end of text whose direction ends with it.
_ISOLATE, _END = "\u2068", "\u2069"
_ISOLATES = dict.fromkeys(map(ord, "\u2066\u2067\u2068\u2069"))


def isolated(text: str) -> str:
    """Return a name for a line of other text: its direction, left or right, ends where it ends."""
    if text.isascii():
        return text
    return f"{_ISOLATE}{text.translate(_ISOLATES)}{_END}"
