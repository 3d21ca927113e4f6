"""Eight workers on a Ray cluster of five nodes on this machine, of which a worker, an actor and a node are killed.

    python -m benchmarks.ray_cluster [--experiments 6] [--rounds 12] [--out FILE]

Run it where lockstep[server,worker,ray] is installed. Each node says that it has two GPUs; workers train on CPU slots.
`lockstep launch ray 8` starts them. While they train, one worker and the actor of another get `kill -9`, then a node
with two workers is removed. Checked: everything ends, SIGTERM to the launcher drains what is left with exit code 0 and
leaves no process, and digests, metrics, episodes and reports equal those of the same experiments trained undisturbed by
two workers without Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from benchmarks import served
from benchmarks.chaos import differences, facts, specified, submit, wait_for
from benchmarks.machine import save
from lockstep.client import Client
from worker.supervision.supervisor import descendants

_WORKERS, _NODES, _GPUS = 8, 5, 2
#: What the server is told: a lost worker is noticed within seconds.
_SETTINGS = {"HEARTBEAT_SECONDS": "1", "LEASE_TTL_SECONDS": "8", "SWEEP_SECONDS": "1", "BACKOFF_SECONDS": "1"}


def wait(condition: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
    """Return the value of a condition once it is true.

    Raises:
        TimeoutError: it is not within so many seconds.
    """
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)
    return value


def command_of(pid: int) -> str:
    """Return the command line of a process, empty when it has gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def workers_below(pid: int, url: str) -> list[int]:
    """Return the supervisors of a server among the descendants of a process."""
    return sorted(found for found in descendants(pid) if f" -m worker --api {url} " in command_of(found))


def actors_below(pid: int) -> list[int]:
    """Return the actors of workers among the descendants of a process."""
    return sorted(found for found in descendants(pid) if command_of(found).startswith("ray::Keeper"))


def kill(pid: int) -> None:
    """Kill -9."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def launched(cluster: Cluster, url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `lockstep launch ray` while the block lasts."""
    command = [sys.executable, "-m", "app.cli.launch", "ray", str(_WORKERS), "--address", cluster.address]
    command += ["--api", url, "--device", "cpu"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def disturbed(client: Client, url: str, ids: list[str], folder: Path, chosen: random.Random) -> dict[str, Any]:
    """Train on the cluster while parts of it are killed; return what was done and how the launcher ended."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": _GPUS})
    nodes = [cluster.add_node(num_cpus=1, num_gpus=_GPUS) for _ in range(_NODES - 1)]
    try:
        with launched(cluster, url, folder / "launch.log") as launcher:
            wait(lambda: len(client.workers()) == _WORKERS, "eight workers")
            rounds = wait(lambda: progress(client, ids) > 1 and progress(client, ids), "the first rounds")
            kill(chosen.choice(workers_below(os.getpid(), url)))
            print(f"a worker was killed after {rounds} rounds", flush=True)
            rounds = wait(lambda: progress(client, ids) > rounds + 2 and progress(client, ids), "more rounds")
            kill(chosen.choice(actors_below(os.getpid())))
            print(f"an actor was killed after {rounds} rounds", flush=True)
            rounds = wait(lambda: progress(client, ids) > rounds + 2 and progress(client, ids), "more rounds")
            cluster.remove_node(next(node for node in nodes if has_workers(node, url)), allow_graceful=False)
            print(f"a node was removed after {rounds} rounds", flush=True)
            states = wait_for(client, ids)
            wait(lambda: len(workers_below(os.getpid(), url)) == _WORKERS, "eight workers again")
            launcher.send_signal(signal.SIGTERM)
            code = launcher.wait(timeout=120)
            left = wait(lambda: not workers_below(1, url), "the end of every worker", 30.0)
        return {"states": states, "launcher_exit": code, "none_left": bool(left)}
    finally:
        cluster.shutdown()


def has_workers(node: Any, url: str) -> bool:
    """Return whether a node of the cluster keeps workers."""
    pids = [info.process.pid for info in node.all_processes["raylet"]]
    return any(workers_below(pid, url) for pid in pids)


def progress(client: Client, ids: list[str]) -> int:
    """Return how many rounds all blocks have complete together."""
    return sum(
        int(block["open_round"]) for item in ids for block in client.call("GET", f"experiments/{item}/blocks")["items"]
    )


def main() -> int:
    """Train disturbed and undisturbed, compare, and say whether all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=7561)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: list[list[Any]] = []
    found: dict[str, Any] = {}
    os.environ.update({f"LOCKSTEP_{name}": value for name, value in _SETTINGS.items()})
    for name in ("ray", "undisturbed"):
        with tempfile.TemporaryDirectory() as text, served.service(options.port) as service:
            folder = Path(text)
            os.environ["LOCKSTEP_LOCK_DIR"] = str(folder / "locks")
            os.environ["LOCKSTEP_SPOOL_DIR"] = str(folder / "spools")
            specs = [specified(number, options.rounds, packed=False) for number in range(options.experiments)]
            ids = [submit(service.client, number, spec) for number, spec in enumerate(specs)]
            began = time.monotonic()
            if name == "ray":
                found |= disturbed(service.client, service.url, ids, folder, random.Random(options.seed))
            else:
                service.start_workers(["cpu", "cpu"])
                wait_for(service.client, ids)
            found[f"seconds_{name}"] = round(time.monotonic() - began, 1)
            facts_of = [facts(service.client, item) for item in ids]
            results.append([one for one, _ in facts_of])
            found[f"stops_{name}"] = dict(sum((causes for _, causes in facts_of), Counter[str]()))
    found["differences"] = list(differences(results[0], results[1]))[:5]
    held = not found["differences"] and set(found["states"]) == {"succeeded"} and found["launcher_exit"] == 0
    report = {"schema": 1, "ray": ray.__version__, **found, "holds": held}
    print(report)
    save(options.out, report)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
