"""Every error leaves as problem+json, rendered in one place; no stack trace, SQL or path."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from app.errors import MEDIA_TYPE, AppError, BusyError, InvalidError, problem_document
from app.html import error_page, wants_page
from app.routes.documents import ProblemDocument
from app.services.operations import METRICS
from app.store.database.opening import why_away
from lockstep.logs import get_logger
from lockstep.quoting import shortened
from lockstep.spec.text.faults import dotted, sentence
from lockstep.spec.text.problems import Problem, pointer

_log = get_logger("errors")
_CODES = {400: "malformed", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "media_type"}


def render(error: AppError, request_id: str) -> JSONResponse:
    """Return the response of an error."""
    document = problem_document(error, request_id)
    return JSONResponse(document, error.status, headers=error.headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Register the handlers and put the document's schema into OpenAPI."""
    app.add_exception_handler(AppError, _app_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(SQLAlchemyError, _database_error)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "ProblemDocument" not in schemas:
            made = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(made.pop("$defs", {}))
            schemas["ProblemDocument"] = made
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this way to extend it


def _id(request: Request) -> str:
    return str(request.scope.get("lockstep_request_id", "-"))


def _answer(request: Request, error: AppError) -> Response:
    """Return the error as a page for a person, else as problem+json."""
    if wants_page(request):
        return error_page(request, error, _id(request))
    return render(error, _id(request))


async def _app_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AppError)  # noqa: S101 - registered for this class
    return _answer(request, error)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class
    grouped: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for item in error.errors():
        grouped.setdefault(tuple(item["loc"]), []).append(item)
    problems = [
        Problem(pointer(*place), items[0]["type"], *sentence(dotted(place[1:] or place), items))
        for place, items in grouped.items()
    ]
    if any(item["type"] == "json_invalid" for item in error.errors()):
        malformed = AppError("the body is not valid JSON", code="malformed", errors=problems)
        return _answer(request, malformed)
    first = problems[0]
    detail = f"{first.pointer}: {first.message}"
    return _answer(request, InvalidError(detail, code="invalid_request", errors=problems))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class
    nowhere = error.status_code == 404 and wants_page(request)
    detail = f"There is no page {shortened(request.url.path)} here." if nowhere else str(error.detail)
    problem = AppError(detail, code=_CODES.get(error.status_code, "http_error"))
    problem.status = error.status_code
    problem.title = str(error.detail)
    problem.headers = dict(error.headers or {})
    return _answer(request, problem)


async def _database_error(request: Request, error: Exception) -> Response:
    METRICS.database_errors.inc()
    reason = why_away(error)
    if reason is None:
        return unexpected(request, error)
    _log.warning("the database does not answer", path=request.url.path, request_id=_id(request), reason=reason)
    if isinstance(error, PoolTimeout):
        return _answer(
            request, BusyError("all connections to the database that such calls may use are in use; try again")
        )
    return _answer(request, BusyError("the database does not answer; try again"))


def unexpected(request: Request, error: Exception) -> Response:
    """Log a fault of ours and return its answer."""
    _log.exception("unexpected error", path=request.url.path, request_id=_id(request), exc_info=error)
    problem = AppError("an unexpected error occurred; its record carries the request id", code="internal")
    problem.status, problem.title = 500, "Internal error"
    return _answer(request, problem)
