"""A connection that dies without a word, as where a firewall or NAT forgets it, costs no lease."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from urllib.parse import urlsplit

import pytest

from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import tiny_spec
from tests.field.conftest import StartLight, first_block

#: A call over a dead connection is given up after a part of it: long enough for a busy machine to make another one.
_LEASE = 12.0


class Forgetful:
    """Passes connections on to a server; those it has forgotten stay open and carry nothing any more.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url).port
        self._numbers, self._forgotten = count(), 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._door]
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def forget(self) -> None:
        """Forget all connections that there are."""
        self._forgotten = next(self._numbers)

    def close(self) -> None:
        """End all connections."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                number = next(self._numbers)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(*ends, number), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if number >= self._forgotten:
                    sink.sendall(data)
            if number >= self._forgotten:
                sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def server(make_server: Callable[..., LiveServer], database_url: str) -> LiveServer:
    return make_server(database_url, lease_ttl_seconds=_LEASE)


@pytest.fixture
def forgetful(server: LiveServer) -> Iterator[Forgetful]:
    made = Forgetful(server.url)
    yield made
    made.close()


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_heartbeats_and_rounds_are_heard_again_before_the_lease_is_over(
    server: LiveServer, forgetful: Forgetful, light_worker: StartLight
) -> None:
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 200}))["id"]
        worker = light_worker(forgetful.url, seconds=0.3)
        wait_until(lambda: first_block(client, experiment_id)["open_round"] > 0, what="a round")
        handed_in = first_block(client, experiment_id)["open_round"]
        forgetful.forget()
        time.sleep(_LEASE + 2.0)
        assert (
            first_block(client, experiment_id)["open_round"] > handed_in + 3
        )  # it trains one ahead while one is unsent
        assert first_block(client, experiment_id)["attempt"] == 1
        assert first_block(client, experiment_id)["status"] == "running"
        assert "lease_lost" not in worker.log.read_text()
