"""What a constructor of the user's takes, read from its signature; nothing is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments_of(factory: Callable[..., Any]) -> list[str] | None:
    """Return the names of the keyword arguments that a constructor takes; None where it takes any, or cannot say."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind in _BY_NAME]
