"""Workers that wait for work: one look serves all of them, and nobody waits longer for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from app.services import workers
from app.services.operations import METRICS
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit

pytestmark = pytest.mark.server
COUNT = 6


def num_claims() -> float:
    """Return how often the database was asked for a worker's work."""
    [family] = METRICS.claim_seconds.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_count"))


def test_idle_workers_ask_once_whatever_others_write_until_there_is_something_for_them(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, tick_seconds=30.0)
    idle = [SimulatedWorker(server.ctx, f"w{number}").register() for number in range(COUNT)]

    def claim(worker: SimulatedWorker) -> tuple[int, float]:
        address = f"{server.url}/api/v1/workers/{worker.worker_id}/claim"
        return httpx.post(address, params={"wait": 20}, timeout=60).status_code, time.monotonic()

    before = num_claims()
    with ThreadPoolExecutor(COUNT) as pool:
        claims = [pool.submit(claim, worker) for worker in idle]
        wait_until(lambda: num_claims() - before == COUNT and server.app.state.desk.num_waiting == COUNT, timeout=20)
        for _ in range(5):
            server.ctx.bell.ring()
            time.sleep(0.04)
        assert num_claims() - before == COUNT
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
        assert num_claims() - before == COUNT + 2
        server.ctx.bell.close()
        ends: list[Any] = [made.result()[0] for made in claims]
    assert sorted(ends) == [200, *[204] * (COUNT - 2), 410]
