"""Field lesson L68 and what else the nginx of docs/proxies must let through; collected where nginx is installed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest

from lockstep.protocol import LEASE_HEADER
from tests.conftest import LiveServer
from tests.factories import SimulatedWorker, submit
from tests.proxies import nginx

pytestmark = [pytest.mark.server, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]


def test_the_nginx_of_the_documentation_takes_files_and_holds_up_no_stream(server: LiveServer, tmp_path: Path) -> None:
    experiment_id = submit(server.ctx)
    worker = SimulatedWorker(server.ctx).register()
    held = worker.claim()
    assert held is not None
    worker.ready()
    content = bytes(3 * 2**20)  # nginx takes 1 MiB where nothing is said
    digest = hashlib.sha256(content).hexdigest()
    with nginx(tmp_path, [server.url]) as url, httpx.Client(timeout=20, headers={LEASE_HEADER: held.lease}) as http:
        params = {"run_id": held.runs[0].run_id, "kind": "artifact", "name": "a"}
        sent = http.put(f"{url}/api/v1/assignments/{held.assignment_id}/files/{digest}", content=content, params=params)
        assert sent.status_code == 201
        by_number = url.replace("127.0.0.1", "[::1]")
        with http.stream("GET", f"{by_number}/api/v1/experiments/{experiment_id}/stream") as stream:
            assert next(stream.iter_lines()).startswith("event: snapshot")
        exported = http.get(f"{url}/api/v1/experiments/{experiment_id}/export")
        assert exported.json()["tables"]
        probe = http.head(f"{url}/healthz")
        assert (probe.status_code, probe.content) == (200, b"")
