"""Real processes under random kill -9: API, PostgreSQL and three CPU workers; run by hand, alone on the machine.

    python -m benchmarks.chaos --kills 20 --minutes 5      (full size: --kills 100 --minutes 60)

The same experiments are trained twice on PostgreSQL, once undisturbed and once while workers, training
children and the API are killed and the database's connections are ended (``--restart-cluster`` restarts the
whole cluster instead). Exits 1 unless every digest, metric and report of the two are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from app.client import ApiError, Client
from app.store import migrate
from app.store.engine import Store
from tests import postgres
from tests.factories import tiny_spec
from worker.supervisor import descendants

ROOT = Path(__file__).resolve().parents[1]
NAME = "lockstep_chaos"


@dataclass
class Cast:
    """The processes on stage."""

    directory: Path
    url: str = ""
    port: int = 0
    api: subprocess.Popen[str] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_api(self, database: str) -> None:
        """Start the API on the port it had before."""
        settings = {"DATABASE_URL": database, "DATA_DIR": str(self.directory / "data"), "LOG_LEVEL": "error"}
        settings |= {"HEARTBEAT_SECONDS": "1", "LEASE_TTL_SECONDS": "8", "SWEEP_SECONDS": "1", "GRACE_SECONDS": "20"}
        settings |= {"BACKOFF_SECONDS": "1"}
        environment = {**os.environ, **{f"LOCKSTEP_{name}": value for name, value in settings.items()}}
        command = [sys.executable, "-c", "from app.cli import main; main()", "serve", "--port", str(self.port)]
        self.api = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        line = self.api.stdout.readline() if self.api.stdout else ""
        self.url = line.split()[-1].rstrip("/")
        self.port = int(self.url.rpartition(":")[2])
        while True:
            try:
                httpx.get(f"{self.url}/healthz", timeout=5)
                return
            except httpx.TransportError:
                time.sleep(0.2)

    def start_worker(self, number: int) -> None:
        """Start (again) the worker of one CPU slot."""
        environment = {**os.environ, "LOCKSTEP_LOCK_DIR": str(self.directory / "locks"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "worker", "--api", self.url, "--device", f"cpu:chaos:{number}"]
        command += ["--host", "chaos", "--work-dir", str(self.directory / "work")]
        log = (self.directory / f"worker-{number}.log").open("ab")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
        log.close()
        if number < len(self.workers):
            self.workers[number] = process
        else:
            self.workers.append(process)

    def end(self) -> None:
        """End everything that was started here."""
        for process in [*self.workers, self.api]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def strike(cast: Cast, kind: str, draw: random.Random, database: str, *, cluster: bool) -> bool:
    """Kill one thing and start it again where nobody else would; return whether there was one to kill."""
    if kind == "worker":
        number = draw.randrange(len(cast.workers))
        cast.workers[number].kill()
        cast.workers[number].wait()
        cast.start_worker(number)
    elif kind == "child":
        children = [pid for worker in cast.workers for pid in descendants(worker.pid) if _is_child(pid)]
        if not children:
            return False
        os.kill(draw.choice(children), signal.SIGKILL)
    elif kind == "api" and cast.api is not None:
        cast.api.kill()
        cast.api.wait()
        cast.start_api(database)
    elif cluster:
        subprocess.run(["pg_ctlcluster", "--skip-systemctl-redirect", "15", "main", "restart"], check=True)
    else:
        with postgres.admin() as connection:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(query, (NAME,))
    return True


def _is_child(pid: int) -> bool:
    try:
        return b"worker.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def submit_all(client: Client, count: int, rounds: int) -> list[str]:
    """Submit experiments that differ in their seed."""
    ids = []
    for number in range(count):
        spec = tiny_spec(experiment={"seed": 100 + number, "replicates": 2}, budget={"rounds": rounds})
        ids.append(str(client.submit({**spec, "eval": {"episodes": 2, "every_rounds": rounds}})["id"]))
    return ids


def statuses(client: Client, ids: list[str]) -> list[str]:
    """Return the states of experiments; empty while the API is away."""
    try:
        return [str(client.call("GET", f"experiments/{item}")["status"]) for item in ids]
    except (ApiError, httpx.TransportError):
        return []


def facts(client: Client, ids: list[str]) -> list[Any]:
    """Return digests, metrics and report of each experiment, without what a clock or a resume decides."""
    found = []
    for item in ids:
        tables = client.call("GET", f"experiments/{item}/export")
        labels = {run[0]: (run[4], run[2]) for run in tables["tables"]["runs"]}
        columns = tables["columns"]
        digest = columns["rounds"].index("digest")
        rounds = sorted((*labels[row[0]], row[2], row[digest]) for row in tables["tables"]["rounds"])
        names = columns["points"]
        points = sorted(
            (*labels[row[0]], row[1], row[names.index("round")], str(row[names.index("value")]))
            for row in tables["tables"]["points"]
            if not row[1].startswith(("sys/", "ppo/update_seconds"))
        )
        found.append({"rounds": rounds, "points": points, "scores": _scores(client, item)})
    return found


def _scores(client: Client, item: str) -> Any:
    """Return what the report concludes; its flags say that runs were resumed, which the disturbed ones were."""
    report = client.report(item)
    verdict = {name: value for name, value in report["verdict"].items() if name != "flags"}
    return json.loads(json.dumps({"verdict": verdict, "comparisons": report["comparisons"]}))


def main() -> int:
    """Train undisturbed, train under fire, compare."""
    parser = argparse.ArgumentParser(description="Chaos with real processes.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--experiments", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--restart-cluster", action="store_true", help="restart PostgreSQL 15 main itself")
    given = parser.parse_args()
    draw = random.Random(7)
    database = postgres.fresh(NAME)
    store = Store(database)
    migrate.upgrade(store)
    store.close()
    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        cast = Cast(Path(directory))
        try:
            cast.start_api(database)
            for number in range(3):
                cast.start_worker(number)
            with Client(cast.url) as client:
                quiet = submit_all(client, given.experiments, given.rounds)
                wait_for(client, quiet, lambda: None)
                began = time.monotonic()
                loud = submit_all(client, given.experiments, given.rounds)
                state = {"next": time.monotonic() + 5.0}

                def fire() -> None:
                    if kills.total() >= given.kills or time.monotonic() < state["next"]:
                        return
                    kind = draw.choice(["worker", "child", "child", "api", "database"])
                    if strike(cast, kind, draw, database, cluster=given.restart_cluster):
                        kills[kind] += 1
                    state["next"] = time.monotonic() + draw.uniform(0.2, 1.8) * given.minutes * 60 / given.kills

                wait_for(client, loud, fire)
                print(f"{kills.total()} kills {dict(kills)} in {time.monotonic() - began:.0f} s")
                ended = statuses(client, loud)
                before, after = facts(client, quiet), facts(client, loud)
        finally:
            cast.end()
            postgres.drop(NAME)
    same = [first == second for first, second in zip(before, after, strict=True)]
    rounds = sum(len(item["rounds"]) for item in after)
    points = sum(len(item["points"]) for item in after)
    print(f"states {ended}; {sum(same)} of {len(same)} experiments equal, {rounds} rounds, {points} metric values")
    return 0 if all(same) and set(ended) == {"succeeded"} else 1


def wait_for(client: Client, ids: list[str], act: Any) -> None:
    """Wait until every experiment has ended, acting meanwhile."""
    final = {"succeeded", "failed", "partial", "cancelled"}
    while not (found := statuses(client, ids)) or not set(found) <= final:
        act()
        time.sleep(0.5)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            for item in ids:
                client.report(item)
            return
        except (ApiError, httpx.TransportError):
            time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
