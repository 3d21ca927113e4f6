"""What routes are given: context, actor, raw bodies, strict JSON, idempotent answers."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

from app.errors import AppError, ForbiddenError, InvalidError, UnauthorizedError
from app.lanes import LANE, in_lane, passing, way_of
from app.services import access, audit
from app.services.context import Actor, Context
from lockstep.quoting import quoted
from lockstep.spec.text.problems import Problem, nearest, pointer

SESSION_COOKIE = "lockstep_session"
#: Things a page of a list holds unless another number is asked for.
PAGE = 1000
Cursor = Annotated[str | None, Query(max_length=20_000, description="`next` of the page before")]
PageLimit = Annotated[int, Query(ge=1, le=2000, description="Things a page")]
#: Routes of the worker protocol have it.
PROTOCOL_TAG = "worker"
_SAFE = ("GET", "HEAD", "OPTIONS")


def strict_json(body: bytes | str) -> Any:
    """Parse JSON as this server takes it everywhere: every key once in its object, every number finite.

    Raises:
        InvalidError: ``duplicate_key``, which readers of JSON resolve in different ways.
        AppError: ``malformed``: NaN and Infinity are no JSON.
        ValueError: not JSON at all; RecursionError where it is nested too deeply.
    """
    return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique)


def _refuse_constant(token: str) -> Any:
    raise AppError(f"{token} is not JSON; send null and name it in nf", code="malformed")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise duplicate_key(next(key for key, count in counts.items() if count > 1))
    return made


def duplicate_key(key: str) -> InvalidError:
    """Return the refusal of a body in which a key stands twice."""
    message = f"the key {quoted(key)} is given twice in one object"
    problem = Problem("", "duplicate_key", message, "keep one of them")
    return InvalidError(f"{message}; keep one of them", code="duplicate_key", errors=[problem])


def _unknown_parameter(name: str, known: Collection[str]) -> InvalidError:
    remedy = nearest(name, known) if known else "this call takes none"
    message = f"unknown query parameter {quoted(name)}"
    problem = Problem(pointer("query", name), "unknown_parameter", message, remedy)
    return InvalidError(f"{message} ({remedy})", code="unknown_parameter", errors=[problem])


class StrictRequest(Request):
    """A request whose JSON is strict; ``refusal`` is what was wrong with it."""

    refusal: AppError | None = None

    async def json(self) -> Any:
        """Parse the body once."""
        if not hasattr(self, "_strict_json"):
            try:
                self._strict_json = strict_json(await self.body())
            except AppError as error:
                self.refusal = error
                raise
        return self._strict_json


class StrictRoute(APIRoute):
    """A route that reads its body as strict JSON and takes no query parameter that it does not know.

    It goes by the lane of its tag. A plain function has one place in it; an async one, which may wait long, takes one
    for each thing that it does (``in_lane``).
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler so that it sees a ``StrictRequest``."""
        handler = super().get_route_handler()
        known = {field.alias for field in get_flat_params(self.dependant) if isinstance(field.field_info, params.Query)}
        is_plain = not (inspect.iscoroutinefunction(self.endpoint) or inspect.isasyncgenfunction(self.endpoint))

        async def strict(request: Request) -> Response:
            unknown = next((name for name in request.query_params if name not in known), None)
            if unknown is not None:
                raise _unknown_parameter(unknown, known)
            asked = StrictRequest(request.scope, request.receive)
            asked.scope[LANE] = self.lane
            try:
                if not is_plain:
                    return await handler(asked)
                async with passing(asked):
                    return await handler(asked)
            except HTTPException as error:  # which FastAPI makes of all that reading a body raises
                if asked.refusal is not None:
                    raise asked.refusal from error
                raise

        return strict

    @property
    def lane(self) -> str:
        """The lane of its calls."""
        return "workers" if PROTOCOL_TAG in self.tags else "people"


class BeatRoute(StrictRoute):
    """The route of heartbeats, which have places of their own in the lane of workers."""

    lane = "beats"


async def get_context(connection: HTTPConnection) -> Context:
    """Return the context of the call's lane; async, as a plain dependency would cost a way through the thread pool."""
    return way_of(connection).ctx


ContextDep = Annotated[Context, Depends(get_context)]


def authenticate(connection: HTTPConnection, ctx: Context) -> Actor:
    """Return who asks: bearer header first, then the session cookie.

    Raises:
        UnauthorizedError: no valid credentials.
        ForbiddenError: a cookie with a foreign Origin on a write.
    """
    request_id = str(connection.scope.get("lockstep_request_id", "-"))
    if ctx.settings.auth == "off":
        return Actor("local", access.LOCAL, request_id)
    scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret:
        return access.authenticate(ctx, secret.strip(), request_id)
    cookie = connection.cookies.get(SESSION_COOKIE)
    if cookie is None:
        raise UnauthorizedError(
            "no credentials; send `Authorization: Bearer <token>` or log in on the page",
            headers={"WWW-Authenticate": "Bearer"},
        )
    method = connection.scope.get("method", "GET")
    if method not in _SAFE or connection.scope["type"] == "websocket":
        origin = connection.headers.get("origin")
        if origin is None or not ctx.settings.allows_origin(origin, connection.headers.get("host", "")):
            raise ForbiddenError("a cookie writes with an Origin of this site only; send a bearer token", code="origin")
    return access.session_actor(ctx, cookie, request_id)


def _actor_with(right: str) -> Callable[[HTTPConnection, Context], Coroutine[Any, Any, Actor]]:
    async def dependency(connection: HTTPConnection, ctx: ContextDep) -> Actor:
        if ctx.settings.auth == "off":  # nothing to look up
            actor = authenticate(connection, ctx)
        else:
            actor = await in_lane(connection, authenticate, connection, ctx)
        access.require(actor, right)
        return actor

    return dependency


Reader = Annotated[Actor, Depends(_actor_with("read"))]
Submitter = Annotated[Actor, Depends(_actor_with("submit"))]
Operator = Annotated[Actor, Depends(_actor_with("operate"))]
Admin = Annotated[Actor, Depends(_actor_with("admin"))]
WorkerActor = Annotated[Actor, Depends(_actor_with("work"))]


async def lease_token(
    lockstep_lease: Annotated[
        str, Header(min_length=1, max_length=200, description="Secret of the lease, from the claim")
    ],
) -> str:
    """Return the lease token of the header ``Lockstep-Lease``."""
    return lockstep_lease


Lease = Annotated[str, Depends(lease_token)]
IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", max_length=200, description="Repeat a request without repeating its effect"),
]


async def raw_body(request: Request) -> bytes:
    """Return the body as bytes."""
    return await request.body()


RawBody = Annotated[bytes, Depends(raw_body)]


def run_once(
    ctx: Context,
    actor: Actor,
    request: Request,
    body: bytes,
    key: str | None,
    act: Callable[[Actor], tuple[int, Any]],
    redo: Callable[[Any], tuple[int, Any]],
) -> Response:
    """Act, or answer as the first time when the idempotency key is known.

    Args:
        ctx: of the process.
        actor: who asks.
        request: what is asked.
        body: its body.
        key: idempotency key, None without one.
        act: acts for an actor, recording it in the same transaction; returns status and document.
        redo: returns them for what was done, where the first answer was lost with its process.
    """
    if key is None:
        status, document = act(actor)
        return JSONResponse(document, status_code=status)
    digest = audit.request_hash(request.method, request.url.path, body)
    begun = audit.begin_idempotent(ctx, actor, key, digest)
    if isinstance(begun, audit.Replay):
        headers = {"Idempotent-Replayed": "true", "content-type": "application/json"}
        return Response(begun.body, status_code=begun.status, headers=headers)
    try:
        status, document = redo(begun.effect) if begun is not None else act(replace(actor, key=key))
    except BaseException:
        audit.end_idempotent(ctx, actor, key, None, "")
        raise
    response = JSONResponse(document, status_code=status)
    audit.end_idempotent(ctx, actor, key, status, bytes(response.body).decode())
    return response


def json_object(body: bytes) -> dict[str, Any]:
    """Parse an optional JSON object.

    Raises:
        InvalidError: not an object, or a key twice.
    """
    if not body.strip():
        return {}
    try:
        data = strict_json(body)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"not valid JSON: {error}", code="malformed") from error
    if not isinstance(data, dict):
        raise InvalidError("the body must be a JSON object", code="malformed")
    return data
