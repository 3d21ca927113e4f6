"""Conditional requests (RFC 9110, 13): who has what would be sent is told so."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from fastapi import Request, Response

_OF_CONTENT = ("content-length", "content-type", "content-disposition")
_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def not_modified(request: Request, headers: Mapping[str, str]) -> Response | None:
    """Return 304 where If-None-Match names the tag, in a list and weak or not, or is ``*``; else None.

    Args:
        request: with what the client has.
        headers: of the whole answer, with its ``ETag``; a browser writes those of a 304 over those that it has, so
            that a report without its own policy could not be shown in a frame again.
    """
    given, etag = request.headers.get("if-none-match", ""), headers["ETag"]
    if given.strip() != "*" and etag.removeprefix("W/") not in _TAG.findall(given):
        return None
    kept = {name: value for name, value in headers.items() if name.lower() not in _OF_CONTENT}
    return Response(status_code=304, headers=kept)


def tagged(request: Request, response: Response) -> Response:
    """Return a response with a tag of its content, or 304 where the client has that content."""
    response.headers["ETag"] = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
    return not_modified(request, response.headers) or response
