"""Two real CPU workers with an arm each, barrier over HTTP, gives the numbers of one worker holding both arms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, WorkerProcess
from tests.e2e.following import follow
from tests.e2e.numbers import numbers_of
from tests.factories import tiny_spec


@pytest.mark.server
@pytest.mark.xdist_group("training")
def test_one_per_device_on_two_cpu_workers_equals_shared_device_bit_for_bit(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    for host in ("rack-1", "rack-2"):
        start_worker(sqlite_server.url, "--host", host)
    spec = tiny_spec(budget={"rounds": 3}, env={"horizon": 8})
    with Client(sqlite_server.url) as client:
        apart = client.submit({**spec, "lockstep": {"placement": "one_per_device"}})["id"]
        together = client.submit({**spec, "lockstep": {"placement": "shared_device"}})["id"]
        for experiment_id in (apart, together):
            assert follow(sqlite_server.url, experiment_id)[-1]["status"] == "succeeded"
        assert len({run["device"] for run in client.runs(apart)}) == 2
        assert len({run["device"] for run in client.runs(together)}) == 1
        assert {row["host"] for row in client.call("GET", "workers")["items"]} == {"rack-1", "rack-2"}
        first, second = (numbers_of(client, sqlite_server.ctx, item) for item in (apart, together))
    assert {key: value[1] for key, value in first.items()} == {key: value[1] for key, value in second.items()}
    assert first == second
