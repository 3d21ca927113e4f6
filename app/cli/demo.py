"""``lockstep demo``: the whole product on one machine in a few minutes, then nothing left running.

Starts the server and two CPU workers as separate processes, submits the example, shows every round,
prints verdict, report and page. The results stay in the data directory for ``lockstep serve``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
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
from lockstep.spec.reading import load_file

_START_SECONDS = 60.0


def run_demo(spec: Path, *, num_workers: int) -> None:
    """Run the demo; raises ``typer.Exit`` with code 1 when a process dies or the experiment fails."""
    settings = Settings()
    port = settings.port if _is_free(settings.bind, settings.port) else 0
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-demo-")))
        server = stack.enter_context(_process(["app.cli.admin", "serve", "--port", str(port)], work / "server.log"))
        url = _url_of(server, work / "server.log")
        typer.echo(f"server at {url}")
        client = stack.enter_context(Client(url, patience=10.0))
        for number in range(num_workers):
            command = ["worker", "--api", url, "--device", "cpu", "--work-dir", str(work / "workers")]
            stack.enter_context(_process(command, work / f"worker-{number}.log"))
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
    typer.echo(f"done in {time.monotonic() - began:.0f} s; `make serve` shows the page again")
    if status != "succeeded":
        raise typer.Exit(1)


def _show_result(client: Client, experiment_id: str, data_dir: Path, page: str) -> None:
    report = client.report(experiment_id)
    path = data_dir / f"report-{experiment_id}.html"
    path.write_text(client.report(experiment_id, "html"), encoding="utf-8")
    typer.echo("")
    typer.echo(f"Verdict: {report['verdict']['code']}: {report['verdict']['sentence']}")
    typer.echo(f"Report:  {path}")
    typer.echo(f"Page:    {page}")


def _is_free(bind: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except OSError:
            return False
    return True


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


def _url_of(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the line with the address, then for the server to answer."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("Lockstep listens on "):
                url = line.removeprefix("Lockstep listens on ").rstrip("/")
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"{url}/healthz", timeout=5.0).raise_for_status()
                    return url
        time.sleep(0.1)
    raise typer.BadParameter(f"the server did not start: {log.read_text(encoding='utf-8')[-2000:]}")
