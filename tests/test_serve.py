"""How `lockstep serve` listens."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.cli.admin import listen
from app.settings import Settings


async def _delays_of(listener: socket.socket) -> list[int]:
    """Return TCP_NODELAY of a connection that the server has accepted."""
    seen: list[int] = []

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(accepted, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        await reader.read()
        writer.close()
        await writer.wait_closed()
    return seen


def test_listen_accepted_connections_send_without_delay() -> None:
    # in a thread of its own: beside browser tests this one has an event loop
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: asyncio.run(_delays_of(listen(Settings(port=0))))).result()
    assert found == [1]


@pytest.mark.parametrize("given", ["http://lab/lockstep", "/lock step", "//lab"])
def test_a_root_path_that_is_no_path_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(ValueError, match="such as /lockstep"):
        Settings(root_path=given)
