"""A fault of ours: what is answered, and what becomes of the connection."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.responses import StreamingResponse

from tests.conftest import LiveServer

pytestmark = pytest.mark.server


@pytest.fixture
def connection(sqlite_server: LiveServer) -> Iterator[http.client.HTTPConnection]:
    """One connection, which is never opened again."""
    made = http.client.HTTPConnection(urlsplit(sqlite_server.url).netloc, timeout=60)
    made.connect()
    made.auto_open = 0
    yield made
    made.close()


def _fail() -> None:
    raise RuntimeError("a fault of ours")


def _fail_later() -> StreamingResponse:
    def pieces() -> Iterator[bytes]:
        yield b"begun"
        _fail()

    return StreamingResponse(pieces())


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_fault_is_answered_with_its_id_and_keeps_the_connection(
    sqlite_server: LiveServer, connection: http.client.HTTPConnection, method: str
) -> None:
    sqlite_server.app.add_api_route("/api/v1/broken", _fail, methods=["GET", "POST"])
    connection.request(method, "/api/v1/broken", body="{}" if method == "POST" else None)
    answer = connection.getresponse()
    text = answer.read()
    assert (answer.status, answer.getheader("content-type")) == (500, "application/problem+json")
    if text:
        document: dict[str, Any] = json.loads(text)
        assert (document["code"], document["request_id"]) == ("internal", answer.getheader("x-request-id"))
        assert "fault of ours" not in document["detail"]
    assert answer.getheader("cache-control") == "no-store"
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200


def test_a_fault_in_a_page_is_a_page(sqlite_server: LiveServer, connection: http.client.HTTPConnection) -> None:
    sqlite_server.app.add_api_route("/broken", _fail)
    connection.request("GET", "/broken", headers={"accept": "text/html"})
    answer = connection.getresponse()
    assert answer.status == 500
    assert str(answer.getheader("x-request-id")) in answer.read().decode()


def test_an_answer_that_fails_when_it_has_begun_is_cut(
    sqlite_server: LiveServer, connection: http.client.HTTPConnection
) -> None:
    sqlite_server.app.add_api_route("/api/v1/broken", _fail_later)
    connection.request("GET", "/api/v1/broken")
    with pytest.raises(http.client.IncompleteRead):
        connection.getresponse().read()
