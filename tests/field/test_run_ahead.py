"""A child that holds all arms trains one round ahead of its acknowledgement, and no more (ADR 0008)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.client import Client
from tests.conftest import wait_until
from tests.factories import tiny_spec
from tests.field.conftest import ServerProcess, StartLight

pytestmark = pytest.mark.server


def test_one_round_is_trained_while_the_server_is_silent_and_no_second_one(
    server_process: Callable[..., ServerProcess], light_worker: StartLight, tmp_path: Path
) -> None:
    server = server_process(lease_ttl_seconds=120.0, heartbeat_seconds=1.0).start()
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(experiment={"replicates": 1}, budget={"rounds": 5}))["id"]
        worker = light_worker(server.url, "plain", 0.5)
        worker.note("round-0")
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            worker.note("round-1")
            time.sleep(1.5)
            assert not (worker.notes / "round-2").exists()
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        wait_until(lambda: client.show(experiment_id)["status"] == "succeeded", what="the end")
        rounds = client.call("GET", f"experiments/{experiment_id}/export")["tables"]["rounds"]
    assert sorted(row[2] for row in rounds) == sorted([*range(5)] * 2)
