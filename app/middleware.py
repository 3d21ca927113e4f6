"""What every request passes before a route: request id, Host, Origin, size, safe headers.

Pure ASGI, so that streams and sockets pass unbuffered.
"""

from __future__ import annotations

import gzip
import io
import secrets
import sys
import zlib
from collections.abc import MutableMapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import AppError, ForbiddenError, TooLargeError
from app.problems import render, unexpected
from app.services.webhooks import DELIVERY
from app.settings import Settings
from app.store.database.engine import StartupError
from lockstep.address import is_loopback
from lockstep.quoting import quoted, shortened

_CSP = "default-src 'self'; frame-ancestors 'none'; object-src 'none'; base-uri 'self'; form-action 'self'"
_MAX_COMPRESSED = 1024 * 1024
_READS = ("GET", "HEAD", "OPTIONS")
_PROBES = ("/healthz", "/readyz")


def install(app: FastAPI, settings: Settings) -> None:
    """Put the middleware in front of the application, outermost last."""
    app.add_middleware(PageCompression)
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(SenderGuard, settings=settings)
    app.add_middleware(HostGuard, settings=settings)
    app.add_middleware(Envelope, base_path=settings.base_path)


class Envelope:
    """Gives each request an id, its whole path whether or not a proxy took the base path off, and safe headers.

    What a call raises is answered here: behind an error that reaches it the server cuts the connection without a word,
    on which a client may have sent its next request.
    """

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self.app = app
        self._base = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or socket with an id and safe headers."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, partial(_send_sentence, send))
            return
        request_id = secrets.token_hex(8)
        scope["lockstep_request_id"] = request_id
        if self._base:
            scope["root_path"] = self._base
            if not f"{scope['path']}/".startswith(f"{self._base}/"):
                scope["path"] = self._base + scope["path"]

        has_begun = scope["type"] != "http"

        async def with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                _add_headers(message, request_id)
            await send(message)

        if scope.get("method") == "HEAD" and not scope["path"].endswith("/stream"):  # a stream has no end to wait for
            scope, with_headers = {**scope, "method": "GET"}, partial(_send_head, with_headers)
        try:
            await self.app(scope, receive, with_headers)
        except Exception as error:
            if has_begun:
                raise
            await unexpected(Request(scope), error)(scope, receive, with_headers)


async def _send_sentence(send: Send, message: Message) -> None:
    """Let a start-up that failed for a reason which people can mend say the reason, not its traceback."""
    error = sys.exception()  # the message is sent while it is handled
    if message["type"] == "lifespan.startup.failed" and isinstance(error, StartupError):
        message = {**message, "message": str(error)}
    await send(message)


async def _send_head(send: Send, message: Message) -> None:
    """Let what answers a GET answer HEAD: the same headers and no body."""
    await send({**message, "body": b""} if message["type"] == "http.response.body" else message)


def _add_headers(message: MutableMapping[str, Any], request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-Id"] = request_id
    if "location" in headers:  # without scheme and host, of which a proxy may have told another or none
        headers["location"] = urlsplit(headers["location"])._replace(scheme="", netloc="").geturl()
    headers.setdefault("Content-Security-Policy", _CSP)
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Referrer-Policy", "same-origin")
    # what has a tag may be kept, and is asked for again before it is shown
    headers.setdefault("Cache-Control", "private, no-cache" if "etag" in headers else "no-store")
    if headers.get("content-type", "").startswith("text/event-stream"):
        headers["X-Accel-Buffering"] = "no"


class PageCompression:
    """Compresses pages and their files. Answers of the API may be long streams, which would hold up the others."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._compressed = GZipMiddleware(app, minimum_size=1024)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it, compressed where it is for a page."""
        is_page = scope["type"] == "http" and "/api/" not in scope["path"]
        await (self._compressed if is_page else self._plain)(scope, receive, send)


class HostGuard:
    """Refuses a Host that is not on the list (DNS rebinding); probes call by any address and show no data."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._allowed = {host.lower() for host in settings.allowed_hosts} | {settings.bind.lower()}
        self._loopback = not settings.allowed_hosts or is_loopback(settings.bind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it, or refuse its Host."""
        passes = scope["type"] == "lifespan" or scope["path"].removeprefix(scope["root_path"]) in _PROBES
        if passes or self._is_allowed(Headers(scope=scope).get("host", "")):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4403, "reason": "host not allowed"})
            return
        error = AppError("this Host is not on the allow-list (LOCKSTEP_ALLOWED_HOSTS)", code="host")
        await render(error, scope["lockstep_request_id"])(scope, receive, send)

    def _is_allowed(self, header: str) -> bool:
        host = header.rsplit(":", 1)[0] if not header.endswith("]") else header
        host = host.strip("[]").lower()
        return host in self._allowed or "*" in self._allowed or (self._loopback and is_loopback(host))


class SenderGuard:
    """Refuses a write that a foreign page or a webhook sent; scripts name no Origin and pass.

    With authentication off the browser of anybody on this machine is all that a foreign page needs. Sockets are
    refused where they are admitted, with a close code that the page can read. A webhook that names this server, by
    whatever address, would let it pause its own queue at each verdict.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it, or refuse who sent it."""
        if scope["type"] == "http" and scope["method"] not in _READS:
            error = self._refusal(Headers(scope=scope))
            if error is not None:
                await render(error, scope["lockstep_request_id"])(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ForbiddenError | None:
        if DELIVERY in headers:
            return ForbiddenError("a webhook may not write here; name the address of a receiver", code="webhook")
        origin = headers.get("origin")
        if origin is not None:
            ours = self._settings.allows_origin(origin, headers.get("host", ""))
            return None if ours else _foreign(origin)
        # a browser says so even where something on the way took Origin off
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _foreign("of another site")
        return None


def _foreign(origin: str) -> ForbiddenError:
    """Return the refusal of a write from another site."""
    told = f"a page from the origin {shortened(origin)} may not write here"
    return ForbiddenError(f"{told}; add it to LOCKSTEP_ALLOWED_ORIGINS if it is yours", code="origin")


class BodyLimit:
    """Bounds bodies, also after decompression; gzip is undone here."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, bound and inflate the body, then serve."""
        if scope["type"] != "http" or scope["method"] in (*_READS, "DELETE"):
            await self.app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except AppError as error:
            await render(error, scope["lockstep_request_id"])(scope, receive, send)
            return
        if body is None:
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the whole body; None when the client went away."""
        is_file = "/files/" in scope["path"]
        limit = self._settings.max_artifact_bytes if is_file else self._settings.max_body_bytes
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise TooLargeError(f"the body exceeds {limit} bytes")
            chunks.append(chunk)
            if not message.get("more_body", False):
                break
        body = b"".join(chunks)
        return self._inflate(scope, body, limit)

    def _inflate(self, scope: Scope, body: bytes, limit: int) -> bytes:
        encoding = Headers(scope=scope).get("content-encoding", "").lower()
        if encoding in ("", "identity"):
            return body
        if encoding != "gzip":
            raise AppError(f"content-encoding {quoted(encoding)} is not served; use gzip", code="encoding")
        if len(body) > _MAX_COMPRESSED:
            raise TooLargeError(f"a compressed body may have {_MAX_COMPRESSED} bytes")
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                plain = file.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise AppError("the body is not valid gzip", code="encoding") from error
        if len(plain) > limit:
            raise TooLargeError(f"the body exceeds {limit} bytes after decompression")
        return plain
