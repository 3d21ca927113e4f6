"""Live streams of an experiment: WebSocket and server-sent events over one cursor (control-plane.md 9)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, WebSocket
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from app.errors import AppError, ForbiddenError, NotFoundError, UnauthorizedError
from app.lanes import in_lane
from app.live import MAX_BUFFER_BYTES, Hub, dump
from app.routes import documents as d
from app.routes.deps import ContextDep, StrictRoute, authenticate, strict_json
from app.routes.deps import Reader as ReadActor
from app.routes.experiments import ExperimentId
from app.services import access, steering
from app.services.context import Context
from app.services.experiments.live import MAX_CURSOR, Interest, Position
from app.services.operations import server_epoch
from lockstep.quoting import shortened

router = APIRouter(prefix="/api/v1", tags=["live"], route_class=StrictRoute)

PROTOCOL = 1
RESTARTING, OVERLOADED = 1012, 1013
BAD_FRAME, NOT_AUTHENTICATED, FORBIDDEN, UNKNOWN, BAD_VERSION = 4400, 4401, 4403, 4404, 4409
#: Bytes of the head of a request: a cursor may stand in it.
MAX_HEAD_BYTES = 128 * 1024
_SEND_SECONDS = 5.0
_MAX_FRAME_BYTES = 64 * 1024
#: Of a closing frame there are 125, two of which are its code.
_MAX_REASON_BYTES = 123


class Subscribe(BaseModel):
    """The client frame ``subscribe``; repeatable, replaces the last one."""

    model_config = ConfigDict(extra="forbid")

    type: str
    protocol: int = PROTOCOL
    metrics: list[Annotated[str, Field(max_length=128)]] = Field(default_factory=list, max_length=50)
    runs: list[Annotated[str, Field(max_length=60)]] = Field(default_factory=list, max_length=200)
    after: str | None = Field(None, max_length=MAX_CURSOR)
    max_points: int = Field(1000, ge=2, le=2000)

    def interest(self) -> Interest:
        """Return what is subscribed to."""
        return Interest(frozenset(self.metrics), frozenset(self.runs), self.max_points)


class _CloseError(Exception):
    """Ends a socket with a code and a reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@router.websocket("/experiments/{experiment_id}/ws")
async def websocket(socket: WebSocket, ctx: ContextDep, experiment_id: str, ticket: str | None = None) -> None:
    """Stream an experiment: hello, snapshot, delta, status, truncate, end."""
    await socket.accept()
    try:
        await in_lane(socket, _admit, socket, ctx, experiment_id, ticket)
        await _Session(socket, ctx, experiment_id).serve()
    except _CloseError as error:
        await _close(socket, error.code, error.reason)
    except WebSocketDisconnect:
        return


def _admit(socket: WebSocket, ctx: Context, experiment_id: str, ticket: str | None) -> None:
    origin = socket.headers.get("origin")
    if origin is not None and not ctx.settings.allows_origin(origin, socket.headers.get("host", "")):
        raise _CloseError(FORBIDDEN, f"origin {shortened(origin)} is not allowed")
    if "token" in socket.query_params:
        raise _CloseError(NOT_AUTHENTICATED, "a token in a URL is refused; use a ticket or a header")
    try:
        used = ticket is not None
        actor = access.use_ticket(ctx, ticket or "", experiment_id, "-") if used else authenticate(socket, ctx)
        access.require(actor, "read")
        with ctx.store.read() as session:
            steering.existing(session, experiment_id)
    except UnauthorizedError as error:
        raise _CloseError(NOT_AUTHENTICATED, error.detail) from error
    except ForbiddenError as error:
        raise _CloseError(FORBIDDEN, error.detail) from error
    except NotFoundError as error:
        raise _CloseError(UNKNOWN, error.detail) from error


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await socket.close(code, reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore"))


class _Session:
    """One connected socket: one task receives, so that a client that leaves is noticed, one catches up and sends."""

    def __init__(self, socket: WebSocket, ctx: Context, experiment_id: str) -> None:
        self._socket = socket
        self._ctx = ctx
        self._experiment_id = experiment_id
        self._hub: Hub = socket.app.state.hub
        self._sender: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = asyncio.Event()

    async def serve(self) -> None:
        """Run until the client leaves, the server stops or a task fails."""
        await self._hello()
        tasks: set[asyncio.Future[Any]] = {
            asyncio.create_task(self._receive()),
            asyncio.create_task(self._ping()),
            asyncio.create_task(self._hub.stopping.wait()),
            self._failed,
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._hub.stopping.is_set():
                await _close(self._socket, RESTARTING, "the server restarts; reconnect with the cursor")
            for task in done:
                if task.exception() is not None:
                    raise task.exception() or RuntimeError
        finally:
            for task in tasks:
                task.cancel()
            await self._leave()

    async def _hello(self) -> None:
        epoch = await in_lane(self._socket, server_epoch, self._ctx)
        await self._send(
            dump(
                {
                    "type": "hello",
                    "protocol": PROTOCOL,
                    "server_epoch": epoch,
                    "heartbeat_seconds": self._ctx.settings.ping_seconds,
                    "limits": {"buffer_bytes": MAX_BUFFER_BYTES, "max_points": 2000},
                }
            )
        )

    async def _receive(self) -> None:
        while True:
            text = await self._socket.receive_text()
            self._heard.set()
            if len(text) > _MAX_FRAME_BYTES:
                raise _CloseError(BAD_FRAME, "the frame is too long")
            await self._handle(text)

    async def _handle(self, text: str) -> None:
        try:
            frame = strict_json(text)
            kind = frame.get("type") if isinstance(frame, dict) else None
            if kind == "ping":
                await self._send('{"type":"pong"}')
                return
            if kind == "pong":
                return
            if kind != "subscribe":
                raise _CloseError(BAD_FRAME, "expected a frame of type subscribe, ping or pong")
            wanted = Subscribe.model_validate(frame)
        except (AppError, ValueError, ValidationError, RecursionError) as error:
            raise _CloseError(BAD_FRAME, f"bad frame: {shortened(str(error))}") from error
        if wanted.protocol != PROTOCOL:
            raise _CloseError(BAD_VERSION, f"this server speaks protocol {PROTOCOL}")
        await self._subscribe(wanted)

    async def _subscribe(self, wanted: Subscribe) -> None:
        await self._leave()
        self._sender = asyncio.create_task(self._stream(wanted))
        self._sender.add_done_callback(self._sender_ended)

    def _sender_ended(self, sender: asyncio.Task[None]) -> None:
        error = None if sender.cancelled() else sender.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # read here, as the socket may have ended for another reason by now

    async def _stream(self, wanted: Subscribe) -> None:
        try:
            reader = await self._hub.open(self._experiment_id, wanted.interest(), wanted.after)
        except NotFoundError as error:
            raise _CloseError(UNKNOWN, error.detail) from error
        except AppError as error:
            raise _CloseError(BAD_FRAME, error.detail) from error
        try:
            async for text in self._hub.follow(reader):
                await self._send(text)
        finally:
            self._hub.close(reader)

    async def _send(self, text: str) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):  # wait_for would make a task of each frame
                await self._socket.send_text(text)
        except TimeoutError:
            await _close(self._socket, OVERLOADED, "the client reads too slowly; reconnect later")
            raise WebSocketDisconnect(OVERLOADED) from None

    async def _ping(self) -> None:
        missed = 0
        while missed < 2:
            self._heard.clear()
            await asyncio.sleep(self._ctx.settings.ping_seconds)
            missed = 0 if self._heard.is_set() else missed + 1
            await self._send('{"type":"ping"}')
        raise _CloseError(OVERLOADED, "two pings were not answered")

    async def _leave(self) -> None:
        """End the stream there is; waited for, so that many subscriptions of one socket read one after the other."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
            self._sender = None


def known_experiment(ctx: ContextDep, experiment_id: ExperimentId) -> str:
    """Return the id of an experiment that exists, before a stream begins."""
    with ctx.store.read() as session:
        steering.existing(session, experiment_id)
    return experiment_id


def stream_start(
    after: Annotated[str | None, Query(max_length=MAX_CURSOR, description="Cursor of the last frame read")] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=MAX_CURSOR, description="As a browser sends it; wins over `after`")
    ] = None,
) -> str | None:
    """Return the cursor to start from: the browser's Last-Event-ID wins over ``after``."""
    start = last_event_id or after
    if start:
        Position.parse(start)
    return start


@router.get("/experiments/{experiment_id}/stream", response_class=EventSourceResponse, responses=d.problems(404))
async def event_stream(
    request: Request,
    actor: ReadActor,
    known: Annotated[str, Depends(known_experiment)],
    start: Annotated[str | None, Depends(stream_start)],
    metrics: Annotated[list[str] | None, Query(max_length=50, description="Metrics whose points are wanted")] = None,
    runs: Annotated[list[str] | None, Query(max_length=200, description="Ids of runs; default: all")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Stream an experiment as server-sent events; the id of each is the cursor to resume from."""
    hub: Hub = request.app.state.hub
    reader = await hub.open(known, Interest(frozenset(metrics or ()), frozenset(runs or ())), start)
    try:
        async for text in hub.follow(reader):
            frame = json.loads(text)
            yield ServerSentEvent(raw_data=text, event=frame["type"], id=frame.get("cursor"))
            if frame["type"] == "end":
                return
    finally:
        hub.close(reader)


class TicketRequest(BaseModel):
    """Which experiment a ticket is for."""

    model_config = d.strict(experiment="exp_0123456789abcdef0123")

    experiment: str = Field(max_length=60)


@router.post("/live-tickets", status_code=201, response_model=d.Document, responses=d.problems(404))
def create_ticket(ctx: ContextDep, actor: ReadActor, wanted: TicketRequest) -> Any:
    """Issue a single-use ticket (30 s) for the WebSocket of one experiment."""
    known_experiment(ctx, wanted.experiment)
    ticket = access.issue_ticket(ctx, wanted.experiment, actor)
    return {"ticket": ticket, "expires_in_seconds": access.TICKET_SECONDS}
