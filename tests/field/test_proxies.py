"""Field lessons L62, L65, L68: proxies before the server, of which some refuse bodies and some add a path."""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from app.cli import people
from lockstep import protocol as p
from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.field.conftest import StartLight, first_block
from tests.proxies import EXAMPLE, NGINX, nginx, plain
from worker.supervision.control import Control

pytestmark = [pytest.mark.server, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]
_DROPPED = ("connection", "transfer-encoding", "content-length", "host")
_PREFIX = "/lockstep"
#: Which proxy adds the path, and whether it takes it off before the server.
_BELOW = [("plain", True), *([("nginx", True), ("nginx", False)] if NGINX else [])]


@pytest.fixture
def proxy(request: pytest.FixtureRequest, server: LiveServer) -> Iterator[str]:
    """The address of a proxy that takes no larger file (413, a page of its own) and passes on everything else."""
    limit = getattr(request, "param", 0)

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "/files/" in self.path and len(body) > limit:
                self._answer(413, {"content-type": "text/html"}, b"<h1>413 Request Entity Too Large</h1>")
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
            got = httpx.request(self.command, f"{server.url}{self.path}", content=body, headers=headers, timeout=60)
            self._answer(got.status_code, dict(got.headers), got.content)

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _DROPPED:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = _pass_on  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{listener.server_port}"
    listener.shutdown()
    listener.server_close()


def test_l62_what_a_proxy_refuses_is_named_and_charged_to_no_job_and_no_device(
    server: LiveServer, proxy: str, light_worker: StartLight
) -> None:
    light_worker(proxy)
    with Client(server.url) as client:
        ids = [client.submit(tiny_spec(experiment={"name": name}))["id"] for name in ("one", "two")]

        def ends() -> list[str]:
            return [client.show(experiment_id)["status"] for experiment_id in ids]

        wait_until(lambda: set(ends()) == {"failed"}, what="two ends")
        for experiment_id in ids:
            block = first_block(client, experiment_id)
            assert block["cause"] == "worker_lost"
            assert "a proxy before the server refused a body of " in block["cause_text"]
            assert "client_max_body_size" in block["cause_text"]
        [worker] = client.call("GET", "workers")["items"]
        assert worker["status"] in ("idle", "cleaning")


@pytest.mark.parametrize("proxy", [2**20], indirect=True)
def test_files_go_in_pieces_where_a_proxy_takes_them_no_larger(server: LiveServer, proxy: str) -> None:
    submit(server.ctx)
    worker = SimulatedWorker(server.ctx).register()
    held = worker.claim()
    assert held is not None
    worker.ready()
    control = Control(proxy, None)
    for content in (random.Random(1).randbytes(5 * p.PIECE_BYTES + 1), b"small", random.Random(2).randbytes(2**21)):
        digest = hashlib.sha256(content).hexdigest()
        control.upload(held, digest, content, {"run_id": held.runs[0].run_id, "kind": "policy", "name": "a"})
        assert server.ctx.files.read(digest) == content
    assert not list(server.ctx.files.incoming.iterdir())
    control.close()


def test_a_worker_of_another_version_is_refused_and_the_older_side_named(server: LiveServer) -> None:
    device = {"uid": "cpu:h:0", "kind": "cpu", "device_class": "c", "model": "m", "memory_bytes": 1}
    request = {"name": "w", "host": "h", "incarnation": "1", "device": device}
    for spoken, older in ((p.PROTOCOL_VERSION - 1, "worker"), (p.PROTOCOL_VERSION + 1, "server")):
        answer = httpx.post(f"{server.url}/api/v1/workers", json={**request, "protocol": spoken})
        assert (answer.status_code, answer.json()["code"]) == (426, "protocol_version")
        assert f"upgrade lockstep on the {older}" in answer.json()["detail"]


@pytest.fixture(params=_BELOW, ids=lambda given: f"{given[0]}-{'strips' if given[1] else 'keeps'}")
def below(
    request: pytest.FixtureRequest, make_server: Callable[..., LiveServer], database_url: str, tmp_path: Path
) -> Iterator[str]:
    """The address of a server below a path of a proxy."""
    name, strips = request.param
    server = make_server(database_url, root_path=_PREFIX)
    before = plain(server.url, _PREFIX) if name == "plain" else nginx(tmp_path, [server.url], _PREFIX, strips=strips)
    with before as url:
        yield url


def test_l65_below_a_path_every_link_redirect_and_stream_has_it_once(below: str, tmp_path: Path) -> None:
    site = below.removesuffix(_PREFIX)
    (tmp_path / "spec.json").write_text(json.dumps(tiny_spec()))
    told = CliRunner().invoke(people.app, ["submit", str(tmp_path / "spec.json")], env={"LOCKSTEP_URL": below}).stdout
    experiment_id, page = told.split()[0], told.partition("page:")[2].split()[0]
    assert page == f"{below}/experiments/{experiment_id}"
    with httpx.Client() as http:
        links = re.findall(r'(?:href|src)="(/[^"]*)"', http.get(page).text)
        assert {http.head(f"{site}{link}").status_code for link in links} == {200}
        for path in ("", "/experiments", "/queue/", "/api/v1/experiments/?limit=1"):
            moved = http.get(f"{below}{path}")
            assert moved.is_redirect
            assert http.get(httpx.URL(moved.url).join(moved.headers["location"])).status_code == 200
        assert http.get(f"{below}/healthz", headers={"Host": "probe"}).status_code == 200
        assert http.get(f"{below}/queue", headers={"Host": "elsewhere"}).status_code == 400
    with Client(below) as client:
        assert next(client.watch(experiment_id))["type"] == "snapshot"
    with connect(f"{below.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws") as opened:
        assert json.loads(opened.recv(timeout=60))["type"] == "hello"


def test_an_idle_connection_is_ended_by_the_proxy_and_not_by_the_server(server: LiveServer) -> None:
    [of_nginx] = re.findall(r"keepalive_timeout (\d+)s;", EXAMPLE.read_text())
    assert server.server.config.timeout_keep_alive > int(of_nginx)


@pytest.mark.parametrize(("trusted", "answers"), [("", [401, 429]), ("127.0.0.1", [401, 401])])
def test_where_a_request_comes_from_is_believed_of_named_proxies_only(
    make_server: Callable[..., LiveServer], database_url: str, trusted: str, answers: list[int]
) -> None:
    server = make_server(database_url, auth="token", login_failures=1, trusted_proxies=trusted)
    address = f"{server.url}/api/v1/session"
    told = [
        httpx.post(address, json={"token": "lsk_wrong"}, headers={"X-Forwarded-For": f"10.0.0.{number}"}).status_code
        for number in range(2)
    ]
    assert told == answers
