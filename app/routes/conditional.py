"""Conditional requests (RFC 9110, 13): who has what would be sent is told so."""

from __future__ import annotations

import hashlib
import re

from fastapi import Request, Response

_OF_CONTENT = ("content-length", "content-type", "content-disposition")
_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def not_modified(request: Request, etag: str) -> Response | None:
    """Return 304 where If-None-Match names the tag, in a list and weak or not, or is ``*``; else None."""
    given = request.headers.get("if-none-match", "")
    if given.strip() != "*" and etag.removeprefix("W/") not in _TAG.findall(given):
        return None
    return Response(status_code=304, headers={"ETag": etag})


def tagged(request: Request, response: Response) -> Response:
    """Return a response with a tag of its content, or 304 where the client has that content."""
    etag = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
    response.headers["ETag"] = etag
    unchanged = not_modified(request, etag)
    if unchanged is None:
        return response
    # a browser writes them over those that it has: without its own policy a report could not be shown in a frame again
    unchanged.headers.update({name: value for name, value in response.headers.items() if name not in _OF_CONTENT})
    return unchanged
