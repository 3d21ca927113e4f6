"""Errors of use cases: each carries its status and code; rendered once, as RFC 9457 problem+json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lockstep.spec.text.problems import Problem

MEDIA_TYPE = "application/problem+json"


class AppError(Exception):
    """A use case refused.

    Attributes:
        status: HTTP status.
        code: stable, snake_case.
        headers: extra response headers.
    """

    status = 400
    code = "bad_request"
    title = "Bad request"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: Sequence[Problem] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.errors = tuple(errors)
        self.headers = headers or {}


class NotFoundError(AppError):
    """There is no such thing (any more)."""

    status, code, title = 404, "not_found", "Not found"


class ConflictError(AppError):
    """The state of the thing does not allow this."""

    status, code, title = 409, "conflict", "Conflict"


class LeaseLostError(ConflictError):
    """The lease does not hold any more; nothing was stored."""

    code, title = "lease_lost", "Lease lost"


class GoneError(AppError):
    """It was there and is no more."""

    status, code, title = 410, "gone", "Gone"


class PreconditionError(AppError):
    """If-Match named another version."""

    status, code, title = 412, "version_mismatch", "Precondition failed"


class TooLargeError(AppError):
    """A limit on size was exceeded."""

    status, code, title = 413, "too_large", "Too large"


class InvalidError(AppError):
    """The request was understood and refused; ``errors`` name the fields."""

    status, code, title = 422, "invalid", "Unprocessable"


class UpgradeError(AppError):
    """The client speaks an older protocol."""

    status, code, title = 426, "protocol_version", "Upgrade required"


class UnauthorizedError(AppError):
    """No valid credentials."""

    status, code, title = 401, "not_authenticated", "Not authenticated"


class ForbiddenError(AppError):
    """The role does not allow this."""

    status, code, title = 403, "forbidden", "Forbidden"


class TooManyError(AppError):
    """Asked too often; try again later."""

    status, code, title = 429, "too_many", "Too many requests"

    def __init__(self, detail: str, *, seconds: float) -> None:
        super().__init__(detail, headers={"Retry-After": str(math.ceil(seconds))})


class BusyError(AppError):
    """The database is busy; try again."""

    status, code, title = 503, "busy", "Busy"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"Retry-After": "1"})


class NotInstalledError(AppError):
    """An optional part is not installed on the server."""

    status, code, title = 501, "not_installed", "Not implemented"


def problem_document(error: AppError, request_id: str) -> dict[str, Any]:
    """Return the RFC 9457 document of an error."""
    document: dict[str, Any] = {
        "type": f"urn:lockstep:error:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "request_id": request_id,
    }
    if error.errors:
        document["errors"] = [
            {"pointer": p.pointer, "code": p.code, "message": p.message, "remedy": p.remedy} for p in error.errors
        ]
    return document


class StartupError(RuntimeError):
    """A database, folder or setting cannot be used as configured; the message says why and what to do."""
