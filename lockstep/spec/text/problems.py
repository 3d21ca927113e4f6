"""A problem with submitted data: where it is, what is wrong, what to do about it."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.quoting import QUOTED, shortened


@dataclass(frozen=True)
class Problem:
    """One finding about a document.

    Attributes:
        pointer: JSON pointer of the field (RFC 6901).
        code: stable, snake_case or one of the E_ codes of the statistics.
        message: what is wrong, with the value.
        remedy: what to do.
    """

    pointer: str
    code: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return it in a line for people."""
        place = f"{self.pointer}: " if self.pointer else ""
        return f"{place}{self.message}" + (f" ({self.remedy})" if self.remedy else "")


class InvalidSpecError(ValueError):
    """The submitted specification has problems; none of it was stored."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def pointer(*parts: str | int) -> str:
    """Return the JSON pointer of a path; a long part is cut."""
    return "".join("/" + shortened(str(part)).replace("~", "~0").replace("/", "~1") for part in parts)


#: Known names that a sentence lists; beyond them it lists those that are least unlike.
_LISTED = 12


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return the known key that is so like ``name`` that it may have been meant, None where none is."""
    names, name = sorted(known), name[:QUOTED]
    folded = {other.casefold(): other for other in names}
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or [
        folded[other] for other in difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    ]
    return close[0] if close else None


def nearest(name: str, known: Iterable[str], lead: str = "known:") -> str:
    """Return a remedy that names the nearest known key, or all of them, after ``lead``, when none is near."""
    names, name = sorted(known), name[:QUOTED]
    close = meant(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    if len(names) <= _LISTED:
        return f"{lead} {', '.join(names)}"
    likest = heapq.nlargest(_LISTED, names, key=lambda other: difflib.SequenceMatcher(None, other, name).ratio())
    return f"{lead} {', '.join(sorted(likest))} and {len(names) - _LISTED} more"
