"""Field lessons L26 to L30 and L67: database, time, and the room that both take."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx
import pytest
from sqlalchemy import func, select, text

from app.services import retention
from app.services.context import Context
from app.services.experiments import reading
from app.services.training import ingest
from app.store.schema import tables as t
from lockstep import protocol as p
from lockstep.client import Client
from tests.conftest import Clock, LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.field.conftest import SOAK


def training(ctx: Context, name: str = "w") -> SimulatedWorker:
    """Return a worker that holds a running block of an experiment of its own."""
    submit(ctx, tiny_spec())
    worker = SimulatedWorker(ctx, name).register()
    wait_until(worker.claim, what="an assignment")
    worker.ready()
    return worker


def batch(worker: SimulatedWorker, first: int, count: int = 100) -> p.PointsRequest:
    run = worker.held.runs[0].run_id
    span = range(first, first + count)
    series = p.Points(
        run_id=run,
        first_seq=first,
        names=["sys/load"],
        name_index=[0] * count,
        step=list(span),
        round=[0] * count,
        t=[0.1 * seq for seq in span],
        value=[float(seq) for seq in span],
    )
    return p.PointsRequest(series=[series])


@pytest.mark.server
def test_l26_burst_of_32_clients_meets_no_5xx(server: LiveServer) -> None:
    def client(number: int) -> list[int]:
        codes = []
        with httpx.Client(base_url=server.url, timeout=60) as http:
            for _ in range(30 if SOAK else 4):
                codes.append(http.post("/api/v1/experiments", json=tiny_spec()).status_code)
                codes.append(http.get("/api/v1/experiments").status_code)
                codes.append(http.get("/api/v1/queue").status_code)
                body = {"name": f"n{number}", "host": "h", "incarnation": str(number)}
                device = {"uid": f"cpu:h:{number}", "kind": "cpu", "device_class": "c", "model": "m", "memory_bytes": 1}
                codes.append(http.post("/api/v1/workers", json={**body, "device": device}).status_code)
        return codes

    with ThreadPoolExecutor(32) as pool:
        codes = [code for found in pool.map(client, range(32)) for code in found]
    assert set(codes) <= {200, 201}, sorted(set(codes))


@pytest.mark.server
def test_l27_browsing_every_page_during_ingest_disturbs_neither(server: LiveServer) -> None:
    worker = training(server.ctx)
    held = worker.held
    stop = threading.Event()
    sent: list[int] = []

    def send() -> None:
        first = 1
        while not stop.is_set():
            worker.beat()
            ingest.post_points(server.ctx, held.assignment_id, held.lease, batch(worker, first))
            first += 100
            sent.append(first - 1)

    thread = threading.Thread(target=send)
    thread.start()
    paths = ["/", "/workers", f"/experiments/{held.experiment_id}", "/api/v1/experiments", "/api/v1/queue", "/metrics"]
    paths += [f"/api/v1/experiments/{held.experiment_id}{rest}" for rest in ("", "/runs", "/events", "/blocks")]
    with httpx.Client(base_url=server.url, timeout=30) as http:
        codes = {http.get(path).status_code for _ in range(20 if SOAK else 3) for path in paths}
    stop.set()
    thread.join()
    assert codes == {200}
    with server.ctx.store.read() as session:
        stored = session.execute(select(func.count()).select_from(t.point)).scalar_one()
    assert stored == sent[-1] > 0


def test_l28_sixteen_senders_leave_the_database_intact(ctx: Context) -> None:
    seconds = 3600.0 if SOAK else 2.0
    workers = [training(ctx, f"w{index}") for index in range(16)]
    end = time.monotonic() + seconds
    totals = [0] * 16

    def send(number: int) -> None:
        worker = workers[number]
        while time.monotonic() < end:
            worker.beat()
            request = batch(worker, totals[number] + 1)
            ingest.post_points(ctx, worker.held.assignment_id, worker.held.lease, request)
            ingest.post_points(ctx, worker.held.assignment_id, worker.held.lease, request)  # a lost answer
            totals[number] += 100

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(send, range(16)))
    with ctx.store.read() as session:
        assert session.execute(select(func.count()).select_from(t.point)).scalar_one() == sum(totals) > 0
        if ctx.store.is_sqlite:
            assert session.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"


@pytest.mark.server
def test_l29_name_is_free_again_after_delete(server: LiveServer) -> None:
    with Client(server.url) as client:
        first = client.submit(tiny_spec())["id"]
        client.call("POST", f"experiments/{first}/cancel")
        client.call("DELETE", f"experiments/{first}")
        second = client.submit(tiny_spec())["id"]
        names = [item["name"] for item in client.call("GET", "experiments")["items"]]
    assert names == ["tiny"]
    assert first != second


@pytest.mark.server
def test_l67_what_was_deleted_gives_its_rows_and_the_room_of_its_files_back(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, deleted_retention_days=0.0)

    def stored() -> int:
        return sum(path.stat().st_size for path in server.ctx.files.root.rglob("*") if len(path.name) == 64)

    worker = training(server.ctx)
    experiment_id = worker.held.experiment_id
    worker.hand_in(0)
    worker.checkpoint(1)
    assert stored() > 0
    for path in server.ctx.files.root.glob("??/*"):
        os.utime(path, (time.time() - 2 * retention.UNNAMED_SECONDS,) * 2)
    with Client(server.url) as client:
        client.call("POST", f"experiments/{experiment_id}/cancel")
        worker.beat()
        worker.release("stopped", "user")
        client.call("DELETE", f"experiments/{experiment_id}")
    wait_until(lambda: retention.purge(server.ctx) == 0, what="the rows")  # this process's sweep may be at it, too
    retention.collect_files(server.ctx)
    wait_until(lambda: stored() == 0, what="the room")
    with server.ctx.store.read() as session:
        for table in (t.experiment, t.block, t.run, t.round_result, t.point, t.artifact):
            assert session.execute(select(func.count()).select_from(table)).scalar_one() == 0


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def put(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", ["UTC", "Asia/Kolkata", "Europe/Berlin"])
def test_l30_instants_are_the_same_in_every_zone_and_ages_come_from_the_server(
    ctx: Context, clock: Clock, zone: Callable[[str], None], name: str
) -> None:
    zone(name)
    clock.skew = datetime.fromisoformat("2026-10-25T00:30:00+00:00").timestamp() - time.time()  # a DST night
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    shown = reading.show_experiment(ctx, experiment_id)["created_at"]
    assert shown.endswith("+00:00")
    assert abs(datetime.fromisoformat(shown).timestamp() - (time.time() + clock.skew)) < 60
    clock.advance(3600.0)  # the hour that happens twice
    age = reading.show_worker(ctx, worker.worker_id)["seen_seconds_ago"]
    assert age == pytest.approx(3600.0, abs=30.0)
