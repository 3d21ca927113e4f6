"""Field lesson L62: what a proxy before the server refuses is charged to no job and to no device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from lockstep.client import Client
from lockstep.protocol import PROTOCOL_VERSION
from tests.conftest import LiveServer, wait_until
from tests.factories import tiny_spec
from tests.field.conftest import StartLight, first_block

pytestmark = [pytest.mark.server, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]
_DROPPED = ("connection", "transfer-encoding", "content-length", "host")


@pytest.fixture
def proxy(server: LiveServer) -> Iterator[str]:
    """The address of a proxy that takes no file (413, a page of its own) and passes on everything else."""

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "/files/" in self.path:
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

        wait_until(lambda: set(ends()) == {"failed"}, timeout=90, what="two ends")
        for experiment_id in ids:
            block = first_block(client, experiment_id)
            assert block["cause"] == "worker_lost"
            assert "a proxy before the server refused a body of " in block["cause_text"]
            assert "client_max_body_size" in block["cause_text"]
        [worker] = client.call("GET", "workers")["items"]
        assert worker["status"] in ("idle", "cleaning")


def test_a_worker_of_another_version_is_refused_and_the_older_side_named(server: LiveServer) -> None:
    device = {"uid": "cpu:h:0", "kind": "cpu", "device_class": "c", "model": "m", "memory_bytes": 1}
    request = {"name": "w", "host": "h", "incarnation": "1", "device": device}
    for spoken, older in ((PROTOCOL_VERSION - 1, "worker"), (PROTOCOL_VERSION + 1, "server")):
        answer = httpx.post(f"{server.url}/api/v1/workers", json={**request, "protocol": spoken})
        assert (answer.status_code, answer.json()["code"]) == (426, "protocol_version")
        assert f"upgrade lockstep on the {older}" in answer.json()["detail"]
