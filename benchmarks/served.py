"""The whole service as processes on this machine, for benchmarks: a server on SQLite and its workers.

Here too: the options and the time limit of these benchmarks, and one block trained through the service.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from lockstep.client import ApiError, Client

_LOG_LINES = 20
_START_SECONDS = 300.0


def parser(about: str | None, port: int) -> argparse.ArgumentParser:
    """Return a parser of the options that benchmarks through the service have in common."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--device", default="cpu", help="of every worker: cpu or gpu")
    found.add_argument("--port", type=int, default=port)
    found.add_argument("--limit", type=float, metavar="SECONDS", help="end then, with what is known and exit code 1")
    found.add_argument("--out", type=Path)
    return found


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that decide what is measured."""
    left_out = ("out", "port", "limit", "leg", "data_dir")
    return {name: value for name, value in vars(options).items() if name not in left_out}


def end_after(seconds: float | None) -> None:
    """Raise ``SystemExit`` at SIGTERM, and after so many seconds: servers and workers end with this process."""

    def leave(number: int, _: object) -> None:
        for later in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(later, signal.SIG_IGN)  # what is known gets written
        raise SystemExit("ended by SIGTERM" if number == signal.SIGTERM else f"the limit of {seconds} s is over")

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0.0)


@contextlib.contextmanager
def process(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m ARGUMENTS`` while the block lasts, output to a file.

    Then it gets SIGTERM, and a minute later SIGKILL; when the block raises, SIGKILL at once.
    """
    with log.open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield started
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(timeout=60)
        finally:
            started.kill()
            started.wait()


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

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many have registered, and with them the plug-ins that they have.

        Raises:
            TimeoutError: they did not within five minutes.
        """
        deadline = time.monotonic() + _START_SECONDS
        while len(self.client.workers()) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"fewer than {count} workers registered within {_START_SECONDS:.0f} s")
            time.sleep(0.5)

    @contextlib.contextmanager
    def explained(self, experiment_id: str) -> Iterator[None]:
        """Print what is known of an experiment and the ends of the logs when the block raises."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(httpx.HTTPError, ApiError):
                print("\n".join(problems(self.client, experiment_id)))
            for log in sorted(self.work.glob("worker-*.log")):
                print("\n".join([f"-- {log.name}", *log.read_text(errors="replace").splitlines()[-_LOG_LINES:]]))
            sys.stdout.flush()
            raise


@contextlib.contextmanager
def service(port: int, work: Path | None = None) -> Iterator[Service]:
    """Run a server until the block ends.

    Args:
        port: of 127.0.0.1.
        work: folder for database and logs; by default one that is deleted.

    Raises:
        TimeoutError: the server did not answer within five minutes.
        RuntimeError: it ended; the message holds its last lines.
    """
    with contextlib.ExitStack() as stack:
        folder = work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "LOCKSTEP_DATA_DIR": str(folder / "data"), "OMP_NUM_THREADS": "1"}
        environment["LOCKSTEP_LOCK_DIR"] = str(folder / "locks")
        log = folder / "server.log"
        server = stack.enter_context(process(["app.cli", "serve", "--port", str(port)], log, environment))
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, server, log)
        client = stack.enter_context(Client(url))
        yield Service(client, url, folder, environment, stack)


def problems(client: Client, experiment_id: str) -> list[str]:
    """Return lines that say how an experiment stands, why it waits, and how each stopped block ended."""
    shown = client.show(experiment_id)
    waiting = shown["why_waiting"]
    lines = [f"experiment {experiment_id} is {shown['status']}" + (f": {waiting['text']}" if waiting else "")]
    runs = {run["block_id"]: run["id"] for run in client.runs(experiment_id)}
    for block in client.call("GET", f"experiments/{experiment_id}/blocks")["items"]:
        if block["cause"] is not None:
            lines.append(
                f"replicate {block['replicate']} is {block['status']}: {block['cause']}: {block['cause_text']}"
            )
            log = client.call("GET", f"runs/{runs[block['id']]}/logs", params={"tail": _LOG_LINES})
            lines += [f"  {line['text']}" for line in log["items"]]
    return lines


def wait(client: Client, experiment_id: str) -> str:
    """Wait for the end of an experiment and return its status."""
    (end,) = deque(client.watch(experiment_id, metrics=["none"]), maxlen=1)
    return str(end["status"])


def train(spec: Mapping[str, Any], devices: Sequence[str], port: int, data_dir: Path | None) -> dict[str, Any]:
    """Train one block through a server of its own and one worker a device.

    Returns:
        ``seconds`` between the receipts of the first round and of the last but one, by the server's clock,
        ``digests`` of every round by ``arm/round``, and ``overlap``: the median part of these rounds in which all
        arms were at work.

    Raises:
        SystemExit: the experiment did not succeed.
    """
    with service(port) as running:
        running.start_workers(devices, data_dir)
        experiment_id = running.client.submit(spec)["id"]
        with running.explained(experiment_id):
            status = wait(running.client, experiment_id)
            if status != "succeeded":
                raise SystemExit(f"the experiment is {status}")
        return _measured(running.client, experiment_id)


def _measured(client: Client, experiment_id: str) -> dict[str, Any]:
    exported = client.call("GET", f"experiments/{experiment_id}/export")
    rows, runs = (
        [dict(zip(exported["columns"][name], row, strict=True)) for row in exported["tables"][name]]
        for name in ("rounds", "runs")
    )
    labels = {run["run_id"]: run["group_id"] for run in runs}
    spans: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        end = datetime.fromisoformat(row["received_at"]).timestamp()
        spans.setdefault(row["round"], []).append((end - row["seconds"], end))
    digests = {f"{labels[row['run_id']]}/{row['round']}": row["digest"] for row in rows}
    last = max(spans) - 1
    seconds = max(end for _, end in spans[last]) - max(end for _, end in spans[0])
    overlap = median(overlap_of(spans[index]) for index in range(1, last + 1))
    return {"seconds": seconds, "digests": digests, "overlap": overlap}


def overlap_of(spans: Sequence[tuple[float, float]]) -> float:
    """Return which part of the time from the first begin to the last end lies in all spans (begin, end)."""
    begins, ends = [begin for begin, _ in spans], [end for _, end in spans]
    return max(0.0, min(ends) - max(begins)) / (max(ends) - min(begins))


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise RuntimeError(f"the server ended with code {server.returncode}:\n{last}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/healthz").status_code == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"the server at {url} did not answer within five minutes")
