"""The processes of the chaos run (a PostgreSQL cluster of its own, API, three CPU workers) and how each is killed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from worker.supervision.starter import TRAINING_NAME
from worker.supervision.supervisor import descendants

ROOT = Path(__file__).resolve().parents[1]
NUM_WORKERS = 3
_SETTINGS = {
    "LOG_LEVEL": "error",
    "HEARTBEAT_SECONDS": "1",
    "LEASE_TTL_SECONDS": "8",
    "SWEEP_SECONDS": "1",
    "GRACE_SECONDS": "20",
    "BACKOFF_SECONDS": "1",
}


class NoPostgresError(RuntimeError):
    """There is no initdb on this machine."""


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_initdb() -> Path:
    """Return the newest initdb: of PATH, else of Debian's folders.

    Raises:
        NoPostgresError: when there is none.
    """
    on_path = shutil.which("initdb")
    found = [Path(on_path)] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise NoPostgresError("initdb was not found; install PostgreSQL's server package")
    return found[-1]


class Cluster:
    """A PostgreSQL cluster in a folder of its own, so that killing it hurts nobody else."""

    def __init__(self) -> None:
        self._bin = find_initdb().parent
        self._root = Path(tempfile.mkdtemp(prefix="lockstep-chaos-pg-"))
        self.port = free_port()
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self._root, "postgres", "postgres")
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres")
        self.start()

    @property
    def _data(self) -> Path:
        return self._root / "data"

    @property
    def url(self) -> str:
        """The maintenance database, as SQLAlchemy names it."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        lower = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        subprocess.run(
            [*lower, str(self._bin / program), *arguments],
            check=True,
            cwd=self._root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def start(self) -> None:
        """Start it and wait until it has recovered and answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._root}"
        log = str(self._root / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "120", "-o", options, "-l", log, "start")

    def restart(self, tries: int = 5) -> None:
        """Start it after a kill; what the dead server left in shared memory may take a moment to go."""
        for left in reversed(range(tries)):
            try:
                self.start()
                return
            except subprocess.CalledProcessError:
                if not left:
                    raise
                time.sleep(2.0)

    def kill(self) -> None:
        """Kill -9 of the server process; its backends end by themselves."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        orphans = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60.0
        while any(Path(f"/proc/{process}").exists() for process in [pid, *orphans]) and time.monotonic() < deadline:
            time.sleep(0.05)

    def remove(self) -> None:
        """Stop it and delete its folder."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._root, ignore_errors=True)


@dataclass
class Cast:
    """API and workers on one database.

    Args:
        directory: files of the API, locks, spools and logs.
        database: URL of a migrated database.
    """

    directory: Path
    database: str
    url: str = ""
    port: int = 0
    api: subprocess.Popen[str] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start everything."""
        self.start_api()
        for number in range(NUM_WORKERS):
            self.start_worker(number)

    def start_api(self) -> None:
        """Start the API, on the port it had before, and wait until it answers."""
        given = {**_SETTINGS, "DATABASE_URL": self.database, "DATA_DIR": str(self.directory / "data")}
        environment = {**os.environ, **{f"LOCKSTEP_{name}": value for name, value in given.items()}}
        command = [sys.executable, "-c", "from app.cli.people import main; main()", "serve", "--port", str(self.port)]
        with (self.directory / "api.log").open("ab") as log:
            self.api = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=ROOT
            )
        line = self.api.stdout.readline() if self.api.stdout else ""
        if not line:
            raise RuntimeError(f"the API did not start: {(self.directory / 'api.log').read_text()[-2000:]}")
        self.url = line.split()[-1].rstrip("/")
        self.port = int(self.url.rpartition(":")[2])
        while not self._answers():
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def kill_api(self) -> None:
        """Kill -9 of the API."""
        if self.api is not None:
            self.api.kill()
            self.api.wait()
            if self.api.stdout is not None:
                self.api.stdout.close()

    def start_worker(self, number: int) -> None:
        """Start (again) the worker of one CPU slot."""
        environment = {**os.environ, "LOCKSTEP_LOCK_DIR": str(self.directory / "locks"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "worker", "--api", self.url, "--device", f"cpu:chaos:{number}"]
        command += ["--host", "chaos", "--work-dir", str(self.directory / "work")]
        with (self.directory / f"worker-{number}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
        if number < len(self.workers):
            self.workers[number] = process
        else:
            self.workers.append(process)

    def children(self) -> list[int]:
        """Return the training processes that run now."""
        return [pid for worker in self.workers for pid in descendants(worker.pid) if _is_child(pid)]

    def end(self) -> None:
        """End everything that was started here."""
        for process in [*self.workers, self.api]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self.workers = []


def _is_child(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == TRAINING_NAME
    except OSError:
        return False


def strike(cast: Cast, cluster: Cluster, kind: str, draw: random.Random) -> bool:
    """Kill one thing and bring it back after up to 10 s where nobody else would; False when none was there."""
    if kind == "worker":
        number = draw.randrange(len(cast.workers))
        cast.workers[number].kill()
        cast.workers[number].wait()
        time.sleep(draw.choice([0.0, draw.uniform(0.0, 10.0)]))
        cast.start_worker(number)
    elif kind == "child":
        children = cast.children()
        if not children:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(children), signal.SIGKILL)
    elif kind == "api":
        cast.kill_api()
        time.sleep(draw.choice([0.0, draw.uniform(0.0, 10.0)]))
        cast.start_api()
    else:
        cluster.kill()
        time.sleep(draw.choice([0.0, draw.uniform(0.0, 10.0)]))
        cluster.restart()
    return True
