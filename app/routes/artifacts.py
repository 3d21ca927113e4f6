"""Runs, logs and stored files by id; a client's name for a file is never a path."""

from __future__ import annotations

import os
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from app.errors import NotFoundError
from app.routes import documents as d
from app.routes.conditional import not_modified
from app.routes.deps import ContextDep, Reader, StrictRoute
from app.services.experiments import reading
from app.services.results import grafts
from lockstep.protocol import Severity

router = APIRouter(prefix="/api/v1", tags=["runs"], route_class=StrictRoute)

RunId = Annotated[str, Path(pattern=r"^run_[0-9a-z]{4,40}$", description="Run id")]
ArtifactId = Annotated[str, Path(pattern=r"^art_[0-9a-z]{4,40}$", description="Artifact id")]


class OpenFileResponse(FileResponse):
    """Sends a file that is open already, ranges too, and closes it; by its name another might be read by now."""

    def __init__(self, file: BinaryIO, **given: Any) -> None:
        super().__init__(f"/dev/fd/{file.fileno()}", stat_result=os.fstat(file.fileno()), **given)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._file:
            await super().__call__(scope, receive, send)


@router.get("/runs/{run_id}", response_model=d.Document, responses=d.problems(404))
def get_run(ctx: ContextDep, actor: Reader, run_id: RunId) -> Any:
    """Show a run with its metric names."""
    return reading.show_run(ctx, run_id)


@router.get("/runs/{run_id}/grafts", response_model=d.GraftRound, responses=d.problems(404, 409))
def read_grafts(
    ctx: ContextDep,
    actor: Reader,
    run_id: RunId,
    of_round: Annotated[
        int | None, Query(alias="round", ge=0, le=2**31 - 1, description="Round; its newest without")
    ] = None,
) -> Any:
    """Read what grew in a run's environments in one round (the newest): stage, blueprint, alpha, contribution."""
    return grafts.timeline(ctx, run_id, of_round)


@router.get("/runs/{run_id}/logs", response_model=d.Page, responses=d.problems(404))
def read_logs(
    ctx: ContextDep,
    actor: Reader,
    run_id: RunId,
    after: Annotated[str | None, Query(max_length=20_000, description="Lines after this cursor")] = None,
    before: Annotated[str | None, Query(max_length=20_000, description="Lines before this cursor")] = None,
    level: Annotated[Severity, Query(description="The least severe lines to return")] = "info",
    tail: Annotated[int, Query(ge=1, le=2000, description="Lines at most")] = 200,
) -> Any:
    """Read log lines of the run's block: the newest ones, those after a cursor, or those before one."""
    return reading.read_logs(ctx, run_id, cursor=after, before=before, level=level, limit=tail)


@router.get("/artifacts/{artifact_id}", response_model=d.Document, responses=d.problems(404))
def get_artifact(ctx: ContextDep, actor: Reader, artifact_id: ArtifactId) -> Any:
    """Show what is known of a stored file."""
    return reading.artifact_document(reading.show_artifact(ctx, artifact_id))


@router.get(
    "/artifacts/{artifact_id}/content",
    response_class=FileResponse,
    responses={
        **d.problems(404),
        206: {"description": "Part of the file"},
        304: {"description": "You have it: its ETag is among If-None-Match"},
        416: {"description": "The range lies outside of the file"},
    },
)
def download_artifact(ctx: ContextDep, actor: Reader, request: Request, artifact_id: ArtifactId) -> Response:
    """Download a stored file; ranges are served."""
    row = reading.show_artifact(ctx, artifact_id)
    headers = {"X-Content-Type-Options": "nosniff", "ETag": f'"{row.sha256}"'}
    if (same := not_modified(request, headers)) is not None:
        return same
    file = ctx.files.open(row.sha256)
    if file is None:
        raise NotFoundError("the stored object is missing", code="missing_object")
    return OpenFileResponse(
        file,
        filename=row.name,
        media_type=row.media_type,
        content_disposition_type="attachment",
        headers=headers,
    )
