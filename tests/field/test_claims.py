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

from app.services.training import workers
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

pytestmark = pytest.mark.server
COUNT = 6
#: More than the lane of workers has places for.
CROWD = 40
#: Seconds that a claim may wait at the most.
WAIT = 30


class Transactions:
    """Counts the transactions on the connections of workers, those of the schedule too."""

    def __init__(self, server: LiveServer) -> None:
        self.count = 0
        event.listen(server.ctx.store.on("workers").engine, "begin", self._begun)

    def _begun(self, _connection: Any) -> None:
        self.count += 1


@contextmanager
def claiming(server: LiveServer, workers: list[SimulatedWorker]) -> Iterator[list[Future[int]]]:
    """All of them claim and wait as long as they may, or until the block ends; the codes of their answers."""
    limits = httpx.Limits(max_connections=len(workers))
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, limits=limits))
        pool = stack.enter_context(ThreadPoolExecutor(len(workers)))
        stack.callback(server.ctx.bell.close)

        def claim(worker: SimulatedWorker) -> int:
            return http.post(f"/api/v1/workers/{worker.worker_id}/claim", params={"wait": WAIT}).status_code

        yield [pool.submit(claim, worker) for worker in workers]


def wait_at_the_desk(server: LiveServer, count: int) -> None:
    """Return once so many claims have been looked at and wait."""
    wait_until(lambda: server.app.state.desk.num_waiting == count, what="claims that wait")


def test_idle_workers_ask_once_whatever_others_write_until_there_is_something_for_them(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, tick_seconds=600.0, sweep_seconds=600.0)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(COUNT)]
    with claiming(server, idle) as claims:
        wait_at_the_desk(server, COUNT)
        transactions = Transactions(server)
        for _ in range(5):
            server.ctx.bell.ring()
            time.sleep(0.04)
        assert transactions.count <= 10  # a look for each ring, and what else the server does meanwhile
        submit(server.ctx)
        wait_until(lambda: any(made.done() for made in claims), what="an answer")
        # told, not found out at the next tick, which none of them lives to see
        assert [made.result() for made in claims if made.done()] == [200]
        left = next(worker for worker, made in zip(idle, claims, strict=True) if not made.done())
        workers.drain(server.ctx, left.worker_id, LOCAL, now=False)
        wait_until(lambda: sum(made.done() for made in claims) == 2, what="the drained one's answer")
        assert {made.result() for made in claims if made.done()} == {200, 410}
        server.ctx.bell.close()
        ends = [made.result() for made in claims]
    assert sorted(ends) == [200, *[204] * (COUNT - 2), 410]


def test_one_pass_over_the_queue_answers_all_claims_that_wait(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, tick_seconds=600.0, sweep_seconds=600.0, pool_workers=2)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(CROWD)]
    with claiming(server, idle) as claims:
        wait_at_the_desk(server, CROWD)
        transactions = Transactions(server)
        submit(server.ctx, tiny_spec(experiment={"replicates": CROWD}))
        assert [made.result() for made in claims] == [200] * CROWD
    assert transactions.count < CROWD / 2


def test_claims_that_get_no_connection_while_they_wait_go_on_waiting(
    make_server: Callable[..., LiveServer], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(database_url, pool_workers=3)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(CROWD)]
    with claiming(server, idle) as claims, ExitStack() as held:
        wait_at_the_desk(server, CROWD)
        engine = server.ctx.store.on("workers").engine
        monkeypatch.setattr(engine.pool, "_timeout", 0.3)  # of who asks for a connection
        for _ in range(3):
            held.enter_context(engine.connect())
        server.ctx.bell.ring()
        assert not wait(claims, timeout=1.5).done
        held.close()
        submit(server.ctx, tiny_spec(experiment={"replicates": CROWD}))
        assert [made.result() for made in claims] == [200] * CROWD


def test_many_claims_that_wait_leave_heartbeats_their_places(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, pool_workers=2)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(CROWD)]
    beat = {"incarnation": "w0-1", "state": "idle", "progress": [], "health": {}, "spool_bytes": 0}
    with claiming(server, idle) as claims, httpx.Client(base_url=server.url, timeout=20) as http:
        wait_at_the_desk(server, CROWD)
        for _ in range(20):  # one that got no place before the claims have theirs back would wait for their end
            assert http.post(f"/api/v1/workers/{idle[0].worker_id}/heartbeat", json=beat).status_code == 200
        assert not any(made.done() for made in claims)
        server.ctx.bell.close()
        assert [made.result() for made in claims] == [204] * CROWD
