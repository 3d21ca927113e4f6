"""Workers that wait for work: one look serves all of them, and neither they nor others wait longer for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from app import lanes
from app.services import workers
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

pytestmark = pytest.mark.server
COUNT = 6
#: More than the lane of workers has places for.
CROWD = 40


class Transactions:
    """Counts the transactions on the connections of workers, those of the schedule too."""

    def __init__(self, server: LiveServer) -> None:
        self.count = 0
        event.listen(server.ctx.store.on("workers").engine, "begin", self._begun)

    def _begun(self, _connection: Any) -> None:
        self.count += 1


@contextmanager
def claiming(server: LiveServer, workers: list[SimulatedWorker], seconds: float) -> Iterator[list[Future[Any]]]:
    """All of them claim at once and wait so long; the answers, each with its time."""

    def claim(worker: SimulatedWorker) -> tuple[int, float]:
        address = f"{server.url}/api/v1/workers/{worker.worker_id}/claim"
        return httpx.post(address, params={"wait": seconds}, timeout=60).status_code, time.monotonic()

    with ThreadPoolExecutor(len(workers)) as pool:
        yield [pool.submit(claim, worker) for worker in workers]


def wait_at_the_desk(server: LiveServer, count: int) -> None:
    """Return once so many claims have been looked at and wait."""
    wait_until(lambda: server.app.state.desk.num_waiting == count, timeout=20, what="claims that wait")


def test_idle_workers_ask_once_whatever_others_write_until_there_is_something_for_them(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, tick_seconds=30.0, sweep_seconds=30.0)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(COUNT)]
    with claiming(server, idle, 20) as claims:
        wait_at_the_desk(server, COUNT)
        transactions = Transactions(server)
        for _ in range(5):
            server.ctx.bell.ring()
            time.sleep(0.04)
        assert transactions.count <= 10  # a look for each ring, and what else the server does meanwhile
        began = time.monotonic()
        submit(server.ctx)
        wait_until(lambda: any(made.done() for made in claims), timeout=20)
        [got] = [made.result() for made in claims if made.done()]
        assert got[0] == 200
        assert got[1] - began < 5.0  # told, not found out at the next tick
        left = next(worker for worker, made in zip(idle, claims, strict=True) if not made.done())
        workers.drain(server.ctx, left.worker_id, LOCAL, now=False)
        wait_until(lambda: sum(made.done() for made in claims) == 2, timeout=5, what="the drained one's answer")
        assert {made.result()[0] for made in claims if made.done()} == {200, 410}
        server.ctx.bell.close()
        ends: list[Any] = [made.result()[0] for made in claims]
    assert sorted(ends) == [200, *[204] * (COUNT - 2), 410]


def test_one_pass_over_the_queue_answers_all_claims_that_wait(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, tick_seconds=30.0, sweep_seconds=30.0, pool_workers=2)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(CROWD)]
    with claiming(server, idle, 25) as claims:
        wait_at_the_desk(server, CROWD)
        transactions = Transactions(server)
        submit(server.ctx, tiny_spec(experiment={"replicates": CROWD}))
        assert [made.result()[0] for made in claims] == [200] * CROWD
    assert transactions.count < CROWD / 2


def test_claims_that_get_no_connection_while_they_wait_are_told_that_there_is_nothing_yet(
    make_server: Callable[..., LiveServer], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_WAIT_SECONDS", 0.5)
    server = make_server(database_url, pool_workers=3)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(CROWD)]
    with ExitStack() as held, claiming(server, idle, 4) as claims:
        wait_until(lambda: server.app.state.desk.num_waiting > COUNT, timeout=20)
        for _ in range(3):
            held.enter_context(server.ctx.store.on("workers").engine.connect())
        server.ctx.bell.ring()
        assert not wait(claims, timeout=1.5).done
        held.close()
        assert [made.result()[0] for made in claims] == [204] * CROWD


def test_many_claims_that_wait_leave_heartbeats_their_places(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, pool_workers=2)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(CROWD)]
    with claiming(server, idle, 2) as claims, httpx.Client(base_url=server.url, timeout=1.5) as http:
        while not all(made.done() for made in claims):
            beat = {"incarnation": "w0-1", "state": "idle", "progress": [], "health": {}, "spool_bytes": 0}
            assert http.post(f"/api/v1/workers/{idle[0].worker_id}/heartbeat", json=beat).status_code == 200
            time.sleep(0.05)
        assert [made.result()[0] for made in claims] == [204] * CROWD
