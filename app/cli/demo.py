"""``lockstep demo``: the whole product on one machine in a few minutes, then nothing left running.

Starts the server and two CPU workers as separate processes, submits the example, shows every round,
prints verdict, report and page. The results stay in the data directory for ``lockstep serve``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import typer

from app.cli.watching import Board
from app.settings import Settings
from lockstep.client import Client
from lockstep.spec.text.reading import load_file

#: What is submitted where nothing else is named; it comes with the package.
DEMO_SPEC = Path(__file__).with_name("demo.yaml")
_START_SECONDS = 120.0


def run_demo(spec: Path, settings: Settings, *, num_workers: int) -> None:
    """Run the demo; raises ``typer.Exit`` with code 1 when a process dies or the experiment fails.

    Where no port was asked for and the usual one is taken, the server takes a free one; one that was asked for and is
    taken ends the demo with code 3.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-demo-")))
        url = _serve(stack, work, settings)
        typer.echo(f"server at {url}")
        client = stack.enter_context(Client(url, patience=10.0))
        _start_workers(stack, work, client, num_workers)
        submitted = client.submit(load_file(spec))
        page = urljoin(url, submitted["links"]["page"])
        typer.echo(f"submitted {spec.name} as {submitted['id']}; watch it at {page}")
        board = Board(client.show(submitted["id"]), time.monotonic)
        status = "unknown"
        for frame in client.watch(submitted["id"]):
            for line in board.lines(frame):
                typer.echo(line)
            status = frame.get("status", status) if frame["type"] == "end" else status
        _show_result(client, submitted["id"], settings.data_dir, page)
    typer.echo(f"done in {time.monotonic() - began:.0f} s; `lockstep serve` shows the page again")
    if status != "succeeded":
        raise typer.Exit(1)


def _serve(stack: contextlib.ExitStack, work: Path, settings: Settings) -> str:
    """Start the server and return its address; that it can bind a port is what shows that the port is free."""
    ports = [settings.port] if "port" in settings.model_fields_set else [settings.port, 0]
    for port in ports:
        log = work / f"server-{port}.log"
        server = stack.enter_context(_process(["app.cli.admin", "serve", "--port", str(port)], log))
        url = _url_of(server, log)
        if url is not None:
            return url
        told = log.read_text(encoding="utf-8").strip()
        if "cannot listen on " not in told:
            break
    typer.echo(told.splitlines()[-1] if told else "the server did not start", err=True)
    raise typer.Exit(server.returncode or 1)


def _start_workers(stack: contextlib.ExitStack, work: Path, client: Client, number: int) -> None:
    """Start workers and wait for all: the first to register would be given what the others could train."""
    started: dict[Path, subprocess.Popen[bytes]] = {}
    for index in range(number):
        log = work / f"worker-{index}.log"
        command = ["worker", "--api", client.url, "--device", "cpu", "--work-dir", str(work / "workers")]
        started[log] = stack.enter_context(_process(command, log))
    deadline = time.monotonic() + _START_SECONDS
    while sum(worker["status"] == "idle" for worker in client.workers()) < number:
        ended = [log for log, process in started.items() if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            log = ended[0] if ended else next(iter(started))
            lines = log.read_text(encoding="utf-8").strip().splitlines()
            typer.echo(f"a worker did not start: {lines[-1] if lines else 'without a word'}", err=True)
            raise typer.Exit(1)
        time.sleep(0.1)


def _show_result(client: Client, experiment_id: str, data_dir: Path, page: str) -> None:
    report = client.report(experiment_id)
    path = data_dir / f"report-{experiment_id}.html"
    path.write_text(client.report(experiment_id, "html"), encoding="utf-8")
    typer.echo("")
    typer.echo(f"Verdict: {report['verdict']['code']}: {report['verdict']['sentence']}")
    typer.echo(f"Report:  {path}")
    typer.echo(f"Page:    {page}")


@contextlib.contextmanager
def _process(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of ours; end it (and say why it failed) at the end of the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield process
        except (httpx.TransportError, OSError):
            if process.poll() is not None:
                typer.echo(
                    f"{arguments[0]} ended with code {process.returncode}: {log.read_text(encoding='utf-8')[-2000:]}",
                    err=True,
                )
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url_of(server: subprocess.Popen[bytes], log: Path) -> str | None:
    """Wait for the line with the address, then for the server to answer; None where it ends or says nothing."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("Lockstep listens on "):
                url = line.removeprefix("Lockstep listens on ").rstrip("/")
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"{url}/healthz", timeout=5.0).raise_for_status()
                    return url
        time.sleep(0.1)
    return None
