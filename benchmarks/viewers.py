"""A thousand viewers of one experiment: how late they are sent a round, what each costs, what a slow one does to them.

    python -m benchmarks.viewers --database sqlite|postgresql [--viewers 1000] [--rounds 40]

The server is a process of its own; viewers are sockets of this one, on the same cores. Each round of a simulated
worker is timed from before it is handed in until the kernel has the frame in each viewer's socket: the kernel stamps
what arrives (SO_TIMESTAMPNS), so that the time this process takes to get to a thousand sockets is not counted as the
server's. Beside it stands when this process had read it. Alone, and beside a viewer that subscribes and reads
nothing. Run by hand on a quiet machine. Exits 1 on a miss.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from benchmarks.control_plane import Simulated, fresh, in_process, percentile, spread
from lockstep.client import Client
from tests.conftest import wait_until
from tests.factories import tiny_spec

P99_SECONDS = 0.5
METRICS = ["eval/accuracy", "train/return_mean"]
#: Of Linux: stamp what arrives with the clock of the day, in nanoseconds.
_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)


class Viewer:
    """A socket that is subscribed, with the protocol of its stream."""

    def __init__(self, address: str) -> None:
        uri = parse_uri(address)
        self.socket = socket.create_connection((uri.host, uri.port))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        # as a browser asks; whether it is deflated is the server's choice
        self.protocol = ClientProtocol(uri, extensions=[ClientPerMessageDeflateFactory()], max_size=None)
        self.protocol.send_request(self.protocol.connect())
        self.say()

    def say(self, text: str | None = None) -> None:
        """Send a frame, if one is given, and what the protocol has to answer."""
        if text is not None:
            self.protocol.send_text(text.encode())
        for part in self.protocol.data_to_send():
            self.socket.sendall(part)

    def frames(self) -> tuple[list[dict[str, Any]], float]:
        """Return the frames that have arrived and when, by the kernel's clock of the day."""
        data, notes, _, _ = self.socket.recvmsg(1 << 20, 128)
        if not data:
            raise ConnectionError("the server ended the stream")
        stamps = [note for level, kind, note in notes if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS)]
        seconds, nanoseconds = struct.unpack("qq", stamps[-1][:16])
        self.protocol.receive_data(data)
        events = [event for event in self.protocol.events_received() if isinstance(event, Frame)]
        self.say()
        texts = [bytes(event.data) for event in events if event.opcode is Opcode.TEXT]
        return [json.loads(text) for text in texts], seconds + nanoseconds / 1e9

    def wait_for(self, kind: str) -> None:
        """Read until such a frame has come."""
        while not any(frame["type"] == kind for frame in self.frames()[0]):
            pass


class Viewers:
    """Viewers of one experiment, and when each round arrived at each of them and was read."""

    def __init__(self, url: str, experiment_id: str) -> None:
        self.address = f"{url.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws"
        self.arrived: dict[int, list[float]] = {}
        self.read: dict[int, list[float]] = {}
        self.accepted: dict[int, float] = {}  # seconds until the worker was answered
        self.num_lagged = 0
        self._selector = selectors.DefaultSelector()
        self._ended = threading.Event()

    @contextmanager
    def attached(self, count: int) -> Iterator[None]:
        """Open so many, then read in a thread of their own while the block lasts."""
        with ExitStack() as stack:
            reading = threading.Thread(target=self._follow)
            reading.start()
            stack.callback(reading.join)
            stack.callback(self._ended.set)
            with ThreadPoolExecutor(16) as pool:
                for viewer in pool.map(self._attach, range(count)):
                    stack.callback(viewer.socket.close)
            yield

    def _attach(self, _: int) -> Viewer:
        viewer = Viewer(self.address)
        viewer.wait_for("hello")
        viewer.say(json.dumps({"type": "subscribe", "metrics": METRICS, "after": None}))
        viewer.wait_for("snapshot")
        self._selector.register(viewer.socket, selectors.EVENT_READ, viewer)
        return viewer

    def _follow(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.2):
                frames, arrived = key.data.frames()
                for frame in frames:
                    self._note(key.data, frame, arrived)

    def _note(self, viewer: Viewer, frame: dict[str, Any], arrived: float) -> None:
        if frame["type"] == "ping":
            viewer.say('{"type":"pong"}')
        self.num_lagged += frame["type"] == "lagged"
        for item in frame.get("rounds", []):
            self.arrived.setdefault(item["round"], []).append(arrived)
            self.read.setdefault(item["round"], []).append(time.time())


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


def hand_in(worker: Simulated, held: dict[str, Any], index: int, *, is_last: bool = False) -> None:
    """Hand in a round of every run; with the last one all diverge, which ends the experiment."""
    runs = [
        {
            "run_id": run["run_id"],
            "digest": hashlib.sha256(f"{run['arm']}{index}".encode()).hexdigest(),
            "env_steps": index + 1,
            "first_seq": index * len(METRICS) + 1,
            "metrics": dict.fromkeys(METRICS, float(index)),
            "diverged": "NaN in the policy" if is_last else None,
        }
        for run in held["runs"]
    ]
    worker.send("PUT", held, f"rounds/{index}", {"runs": runs, "update_order": [0, 1], "seconds": 0.1})


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def train(viewers: Viewers, worker: Simulated, held: dict[str, Any], rounds: range, count: int) -> dict[int, float]:
    """Hand in rounds, two a second, and wait until all have seen them; return when each was begun to be handed in."""
    handed: dict[int, float] = {}
    for index in rounds:
        handed[index] = time.time()
        hand_in(worker, held, index)
        viewers.accepted[index] = time.time() - handed[index]
        if index % 10 == 0:
            worker.beat("working", held)
        time.sleep(max(0.0, handed[index] + 0.5 - time.time()))
    deadline = time.time() + 30
    while any(len(viewers.read.get(index, ())) < count for index in rounds) and time.time() < deadline:
        time.sleep(0.1)
    missed = sum(count - len(viewers.read.get(index, ())) for index in rounds)
    if missed:
        print(f"  {missed} of {count * len(rounds)} were not seen within 30 s")
    return handed


def measure(url: str, pid: int, options: argparse.Namespace) -> bool:
    """Attach, train alone, train beside a viewer that reads nothing; print and judge."""
    with Client(url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 2 * options.rounds + 1}))["id"]
    worker = Simulated(url, 0)
    held = wait_until(worker.claim, what="an assignment")
    worker.ready(held)
    viewers = Viewers(url, experiment_id)
    is_fine = True
    before, began = resident(pid), time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(viewers.attached(options.viewers))
        took, each = time.perf_counter() - began, (resident(pid) - before) / options.viewers
        print(f"{options.viewers} viewers attached after {took:.1f} s; {each / 1024:.0f} KiB each in the server")
        for name, first in (("alone", 0), ("beside a viewer that reads nothing", options.rounds)):
            if first:
                stack.callback(stall(viewers.address).close)
            used = cpu_seconds(pid)
            handed = train(viewers, worker, held, range(first, first + options.rounds), options.viewers)
            used = (cpu_seconds(pid) - used) / options.rounds
            late, read = (
                [at - began for index, began in handed.items() for at in seen.get(index, ())]
                for seen in (viewers.arrived, viewers.read)
            )
            is_fine &= len(late) == options.viewers * options.rounds and percentile(late, 0.99) < P99_SECONDS
            print(f"{name}: arrived after {spread(late)}, at most {max(late) * 1e3:.0f} ms")
            slow = [index for index, began in handed.items() if max(viewers.arrived[index]) - began > P99_SECONDS]
            print(f"  rounds of which a viewer learnt later than {P99_SECONDS} s: {slow or 'none'}")
            taken = [viewers.accepted[index] for index in handed]
            print(f"  of it until the worker was answered: {spread(taken)}, at most {max(taken) * 1e3:.0f} ms")
            print(f"  read here after {spread(read)}; {used * 1e3:.0f} ms of the server's processor a round")
        after = (resident(pid) - before) / options.viewers
        print(
            f"{viewers.num_lagged} viewers were told that they lag; {after / 1024:.0f} KiB each at the end", flush=True
        )
    return is_fine and viewers.num_lagged == 0


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description="Viewers of one experiment.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--viewers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * options.viewers)), hard)
    )  # the server inherits it
    with fresh(options.database) as (url, directory), in_process(url, directory) as server:
        assert server.process is not None
        return 0 if measure(server.url, server.process.pid, options) else 1


if __name__ == "__main__":
    sys.exit(main())
