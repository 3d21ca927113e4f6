"""What a worker makes of answers that are not its server's: another version, a proxy, a sign-in page."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lockstep import protocol as p
from worker.supervision.control import Control, Elsewhere, Refused

PAGE = b"<html><h1>Hello</h1></html>"
REQUEST = p.RegisterRequest(
    name="w",
    host="h",
    incarnation="1",
    device=p.Device(uid="cpu:h:0", kind="cpu", device_class="cpu", model="cpu", memory_bytes=1),
)
REPLY = {"worker_id": "wrk_1", "heartbeat_seconds": 5.0, "lease_ttl_seconds": 45.0, "server_epoch": "e"}
Answer = tuple[int, dict[str, str], bytes]
HTML = {"Content-Type": "text/html; charset=utf-8"}


def in_json(status: int, document: dict[str, Any]) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(document).encode()


@pytest.fixture
def answering() -> Iterator[Callable[..., Control]]:
    """A factory of controls whose server gives these answers, one after the other and then the last again."""
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: Answer) -> Control:
        waiting = list(answers)

        class Handler(BaseHTTPRequestHandler):
            server_version, sys_version = "nginx/1.27", ""

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, body = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = _answer  # noqa: N815 - names of the library

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return Control(f"http://127.0.0.1:{server.server_port}", None, jitter=random.Random(1))

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("step", "older"), [(-1, "server"), (1, "worker")])
def test_a_server_of_another_version_is_refused_and_the_older_side_named(
    answering: Callable[..., Control], step: int, older: str
) -> None:
    spoken = p.PROTOCOL_VERSION + step
    control = answering(in_json(201, {**REPLY, "protocol": spoken, "a field of that version": 1}))
    with pytest.raises(Refused) as refused:
        control.register(REQUEST)
    assert refused.value.detail == (
        f"the server speaks protocol {spoken} and this worker protocol {p.PROTOCOL_VERSION}: "
        f"upgrade lockstep on the {older}, so that both are of one version"
    )


def test_a_proxy_that_has_no_server_behind_it_for_a_moment_is_waited_for(
    answering: Callable[..., Control], capsys: pytest.CaptureFixture[str]
) -> None:
    control = answering((502, HTML, PAGE), (200, HTML, PAGE), in_json(201, {**REPLY, "protocol": p.PROTOCOL_VERSION}))
    assert control.patiently(lambda: control.register(REQUEST), until=lambda: False).worker_id == "wrk_1"
    told = capsys.readouterr().err
    assert "no Lockstep server but a proxy or another program (502 Bad Gateway from nginx/1.27, text/html)" in told
    assert told.count("\n") == 1


def test_a_body_that_a_proxy_refuses_is_named_with_its_size_and_not_sent_again(
    answering: Callable[..., Control],
) -> None:
    control = answering((413, HTML, PAGE))
    large = REQUEST.model_copy(update={"versions": {"all": "x" * 2_000_000}})
    with pytest.raises(Elsewhere, match=r"a body of 2 MB \(413 .* from nginx/1\.27\).*client_max_body_size"):
        control.patiently(lambda: control.register(large), until=lambda: False)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((302, {"Location": "https://host/login"}, b""), "redirects to https://host/login .*--api"),
        ((200, HTML, PAGE), "no Lockstep server .*200 OK from nginx/1.27, text/html.*--api"),
        ((404, HTML, PAGE), "no Lockstep server .*404 Not Found"),
    ],
)
def test_an_address_at_which_something_else_answers_is_refused_at_once(
    answering: Callable[..., Control], answer: Answer, words: str
) -> None:
    with pytest.raises(Refused, match=words) as refused:
        answering(answer).greet()
    assert "<html>" not in str(refused.value)
