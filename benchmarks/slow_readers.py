"""What clients that read nothing cost everybody else; run by hand.

    python -m benchmarks.slow_readers --database sqlite|postgresql [--readers 100] [--rows 40000]
    python -m benchmarks.slow_readers --database sqlite|postgresql --minutes 10 [--sockets 200]

For each form of export: so many clients ask a server process for it and read no further than its first bytes.
Meanwhile other routes are asked for; then the clients leave, and nothing may be left. Last, SIGTERM with such
clients attached. With ``--minutes``: so many readers of each form by turns, and stalled viewers beside them while a
worker hands in rounds, all that time; whoever the server sends away comes back. Exits 1 on a miss.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from app.store.database.engine import Store
from benchmarks.control_plane import Simulated, fresh, in_process, percentile, spread, times
from benchmarks.viewers import hand_in
from benchmarks.viewers import stall as stall_viewer
from lockstep.client import Client
from tests.conftest import wait_until
from tests.factories import tiny_spec
from tests.field.conftest import ROOT, ServerProcess
from tests.slow_readers import FORMS, fill, held_files, stall

P99_SECONDS, STOP_SECONDS = 0.25, 10.0


def ask_until(url: str, experiment_id: str, stop: threading.Event) -> list[float]:
    """Ask for other routes until told to stop; return the seconds of each answer."""
    paths = ["experiments", "queue", "workers", f"experiments/{experiment_id}", f"experiments/{experiment_id}/runs"]
    spent = []
    with httpx.Client(base_url=f"{url}/api/v1/", timeout=60) as http:
        while not stop.is_set():
            for path in paths:
                began = time.perf_counter()
                http.get(path).raise_for_status()
                spent.append(time.perf_counter() - began)
                time.sleep(0.01)
    return spent


def beside(server: ServerProcess, experiment_id: str, act: Callable[[], None]) -> list[float]:
    """Return the seconds of answers of other routes while something is done."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_until, server.url, experiment_id, stop)
        try:
            act()
        finally:
            stop.set()
        return asking.result()


def measure(server: ServerProcess, experiment_id: str, form: str, readers: int, incoming: Path) -> bool:
    """Stall so many readers of a form, print what it cost the others, and return whether that holds."""
    assert server.process is not None
    pid = server.process.pid
    with ExitStack() as stack:

        def attach() -> None:
            sockets = [stack.enter_context(stall(server.url, experiment_id, form)) for _ in range(readers)]
            for opened in sockets:
                opened.recv(12)

        began = time.perf_counter()
        writing = beside(server, experiment_id, attach)
        took = time.perf_counter() - began
        stalled = beside(server, experiment_id, lambda: time.sleep(3.0))
        held = len(held_files(incoming, pid))
    wait_until(lambda: not held_files(incoming, pid), timeout=60, what="no file left")
    ready = httpx.get(f"{server.url}/readyz").status_code == 200
    print(f"{form}: {readers} readers attached after {took:.1f} s, {held} files held, none after; ready {ready}")
    print(f"  others while they are written: {spread(writing)}; while they stall: {spread(stalled)}", flush=True)
    return ready and max(percentile(writing, 0.99), percentile(stalled, 0.99)) < P99_SECONDS


class Crowd:
    """Clients that read nothing; who is sent away comes back.

    Args:
        attach: makes the socket of a client, given its number.
        count: of them.
    """

    def __init__(self, attach: Callable[[int], socket.socket], count: int) -> None:
        self._attach = attach
        self._sockets = {number: attach(number) for number in range(count)}
        self.num_returns = 0

    def come_back(self) -> None:
        """Attach those anew whose connection the server has ended."""
        poll = select.poll()
        numbers = {opened.fileno(): number for number, opened in self._sockets.items()}
        for descriptor in numbers:
            poll.register(descriptor, select.POLLRDHUP)  # what lies there unread is no news
        for descriptor, _ in poll.poll(0):
            number = numbers[descriptor]
            self._sockets[number].close()
            self._sockets[number] = self._attach(number)
            self.num_returns += 1

    def leave(self) -> None:
        """Close all."""
        for opened in self._sockets.values():
            opened.close()


def hold(server: ServerProcess, experiment_id: str, given: argparse.Namespace, incoming: Path) -> dict[str, Any]:
    """Let readers and viewers stall for minutes; return what the others waited and what was left."""
    assert server.process is not None
    pid = server.process.pid
    rounds = round(60 * given.minutes)
    watched = Client(server.url).submit(tiny_spec(budget={"rounds": rounds + 1}, experiment={"priority": 100}))["id"]
    worker = Simulated(server.url, 0)
    held = wait_until(worker.claim, what="an assignment")
    worker.ready(held)
    address = f"{server.url.replace('http', 'ws')}/api/v1/experiments/{watched}/ws"
    fill_pool(server.url, experiment_id)
    files_before = len(os.listdir(f"/proc/{pid}/fd"))
    crowds: list[Crowd] = []

    def act() -> None:
        crowds.append(Crowd(lambda number: stall(server.url, experiment_id, FORMS[number % len(FORMS)]), given.readers))
        crowds.append(Crowd(lambda _: stall_viewer(address), given.sockets))
        end = time.monotonic() + 60 * given.minutes
        for index in range(rounds):
            began = time.monotonic()
            hand_in(worker, held, index)
            worker.beat("working", held)
            for crowd in crowds:
                crowd.come_back()
            time.sleep(max(0.0, began + 1.0 - time.monotonic()))
            if time.monotonic() > end:
                break

    seconds = beside(server, experiment_id, act)
    for crowd in crowds:
        crowd.leave()
    wait_until(lambda: not held_files(incoming, pid), timeout=90, what="no file left")
    end = time.monotonic() + 90
    while len(os.listdir(f"/proc/{pid}/fd")) > files_before + 2 and time.monotonic() < end:
        time.sleep(0.5)
    return {
        "others": times(seconds),
        "readers_sent_away": crowds[0].num_returns,
        "viewers_sent_away": crowds[1].num_returns,
        "descriptors": {"before": files_before, "after": len(os.listdir(f"/proc/{pid}/fd"))},
        "ready_after": httpx.get(f"{server.url}/readyz").status_code == 200,
    }


def fill_pool(url: str, experiment_id: str) -> None:
    """Ask for other routes, many at once, so that the pool has the connections that it keeps."""
    ended = threading.Event()
    threading.Timer(3.0, ended.set).start()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: ask_until(url, experiment_id, ended), range(16)))


def main() -> int:
    """Measure each form, then the end of the server."""
    parser = argparse.ArgumentParser(description="Clients that ask for exports and do not read them.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--minutes", type=float, help="hold readers and viewers for so long, and nothing else")
    parser.add_argument("--sockets", type=int, default=200)
    given = parser.parse_args()
    with fresh(given.database) as (url, directory), ExitStack() as stack:
        server = stack.enter_context(in_process(url, directory))
        experiment_id = Client(server.url).submit(tiny_spec())["id"]
        store = Store(url)
        fill(store, experiment_id, given.rows)
        store.close()
        incoming = directory / "files" / "incoming"
        if given.minutes is not None:
            load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
            found = hold(server, experiment_id, given, incoming)
            document = {"cores": os.cpu_count(), "load_before": load, "asked": vars(given), **found}
            text = json.dumps(document, indent=1)
            print(text)
            (ROOT / f"benchmarks/results/slow_readers_{given.database}.json").write_text(text + "\n")
            is_left = found["descriptors"]["after"] > found["descriptors"]["before"] + 2
            return 0 if found["ready_after"] and found["others"]["p99"] < P99_SECONDS and not is_left else 1
        fine = [measure(server, experiment_id, form, given.readers, incoming) for form in FORMS]
        for form in FORMS:
            for _ in range(given.readers):
                stack.enter_context(stall(server.url, experiment_id, form))
        time.sleep(1.0)
        took = server.stop()
        print(f"SIGTERM with {given.readers} readers of each form attached: ended after {took:.1f} s")
        return 0 if all(fine) and took < STOP_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
