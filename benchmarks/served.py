"""The whole service as processes on this machine, for benchmarks: a server on SQLite and its workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.client import Client


@contextlib.contextmanager
def process(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m ARGUMENTS`` while the block lasts, output to a file; then SIGTERM, after a minute SIGKILL."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield started
        finally:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(timeout=60)
            started.kill()


@dataclass
class Service:
    """A running server.

    Attributes:
        client: of the server.
        url: of the server.
        work: folder of the database, the logs and what workers write.
    """

    client: Client
    url: str
    work: Path
    _environment: dict[str, str]
    _stack: contextlib.ExitStack

    def start_workers(self, devices: Sequence[str], data_dir: Path | None = None) -> None:
        """Start one worker for each device name; they end with the service."""
        for number, device in enumerate(devices):
            command = ["worker", "--api", self.url, "--device", device, "--work-dir", str(self.work / "workers")]
            command += ["--data-dir", str(data_dir)] if data_dir else []
            self._stack.enter_context(process(command, self.work / f"worker-{number}.log", self._environment))


@contextlib.contextmanager
def service(port: int, work: Path | None = None) -> Iterator[Service]:
    """Run a server until the block ends.

    Args:
        port: of 127.0.0.1.
        work: folder for database and logs; by default one that is deleted.

    Raises:
        TimeoutError: the server did not answer within a minute.
    """
    with contextlib.ExitStack() as stack:
        folder = work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "LOCKSTEP_DATA_DIR": str(folder / "data"), "OMP_NUM_THREADS": "1"}
        environment["LOCKSTEP_LOCK_DIR"] = str(folder / "locks")
        stack.enter_context(process(["app.cli", "serve", "--port", str(port)], folder / "server.log", environment))
        url = f"http://127.0.0.1:{port}"
        _wait_for(url)
        client = stack.enter_context(Client(url))
        yield Service(client, url, folder, environment, stack)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/healthz").status_code == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"the server at {url} did not answer within a minute")
