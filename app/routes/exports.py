"""Exports and the comparison of specifications over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.types import Receive, Scope, Send

from app.errors import NotInstalledError
from app.exporting import Export, Exports
from app.routes import documents as d
from app.routes.conditional import not_modified
from app.routes.deps import ContextDep, Reader, StrictRoute
from app.routes.experiments import ExperimentId
from app.services.results import exports
from lockstep.logs import get_logger

_log = get_logger("exports")
router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=StrictRoute)

_FORMS: dict[str, tuple[Any, str]] = {
    "csv": (exports.write_csv, "text/csv; charset=utf-8"),
    "json": (exports.write_json, "application/json"),
    "sqlite": (exports.write_sqlite, "application/vnd.sqlite3"),
}
#: A client that takes nothing for so long is left.
_STALL_SECONDS = 60.0


class FollowedResponse(Response):
    """Sends an export while a thread writes it. When the client leaves, stalls or the server stops, it is let go.

    Args:
        reading: holds the export for a block.
    """

    def __init__(self, reading: Callable[[], AbstractAsyncContextManager[Export]], **given: Any) -> None:
        super().__init__(**given)
        del self.headers["content-length"]
        self._reading = reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Send until the end of the file or of the client."""
        async with self._reading() as export:
            sending = asyncio.create_task(self._send(export, send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                _log.info("an export was cut off: the server stops")  # raised, it would be a traceback for each client
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def _send(self, export: Export, send: Send) -> None:
        position = 0
        while chunk := await export.read(position):
            if not position:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
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
    opened: Exports = request.app.state.exports
    act = partial(write, ctx.on("exports"), experiment_id)
    reading = partial(opened.reading, (experiment_id, form), act, ctx.files.incoming)
    return FollowedResponse(reading, media_type=media, headers=headers)


@router.get("/compare", response_model=d.Document, responses=d.problems(404))
def compare_experiments(
    ctx: ContextDep,
    actor: Reader,
    experiments: Annotated[list[str], Query(min_length=1, max_length=8, description="Ids; once for each")],
) -> Any:
    """Show only the keys in which the arms of some experiments differ, arms as columns."""
    return exports.compare(ctx, experiments)
