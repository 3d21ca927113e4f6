"""Field lessons L36 to L50."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from app.services.context import Context
from app.services.experiments import reading
from app.services.results.finishing import finish_due
from app.services.training import ingest
from app.store.database import engine
from app.store.database.engine import StartupError, Store
from app.store.schema.tables import metadata
from lockstep import protocol as p
from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.field.conftest import ROOT, SOAK, ServerProcess, StartLight, block_status, first_block
from tests.field.test_liveness import end_backends
from tests.slow_readers import fill, stalled

STATIC = ROOT / "app/web/static"
PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "'\"><svg/onload=alert(1)>",
    "{{7*7}}",
]


def log_lines(client: Client, experiment_id: str, **params: Any) -> dict[str, Any]:
    run_id = client.runs(experiment_id)[0]["id"]
    found: dict[str, Any] = client.call("GET", f"runs/{run_id}/logs", params=params)
    return found


def finished(ctx: Context, **changes: Any) -> str:
    """Return an experiment of one block that has ended and been reported."""
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 1}, eval={"every_rounds": 1}, **changes))
    worker = SimulatedWorker(ctx).register()
    wait_until(worker.claim, what="an assignment")
    worker.train(1)
    finish_due(ctx)
    return experiment_id


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-1+1"])
def test_l36_spreadsheet_formulas_are_defused_and_numbers_stay(ctx: Context, name: str) -> None:
    import csv
    import io

    from app.services.results import reports

    arms = [{"label": "A", "reward": "shaped"}, {"label": "B", "reward": "simplified"}]
    experiment_id = finished(ctx, experiment={"name": name}, arms=arms)
    rows = list(csv.reader(io.StringIO(reports.read(ctx, experiment_id).scores_csv)))
    cells = [cell for row in rows for cell in row]
    for cell in cells:
        if cell[:1] in "=+-@\t\r" and cell:
            float(cell)  # a number, and nothing else, may begin like this


@pytest.mark.server
def test_l37_planted_secrets_are_found_nowhere(
    server_process: Callable[..., ServerProcess], database_url: str, light_worker: StartLight, tmp_path: Path
) -> None:
    server = server_process(log_level="debug").start()
    canary = "CANARY8f3a"
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 1}))["id"]
        header = {"Authorization": f"Bearer lsk_{canary}", "Cookie": f"lockstep_session={canary}"}
        httpx.get(f"{server.url}/api/v1/experiments", headers=header)
        worker = light_worker(server.url, "environment", SECRET_TOKEN=canary, LOCKSTEP_TOKEN=canary)
        wait_until(lambda: block_status(client, experiment_id) == "succeeded", timeout=120, what="the end")
        pages = [json.dumps(log_lines(client, experiment_id)), httpx.get(f"{server.url}/metrics").text]
        pages.append(json.dumps(client.call("GET", f"experiments/{experiment_id}")))
    store = Store(database_url)
    with store.read() as session:
        rows = [str(tuple(row)) for table in metadata.sorted_tables for row in session.execute(table.select())]
    store.close()
    files = [path.read_bytes().decode(errors="replace") for path in (tmp_path / "data").rglob("*") if path.is_file()]
    for text_found in [*pages, *rows, *files, worker.log.read_text()]:
        assert canary not in text_found


@pytest.mark.server
@pytest.mark.parametrize("payload", PAYLOADS)
def test_l38_stored_scripts_stay_text_under_the_policy(sqlite_server: LiveServer, payload: str) -> None:
    spec = tiny_spec(experiment={"name": payload, "notes": payload, "tags": [payload[:60]]})
    with Client(sqlite_server.url) as client:
        experiment_id = client.submit(spec)["id"]
        assert client.call("GET", f"experiments/{experiment_id}")["name"] == payload
    for path in ("/", "/workers", f"/experiments/{experiment_id}"):
        page = httpx.get(sqlite_server.url + path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
        assert payload not in page.text
        title = re.findall(r"<title>(.*?)</title>", page.text)[0]
        assert "49" not in title.replace(experiment_id, "")


@pytest.mark.server
def test_l39_foreign_host_and_origin_are_refused(sqlite_server: LiveServer) -> None:
    answer = httpx.get(f"{sqlite_server.url}/api/v1/experiments", headers={"Host": "evil.example"})
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_l40_database_on_a_shared_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = engine._file_system(tmp_path)
    monkeypatch.setattr(engine, "_SHARED_FILE_SYSTEMS", (here,))  # as if this were NFS
    with pytest.raises(StartupError, match="SQLite corrupts there"):
        Store(f"sqlite:///{tmp_path}/x.db")
    compose = (ROOT / "docker-compose.yml").read_text()
    assert re.search(r"^volumes:\n(  \w+:.*\n)+", compose, re.MULTILINE)


@pytest.mark.server
def test_l41_open_streams_hold_no_session_and_slow_no_request(server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    address = f"{server.url.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws"

    def best() -> float:
        """Return the seconds of the fastest of ten requests, as others load the machine."""
        spent = []
        with httpx.Client(base_url=server.url, timeout=30) as http:
            for _ in range(10):
                began = time.perf_counter()
                assert http.get("/api/v1/experiments").status_code == 200
                spent.append(time.perf_counter() - began)
        return min(spent)

    before = best()
    with ExitStack() as stack:
        for _ in range(300 if SOAK else 30):
            opened = stack.enter_context(connect(address, max_size=None, open_timeout=60))
            opened.send('{"type":"subscribe","metrics":[],"after":null}')
        wait_until(lambda: server.app.state.hub.num_readers >= (300 if SOAK else 30), what="the readers")
        assert best() < before + 0.5
        wait_until(lambda: not any(server.ctx.store.in_use().values()), what="no session held")


@pytest.mark.server
def test_l42_port_in_use_is_said_clearly_and_zero_takes_a_free_one(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code = "from app.cli.people import main; main()"
        environment = {"LOCKSTEP_DATA_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
        result = subprocess.run(
            [sys.executable, "-c", code, "serve", "--port", port],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
            timeout=120,
        )
    assert result.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "--port 0" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.server
def test_l43_every_address_carries_the_path_prefix(
    make_server: Callable[..., LiveServer], sqlite_template: Path, tmp_path: Path
) -> None:
    server = make_server(f"sqlite:///{tmp_path / 'prefix.db'}", root_path="/lockstep")
    submitted = httpx.post(f"{server.url}/api/v1/experiments", json=tiny_spec()).json()
    assert all(link.startswith("/lockstep/") for link in submitted["links"].values())
    page = httpx.get(f"{server.url}/").text
    addresses = re.findall(r'(?:href|src)="(/[^"]*)"', page)
    assert addresses
    assert all(address.startswith("/lockstep") for address in addresses)


@pytest.mark.server
def test_l44_progress_bars_and_floods_make_few_bounded_lines(server: LiveServer, light_worker: StartLight) -> None:
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 1}))["id"]
        light_worker(server.url, "flood")
        wait_until(lambda: block_status(client, experiment_id) == "succeeded", timeout=120, what="the end")
        lines = log_lines(client, experiment_id, tail=2000)["items"]
    texts = [line["text"] for line in lines]
    assert sum(" of 10000" in line for line in texts) <= 5
    assert max(len(line.encode()) for line in texts) <= p.MAX_LOG_LINE_BYTES
    assert any("nul " in line for line in texts)
    assert sum(line.startswith("line ") for line in texts) <= 1_000


def test_l45_log_opened_late_shows_the_tail_at_once_then_older_pages(ctx: Context) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    lines = [p.LogLine(seq=seq, text=f"line {seq}") for seq in range(1, 501)]
    ingest.post_logs(ctx, worker.held.assignment_id, worker.held.lease, p.LogsRequest(lines=lines))
    run_id = reading.list_runs(ctx, experiment_id)[0]["id"]
    tail = reading.read_logs(ctx, run_id, cursor=None, level="info", limit=200)
    assert [line["seq"] for line in tail["items"]] == list(range(301, 501))
    seen = list(tail["items"])
    while tail["previous"] is not None:
        tail = reading.read_logs(ctx, run_id, cursor=None, before=tail["previous"], level="info", limit=200)
        seen = tail["items"] + seen
    assert [line["seq"] for line in seen] == list(range(1, 501))


@pytest.mark.server
@pytest.mark.pg
def test_l46_ended_backends_cost_latency_and_no_event(make_server: Callable[..., LiveServer], pg_url: str) -> None:
    from tests.conftest import empty_postgres

    empty_postgres(pg_url)
    writer, reader = make_server(pg_url), make_server(pg_url)
    experiment_id = submit(writer.ctx)
    address = f"{reader.url.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws"
    with connect(address, max_size=None, open_timeout=60) as opened:
        opened.send('{"type":"subscribe","metrics":[],"after":null}')
        while json.loads(opened.recv(timeout=60))["type"] != "snapshot":
            pass
        for _ in range(2):
            end_backends(reader.ctx)
            began = time.monotonic()
            wait_until(lambda: _noted(writer.ctx, experiment_id), what="the edit")
            frame = json.loads(opened.recv(timeout=60))
            while frame["type"] == "ping":
                frame = json.loads(opened.recv(timeout=60))
            assert time.monotonic() - began < 15.0


def _noted(ctx: Context, experiment_id: str) -> bool:
    from sqlalchemy.exc import DBAPIError

    from app.services import steering
    from tests.factories import LOCAL

    try:
        steering.edit(ctx, experiment_id, {"notes": str(time.monotonic())}, LOCAL, if_match=None)
    except DBAPIError:
        return False
    return True


@pytest.mark.server
def test_l47_sigterm_with_open_streams_ends_the_server_within_ten_seconds(
    server_process: Callable[..., ServerProcess], database_url: str
) -> None:
    server = server_process().start()
    with Client(server.url) as client, ExitStack() as stack:
        experiment_id = client.submit(tiny_spec())["id"]
        store = stack.enter_context(closing(Store(database_url)))
        fill(store, experiment_id, 15_000)  # more than the system's buffers hold
        address = f"{server.url.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws"
        for _ in range(50 if SOAK else 10):
            opened = stack.enter_context(connect(address, max_size=None, open_timeout=60))
            opened.send('{"type":"subscribe","metrics":[],"after":null}')
        http = stack.enter_context(httpx.Client(timeout=30))
        stream = stack.enter_context(http.stream("GET", f"{server.url}/api/v1/experiments/{experiment_id}/stream"))
        assert stream.status_code == 200
        assert stream.headers["x-accel-buffering"] == "no"
        stack.enter_context(stalled(server.url, experiment_id, ("json",), 3))
        assert server.stop() < 10.0


@pytest.mark.server
def test_l48_l49_points_of_an_absence_come_once_and_a_stop_at_the_end_changes_nothing(
    server_process: Callable[..., ServerProcess], light_worker: StartLight
) -> None:
    away = 300.0 if SOAK else 0.0  # a restart takes seconds by itself
    server = server_process().start()
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 10}))["id"]
        light_worker(server.url, seconds=0.3)
        wait_until(lambda: first_block(client, experiment_id)["open_round"] >= 2, timeout=120, what="rounds")
        server.stop(signal.SIGKILL)
        time.sleep(away)
        server.start()
        wait_until(lambda: first_block(client, experiment_id)["open_round"] >= 10, timeout=180, what="the last round")
        server.stop()
        server.start()
        wait_until(lambda: block_status(client, experiment_id) == "succeeded", timeout=120, what="the end")
        assert first_block(client, experiment_id)["attempt"] == 1
        for curve in client.series(experiment_id, ["eval/accuracy"], x="round"):
            assert curve.x.tolist() == list(range(10))


def test_l50_curves_are_drawn_thin_from_typed_arrays_once_a_frame() -> None:
    source = (STATIC / "panels" / "chart.js").read_text()
    widths = [float(width) for width in re.findall(r"\bwidth:\s*([\d.]+)", source)]
    assert "Float64Array" in source
    assert re.search(
        # the first points of a page are drawn at once
        r"setTimeout\(\s*\(\) =>\s*requestAnimationFrame\(.*\}\),\s*isFirst \? 0 : 250,?\s*\)",
        (STATIC / "store.js").read_text(),
        re.S,
    )
    assert widths
    assert max(widths) == 1.0
    assert "width: mean.length > MANY ? 1 : 2.5" in source
