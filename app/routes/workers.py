"""The worker protocol over HTTP, and what operators do with workers."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel
from starlette.responses import JSONResponse

from app.claiming import Desk
from app.errors import InvalidError
from app.lanes import in_lane
from app.routes import documents as d
from app.routes.deps import (
    PAGE,
    BeatRoute,
    ContextDep,
    Cursor,
    Lease,
    Operator,
    PageLimit,
    Reader,
    StrictRoute,
    WorkerActor,
)
from app.services.experiments import pages, reading
from app.services.operations import METRICS
from app.services.training import assignments, ingest, workers
from app.services.training.ingest import Upload
from lockstep import protocol as p
from lockstep.text import Line

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)

WorkerId = Annotated[str, Path(pattern=r"^wrk_[0-9a-z]{4,40}$", description="Worker id")]
AssignmentId = Annotated[str, Path(pattern=r"^asg_[0-9a-z]{4,40}$", description="Assignment id")]
BlockId = Annotated[str, Path(pattern=r"^blk_[0-9a-z]{4,40}$", description="Block id")]
Wait = Annotated[float, Query(ge=0, le=30, description="Seconds to wait")]
RoundIndex = Annotated[int, Path(ge=0, le=1_000_000, description="Number of the round, from 0")]
Retired = Annotated[bool, Query(description="Those that have gone, too")]
FileHash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the file")]


@router.post("/workers", tags=["worker"], response_model=p.RegisterReply, responses=d.problems(409, 426))
def register_worker(ctx: ContextDep, actor: WorkerActor, request: p.RegisterRequest) -> Any:
    """Register a supervisor bound to one device."""
    return workers.register(ctx, request)


@router.post(
    "/workers/{worker_id}/claim",
    tags=["worker"],
    response_model=p.Assignment,
    responses={**d.problems(404, 409, 410), 204: {"description": "Nothing to do; ask again"}},
)
async def claim_block(actor: WorkerActor, request: Request, worker_id: WorkerId, wait: Wait = 25.0) -> Response:
    """Wait for an assignment; repeating the call returns the same offer."""
    desk: Desk = request.app.state.desk
    assignment = await desk.wait(worker_id, wait)
    return Response(status_code=204) if assignment is None else _answer(assignment)


def _answer(reply: BaseModel) -> Response:
    """Return a reply as it is: given a model FastAPI would validate it once more, on a further way through a thread."""
    return Response(reply.model_dump_json(), media_type="application/json")


def heartbeat(ctx: ContextDep, actor: WorkerActor, worker_id: WorkerId, beat: p.HeartbeatRequest) -> Response:
    """Renew leases and learn what is wanted."""
    with METRICS.heartbeat_seconds.time():
        return _answer(workers.heartbeat(ctx, worker_id, beat))


router.add_api_route(
    "/workers/{worker_id}/heartbeat",
    heartbeat,
    methods=["POST"],
    tags=["worker"],
    response_model=p.HeartbeatReply,
    responses=d.problems(404, 409, 410),
    route_class_override=BeatRoute,
)


@router.post(
    "/assignments/{assignment_id}/ready",
    tags=["worker"],
    response_model=p.ReadyReply,
    responses=d.problems(404, 409),
)
def report_ready(
    ctx: ContextDep, actor: WorkerActor, assignment_id: AssignmentId, lease: Lease, ready: p.ReadyRequest
) -> Response:
    """Say that the child is up on its device, or that it refused."""
    return _answer(assignments.ready(ctx, assignment_id, lease, ready))


@router.put(
    "/assignments/{assignment_id}/rounds/{index}",
    tags=["worker"],
    response_model=p.RoundReply,
    responses=d.problems(404, 409),
)
def put_round(
    ctx: ContextDep,
    actor: WorkerActor,
    assignment_id: AssignmentId,
    index: RoundIndex,
    lease: Lease,
    results: p.RoundRequest,
) -> Response:
    """Hand in a round; idempotent by run, attempt, round and digest."""
    METRICS.ingest_rows.inc(sum(len(run.metrics) for run in results.runs))
    return _answer(assignments.put_round(ctx, assignment_id, lease, index, results))


@router.get(
    "/blocks/{block_id}/barrier",
    tags=["worker"],
    response_model=p.BarrierReply,
    responses={
        **d.problems(404),
        202: {"description": "Waiting", "model": p.BarrierReply},
        409: {"description": "Aborted", "model": p.BarrierReply},
    },
)
async def wait_at_barrier(
    ctx: ContextDep,
    actor: WorkerActor,
    request: Request,
    block_id: BlockId,
    attempt: Annotated[int, Query(ge=0, le=1_000_000, description="Number of the attempt")],
    index: Annotated[int, Query(alias="round", ge=0, le=1_000_000, description="Number of the round")],
    wait: Wait = 25.0,
) -> Response:
    """Wait until every live run of the block has handed in the round."""
    deadline = time.monotonic() + wait
    while True:
        reply = await in_lane(request, assignments.barrier, ctx, block_id, attempt, index)
        left = deadline - time.monotonic()
        if reply.state != "waiting" or left <= 0 or ctx.bell.is_closed:
            status = {"complete": 200, "waiting": 202, "aborted": 409}[reply.state]
            return JSONResponse(reply.model_dump(), status_code=status)
        await ctx.bell.wait(min(left, 1.0))


@router.post(
    "/assignments/{assignment_id}/metrics",
    tags=["worker"],
    response_model=p.PointsReply,
    responses=d.problems(404, 409),
)
def post_points(
    ctx: ContextDep, actor: WorkerActor, assignment_id: AssignmentId, lease: Lease, points: p.PointsRequest
) -> Response:
    """Store points of the open round, each once."""
    METRICS.ingest_rows.inc(sum(len(series.value) for series in points.series))
    return _answer(ingest.post_points(ctx, assignment_id, lease, points))


@router.post("/assignments/{assignment_id}/logs", tags=["worker"], status_code=204, responses=d.problems(404, 409))
def post_logs(
    ctx: ContextDep, actor: WorkerActor, assignment_id: AssignmentId, lease: Lease, lines: p.LogsRequest
) -> Response:
    """Store log lines of the child, each once."""
    ingest.post_logs(ctx, assignment_id, lease, lines)
    return Response(status_code=204)


_FILE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.put(
    "/assignments/{assignment_id}/files/{sha256}",
    tags=["worker"],
    status_code=201,
    response_model=d.Document,
    responses=d.problems(404, 409),
    openapi_extra=_FILE_BODY,
)
async def upload_file(
    ctx: ContextDep,
    actor: WorkerActor,
    assignment_id: AssignmentId,
    sha256: FileHash,
    lease: Lease,
    request: Request,
    run_id: Annotated[str, Query(max_length=60, description="Of which run it is")],
    kind: Annotated[str, Query(pattern="^(checkpoint|policy|artifact)$", description="What it is")],
    name: Annotated[Line, Query(min_length=1, max_length=200, description="Name of the file")],
    next_round: Annotated[
        int | None, Query(ge=0, le=1_000_000, description="Of a checkpoint: the round that comes next")
    ] = None,
    offset: Annotated[int, Query(ge=0, le=2**40, description="Where in the file the body begins, bytes")] = 0,
    size: Annotated[
        int | None, Query(ge=1, le=2**40, description="Bytes of the whole file, where the body is a piece of it")
    ] = None,
) -> Any:
    """Upload a checkpoint or policy, whole or piece by piece; a checkpoint counts after its commit."""
    if kind == "checkpoint" and next_round is None:
        raise InvalidError("a checkpoint needs next_round", code="missing_round")
    body = await request.body()
    upload = Upload(run_id, kind, name, next_round, sha256)
    if size is not None:
        stored = await in_lane(request, ingest.put_piece, ctx, assignment_id, lease, upload, offset, size, body)
    else:
        stored = await in_lane(request, ingest.put_file, ctx, assignment_id, lease, upload, [body])
    return {"sha256": sha256, "size_bytes": offset + len(body) if stored is None else stored.size_bytes}


@router.get(
    "/assignments/{assignment_id}/files/{sha256}",
    tags=["worker"],
    responses={**d.problems(404, 409), 200: {"content": {"application/octet-stream": {}}}},
)
def download_file(
    ctx: ContextDep,
    actor: WorkerActor,
    assignment_id: AssignmentId,
    sha256: FileHash,
    lease: Lease,
) -> Response:
    """Download a committed checkpoint of a run of this assignment."""
    return Response(ingest.read_file(ctx, assignment_id, lease, sha256), media_type="application/octet-stream")


@router.post(
    "/assignments/{assignment_id}/checkpoints",
    tags=["worker"],
    status_code=204,
    responses=d.problems(404, 409),
)
def commit_checkpoints(
    ctx: ContextDep, actor: WorkerActor, assignment_id: AssignmentId, lease: Lease, commit: p.CommitRequest
) -> Response:
    """Commit the uploaded checkpoints of all runs of the assignment in one call."""
    ingest.commit(ctx, assignment_id, lease, commit)
    return Response(status_code=204)


@router.post(
    "/assignments/{assignment_id}/release",
    tags=["worker"],
    status_code=204,
    responses=d.problems(404, 409),
)
def release_assignment(
    ctx: ContextDep, actor: WorkerActor, assignment_id: AssignmentId, lease: Lease, release: p.ReleaseRequest
) -> Response:
    """End the assignment; idempotent."""
    assignments.release(ctx, assignment_id, lease, release)
    return Response(status_code=204)


@router.get("/workers", tags=["workers"], response_model=d.Page, responses=d.problems())
def list_workers(
    ctx: ContextDep, actor: Reader, retired: Retired = False, cursor: Cursor = None, limit: PageLimit = PAGE
) -> Any:
    """List workers with device, health and what each one holds."""
    return pages.cut(reading.list_workers(ctx, include_retired=retired), cursor, limit)


@router.get("/workers/{worker_id}", tags=["workers"], response_model=d.Document, responses=d.problems(404))
def get_worker(ctx: ContextDep, actor: Reader, worker_id: WorkerId) -> Any:
    """Show a worker with its newest events."""
    return reading.show_worker(ctx, worker_id)


class Drain(BaseModel):
    """How to drain: after its block, or at the next round border."""

    model_config = d.strict(now=False)

    now: bool = False


@router.post(
    "/workers/{worker_id}/drain",
    tags=["workers"],
    status_code=202,
    response_model=d.Document,
    responses=d.problems(404, 409),
)
def drain_worker(ctx: ContextDep, actor: Operator, worker_id: WorkerId, drain: Drain) -> Any:
    """Let a worker finish (or stop) its block and retire."""
    workers.drain(ctx, worker_id, actor, now=drain.now)
    return reading.show_worker(ctx, worker_id)


@router.post(
    "/workers/{worker_id}/clear",
    tags=["workers"],
    status_code=202,
    response_model=d.Document,
    responses=d.problems(404, 409),
)
def clear_worker(ctx: ContextDep, actor: Operator, worker_id: WorkerId) -> Any:
    """Take a worker out of quarantine."""
    workers.clear(ctx, worker_id, actor)
    return reading.show_worker(ctx, worker_id)
