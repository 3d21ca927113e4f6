"""Workers, people and exports have connections and threads of their own: none of them starves the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from pydantic import ValidationError

from app import lanes
from app.settings import Settings
from app.store.database import engine
from app.store.database.engine import Lane
from app.store.queue import blocks
from lockstep.protocol import LEASE_HEADER
from tests.conftest import LiveServer, wait_until
from tests.factories import SimulatedWorker, submit

_SIZES = {"pool_workers": 3, "pool_people": 2, "pool_exports": 2}
#: More than the threads that all calls share.
_CROWD = 60
#: Far less than a call waits for a place here: who is answered within it has not waited.
_SOON_SECONDS = 20.0
_WAIT_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody of a crowd give up while a test goes on, however long it takes on a busy machine."""
    monkeypatch.setattr(engine, "_POOL_SECONDS", _WAIT_SECONDS)
    monkeypatch.setattr(lanes, "_WAIT_SECONDS", _WAIT_SECONDS)


@pytest.fixture
def server(make_server: Callable[..., LiveServer], database_url: str) -> LiveServer:
    """A live server with small pools, on each database."""
    return make_server(database_url, **_SIZES)


@contextmanager
def exhausted(server: LiveServer, lane: Lane, path: str) -> Iterator[None]:
    """Hold every connection of a lane while a crowd asks for what needs one; nobody of it is answered."""
    connections = server.ctx.store.on(lane).engine
    limits = httpx.Limits(max_connections=_CROWD)
    with ExitStack() as held, httpx.Client(base_url=server.url, timeout=_WAIT_SECONDS, limits=limits) as http:
        for _ in range(server.settings.pools.by_lane[lane]):
            held.enter_context(connections.connect())
        with ThreadPoolExecutor(_CROWD) as crowd:
            asked = [crowd.submit(http.request, *path.split()) for _ in range(_CROWD)]
            try:
                assert not wait(asked, timeout=0.5).done
                yield
                assert not any(one.done() for one in asked)
            finally:
                held.close()


def serves_workers(server: LiveServer) -> None:
    """A worker registers, beats and claims."""
    worker = SimulatedWorker(server.ctx)
    asked = {"name": "w0", "host": "host", "incarnation": "w0-1", "device": worker.device.model_dump(), **worker.given}
    with httpx.Client(base_url=f"{server.url}/api/v1/", timeout=_SOON_SECONDS) as http:
        worker_id = http.post("workers", json=asked).raise_for_status().json()["worker_id"]
        beat = {"incarnation": "w0-1", "state": "idle", "progress": [], "health": {}, "spool_bytes": 0}
        assert http.post(f"workers/{worker_id}/heartbeat", json=beat).status_code == 200
        assert http.post(f"workers/{worker_id}/claim", params={"wait": 3}).status_code == 200


def serves_people(server: LiveServer) -> None:
    """Lists and probes are answered, and the numbers say whose pool is taken."""
    with httpx.Client(base_url=server.url, timeout=_SOON_SECONDS) as http:
        assert http.get("/api/v1/experiments").status_code == 200


@pytest.mark.server
def test_pages_that_hold_all_their_connections_and_wait_in_crowds_leave_workers_theirs(server: LiveServer) -> None:
    submit(server.ctx)
    with exhausted(server, "people", "GET /api/v1/experiments"):
        serves_workers(server)
        with httpx.Client(base_url=server.url, timeout=_SOON_SECONDS) as http:
            ready = http.get("/readyz")
            assert ready.status_code == 200
            assert ready.json()["pools"]["people"] == {"size": 2, "in_use": 2}
            assert 'lockstep_pool_in_use{lane="people"} 2.0' in http.get("/metrics").text


@pytest.mark.server
def test_workers_that_hold_all_their_connections_leave_people_theirs(server: LiveServer) -> None:
    submit(server.ctx)
    with exhausted(server, "workers", "POST /api/v1/workers/wrk_none/claim?wait=0"):
        serves_people(server)


@pytest.mark.pg
@pytest.mark.server
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # on SQLite one row cannot be held alone
def test_calls_of_workers_that_wait_for_a_row_in_crowds_leave_heartbeats_their_places(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, pool_workers=4, statement_timeout_seconds=3 * _WAIT_SECONDS)
    submit(server.ctx)
    worker = SimulatedWorker(server.ctx, "w0").register()
    held = wait_until(worker.claim, what="an assignment")
    other = SimulatedWorker(server.ctx, "w1").register()  # later: it would be as good for the only block
    address = f"/api/v1/assignments/{held.assignment_id}/ready"
    asked = {"device_uid": worker.device.uid, "resume_round": 0}
    beat = {"incarnation": other.incarnation, "state": "idle", "progress": [], "health": {}, "spool_bytes": 0}

    limits = httpx.Limits(max_connections=_CROWD)
    with (
        httpx.Client(base_url=server.url, timeout=_WAIT_SECONDS, limits=limits) as many,
        ThreadPoolExecutor(_CROWD) as crowd,
        server.ctx.on("people").store.write() as session,
    ):
        blocks.get(session, held.block_id, lock=True)
        headers = {LEASE_HEADER: held.lease}
        said = [crowd.submit(many.post, address, json=asked, headers=headers) for _ in range(_CROWD)]
        assert not wait(said, timeout=0.5).done
        with httpx.Client(base_url=server.url, timeout=_SOON_SECONDS) as http:
            for _ in range(20):
                assert http.post(f"/api/v1/workers/{other.worker_id}/heartbeat", json=beat).status_code == 200
        assert not any(one.done() for one in said)
    assert {one.result().status_code for one in said} == {200}


@pytest.mark.server
def test_exports_that_hold_all_their_connections_leave_workers_and_people_theirs(server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    with exhausted(server, "exports", f"GET /api/v1/experiments/{experiment_id}/export"):
        serves_workers(server)
        serves_people(server)


def test_pools_have_sound_defaults_and_bounds() -> None:
    assert Settings().pools.by_lane == {"workers": 12, "people": 12, "exports": 4}
    for name in _SIZES:
        with pytest.raises(ValidationError, match="greater than or equal to 2"):
            Settings(**{name: 1})  # type: ignore[arg-type]
