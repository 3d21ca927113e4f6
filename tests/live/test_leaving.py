"""A reader that goes away while it catches up leaves nothing behind in the hub."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from app import lanes
from app.live import Hub
from app.services.context import Context
from app.services.experiments.live import Interest
from tests.awaiting import awaited
from tests.conftest import LiveServer, wait_until
from tests.factories import submit
from tests.live.test_protocol import frames_until, socket_of, subscribe

pytestmark = pytest.mark.server


class Gate:
    """Holds every reading of the store once the hub has a reader."""

    def __init__(self, ctx: Context, hub: Callable[[], Hub]) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._ctx, self._hub = ctx, hub

    def _hold(self, *_: Any) -> None:
        if self._hub().num_readers and threading.current_thread().name.startswith("AnyIO"):
            self.reached.set()
            self.opened.wait(120)

    @contextmanager
    def held(self) -> Iterator[Gate]:
        """Hold for the block."""
        event.listen(self._ctx.store.engine, "checkout", self._hold)
        try:
            yield self
        finally:
            self.opened.set()  # the listener stays: it may be running in another thread


def test_reader_cancelled_while_it_catches_up_is_not_registered(ctx: Context) -> None:
    experiment_id = submit(ctx)

    async def leave() -> int:
        hub = Hub(lanes.Way(ctx, lanes.Gate("people", lanes.Line(4))))
        with Gate(ctx, lambda: hub).held() as gate:
            opening = asyncio.create_task(hub.open(experiment_id, Interest(), None))
            await asyncio.to_thread(gate.reached.wait, 60)
            assert hub.num_readers == 1
            opening.cancel()
            gate.opened.set()
            await asyncio.gather(opening, return_exceptions=True)
        return hub.num_readers

    assert awaited(leave()) == 0


def test_reader_whose_store_fails_while_it_catches_up_is_not_registered(ctx: Context) -> None:
    experiment_id = submit(ctx)

    async def fail() -> int:
        hub = Hub(lanes.Way(ctx, lanes.Gate("people", lanes.Line(4))))

        def refuse(*_: Any) -> None:
            if hub.num_readers:
                raise ConnectionError("the store is away")

        event.listen(ctx.store.engine, "checkout", refuse)
        with pytest.raises(ConnectionError):
            await hub.open(experiment_id, Interest(), None)
        event.remove(ctx.store.engine, "checkout", refuse)
        return hub.num_readers

    assert awaited(fail()) == 0


def test_socket_that_closes_while_it_catches_up_is_noticed_at_once(server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    hub: Hub = server.app.state.hub
    with Gate(server.ctx.on("people"), lambda: hub).held() as gate:
        with socket_of(server, experiment_id) as socket:
            subscribe(socket)
            assert gate.reached.wait(60)
        wait_until(lambda: hub.num_readers == 0, timeout=60, what="the end of the reader")


def test_event_stream_that_closes_while_it_catches_up_leaves_nothing(server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    hub: Hub = server.app.state.hub
    with Gate(server.ctx.on("people"), lambda: hub).held() as gate:
        path = f"/api/v1/experiments/{experiment_id}/stream"
        client = httpx.Client(base_url=server.url, timeout=120)
        asking = threading.Thread(target=_ask, args=(client, path))
        asking.start()
        assert gate.reached.wait(60)
        _cut(client)
        wait_until(lambda: not server.server.server_state.connections, timeout=60, what="the end of the connection")
        gate.opened.set()
        wait_until(lambda: hub.num_readers == 0, timeout=60, what="the end of the reader")
        asking.join()


def _ask(client: httpx.Client, path: str) -> None:
    with pytest.raises(httpx.HTTPError), client.stream("GET", path) as response:
        response.read()


def _cut(client: httpx.Client) -> None:
    """Cut the connection as a client that dies does."""
    pool: Any = client._transport
    for connection in pool._pool.connections:
        connection._connection._network_stream.get_extra_info("socket").shutdown(2)


def test_second_subscription_replaces_the_first(server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    hub: Hub = server.app.state.hub
    with socket_of(server, experiment_id) as socket:
        for _ in range(3):
            subscribe(socket)
            frames_until(socket, lambda frame: frame["type"] == "snapshot")
        assert hub.num_readers == 1
    wait_until(lambda: hub.num_readers == 0, timeout=60, what="the end of the reader")
