"""Parts shared by the field lessons: light worker processes, a server process, the full sizes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep.client import Client
from tests.conftest import FAST, LiveServer, wait_until
from tests.poolers import PGBOUNCER
from tests.proxies import NGINX

collect_ignore = [*([] if NGINX else ["test_nginx.py"]), *([] if PGBOUNCER else ["test_pgbouncer.py"])]
#: `make soak` runs the figures as the lessons print them.
SOAK = bool(os.environ.get("LOCKSTEP_SOAK"))
ROOT = Path(__file__).parents[2]


#: A lease that outlasts the stalls of a loaded machine, for tests whose worker must not lose it; and one that is soon
#: over, for tests of its end.
STEADY = {"lease_ttl_seconds": 60.0}
BRIEF = {"lease_ttl_seconds": 6.0}


@pytest.fixture
def server(make_server: Callable[..., LiveServer], database_url: str) -> LiveServer:
    """A live server with a steady lease, on each database."""
    return make_server(database_url, **STEADY)


@dataclass
class LightWorker:
    """A supervisor process with a trainer that misbehaves on request."""

    process: subprocess.Popen[bytes]
    log: Path
    notes: Path

    def note(self, name: str, timeout: float = 60.0) -> str:
        """Wait for what the trainer wrote down."""
        path = self.notes / name
        wait_until(path.exists, timeout=timeout, what=f"note {name} ({self.log.read_text()[-500:]})")
        return path.read_text()

    def tell(self, name: str) -> None:
        """Tell the trainer to go on that waits for this word."""
        (self.notes / name).touch()

    def pids(self) -> list[int]:
        """Return the processes that the trainer named."""
        found: list[int] = json.loads(self.note("pids"))
        return found

    def end(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


StartLight = Callable[..., LightWorker]


@pytest.fixture
def light_worker(tmp_path: Path) -> Iterator[StartLight]:
    """A factory of light workers: url, mode of the trainer, seconds of a round, device, what runs it."""
    started: list[LightWorker] = []

    def start(
        url: str,
        mode: str = "plain",
        seconds: float = 0.05,
        *,
        device: str = "cpu",
        before: Sequence[str] = (),
        **env: str,
    ) -> LightWorker:
        notes = tmp_path / f"notes-{len(started)}"
        notes.mkdir()
        log = tmp_path / f"light-{len(started)}.log"
        trainer = f"{sys.executable} {ROOT / 'tests/field/trainer.py'} {mode} {notes} {seconds}"
        environment = {**os.environ, "LOCKSTEP_LOCK_DIR": str(tmp_path / "locks"), **env}
        command = [*before, sys.executable, "-m", "tests.field.light_worker", "--api", url, "--device", device]
        command += ["--work-dir", str(tmp_path / "work"), "--trainer-cmd", trainer]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
        worker = LightWorker(process, log, notes)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()


@dataclass
class ServerProcess:
    """`lockstep serve` as a process of its own, on a port that a restart keeps."""

    environment: dict[str, str]
    port: int = 0
    process: subprocess.Popen[str] | None = None
    url: str = field(default="")

    def start(self) -> ServerProcess:
        """Start it and wait until it answers."""
        code = "from app.cli.people import main; main()"
        command = [sys.executable, "-c", code, "serve", "--port", str(self.port)]
        self.close()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment, cwd=ROOT)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, f"the server said {line!r}"
        self.port, self.url = int(found.group(1)), found.group(0)
        wait_until(self.is_up, timeout=60, what="the server")
        return self

    def close(self) -> None:
        """Close what an earlier start left open."""
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def is_up(self) -> bool:
        """Return whether it answers."""
        return is_up(self.url)

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Signal it; return the seconds until it had ended."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=60)
        return time.monotonic() - began


@pytest.fixture
def server_process(tmp_path: Path, database_url: str) -> Iterator[Callable[..., ServerProcess]]:
    """A factory of server processes on the database of the test."""
    started: list[ServerProcess] = []

    def make(port: int = 0, **given: Any) -> ServerProcess:
        values = {**FAST, **STEADY, "database_url": database_url, "data_dir": tmp_path / "data", **given}
        settings = {f"LOCKSTEP_{name.upper()}": str(value) for name, value in values.items()}
        server = ServerProcess({**os.environ, **settings}, port)
        started.append(server)
        return server

    yield make
    for server in started:
        if server.process is not None and server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        server.close()


def is_up(url: str) -> bool:
    """Return whether a server answers at an address."""
    try:
        return httpx.get(f"{url}/healthz", timeout=20).status_code == 200
    except httpx.TransportError:
        return False


def block_status(client: Client, experiment_id: str) -> str:
    """Return the state of the first block."""
    return str(client.call("GET", f"experiments/{experiment_id}/blocks")["items"][0]["status"])


def first_block(client: Client, experiment_id: str) -> dict[str, Any]:
    """Return the first block."""
    found: dict[str, Any] = client.call("GET", f"experiments/{experiment_id}/blocks")["items"][0]
    return found


def timeline(client: Client, experiment_id: str) -> list[dict[str, Any]]:
    """Return all events."""
    items: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        params = {"limit": 200, **({"after": after} if after else {})}
        page = client.call("GET", f"experiments/{experiment_id}/events", params=params)
        if not page["items"]:
            return items
        items += page["items"]
        after = page["next"]


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
