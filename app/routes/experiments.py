"""Experiments over HTTP: plan, submit, list, show, steer, read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from app.errors import InvalidError
from app.routes import documents as d
from app.routes.conditional import not_modified
from app.routes.deps import (
    PAGE,
    ContextDep,
    Cursor,
    IdempotencyKey,
    PageLimit,
    RawBody,
    Reader,
    StrictRoute,
    Submitter,
    json_object,
    run_once,
)
from app.services import steering
from app.services.context import Actor, Context
from app.services.experiments import pages, reading, submission
from app.services.experiments.live import MAX_CURSOR, Position
from app.services.experiments.reading import ListRequest
from app.services.results import series
from app.services.results.series import SeriesRequest
from lockstep.address import EXPERIMENT_ID
from lockstep.spec.text.problems import InvalidSpecError
from lockstep.spec.text.reading import load_bytes
from lockstep.status import Desired
from lockstep.text import Name, Note, Searched, Word, control_at

router = APIRouter(prefix="/api/v1", tags=["experiments"], route_class=StrictRoute)

ExperimentId = Annotated[str, Path(pattern=EXPERIMENT_ID, description="Experiment id")]
Limit = Annotated[int, Query(ge=1, le=200, description="Things a page")]
_SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": d.SPECIFICATION}, "example": d.SPEC_EXAMPLE},
            "application/yaml": {"schema": {"type": "string"}, "example": d.SPEC_TEXT},
        },
    }
}


def _object_body(**example: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {"requestBody": {"content": content}}


def _spec_of(request: Request, body: bytes) -> dict[str, Any]:
    """Read a submitted specification: JSON where its content type says so, else YAML or JSON by its look."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        return load_bytes(body, as_json=kind == "application/json")
    except InvalidSpecError as error:
        raise InvalidError(str(error), code="invalid_spec", errors=error.problems) from error


def submitted_document(ctx: Context, experiment_id: str) -> dict[str, Any]:
    """Return the answer to a submission: links and commands to copy."""
    base = ctx.settings.base_path
    api = f"{base}/api/v1/experiments/{experiment_id}"
    shown = reading.show_experiment(ctx, experiment_id)
    return {
        "id": experiment_id,
        "status": shown["status"],
        "name": shown["name"],
        "warnings": shown["warnings"],
        "links": {
            "self": api,
            "page": f"{base}/experiments/{experiment_id}",
            "report": f"{api}/report",
            "stream": f"{api}/stream",
            "websocket": f"{api}/ws",
        },
        "commands": {
            "watch": f"lockstep watch {experiment_id}",
            "cancel": f"lockstep cancel {experiment_id}",
            "clone": f"lockstep clone {experiment_id}",
            "report": f"lockstep report {experiment_id}",
        },
    }


@router.post("/plans", response_model=d.PlanDocument, responses=d.problems(), openapi_extra=_SPEC_BODY)
def create_plan(ctx: ContextDep, actor: Reader, request: Request, body: RawBody) -> Any:
    """Validate a specification and say what it would run; writes nothing."""
    return submission.plan(ctx, _spec_of(request, body))


@router.post(
    "/experiments",
    status_code=201,
    response_model=d.Submitted,
    responses=d.problems(409),
    openapi_extra=_SPEC_BODY,
)
def submit_experiment(
    ctx: ContextDep, actor: Submitter, request: Request, body: RawBody, key: IdempotencyKey = None
) -> Response:
    """Submit an experiment as YAML or JSON; a refused one leaves nothing behind."""

    def act(by: Actor) -> tuple[int, Any]:
        return redo(submission.submit(ctx, _spec_of(request, body), by))

    def redo(experiment_id: str) -> tuple[int, Any]:
        return 201, submitted_document(ctx, experiment_id)

    return run_once(ctx, actor, request, body, key, act, redo)


@router.get("/experiments", response_model=d.ExperimentPage, responses=d.problems())
def list_experiments(
    ctx: ContextDep,
    actor: Reader,
    status: Annotated[
        Literal[
            "queued",
            "waiting",
            "running",
            "pausing",
            "paused",
            "cancelling",
            "cancelled",
            "succeeded",
            "failed",
            "partial",
        ]
        | None,
        Query(description="Only this state"),
    ] = None,
    owner: Annotated[
        Searched | None, Query(max_length=200, description="Only of this owner: a name or an `owner_id`")
    ] = None,
    tag: Annotated[Searched | None, Query(max_length=64, description="Only with this tag")] = None,
    q: Annotated[Searched | None, Query(max_length=200, description="Part of the name, or an id")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Any:
    """List experiments, newest first."""
    return reading.list_experiments(ctx, ListRequest(owner, tag, q, status, cursor, limit))


@router.get(
    "/experiments/{experiment_id}",
    response_model=d.ExperimentDocument,
    responses={**d.problems(404), 304: {"description": "Not modified"}},
)
def get_experiment(ctx: ContextDep, actor: Reader, experiment_id: ExperimentId, request: Request) -> Response:
    """Show an experiment; the ETag names its version and last event."""
    document = reading.show_experiment(ctx, experiment_id)
    etag = f'"{document["version"]}-{document["cursor"]}"'
    headers = {"ETag": etag, "Cache-Control": "no-store"}  # a page shows progress too, which has no event
    return not_modified(request, headers) or JSONResponse(document, headers=headers)


class Edit(BaseModel):
    """Fields that may be changed at any time."""

    model_config = d.strict(notes="seed 42 was unlucky", tags=["clip"])

    name: Name | None = None
    notes: Annotated[Note, Field(max_length=20_000)] | None = None
    tags: Annotated[list[Word], Field(max_length=32)] | None = None
    priority: Annotated[int, Field(ge=0, le=100)] | None = None


@router.patch(
    "/experiments/{experiment_id}",
    response_model=d.ExperimentDocument,
    responses=d.problems(404, 412),
)
def edit_experiment(
    ctx: ContextDep, actor: Submitter, experiment_id: ExperimentId, edit: Edit, request: Request
) -> Any:
    """Change name, notes, tags or priority; If-Match guards against a lost update."""
    changes = {name: value for name, value in edit.model_dump().items() if value is not None}
    match = request.headers.get("if-match")
    version = match.strip('"').split("-")[0] if match else None
    if changes:
        steering.edit(ctx, experiment_id, changes, actor, if_match=version)
    return reading.show_experiment(ctx, experiment_id)


def _steer(ctx: Context, experiment_id: str, desired: Desired, body: bytes, actor: Actor) -> tuple[int, dict[str, Any]]:
    reason = json_object(body).get("reason", "")
    if not isinstance(reason, str) or len(reason) > 1000 or control_at(reason) is not None:
        raise InvalidError("reason must be text of at most 1000 characters, none a control character", code="reason")
    changed = steering.set_desired(ctx, experiment_id, desired, reason, actor)
    document = {"id": experiment_id, "desired": desired.value, "changed": changed}
    return (202 if changed else 200), document


def _steering_route(action: str, desired: Desired, summary: str) -> None:
    """Add ``POST /experiments/{id}/<action>``."""

    def steer(
        ctx: ContextDep,
        actor: Submitter,
        request: Request,
        experiment_id: ExperimentId,
        body: RawBody,
        key: IdempotencyKey = None,
    ) -> Response:
        def act(by: Actor) -> tuple[int, Any]:
            return _steer(ctx, experiment_id, desired, body, by)

        def redo(_: Any) -> tuple[int, Any]:
            return 202, {"id": experiment_id, "desired": desired.value, "changed": True}

        return run_once(ctx, actor, request, body, key, act, redo)

    router.add_api_route(
        f"/experiments/{{experiment_id}}/{action}",
        steer,
        methods=["POST"],
        status_code=202,
        operation_id=f"{action}_experiment",
        summary=summary,
        response_model=d.DesiredReply,
        responses={
            **d.problems(404, 409),
            200: {"description": "It was so already", "model": d.DesiredReply},
        },
        openapi_extra=_object_body(reason="a better idea"),
    )


_steering_route("pause", Desired.PAUSE, "Stop at the next round border with a checkpoint and free the devices")
_steering_route("resume", Desired.RUN, "Put a paused experiment back into the queue")
_steering_route("cancel", Desired.CANCEL, "Stop for good; valid in every state that is not terminal")


class Reorder(BaseModel):
    """Where to move: before or after another experiment, or (neither) to the top."""

    model_config = d.strict(before="exp_0123456789abcdef0123")

    before: str | None = Field(None, max_length=60)
    after: str | None = Field(None, max_length=60)
    top: bool = False


@router.post("/experiments/{experiment_id}/reorder", response_model=d.Document, responses=d.problems(404, 409))
def reorder_experiment(ctx: ContextDep, actor: Submitter, experiment_id: ExperimentId, where: Reorder) -> Any:
    """Move an experiment in the queue among equals."""
    if [bool(where.before), bool(where.after), where.top].count(True) != 1:
        raise InvalidError("name exactly one of before, after and top: true", code="reorder")
    rank = steering.reorder(ctx, experiment_id, actor, before=where.before, after=where.after)
    return {"id": experiment_id, "rank": rank}


@router.post(
    "/experiments/{experiment_id}/clone",
    status_code=201,
    response_model=d.Submitted,
    responses=d.problems(404, 409),
    openapi_extra=_object_body(overrides={"experiment": {"replicates": 12}}),
)
def clone_experiment(
    ctx: ContextDep,
    actor: Submitter,
    request: Request,
    experiment_id: ExperimentId,
    body: RawBody,
    key: IdempotencyKey = None,
) -> Response:
    """Submit a copy with sections of its spec laid over: ``{"overrides": {..}}``."""

    def act(by: Actor) -> tuple[int, Any]:
        overrides = json_object(body).get("overrides", {})
        if not isinstance(overrides, dict):
            raise InvalidError("overrides must be an object", code="overrides")
        return redo(submission.clone(ctx, experiment_id, overrides, by))

    def redo(copy: str) -> tuple[int, Any]:
        return 201, submitted_document(ctx, copy)

    return run_once(ctx, actor, request, body, key, act, redo)


class Extension(BaseModel):
    """How many replicates to append."""

    model_config = d.strict(replicates=4)

    replicates: int = Field(ge=1, le=1000)
    exploratory: bool = Field(False, description="Outside of the registered analysis; the report says so")


@router.post(
    "/experiments/{experiment_id}/extend",
    status_code=201,
    response_model=d.BlocksReply,
    responses=d.problems(404, 409),
)
def extend_experiment(
    ctx: ContextDep,
    actor: Submitter,
    request: Request,
    experiment_id: ExperimentId,
    extension: Extension,
    body: RawBody,
    key: IdempotencyKey = None,
) -> Response:
    """Append replicates where the registered analysis allows it."""

    def act(by: Actor) -> tuple[int, Any]:
        ids = submission.extend(ctx, experiment_id, extension.replicates, by, exploratory=extension.exploratory)
        return 201, {"blocks": ids}

    return run_once(ctx, actor, request, body, key, act, lambda effect: (201, effect))


@router.post(
    "/experiments/{experiment_id}/retry",
    status_code=201,
    response_model=d.BlocksReply,
    responses=d.problems(404, 409),
)
def retry_experiment(
    ctx: ContextDep,
    actor: Submitter,
    request: Request,
    experiment_id: ExperimentId,
    body: RawBody,
    key: IdempotencyKey = None,
) -> Response:
    """Run failed blocks again as a new generation; the old rows stay as they were."""

    def act(by: Actor) -> tuple[int, Any]:
        return 201, {"blocks": submission.retry(ctx, experiment_id, by)}

    return run_once(ctx, actor, request, body, key, act, lambda effect: (201, effect))


@router.delete("/experiments/{experiment_id}", status_code=204, responses=d.problems(404, 409))
def delete_experiment(ctx: ContextDep, actor: Submitter, experiment_id: ExperimentId) -> Response:
    """Hide an experiment that has ended."""
    steering.delete(ctx, experiment_id, actor)
    return Response(status_code=204)


@router.get("/experiments/{experiment_id}/blocks", response_model=d.Page, responses=d.problems(404))
def list_blocks(
    ctx: ContextDep, actor: Reader, experiment_id: ExperimentId, cursor: Cursor = None, limit: PageLimit = PAGE
) -> Any:
    """List the blocks of an experiment."""
    return pages.cut(reading.list_blocks(ctx, experiment_id), cursor, limit)


@router.get("/experiments/{experiment_id}/runs", response_model=d.Page, responses=d.problems(404))
def list_runs(
    ctx: ContextDep, actor: Reader, experiment_id: ExperimentId, cursor: Cursor = None, limit: PageLimit = PAGE
) -> Any:
    """List the runs of an experiment."""
    return pages.cut(reading.list_runs(ctx, experiment_id), cursor, limit)


@router.get("/experiments/{experiment_id}/events", response_model=d.Page, responses=d.problems(404))
def list_events(
    ctx: ContextDep,
    actor: Reader,
    experiment_id: ExperimentId,
    after: Annotated[str | None, Query(max_length=MAX_CURSOR, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=2000, description="Things a page")] = 200,
) -> Any:
    """Return the timeline after a cursor (or from the start): the truth behind the live streams."""
    position = Position.parse(after) if after else Position()
    page = reading.list_events(ctx, experiment_id, after=position.event, limit=limit)
    position.event = page["next"]
    return {"items": page["items"], "next": position.cursor()}


@router.get("/experiments/{experiment_id}/artifacts", response_model=d.Page, responses=d.problems(404))
def list_artifacts(
    ctx: ContextDep, actor: Reader, experiment_id: ExperimentId, cursor: Cursor = None, limit: PageLimit = PAGE
) -> Any:
    """List checkpoints and policies of an experiment."""
    return pages.cut(reading.list_artifacts(ctx, experiment_id), cursor, limit)


@router.get("/experiments/{experiment_id}/series", response_model=d.SeriesReply, responses=d.problems(404))
def read_series(
    ctx: ContextDep,
    actor: Reader,
    experiment_id: ExperimentId,
    metrics: Annotated[list[str], Query(min_length=1, max_length=50, description="Names of metrics; once for each")],
    runs: Annotated[list[str] | None, Query(max_length=200, description="Ids of runs; default: all")] = None,
    x: Annotated[Literal["step", "round", "time"], Query(description="What x is: steps, rounds or seconds")] = "step",
    low: Annotated[float | None, Query(allow_inf_nan=False, description="Least x")] = None,
    high: Annotated[float | None, Query(allow_inf_nan=False, description="Greatest x")] = None,
    max_points: Annotated[int, Query(ge=2, le=2000, description="Buckets a series at most")] = 1000,
    attempts: Annotated[
        Literal["current", "all"], Query(description="all: rounds that were done again, too")
    ] = "current",
) -> Any:
    """Read metric series in buckets (min, max, mean, first, last), bounded by rows."""
    request = SeriesRequest(runs or [], metrics, x, low, high, max_points, attempts == "all")
    return series.read_series(ctx, experiment_id, request)
