"""Start workers: on this machine, on others over SSH, as a Slurm array, on a Ray cluster, on Kubernetes.

Engines start workers and know nothing of jobs: each worker registers, pulls and is drained by SIGTERM as any other, so
that what an engine kills, restarts or moves costs at most the rounds since the last checkpoint.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import Annotated

import typer

from app.cli.ends import fail, run, within
from app.cli.keeping import Fleet
from app.cli.manifests import manifests
from lockstep.address import clean_path, clean_token, clean_url

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Start workers here, by SSH, Slurm, Ray or Kubernetes."
)
Url = Annotated[
    str | None,
    typer.Option("--api", "--url", help="The server as workers reach it; default LOCKSTEP_URL, else this machine"),
]
TokenFile = Annotated[str | None, typer.Option(help="File with the worker token, where the workers run")]
Python = Annotated[str, typer.Option(help="Interpreter that has lockstep[worker], where the workers run")]
Count = Annotated[int, typer.Argument(parser=within(1, 1000), help="How many workers")]
Device = Annotated[str, typer.Option(help="auto, gpu or cpu")]


def _url(given: str | None) -> str:
    return clean_url(given or os.environ.get("LOCKSTEP_URL") or "http://127.0.0.1:7480", "--api or LOCKSTEP_URL")


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
    command = [python, "-m", "worker", "--api", _url(api), "--device", device, "--until-input-ends"]
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
    partition: Annotated[str | None, typer.Option(help="Partition of the cluster; default: its own")] = None,
    drain_seconds: Annotated[int, typer.Option(parser=within(60, 7200), help="Drain so many s before the limit")] = 600,
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
def ray(
    count: Count,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of the head; default RAY_ADDRESS, else the cluster of this node")
    ] = None,
    api: Url = None,
    token_file: TokenFile = None,
    cpus_per_worker: Annotated[
        int | None, typer.Option(parser=within(1, 256), help="So many processors and no GPU for each, else one GPU")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, gpu or cpu; default as Ray grants it")] = None,
) -> None:
    """Run workers on a Ray cluster for as long as this command runs; Ctrl-C, SIGTERM and SIGUSR1 drain them.

    Run it on a node. Ray decides where they run and starts lost ones again; what is trained, where it resumes and what
    counts is the server's alone. Each gives its device back to Ray when it retires (`lockstep workers drain ID`).
    """
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # read on import; lines of several workers are alike
    try:
        from app.cli import on_ray  # the one command that needs Ray
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        needed = "pip install 'lockstep[worker,ray]' on each node, Ray in the version of the cluster"
        raise fail(f"`lockstep launch ray` needs Ray, which is not installed here: {needed}", 2) from error
    url = _url(api)
    token = None if token_file else clean_token(os.environ.get("LOCKSTEP_TOKEN"), "LOCKSTEP_TOKEN")
    worker = ["--api", url, "--device", device or ("gpu" if cpus_per_worker is None else "cpu")]
    worker += ["--token-file", token_file] if token_file else []
    bundle = {"GPU": 1.0} if cpus_per_worker is None else {"CPU": float(cpus_per_worker)}
    try:
        on_ray.connect(address)
    except on_ray.NoCluster as error:
        raise fail(f"{error}; start one with `ray start`, or name its head with --address or RAY_ADDRESS", 3) from error
    order = on_ray.Order(worker, {"LOCKSTEP_TOKEN": token} if token else {}, bundle)
    raise typer.Exit(on_ray.RayFleet(count, order).run())


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
