"""Text that people give: what may stand in a name and in a note.

A name is a label of any script on one line. Control characters and lone surrogates, which no database holds and a
terminal obeys, are refused by every way in.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from lockstep.quoting import quoted, shortened

_LINE_BREAKS = "\u2028\u2029"
#: Control characters, line breaks and lone surrogates; as a pattern, for a text may have megabytes.
_CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff{_LINE_BREAKS}]")


def check_line(text: str) -> str:
    """Return a text of one line as it is.

    Raises:
        ValueError: it is blank, or has a control character or a line break in it.
    """
    _refuse_controls(text, "")
    if not any(unicodedata.category(char)[0] not in "ZC" for char in text):
        raise ValueError("it is blank; write a word")
    return text


def check_id(text: str) -> str:
    """Return an id as it is.

    Raises:
        ValueError: as ``check_line``, or it has a blank before or behind it.
    """
    if check_line(text) != text.strip():
        raise ValueError(f"it has a blank before or behind it; write {quoted(text.strip())}")
    return text


def check_note(text: str) -> str:
    """Return a text of any lines as it is.

    Raises:
        ValueError: it has a control character other than line break and tab in it.
    """
    _refuse_controls(text, "\n\t")
    return text


def check_storable(text: str) -> str:
    """Return a text to search for as it is.

    Raises:
        ValueError: nothing stored can match it.
    """
    _refuse_controls(text, "".join(map(chr, range(1, 32))))
    return text


def control_at(value: Any, at: str = "") -> str | None:
    """Return the JSON pointer of the first text or key in plain data that has a control character, None without one.

    Line breaks and tabs are none.
    """
    if isinstance(value, str):
        return at if _has_controls(value, f"\r\n\t{_LINE_BREAKS}") else None
    if isinstance(value, dict):
        if any(control_at(key) is not None for key in value):
            return at
        items = [(key, item) for key, item in value.items()]
    else:
        items = list(enumerate(value)) if isinstance(value, list | tuple) else []
    found = (control_at(item, f"{at}/{shortened(str(key))}") for key, item in items)
    return next((place for place in found if place is not None), None)


def _refuse_controls(text: str, allowed: str) -> None:
    if _has_controls(text, allowed):
        raise ValueError("control characters are not allowed; remove them")


def _has_controls(text: str, allowed: str) -> bool:
    return any(char not in allowed for char in _CONTROL.findall(text))


Line = Annotated[str, AfterValidator(check_line)]
Note = Annotated[str, AfterValidator(check_note)]
Searched = Annotated[str, AfterValidator(check_storable)]
Id = Annotated[str, AfterValidator(check_id)]
Name = Annotated[Line, Field(min_length=1, max_length=200)]
Word = Annotated[Line, Field(min_length=1, max_length=64)]
