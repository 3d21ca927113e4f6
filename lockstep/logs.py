"""Structured logs: JSON lines with secrets redacted at this boundary."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

_SECRET_KEYS = re.compile(r"token|secret|password|authorization|cookie|lease$|api_key", re.IGNORECASE)
_SECRET_VALUES = re.compile(
    r"((?:ls[kst]|whs)_[A-Za-z0-9_-]{8})[A-Za-z0-9_-]+|(Bearer\s+)\S+|(://[^:/\s]+:)[^@/\s]+(?=@)"
)


#: What may be chosen as the least severe thing that is logged.
LEVELS = ("debug", "info", "warning", "error")


def redact(value: Any) -> Any:
    """Return a value with anything that looks like a secret replaced."""
    if isinstance(value, str):
        return _SECRET_VALUES.sub(lambda match: next(filter(None, match.groups()), "") + "***", value)
    if isinstance(value, Mapping):
        return {key: "***" if _SECRET_KEYS.search(str(key)) else redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return value


def _redact_event(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    cleaned: dict[str, Any] = redact(dict(event))
    return cleaned


class _Lines(structlog.PrintLogger):
    """Writes lines; one that nobody reads any more, or for which there is no room, ends nothing but itself."""

    def msg(self, message: str) -> None:
        """Write a line."""
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warning = error = critical = msg


def configure(level: str) -> None:
    """Log JSON lines to standard error at ``level`` and above."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact_event,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: _Lines(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Any:
    """Return a logger bound to the name of a part."""
    return structlog.get_logger(part=name)
