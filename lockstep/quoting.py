"""How a sentence quotes what somebody wrote: its beginning, for a key or a value may have megabytes.

Apart from everything else, as the command line loads nothing for a refusal.
"""

from __future__ import annotations

#: Characters of what somebody wrote that a sentence quotes.
QUOTED = 80


def shortened(text: str) -> str:
    """Return a text for a sentence, a long one cut."""
    return text if len(text) <= QUOTED else f"{text[: QUOTED - 3]}..."


def quoted(value: object) -> str:
    """Return what somebody wrote for a sentence, as Python writes it, a long one cut."""
    return shortened(repr(value[: QUOTED + 1] if isinstance(value, str) else value))
