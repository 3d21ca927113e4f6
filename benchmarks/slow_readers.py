"""What clients that read nothing cost everybody else; run by hand.

    python -m benchmarks.slow_readers --database sqlite|postgresql [--readers 100] [--rows 40000]

For each form of export: so many clients ask a server process for it and read no further than its first bytes.
Meanwhile other routes are asked for; then the clients leave, and nothing may be left. Last, SIGTERM with such
clients attached. Exits 1 on a miss.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx

from app.store.engine import Store
from benchmarks.control_plane import fresh, in_process, percentile, spread
from lockstep.client import Client
from tests.conftest import wait_until
from tests.factories import tiny_spec
from tests.field.conftest import ServerProcess
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


def main() -> int:
    """Measure each form, then the end of the server."""
    parser = argparse.ArgumentParser(description="Clients that ask for exports and do not read them.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--rows", type=int, default=40_000)
    given = parser.parse_args()
    with fresh(given.database) as (url, directory), ExitStack() as stack:
        server = stack.enter_context(in_process(url, directory))
        experiment_id = Client(server.url).submit(tiny_spec())["id"]
        store = Store(url)
        fill(store, experiment_id, given.rows)
        store.close()
        incoming = directory / "files" / "incoming"
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
