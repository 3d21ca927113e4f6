"""Operations: queue, tokens, audit, health, metrics, browser login."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse, PlainTextResponse

from app.routes import documents as d
from app.routes.deps import (
    PAGE,
    SESSION_COOKIE,
    Admin,
    ContextDep,
    Cursor,
    Operator,
    PageLimit,
    Reader,
    StrictRoute,
)
from app.services import access, audit, operations, steering
from app.services.experiments import pages
from app.services.queue import waiting
from lockstep.revision import code_identity
from lockstep.text import Name

router = APIRouter(prefix="/api/v1", tags=["operations"], route_class=StrictRoute)
health = APIRouter(tags=["operations"])


@router.get("/queue", response_model=d.QueueDocument, responses=d.problems())
def get_queue(ctx: ContextDep, actor: Reader, cursor: Cursor = None, limit: PageLimit = PAGE) -> Any:
    """Show the queue in order, with the reason why each block waits."""
    queue = waiting.queue_document(ctx)
    return {**queue, **pages.cut(queue["items"], cursor, limit, key="block_id")}


@router.post("/queue/{action}", response_model=d.Document, responses=d.problems())
def steer_queue(
    ctx: ContextDep,
    actor: Operator,
    action: Annotated[Literal["pause", "resume"], Path(description="What to do with the whole queue")],
) -> Any:
    """Pause or resume the whole queue; running blocks go on."""
    changed = steering.pause_queue(ctx, actor, paused=action == "pause")
    return {"paused": action == "pause", "changed": changed}


class TokenRequest(BaseModel):
    """A token to create."""

    model_config = d.strict(name="mia", role="submitter", days=90)

    name: Name
    role: Literal["viewer", "submitter", "operator", "admin", "worker"]
    days: float | None = Field(None, gt=0, le=3650)
    like: str | None = Field(
        None, pattern=r"^tok_[0-9a-z]{4,40}$", description="A token whose owner holds this one, too"
    )


@router.get("/tokens", response_model=d.Page, responses=d.problems())
def list_tokens(ctx: ContextDep, actor: Admin, cursor: Cursor = None, limit: PageLimit = PAGE) -> Any:
    """List tokens without their secrets, with expiry and last use, newest first."""
    return pages.cut(access.listing(ctx), cursor, limit)


@router.post("/tokens", status_code=201, response_model=d.Document, responses=d.problems(404))
def create_token(ctx: ContextDep, actor: Admin, wanted: TokenRequest) -> Any:
    """Create a token; its secret is shown once. Its owner is a new one, unless it is to be like another token."""
    made = access.create(ctx, wanted.name, wanted.role, wanted.days, actor, like=wanted.like)
    return {"id": made.id, "secret": made.secret, "prefix": made.prefix}


@router.delete("/tokens/{token_id}", status_code=204, responses=d.problems(404))
def revoke_token(
    ctx: ContextDep,
    actor: Admin,
    token_id: Annotated[str, Path(pattern=r"^tok_[0-9a-z]{4,40}$", description="Token id")],
) -> Response:
    """Revoke a token."""
    access.revoke(ctx, token_id, actor)
    return Response(status_code=204)


@router.get("/audit", response_model=d.Page, responses=d.problems())
def read_audit(
    ctx: ContextDep,
    actor: Admin,
    by: Annotated[
        str | None, Query(alias="actor", max_length=200, description="Only acts of a name or an owner's id")
    ] = None,
    target: Annotated[
        str | None, Query(max_length=200, description="Only acts on this experiment, token, webhook or queue")
    ] = None,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Things a page")] = 50,
) -> Any:
    """Read the record of steering acts, newest first."""
    return audit.page(ctx, actor=by, target=target, before=cursor, limit=limit)


class Login(BaseModel):
    """A token to exchange for a browser session."""

    model_config = d.strict(token="lsk_...")  # noqa: S106 - an example

    token: str = Field(min_length=8, max_length=200)


@router.post("/session", status_code=204, responses=d.problems(429))
def log_in(ctx: ContextDep, request: Request, login: Login) -> Response:
    """Exchange a token for a session of its own, in an HttpOnly cookie that does not hold the token."""
    address = request.client.host if request.client is not None else "an unknown address"
    cookie, seconds = access.log_in(ctx, login.token, address, str(request.scope["lockstep_request_id"]))
    response = Response(status_code=204)
    response.set_cookie(
        SESSION_COOKIE,
        cookie,
        max_age=int(seconds),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=ctx.settings.base_path or "/",
    )
    return response


@router.get("/session", response_model=d.Session, responses=d.problems())
def who_am_i(ctx: ContextDep, actor: Reader) -> Any:
    """Say who asks: name, owner of what they submit, role; and who answers: version, epoch of its database."""
    server = {"version": code_identity().text, "epoch": operations.server_epoch(ctx)}
    return {"name": actor.name, "owner_id": actor.principal, "role": actor.role, **server}


@router.delete("/session", status_code=204, responses=d.problems())
def log_out(ctx: ContextDep, request: Request) -> Response:
    """End the browser session: its cookie is worth nothing any more, wherever it may be kept."""
    cookie = request.cookies.get(SESSION_COOKIE)
    if cookie is not None:
        access.log_out(ctx, cookie)
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, path=ctx.settings.base_path or "/")
    return response


@health.get("/healthz", response_model=d.Document)
def healthz() -> Any:
    """Say that the process is alive."""
    return {"status": "ok"}


@health.get("/readyz", response_model=d.Document, responses={503: {"description": "Not ready", "model": d.Document}})
def readyz(ctx: ContextDep) -> Response:
    """Say whether database, schema, folder of files and sweep are well, and how much the pools are used."""
    try:
        document = operations.readiness(ctx.on("workers"))  # which must answer however many people ask
    except SQLAlchemyError as error:
        return JSONResponse({"database": type(error).__name__}, status_code=503)
    return JSONResponse(document, status_code=200 if operations.is_ready(document) else 503)


@health.get("/metrics", response_class=PlainTextResponse)
def prometheus(ctx: ContextDep, request: Request) -> Response:
    """Numbers for Prometheus."""
    text = operations.render_metrics(ctx.on("workers"), request.app.state.hub.num_readers)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
