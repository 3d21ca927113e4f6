"""Exports and the comparison of specifications over HTTP."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.errors import NotInstalledError
from app.routes import documents as d
from app.routes.conditional import not_modified
from app.routes.deps import ContextDep, Reader, StrictRoute
from app.routes.experiments import ExperimentId
from app.services import exports
from lockstep.logs import get_logger

_log = get_logger("exports")
router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=StrictRoute)

_FORMS: dict[str, tuple[Any, str]] = {
    "csv": (exports.write_csv, "text/csv; charset=utf-8"),
    "json": (exports.write_json, "application/json"),
    "sqlite": (exports.write_sqlite, "application/vnd.sqlite3"),
}
_CHUNK_BYTES = 64 * 1024
_POLL_SECONDS = 0.1
#: A client that takes nothing for so long is left.
_STALL_SECONDS = 60.0


class SpooledResponse(Response):
    """Sends a file while a thread writes it; the file has no name and is gone with the response.

    Only the thread uses the database, and it never waits for the client. All ends with the call: when the client
    leaves, stalls or the server stops, the thread is told, waited for, and the file is closed.

    Args:
        write: writes the file; ends early when its event is set.
        writers: run ``write``; few, since each takes the interpreter from every other request.
        folder: where the file lies.
    """

    def __init__(
        self, write: Callable[[BinaryIO, threading.Event], None], writers: Executor, folder: Path, **given: Any
    ) -> None:
        super().__init__(**given)
        del self.headers["content-length"]
        self._write, self._writers, self._folder = write, writers, folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Write and send until the end of the file or of the client."""
        stop = threading.Event()
        with tempfile.TemporaryFile(dir=self._folder) as file:
            job = self._writers.submit(self._fill, file, stop)
            writing = asyncio.wrap_future(job)
            sending = asyncio.create_task(self._send(file, writing, send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                _log.info("an export was cut off: the server stops")  # raised, it would be a traceback for each client
            finally:
                stop.set()
                for waiting in (job, sending, leaving):
                    waiting.cancel()  # which leaves a job that has begun: it is waited for
                await asyncio.gather(writing, sending, leaving, return_exceptions=True)
            if not sending.cancelled():
                sending.result()

    def _fill(self, file: BinaryIO, stop: threading.Event) -> None:
        if not stop.is_set():
            self._write(file, stop)
            file.flush()

    async def _send(self, file: BinaryIO, writing: asyncio.Future[None], send: Send) -> None:
        position, started = 0, False
        while True:
            is_whole = writing.done()  # asked first: what is written after this is read in the next turn
            chunk = await run_in_threadpool(os.pread, file.fileno(), _CHUNK_BYTES, position)
            if is_whole and not chunk:
                writing.result()
                break
            if not chunk:
                await asyncio.wait((writing,), timeout=_POLL_SECONDS)
                continue
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                started = True
            try:
                async with asyncio.timeout(_STALL_SECONDS):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TimeoutError:
                _log.warning("a client took nothing of an export for a minute and was left", sent_bytes=position)
                return
            position += len(chunk)
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@router.get(
    "/experiments/{experiment_id}/export",
    response_class=Response,
    responses={
        **d.problems(404, 501),
        304: {"description": "You have it: its ETag is among If-None-Match; of a finished experiment only"},
        200: {
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/csv": {"schema": {"type": "string"}},
                "application/vnd.sqlite3": {"schema": {"type": "string", "format": "binary"}},
            }
        },
    },
)
def export_experiment(
    ctx: ContextDep,
    actor: Reader,
    request: Request,
    experiment_id: ExperimentId,
    form: Annotated[
        Literal["json", "csv", "sqlite", "parquet"], Query(alias="format", description="Form of the file")
    ] = "json",
) -> Response:
    """Stream an experiment: all tables as JSON or SQLite, or the training episodes as CSV."""
    state = exports.state(ctx, experiment_id)
    if form == "parquet":
        raise NotInstalledError("Parquet needs a library this server does not have; take sqlite, json or csv")
    headers = {"Content-Disposition": f'attachment; filename="{experiment_id}.{form}"'}
    if state is not None:
        headers["ETag"] = f'W/"{state}-{form}"'
        if (same := not_modified(request, headers)) is not None:
            return same
    write, media = _FORMS[form]
    return SpooledResponse(
        partial(write, ctx.on("exports"), experiment_id),
        request.app.state.export_writers,
        ctx.files.incoming,
        media_type=media,
        headers=headers,
    )


@router.get("/compare", response_model=d.Document, responses=d.problems(404))
def compare_experiments(
    ctx: ContextDep,
    actor: Reader,
    experiments: Annotated[list[str], Query(min_length=1, max_length=8, description="Ids; once for each")],
) -> Any:
    """Show only the keys in which the arms of some experiments differ, arms as columns."""
    return exports.compare(ctx, experiments)
