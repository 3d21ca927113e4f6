"""A thousand viewers of one experiment: how late they see a round, what each costs, and what a slow one does to them.

    python -m benchmarks.viewers --database sqlite|postgresql [--viewers 1000] [--rounds 40]

The server is a process of its own; viewers are sockets of this one, on the same cores, so that what is measured is
the worse for it. Each round of a simulated worker is timed from its being handed in to each viewer's having read it:
alone, and beside a viewer that subscribes and reads nothing. Run by hand on a quiet machine. Exits 1 on a miss.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import resource
import socket
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from benchmarks.control_plane import Simulated, fresh, in_process, percentile, spread
from lockstep.client import Client
from tests.conftest import wait_until
from tests.factories import tiny_spec

P99_SECONDS = 0.5
METRICS = ["eval/accuracy", "train/return_mean"]


class Viewers:
    """Sockets of one experiment and when each of them read each round."""

    def __init__(self, url: str, experiment_id: str) -> None:
        self.address = f"{url.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws"
        self.read: dict[int, list[float]] = {}
        self.lost = 0

    async def attach(self, stack: AsyncExitStack, count: int) -> None:
        """Open so many, a hundred at a time, and read in the background for as long as the stack is open."""
        for first in range(0, count, 100):
            opened = await asyncio.gather(*(self._open() for _ in range(first, min(count, first + 100))))
            for stream in opened:
                stack.push_async_callback(stream.close)
                task = asyncio.create_task(self._follow(stream))
                stack.callback(task.cancel)

    async def _open(self) -> ClientConnection:
        stream = await connect(self.address, max_size=None, open_timeout=60, ping_interval=None)
        await stream.send(json.dumps({"type": "subscribe", "metrics": METRICS, "after": None}))
        while json.loads(await stream.recv())["type"] != "snapshot":
            pass
        return stream

    async def _follow(self, stream: ClientConnection) -> None:
        async for text in stream:
            frame = json.loads(text)
            if frame["type"] == "ping":
                await stream.send('{"type":"pong"}')
            self.lost += frame["type"] == "lagged"
            for item in frame.get("rounds", []):
                self.read.setdefault(item["round"], []).append(time.perf_counter())


def stall(address: str) -> socket.socket:
    """Subscribe to everything over a socket whose window is small, and read nothing."""
    host, _, path = address.removeprefix("ws://").partition("/")
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # before it connects, or the window stays wide
    opened.connect((host.split(":")[0], int(host.split(":")[1])))
    head = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    opened.sendall(f"{head}Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
    body = json.dumps({"type": "subscribe", "metrics": [], "after": None}).encode()
    # a text frame whose mask is zero
    opened.sendall(bytes([0x81, 0x80 | len(body), 0, 0, 0, 0]) + body)
    return opened


def hand_in(worker: Simulated, held: dict[str, Any], index: int) -> None:
    """Hand in a round of every run."""
    runs = [
        {
            "run_id": run["run_id"],
            "digest": hashlib.sha256(f"{run['arm']}{index}".encode()).hexdigest(),
            "env_steps": index + 1,
            "first_seq": index * len(METRICS) + 1,
            "metrics": dict.fromkeys(METRICS, float(index)),
        }
        for run in held["runs"]
    ]
    worker.send("PUT", held, f"rounds/{index}", {"runs": runs, "update_order": [0, 1], "seconds": 0.1})


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def train(viewers: Viewers, worker: Simulated, held: dict[str, Any], rounds: range, count: int) -> list[float]:
    """Hand in rounds, two a second, and return how late each viewer saw each of them."""
    handed: dict[int, float] = {}
    for index in rounds:
        handed[index] = time.perf_counter()
        await asyncio.to_thread(hand_in, worker, held, index)
        if index % 10 == 0:
            await asyncio.to_thread(worker.beat, "working", held)
        await asyncio.sleep(0.5)
    deadline = time.perf_counter() + 30
    while any(len(viewers.read.get(index, ())) < count for index in rounds) and time.perf_counter() < deadline:
        await asyncio.sleep(0.1)
    missed = sum(count - len(viewers.read.get(index, ())) for index in rounds)
    if missed:
        print(f"  {missed} of {count * len(rounds)} were not seen within 30 s")
    return [at - handed[index] for index in rounds for at in viewers.read.get(index, ())]


async def measure(url: str, pid: int, given: argparse.Namespace) -> bool:
    """Attach, train alone, train beside a viewer that reads nothing; print and judge."""
    with Client(url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 2 * given.rounds + 1}))["id"]
    worker = Simulated(url, 0)
    held = wait_until(worker.claim, what="an assignment")
    worker.ready(held)
    viewers = Viewers(url, experiment_id)
    fine = True
    async with AsyncExitStack() as stack:
        before, began = resident(pid), time.perf_counter()
        await viewers.attach(stack, given.viewers)
        took, each = time.perf_counter() - began, (resident(pid) - before) / given.viewers
        print(f"{given.viewers} viewers attached after {took:.1f} s; {each / 1024:.0f} KiB each in the server")
        for name, first in (("alone", 0), ("beside a viewer that reads nothing", given.rounds)):
            if first:
                stack.callback(stall(viewers.address).close)
            late = await train(viewers, worker, held, range(first, first + given.rounds), given.viewers)
            fine &= len(late) == given.viewers * given.rounds and percentile(late, 0.99) < P99_SECONDS
            print(f"{name}: {spread(late)}; at most {max(late) * 1e3:.0f} ms; {viewers.lost} frames lost", flush=True)
    return fine and viewers.lost == 0


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description="Viewers of one experiment.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--viewers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * given.viewers)), hard)
    )  # the server inherits it
    with fresh(given.database) as (url, directory), in_process(url, directory) as server:
        assert server.process is not None
        return 0 if asyncio.run(measure(server.url, server.process.pid, given)) else 1


if __name__ == "__main__":
    sys.exit(main())
