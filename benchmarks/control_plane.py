"""Load on the control plane over HTTP, on SQLite and PostgreSQL (control-plane.md 13); run by hand.

    python -m benchmarks.control_plane --database sqlite|postgresql [--claims 3000] [--experiments 10000]

Prints machine, versions, median and p99 of each row and its ratio to the target, writes them to
benchmarks/results/control_plane_<database>.json, and exits 1 on a miss. Claims, ingest and series go to a server
process of its own, so that the load does not share its interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from app.settings import Settings
from app.store.database import migrate
from app.store.database.engine import Store, sqlite_module, utc
from lockstep import protocol as p
from tests import postgres
from tests.conftest import LiveServer, start_server
from tests.factories import tiny_spec
from tests.field.conftest import ROOT, ServerProcess


@dataclass(frozen=True)
class Row:
    """One measured figure and its target; ``at_least`` tells the direction."""

    name: str
    value: float
    unit: str
    target: float
    at_least: bool
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.target if self.at_least else self.value <= self.target


def spread(seconds: list[float]) -> str:
    """Return median and p99 in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"median {statistics.median(ordered) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, n {len(ordered)}"


def percentile(seconds: list[float], share: float) -> float:
    """Return a percentile."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def times(seconds: list[float]) -> dict[str, float]:
    """Return how many there were, and of them median and p99 in seconds."""
    if not seconds:
        return {"n": 0}
    return {"n": len(seconds), "p50": round(percentile(seconds, 0.5), 4), "p99": round(percentile(seconds, 0.99), 4)}


class Simulated:
    """A worker over HTTP without a trainer."""

    def __init__(self, url: str, number: int) -> None:
        self.http = httpx.Client(base_url=f"{url}/api/v1/", timeout=60)
        self.uid = f"cpu:bench:{number}"
        device = {"uid": self.uid, "kind": "cpu", "device_class": "bench", "model": "m", "memory_bytes": 2**34}
        body = {"name": f"b{number}", "host": "bench", "incarnation": f"b{number}", "device": device}
        reply = self.http.post("workers", json={**body, "datasets": {"digits": "f" * 64}})
        self.id = reply.json()["worker_id"]
        self.number = number
        self.beat("idle")

    def beat(self, state: str, held: dict[str, Any] | None = None) -> float:
        """Send a heartbeat; return its seconds."""
        progress = [{"assignment_id": held["assignment_id"], "lease": held["lease"]}] if held else []
        began = time.perf_counter()
        body = {"incarnation": f"b{self.number}", "state": state, "progress": progress}
        self.http.post(f"workers/{self.id}/heartbeat", json=body).raise_for_status()
        return time.perf_counter() - began

    def claim(self, wait: float = 0.0) -> dict[str, Any] | None:
        """Claim once."""
        reply = self.http.post(f"workers/{self.id}/claim", params={"wait": wait})
        reply.raise_for_status()
        return dict(reply.json()) if reply.status_code == 200 else None

    def send(self, method: str, held: dict[str, Any], path: str, body: Any) -> dict[str, Any]:
        """Call a path of the assignment."""
        headers = {p.LEASE_HEADER: held["lease"]}
        reply = self.http.request(method, f"assignments/{held['assignment_id']}/{path}", json=body, headers=headers)
        reply.raise_for_status()
        return dict(reply.json()) if reply.content else {}

    def ready(self, held: dict[str, Any]) -> None:
        """Say that the child is ready."""
        self.send("POST", held, "ready", {"device_uid": self.uid, "resume_round": 0})


def last_round(held: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a round in which every run diverges: with them the block has ended."""
    result = {"digest": "0" * 64, "env_steps": 10, "first_seq": 1, "metrics": {"eval/accuracy": 50.0}, "episodes": []}
    runs = [{**result, "run_id": run["run_id"], "diverged": "NaN in the policy"} for run in held["runs"]]
    return {"runs": runs, "update_order": [0, 1], "seconds": 0.1}


def claims(server: ServerProcess, count: int, workers: int = 8) -> list[Row]:
    """Claim-to-release cycles: claim, ready, the results of a round that ends the block, idle again."""
    with httpx.Client(base_url=f"{server.url}/api/v1/", timeout=120) as http:
        for first in range(0, count, 1000):
            spec = tiny_spec(experiment={"replicates": min(1000, count - first)}, budget={"rounds": 1})
            http.post("experiments", json=spec).raise_for_status()
    taken: list[str] = []
    spent: list[float] = []
    errors: list[str] = []
    ended: list[float] = []

    def work(worker: Simulated) -> None:
        misses = 0
        while misses < 3:
            began = time.perf_counter()
            try:
                held = worker.claim(1.0)
                if held is None:
                    misses += 1
                    continue
                worker.ready(held)
                worker.send("PUT", held, "rounds/0", last_round(held))
                worker.beat("idle")
            except httpx.HTTPStatusError as error:
                errors.append(f"{error.response.status_code} {error.response.text[:100]}")
                continue
            taken.append(held["block_id"])
            ended.append(time.perf_counter())
            spent.append(ended[-1] - began)

    ready = [Simulated(server.url, number) for number in range(workers)]
    began, used = time.perf_counter(), _processor(server)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, ready))
    rate = len(taken) / (max(ended, default=time.perf_counter()) - began)  # not the claims that find nothing more
    used = (_processor(server) - used) / max(1, len(taken))
    duplicates = len(taken) - len(set(taken))
    return [
        Row("claim cycles", rate, "1/s", 50.0, True, f"{spread(spent)}; {used * 1e3:.1f} ms of the server's processor"),
        Row("claim p99", percentile(spent, 0.99), "s", 1.0, False),
        Row("claims lost", float(count - len(set(taken))), "", 0.0, False, f"{len(taken)} of {count}"),
        Row("claims doubled", float(duplicates), "", 0.0, False),
        Row("claim errors", float(len(errors)), "", 0.0, False, "; ".join(errors[:2])),
    ]


def _processor(server: ServerProcess) -> float:
    """Return the processor seconds of a server so far."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batch(run_id: str, first: int, count: int, metrics: int = 10) -> bytes:
    """Return a request of ``count`` points of one run."""
    span = range(first, first + count)
    series = {
        "run_id": run_id,
        "first_seq": first,
        "names": [f"bench/m{index}" for index in range(metrics)],
        "name_index": [seq % metrics for seq in span],
        "step": list(span),
        "round": [0] * count,
        "t": [seq * 0.1 for seq in span],
        "value": [seq * 0.5 for seq in span],
    }
    return json.dumps({"series": [series]}).encode()


def ingest(server: ServerProcess, seconds: float, senders: int = 16, size: int = 500) -> list[Row]:
    """Metric rows a second over HTTP, with heartbeats of the same workers at their side."""
    with httpx.Client(base_url=f"{server.url}/api/v1/", timeout=60) as http:
        http.post("experiments", json=tiny_spec(experiment={"replicates": senders})).raise_for_status()
    workers = [Simulated(server.url, 100 + number) for number in range(senders)]
    holds: list[dict[str, Any]] = []
    for worker in workers:
        held = None
        while held is None:
            held = worker.claim(2.0)
        worker.ready(held)
        holds.append(held)
    bodies = [
        [batch(held["runs"][0]["run_id"], 1 + n * size, size) for n in range(int(seconds * 12) + 8)] for held in holds
    ]
    sent = [0] * senders
    beats: list[float] = []
    end = time.perf_counter() + seconds

    def send(number: int) -> None:
        worker, held = workers[number], holds[number]
        headers = {p.LEASE_HEADER: held["lease"], "Content-Type": "application/json"}
        last_beat = 0.0
        while time.perf_counter() < end and sent[number] < len(bodies[number]):
            body = bodies[number][sent[number]]
            worker.http.post(
                f"assignments/{held['assignment_id']}/metrics", content=body, headers=headers
            ).raise_for_status()
            sent[number] += 1
            if time.perf_counter() - last_beat > 1.0:
                last_beat = time.perf_counter()
                beats.append(worker.beat("working", held))

    began = time.perf_counter()
    with ThreadPoolExecutor(senders) as pool:
        list(pool.map(send, range(senders)))
    took = time.perf_counter() - began
    rate, detail = sum(sent) * size / took, f"{sum(sent) * size} rows in {took:.1f} s"
    return [
        Row("ingest", rate, "rows/s", 10_000.0, True, detail),
        Row("heartbeat p99 during ingest", percentile(beats, 0.99), "s", 0.25, False, spread(beats)),
    ]


def lists(server: LiveServer, count: int) -> list[Row]:
    """The first and later pages of a list of many experiments."""
    with httpx.Client(base_url=f"{server.url}/api/v1/", timeout=60) as http:
        first = http.post("experiments", json=tiny_spec()).json()["id"]
        _copy_experiment(server.ctx.store, first, count)
        spent = []
        cursor = None
        for _ in range(200):
            began = time.perf_counter()
            page = http.get("experiments", params={"limit": 50, **({"cursor": cursor} if cursor else {})})
            spent.append(time.perf_counter() - began)
            page.raise_for_status()
            cursor = page.json()["next"]
    return [Row("experiment list p95", percentile(spent, 0.95), "s", 0.1, False, spread(spent))]


def _copy_experiment(store: Store, experiment_id: str, count: int) -> None:
    """Fill the tables with copies of one experiment and its block, oldest first."""
    from sqlalchemy import insert, select

    from app.store.schema import tables as t

    with store.write() as session:
        now = store.now(session)
        source = dict(session.execute(select(t.experiment).where(t.experiment.c.id == experiment_id)).one()._mapping)
        block = dict(session.execute(select(t.block).where(t.block.c.experiment_id == experiment_id)).one()._mapping)
        for start in range(0, count, 500):
            ids = [f"exp_copy{number:08d}" for number in range(start, min(start + 500, count))]
            rows = [{**source, "id": name, "created_at": utc(now - 10_000 + i + start)} for i, name in enumerate(ids)]
            session.execute(insert(t.experiment), [{**row, "finished_at": utc(now)} for row in rows])
            done = {"status": "succeeded", "finished_at": utc(now)}
            copies = [{**block, **done, "id": f"blk_{name[4:]}", "experiment_id": name} for name in ids]
            session.execute(insert(t.block), copies)


def series(server: ServerProcess, count: int = 100_000) -> list[Row]:
    """One series of many points, in 1,000 and 2,000 buckets."""
    worker = Simulated(server.url, 900)
    worker.http.post("experiments", json=tiny_spec(experiment={"priority": 100})).raise_for_status()
    held = None
    while held is None:
        held = worker.claim(2.0)
    worker.ready(held)
    run_id = held["runs"][0]["run_id"]
    headers = {p.LEASE_HEADER: held["lease"], "Content-Type": "application/json"}
    for first in range(1, count, 5_000):
        body = batch(run_id, first, 5_000, metrics=1)
        worker.http.post(
            f"assignments/{held['assignment_id']}/metrics", content=body, headers=headers
        ).raise_for_status()
        if first % 50_000 == 1:
            worker.beat("working", held)
    found = []
    for buckets in (1_000, 2_000):
        spent = []
        for _ in range(20):
            began = time.perf_counter()
            params = {"runs": run_id, "metrics": "bench/m0", "max_points": buckets}
            reply = worker.http.get(f"experiments/{held['experiment_id']}/series", params=params)
            spent.append(time.perf_counter() - began)
            document = reply.json()["series"][0]
            if document["total"] != count or len(document["x"]) > buckets:
                raise RuntimeError(f"{document['total']} points in {len(document['x'])} buckets")
        found.append(Row(f"series in {buckets} buckets p95", percentile(spent, 0.95), "s", 0.3, False, spread(spent)))
    return found


def _answered(http: httpx.Client, address: str, params: dict[str, Any]) -> tuple[httpx.Response, float]:
    return http.get(address, params=params), time.perf_counter()


def barrier(server: LiveServer, rounds: int = 20) -> list[Row]:
    """Release of a waiting peer after the last PUT."""
    from tests.factories import SimulatedWorker, submit

    spec = tiny_spec(budget={"rounds": rounds}, lockstep={"placement": "one_per_device"}, experiment={"priority": 100})
    submit(server.ctx, spec)
    pair = [SimulatedWorker(server.ctx, f"g{n}", device_class="gang").register() for n in range(2)]
    while not all(worker.assignment or worker.claim() for worker in pair):
        time.sleep(0.05)
    while not [worker.ready() for worker in pair][-1]:
        time.sleep(0.05)
    spent = []
    held = pair[0].held
    address = f"{server.url}/api/v1/blocks/{held.block_id}/barrier"
    with httpx.Client(timeout=40) as http, ThreadPoolExecutor(1) as pool:
        for index in range(rounds):
            pair[0].hand_in(index)
            params: dict[str, Any] = {"attempt": held.attempt, "round": index, "wait": 25}
            waiting = pool.submit(_answered, http, address, params)
            time.sleep(0.1)
            pair[1].hand_in(index)
            put = time.perf_counter()
            reply, at = waiting.result()
            if reply.status_code != 200:
                raise RuntimeError(reply.text)
            spent.append(max(0.0, at - put))
    return [
        Row("barrier release p50", statistics.median(spent), "s", 0.05, False, spread(spent)),
        Row("barrier release p99", percentile(spent, 0.99), "s", 0.25, False),
    ]


@contextmanager
def fresh(database: str) -> Iterator[tuple[str, Path]]:
    """A migrated database and a folder for files."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/bench.db" if database == "sqlite" else postgres.fresh("lockstep_bench")
        store = Store(url)
        migrate.upgrade(store)
        store.close()
        try:
            yield url, Path(directory)
        finally:
            if database != "sqlite":
                postgres.drop("lockstep_bench")


@contextmanager
def in_thread(url: str, directory: Path) -> Iterator[LiveServer]:
    """A server in a thread, for rows that fill its database by hand."""
    server = start_server(Settings(database_url=url, data_dir=directory, log_level="error"))
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def in_process(url: str, directory: Path) -> Iterator[ServerProcess]:
    """A server as a process of its own, for rows that load it."""
    given = {"DATABASE_URL": url, "DATA_DIR": str(directory), "LOG_LEVEL": "error"}
    server = ServerProcess({**os.environ, **{f"LOCKSTEP_{name}": value for name, value in given.items()}})
    try:
        yield server.start()
    finally:
        server.stop()
        server.close()


def main() -> int:
    """Run the rows asked for and print them."""
    parser = argparse.ArgumentParser(description="Load on the control plane.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--claims", type=int, default=3_000)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--ingest-seconds", type=float, default=20.0)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", default=["claims", "ingest", "lists", "series", "barrier"])
    parser.add_argument("--out", type=Path, help="default benchmarks/results/control_plane_<database>.json")
    given = parser.parse_args()
    rows: dict[str, tuple[Any, Callable[[Any], list[Row]]]] = {
        "barrier": (in_thread, barrier),
        "series": (in_process, lambda server: series(server, given.points)),
        "ingest": (in_process, lambda server: ingest(server, given.ingest_seconds)),
        "lists": (in_thread, lambda server: lists(server, given.experiments)),
        "claims": (in_process, lambda server: claims(server, given.claims)),
    }
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = ", ".join(f"{name} {version(name)}" for name in ("fastapi", "sqlalchemy", "psycopg", "uvicorn"))
    sqlite = sqlite_module().sqlite_version
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load}; Python {platform.python_version()}, {versions}")
    print(f"database {given.database}" + (f" {sqlite}" if given.database == "sqlite" else ""))
    found: list[Row] = []
    for name in (name for name in rows if name in given.only):
        serving, measure = rows[name]
        with fresh(given.database) as (url, directory), serving(url, directory) as server:
            for row in measure(server):
                found.append(row)
                ratio = row.value / row.target if row.target else float("nan")
                word = "ok  " if row.holds else "MISS"
                figure = f"{row.value:.4g} {row.unit} (target {row.target:g}, ratio {ratio:.2f})"
                print(f"{word} {row.name}: {figure} {row.detail}", flush=True)
    out = given.out or ROOT / f"benchmarks/results/control_plane_{given.database}.json"
    head = {"machine": platform.machine(), "cores": os.cpu_count(), "load_before": load, "versions": versions}
    asked = {name: value for name, value in vars(given).items() if name != "out"}
    figures = [{**asdict(row), "holds": row.holds} for row in found]
    out.write_text(json.dumps({**head, "sqlite": sqlite, "asked": asked, "rows": figures}, indent=1) + "\n")
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
