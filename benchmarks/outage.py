"""Both clients through what happens to a server: two minutes away, a proxy that answers 502, dropped sockets.

    python -m benchmarks.outage [--away 120] [--refused 60] [--drops 300] [--out FILE]

A real server and a real worker train while a client of each kind watches through a proxy of this process. The server
is stopped and started again, then the proxy answers 502 with a page of HTML, then it cuts connections. In each of the
first two times both clients submit an experiment. Checked at the end: every point was told once and none is missing,
and there is one experiment for each submission.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import save
from benchmarks.served import process
from lockstep import AsyncClient, Client

_HTML = b"<html>502 Bad Gateway</html>"
_PAGE = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(
    _HTML
)
_METRIC = "train/return_mean"
#: The one that is watched, and one of each client while the server is away and while it is refused.
_EXPERIMENTS = 5
#: Between two faults, and between two cuts: a client that gets no frame at all for its patience gives up rightly.
_CALM_SECONDS, _CUT_SECONDS = 10.0, 0.5


class Proxy:
    """Passes connections on to a port, answers 502, or cuts what is open.

    Args:
        target: port of the server on 127.0.0.1.
    """

    def __init__(self, target: int) -> None:
        self._target, self.refuses, self._open = target, False, set[socket.socket]()
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self, chosen: random.Random) -> bool:
        """Cut one connection; return whether there was one."""
        with self._lock:
            victims = sorted(self._open, key=id)
        if not victims:
            return False
        with contextlib.suppress(OSError):
            chosen.choice(victims).shutdown(socket.SHUT_RDWR)
        return True

    def close(self) -> None:
        """Take no more connections."""
        self._door.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            if self.refuses:
                near.recv(65536)
                near.sendall(_PAGE + _HTML)
                return
            with socket.create_connection(("127.0.0.1", self._target)) as far:
                with self._lock:
                    self._open.add(near)
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join()
        with self._lock:
            self._open.discard(near)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def spec(name: str, rounds: int) -> dict[str, Any]:
    """Return an experiment whose only replicate takes so many rounds."""
    return {
        "experiment": {"name": name, "replicates": 1},
        "preset": "gym_classic",
        "env": {"id": "CartPole-v1"},
        "budget": {"rounds": rounds},
        "eval": {"every_rounds": rounds, "episodes": 2},
        "arms": [{"label": "a"}, {"label": "b", "overrides": {"ppo.clip": 0.1}}],
        "analysis": {"inference": "none", "sesoi": 25.0, "failure": {"floor": 0.0}},
    }


def points_of(frames: list[Mapping[str, Any]]) -> Counter[tuple[str, int]]:
    """Return how often each point was told, by run and its number in the run."""
    told = [item for frame in frames if frame["type"] == "delta" for item in frame["points"]]
    return Counter((item["run_id"], seq) for item in told if item["metric"] == _METRIC for seq in item["seq"])


def frames_of(url: str, experiment_id: str, into: list[Mapping[str, Any]]) -> None:
    """Watch with the blocking client until the end."""
    with Client(url) as client:
        into.extend(client.watch(experiment_id, metrics=[_METRIC]))


async def aframes_of(url: str, experiment_id: str, into: list[Mapping[str, Any]]) -> None:
    """Watch with the client for event loops until the end."""
    async with AsyncClient(url) as client:
        into.extend([frame async for frame in client.watch(experiment_id, metrics=[_METRIC])])


def submit_both(url: str, name: str) -> list[threading.Thread]:
    """Begin to submit one experiment with either client."""

    def blocking() -> None:
        with Client(url) as client:
            client.submit(spec(f"{name} blocking", 1))

    async def awaited() -> None:
        async with AsyncClient(url) as client:
            await client.submit(spec(f"{name} awaited", 1))

    threads = [threading.Thread(target=blocking), threading.Thread(target=lambda: asyncio.run(awaited()))]
    for thread in threads:
        thread.start()
    return threads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--away", type=float, default=120.0, help="seconds without a server")
    parser.add_argument("--refused", type=float, default=60.0, help="seconds of 502")
    parser.add_argument("--drops", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--port", type=int, default=7541)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        report = run(Path(folder), options, stack)
    print(report)
    save(options.out, report)
    return 0 if report["holds"] else 1


def run(folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Play the three faults and return what was told and submitted."""
    environment = {**os.environ, "LOCKSTEP_DATA_DIR": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    environment["LOCKSTEP_LOCK_DIR"] = str(folder / "locks")
    serve = ["app.cli", "serve", "--port", str(options.port)]
    command = ["worker", "--api", f"http://127.0.0.1:{options.port}", "--device", "cpu"]
    command += ["--work-dir", str(folder / "workers")]
    proxy = Proxy(options.port)
    stack.callback(proxy.close)
    frames: dict[str, list[Mapping[str, Any]]] = {"blocking": [], "awaited": []}
    with process(serve, folder / "server.log", environment):
        with Client(proxy.url) as client:
            watched = client.submit(spec("watched", options.rounds))["id"]
        watchers = [
            threading.Thread(target=frames_of, args=(proxy.url, watched, frames["blocking"])),
            threading.Thread(target=lambda: asyncio.run(aframes_of(proxy.url, watched, frames["awaited"]))),
        ]
        for thread in watchers:
            thread.start()
        time.sleep(5)  # they have the empty beginning, so that every point reaches them as news
        stack.enter_context(process(command, folder / "worker.log", environment))
        time.sleep(20)
    print("the server is away", flush=True)
    submitting = submit_both(proxy.url, "away")
    time.sleep(options.away)
    with process(serve, folder / "server.log", environment), Client(proxy.url) as client:
        client.show(watched)
        time.sleep(_CALM_SECONDS)  # the outage is over for both before the next begins
        print("the proxy answers 502", flush=True)
        proxy.refuses = True
        submitting += submit_both(proxy.url, "refused")
        time.sleep(options.refused)
        proxy.refuses = False
        print("connections are cut", flush=True)
        chosen, cut = random.Random(7), 0
        while cut < options.drops and any(thread.is_alive() for thread in watchers):
            cut += proxy.cut(chosen)
            time.sleep(_CUT_SECONDS)
        for thread in [*watchers, *submitting]:
            thread.join()
        names = Counter(item["name"] for item in client.experiments())
    points = 2 * options.rounds
    told = {kind: points_of(seen) for kind, seen in frames.items()}
    doubled = {kind: sum(count > 1 for count in counts.values()) for kind, counts in told.items()}
    missing = {kind: points - len(counts) for kind, counts in told.items()}
    whole = not any(doubled.values()) and not any(missing.values())
    return {
        "away_seconds": options.away,
        "refused_seconds": options.refused,
        "cut": cut,
        "points": points,
        "doubled": doubled,
        "missing": missing,
        "experiments": dict(names),
        "holds": whole and cut == options.drops and len(names) == _EXPERIMENTS and set(names.values()) == {1},
    }


if __name__ == "__main__":
    sys.exit(main())
