"""Start workers: on this machine, on others over SSH, as a Slurm array, on Kubernetes.

Engines start workers and know nothing of jobs: each worker registers, pulls and is drained by SIGTERM as any other, so
that what an engine kills, restarts or moves costs at most the rounds since the last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from app.cli.ends import fail, run, within
from app.cli.manifests import manifests
from lockstep.address import clean_path, clean_token, clean_url

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Start workers here, by SSH, Slurm or Kubernetes.")
#: Exit codes of a worker that another start would not change: retired, something cannot be used, token refused.
_FINAL = (0, 2, 3, 4)
_TERMINATED = 128 + signal.SIGTERM
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
Url = Annotated[str | None, typer.Option("--api", help="The server as workers reach it; default LOCKSTEP_URL")]
TokenFile = Annotated[str | None, typer.Option(help="File with the worker token, where the workers run")]
Python = Annotated[str, typer.Option(help="Interpreter that has lockstep[worker], where the workers run")]
Count = Annotated[int, typer.Argument(parser=within(1, 1000), help="How many workers")]
Device = Annotated[str, typer.Option(help="auto, gpu or cpu")]


def _url(given: str | None) -> str:
    return clean_url(given or os.environ.get("LOCKSTEP_URL") or "http://127.0.0.1:7480", "--api or LOCKSTEP_URL")


class Fleet:
    """Processes that are workers or lead to one; each is started again when it fails, and all are drained together.

    Args:
        commands: a program and its arguments for each.
        first_line: what each one reads from its input, which stays open until it is to drain; None: it has none.
    """

    def __init__(self, commands: Sequence[Sequence[str]], first_line: str | None = None) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._first_line = first_line
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._codes: dict[int, int] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(number, list(command)), name=f"worker-{number}")
            for number, command in enumerate(commands)
        ]

    def run(self) -> int:
        """Run them all to their end; return the highest exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=self.drain).start())
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            while thread.is_alive():  # a join without end would not let signals in
                thread.join(0.2)
        return max(self._codes.values(), default=0)

    def drain(self) -> None:
        """Ask every worker to stop at its next round border; none is started again."""
        self._stopping.set()
        with self._lock:
            for process in self._running.values():
                if process.stdin is not None:
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()
                else:
                    process.terminate()

    def _keep(self, number: int, command: list[str]) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            code = self._run_once(number, command)
            if code in _FINAL or self._stopping.is_set():
                asked = self._stopping.is_set() and code == _TERMINATED  # before it listened to signals
                self._codes[number] = 0 if asked else code
                return
            pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(_LONGEST_PAUSE, 2 * pause)
            typer.echo(f"worker {number} ended with code {code}; it is started again in {pause:g} s", err=True)
            self._stopping.wait(pause)

    def _run_once(self, number: int, command: list[str]) -> int:
        with self._lock:
            if self._stopping.is_set():
                return 0
            try:
                # a session of its own: Ctrl-C reaches this process alone, which drains
                process = subprocess.Popen(  # noqa: S603 - our own command
                    command,
                    stdin=subprocess.PIPE if self._first_line is not None else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:  # the machine has no process or memory left for it now
                typer.echo(f"worker {number} cannot be started ({error.strerror})", err=True)
                return 1
            self._running[number] = process
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it has ended already: its code says why
                    process.stdin.write(f"{self._first_line}\n".encode())
                    process.stdin.flush()
        assert process.stdout is not None  # noqa: S101 - for the type checker
        for line in process.stdout:
            typer.echo(f"[{number}] {line.decode(errors='replace').rstrip()}")
        code = process.wait()
        with self._lock:
            del self._running[number]
        return 128 - code if code < 0 else code


@app.command()
def local(
    count: Count,
    api: Url = None,
    token_file: TokenFile = None,
    device: Device = "auto",
    python: Python = sys.executable,
) -> None:
    """Run workers on this machine until Ctrl-C or SIGTERM, which drain them; one that dies is started again."""
    if shutil.which(python) is None:
        raise fail(f"--python: there is no program {python} here; name the interpreter that has lockstep[worker]", 3)
    command = [python, "-m", "worker", "--api", _url(api), "--device", device]
    if token_file is not None:
        command += ["--token-file", str(clean_path(token_file, "--token-file"))]
    raise typer.Exit(Fleet([command] * count).run())


@app.command()
def ssh(
    hosts: Annotated[list[str], typer.Argument(help="Hosts as ssh knows them, user@host too")],
    per_host: Annotated[int, typer.Option(parser=within(1, 64), help="Workers on each")] = 1,
    api: Url = None,
    device: Device = "auto",
    python: Python = "python3",
) -> None:
    """Run workers on other machines for as long as this command runs; its end drains them.

    The token of LOCKSTEP_TOKEN travels on the input of ssh: no list of processes shows it.
    """
    url = _url(api)
    if any(host.startswith("-") for host in hosts):
        raise fail("a host cannot begin with -; give its name", 2)
    if shutil.which("ssh") is None:
        raise fail("there is no ssh here; install it, or use `lockstep launch local` on each host", 3)
    token = clean_token(os.environ.get("LOCKSTEP_TOKEN"), "LOCKSTEP_TOKEN") or ""
    worker = shlex.join([python, "-m", "worker", "--api", url, "--device", device])
    # the input ends when this command drains or dies, or when the line is cut. Whoever waits for that may hold nothing
    # else of ssh, which ends only when all has let go of its output
    script = (
        f"read -r LOCKSTEP_TOKEN; export LOCKSTEP_TOKEN; {worker} </dev/null & worker=$!; "
        "{ cat; kill -TERM $worker; } <&3 >/dev/null 2>&1 & watch=$!; "
        "wait $worker; code=$?; kill $watch 2>/dev/null; exit $code"
    )
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"]
    fleet = [[*command, host, f"exec 3<&0; {script}"] for host in hosts for _ in range(per_host)]
    raise typer.Exit(Fleet(fleet, first_line=token).run())


@app.command()
def slurm(
    count: Count,
    token_file: Annotated[str, typer.Option(help="File with the worker token, on the nodes")],
    api: Url = None,
    limit: Annotated[str, typer.Option("--time", help="Time limit of each worker, as sbatch takes it")] = "24:00:00",
    gpus: Annotated[int, typer.Option(parser=within(0, 1), help="1: a GPU each; 0: a CPU slot each")] = 1,
    cpus: Annotated[int, typer.Option(parser=within(1, 256), help="Processors of each")] = 4,
    partition: Annotated[str | None, typer.Option(help="Partition")] = None,
    drain_seconds: Annotated[int, typer.Option(parser=within(60, 7200), help="Drain so long before the limit")] = 600,
    python: Python = "python3",
    submit: Annotated[bool, typer.Option("--submit", help="Hand it to sbatch instead of printing it")] = False,
) -> None:
    """Print or submit an sbatch array of workers that drain before their time limit and queue again."""
    device = "gpu" if gpus else "cpu"
    worker = ["--api", _url(api), "--token-file", token_file, "--device", device]
    options = [
        "--job-name=lockstep-worker",
        f"--array=0-{count - 1}",
        "--ntasks=1",
        f"--cpus-per-task={cpus}",
        *(["--gpus-per-task=1"] if gpus else []),
        f"--time={limit}",
        *([f"--partition={partition}"] if partition else []),
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{drain_seconds}",
    ]
    if any("\n" in option for option in options):
        raise fail("--time and --partition must be one line", 2)
    script = _SBATCH.format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        worker=shlex.join([python, "-m", "worker", *worker]),
    )
    if not submit:
        typer.echo(script, nl=False)
        return
    try:
        handed = subprocess.run(["sbatch"], input=script.encode(), check=False)  # noqa: S607 - as the cluster has it
    except FileNotFoundError as error:
        raise fail(
            "there is no sbatch here; print the script without --submit and hand it over where there is", 3
        ) from error
    raise typer.Exit(handed.returncode)


_SBATCH = """#!/bin/bash
{options}
# SIGUSR1 comes before the time limit, SIGTERM from scancel: both drain. Only the first one queues this worker again.
worker=""
again=""
drain() {{ [ -n "$worker" ] && kill -TERM "$worker" 2>/dev/null; }}
trap 'again=yes; drain' USR1
trap drain TERM
srun --ntasks=1 {worker} --name "lockstep-${{SLURM_ARRAY_JOB_ID}}-${{SLURM_ARRAY_TASK_ID}}" &
worker=$!
while kill -0 "$worker" 2>/dev/null; do wait "$worker"; done
wait "$worker"
code=$?
if [ -n "$again" ]; then scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"; fi
exit "$code"
"""


@app.command()
def k8s(
    image: Annotated[str, typer.Option(help="Image of the server (target api of the Dockerfile)")],
    worker_image: Annotated[str, typer.Option(help="Image of a worker (target worker)")],
    host: Annotated[list[str] | None, typer.Option(help="A name by which the server is called from outside")] = None,
    replicas: Annotated[int, typer.Option(parser=within(1, 20), help="API processes")] = 2,
    workers: Annotated[int, typer.Option(parser=within(0, 1000), help="Workers; with --most the fewest")] = 1,
    most: Annotated[
        int | None, typer.Option(parser=within(1, 1000), help="Scale workers by the queue, to so many")
    ] = None,
    gpus: Annotated[int, typer.Option(parser=within(0, 1), help="1: a GPU each; 0: a CPU slot each")] = 1,
    namespace: Annotated[str, typer.Option(help="Namespace")] = "default",
) -> None:
    """Print manifests: API with probes, workers with their device, both by reference to PostgreSQL and secrets.

    Secrets that must be there: lockstep-database with url, lockstep-worker with token.
    """
    if most is not None and most < workers:
        raise fail(f"--most {most}: with --workers {workers} as the fewest, give at least {workers}", 2)
    typer.echo(
        manifests(
            image=image,
            worker_image=worker_image,
            hosts=host or [],
            replicas=replicas,
            workers=workers,
            most=most,
            gpus=gpus,
            namespace=namespace,
        ),
        nl=False,
    )


if __name__ == "__main__":
    run(app, sys.argv[1:], name="lockstep launch")
