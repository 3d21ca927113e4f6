"""Real processes under random kill -9: API, PostgreSQL and three CPU workers; run by hand, alone on the machine.

    python -m benchmarks.chaos --kills 15 --minutes 3      (full size: --kills 100 --minutes 50)
    python -m benchmarks.chaos --kills 30 --minutes 4 --packed --out benchmarks/results/chaos_packed.json

Experiments are trained while workers, training children, the API and the PostgreSQL server are killed;
new ones are submitted until the kills are done. Then the same experiments are trained undisturbed on a new
database of the same cluster, which belongs to this run alone. Exits 1 unless every digest, metric and report
of the two are equal; the first difference is printed. Figures go to benchmarks/results/chaos.json. With ``--packed``
replicates of CartPole share processes, and only workers and their children are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg

from app.store.database import migrate
from app.store.database.engine import Store
from benchmarks.chaos_cast import NUM_WORKERS, ROOT, Cast, Cluster, NoPostgresError, strike
from lockstep.client import ApiError, Client
from tests.factories import cartpole_spec, tiny_spec

_KINDS = ("worker", "child", "child", "api", "database")
_PACKED_KINDS = ("worker", "child")
#: Replicates of an experiment whose replicates are packed, and how many a worker takes of them.
_REPLICATES, _PACK = 6, 3
_FINAL = {"succeeded", "failed", "partial", "cancelled"}
_OPEN = 3  # experiments in the queue at a time while kills are left
#: Metrics that measure the machine.
_TIMED = ("sys/", "ppo/update_seconds")
#: What rows and reports say of the clock, of identifiers and of the resumes that the kills caused.
_NAMES = {"id", "run_id", "block", "block_id", "experiment_id", "device"}
_SPANS = {"seconds", "wall_seconds", "device_seconds", "device_hours"}
_TIMES = {"t", "received_at", "started_at", "generated_utc"} | _SPANS
_RESUMES = {"attempt", "attempts", "seq", "flags", "resumed", "resumed_runs", "resumed_at", "Attempts made again"}
#: The scores' digest covers the device, whose name holds the slot of the worker that came first.
_BOUND = _NAMES | _TIMES | _RESUMES | {"scores_sha256"}
_RESUME_GATE = "no run resumed"


def database(cluster: Cluster, name: str) -> str:
    """Create a migrated database and return its URL."""
    plain = cluster.url.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    url = cluster.url.removesuffix("postgres") + name
    store = Store(url)
    migrate.upgrade(store)
    store.close()
    return url


def specified(number: int, rounds: int, *, packed: bool) -> dict[str, Any]:
    """Return the specification of the experiment of a number, which is its seed."""
    common = {"budget": {"rounds": rounds}, "eval": {"episodes": 2, "every_rounds": 2}}
    if not packed:
        return tiny_spec(experiment={"seed": 100 + number, "replicates": 2}, **common)
    return cartpole_spec(
        experiment={"seed": 100 + number, "replicates": _REPLICATES},
        env={"n_envs": 2, "rollout_steps": 96},
        checkpoint={"every_rounds": 2},
        lockstep={"pack": _PACK},
        analysis={"sesoi": 25.0, "failure": {"floor": 0.0}},
        **common,
    )


def submit(client: Client, number: int, spec: dict[str, Any]) -> str:
    """Submit the experiment of a number; a repeated call is harmless.

    Raises:
        ApiError: the specification is refused; an API that is away or has a fault is asked again.
    """
    while True:
        try:
            return str(client.submit(spec, key=f"chaos-{number}")["id"])
        except ApiError as error:
            if error.status < 500:
                raise
        except httpx.TransportError:
            pass
        time.sleep(0.5)


def statuses(client: Client, ids: list[str]) -> list[str]:
    """Return the states of experiments; empty while API or database are away."""
    try:
        return [str(client.call("GET", f"experiments/{item}")["status"]) for item in ids]
    except (ApiError, httpx.TransportError):
        return []


def operate(client: Client) -> int:
    """Clear quarantines as an operator would, and return how many: two quick kills look like a broken device."""
    try:
        found = [item["id"] for item in client.call("GET", "workers")["items"] if item["status"] == "quarantined"]
        for worker_id in found:
            client.call("POST", f"workers/{worker_id}/clear")
    except (ApiError, httpx.TransportError):
        return 0
    return len(found)


def wait_for(client: Client, ids: list[str]) -> list[str]:
    """Wait until every experiment has ended and has its final report; return the states."""
    for item in ids:
        while not set(statuses(client, [item]) or ["away"]) <= _FINAL or not _has_final(client, item):
            operate(client)
            time.sleep(1.0)
    while not (found := statuses(client, ids)):
        time.sleep(1.0)
    return found


def _has_final(client: Client, item: str) -> bool:
    try:
        events = client.call("GET", f"experiments/{item}/events", params={"limit": 2000})["items"]
        return any(event["type"] == "experiment_end" for event in events) and bool(client.report(item))
    except (ApiError, httpx.TransportError):
        return False


def facts(client: Client, item: str) -> tuple[dict[str, Any], Counter[str]]:
    """Return (digests, metrics, episodes and report without what names a machine or a moment, causes of stops)."""
    exported = client.call("GET", f"experiments/{item}/export")
    tables = {
        name: [dict(zip(exported["columns"][name], row, strict=True)) for row in rows]
        for name, rows in exported["tables"].items()
    }
    labels = {row["run_id"]: f"{row['group_id']}/{row['replicate']}" for row in tables["runs"]}
    found: dict[str, Any] = {"report": stripped(client.report(item))}
    for name in ("rounds", "points", "episodes", "eval_episodes"):
        rows = [
            {"run": labels[row["run_id"]], **stripped(row)}
            for row in tables[name]
            if not row.get("metric", "").startswith(_TIMED)
        ]
        found[name] = sorted(rows, key=repr)
    events = tables["events"]
    stops = (row["cause"] for row in events if row["type"] == "block_status" and row["status"] == "stopping")
    return found, Counter(stops)


def packed_starts(client: Client, item: str) -> int:
    """Return how often a block of an experiment began in a process that it shared with others."""
    page = client.call("GET", f"experiments/{item}/events", params={"limit": 2000})["items"]
    return sum(bool(event["payload"].get("packed_with")) for event in page if event["type"] == "warmup_completed")


def stripped(document: Any) -> Any:
    """Return a row or report without what is bound to one run of it."""
    if isinstance(document, dict):
        return {name: stripped(value) for name, value in document.items() if name not in _BOUND}
    if not isinstance(document, list):
        return document
    return [stripped(item) for item in document if not (isinstance(item, dict) and item.get("gate") == _RESUME_GATE)]


def differences(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """Yield where two documents differ, as path and both values."""
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted({*first, *second}):
            yield from differences(first.get(name), second.get(name), f"{path}/{name}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (left, right) in enumerate(zip(first, second, strict=True)):
            yield from differences(left, right, f"{path}/{index}")
    elif first != second:
        yield f"{path}: {str(first)[:200]} with kills, {str(second)[:200]} without"


class Fire:
    """When the next kill is due, and what has been killed."""

    def __init__(self, kills: int, minutes: float, seed: int, kinds: Sequence[str]) -> None:
        self.target, self._mean, self._kinds = kills, minutes * 60 / kills, kinds
        self._draw = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._began = time.monotonic()
        self._next = self._began + 5.0

    @property
    def left(self) -> int:
        """Kills that are still to come."""
        return self.target - self.done.total()

    def act(self, cast: Cast, cluster: Cluster) -> None:
        """Kill something when it is due."""
        if self.left <= 0 or time.monotonic() < self._next:
            return
        kind = self._draw.choice(self._kinds)
        if strike(cast, cluster, kind, self._draw):
            self.done[kind] += 1
            at = time.monotonic() - self._began
            print(f"{at:6.0f} s  kill {self.done.total():3d} of {self.target}: {kind}", flush=True)
        self._next = time.monotonic() + self._draw.uniform(0.2, 1.6) * self._mean


def disturbed(
    cast: Cast, cluster: Cluster, fire: Fire, given: argparse.Namespace
) -> tuple[list[str], list[str], float, int]:
    """Train under fire; return ids, states, seconds and how many quarantines were cleared."""
    began, cleared = time.monotonic(), 0
    ids: list[str] = []
    open_ids: list[str] = []
    with Client(cast.url, patience=0.0) as client:
        while fire.left > 0:
            found = statuses(client, open_ids)
            if len(found) == len(open_ids):
                open_ids = [item for item, status in zip(open_ids, found, strict=True) if status not in _FINAL]
                if len(open_ids) < _OPEN:
                    spec = specified(len(ids), given.rounds, packed=given.packed)
                    ids.append(submit(client, len(ids), spec))
                    open_ids.append(ids[-1])
            fire.act(cast, cluster)
            cleared += operate(client)
            time.sleep(0.5)
        return ids, wait_for(client, ids), time.monotonic() - began, cleared


def collect(cast: Cast, ids: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the facts of experiments, and how often their blocks were assigned and stopped for which cause."""
    found, stops, packed = [], Counter[str](), 0
    with Client(cast.url, timeout=120) as client:
        for item in ids:
            one, causes = facts(client, item)
            found.append(one)
            stops.update(causes)
            packed += packed_starts(client, item)
        blocks = [block for item in ids for block in client.call("GET", f"experiments/{item}/blocks")["items"]]
    numbers = [block["attempt"] for block in blocks]
    counts = {"blocks": len(blocks), "attempts": sum(numbers), "most": max(numbers), "packed_starts": packed}
    return found, {**counts, "stopped_for": dict(stops)}


def run(given: argparse.Namespace, cluster: Cluster, directory: Path) -> dict[str, Any]:
    """Train under fire, train undisturbed, compare; return the figures."""
    results: list[list[Any]] = []
    figures: dict[str, Any] = {}
    for name in ("loud", "quiet"):
        (directory / name).mkdir()
        cast = Cast(directory / name, database(cluster, name))
        try:
            cast.start()
            if name == "loud":
                fire = Fire(given.kills, given.minutes, given.seed, _PACKED_KINDS if given.packed else _KINDS)
                ids, states, seconds, cleared = disturbed(cast, cluster, fire, given)
                figures |= {
                    "kills": dict(fire.done),
                    "quarantines_cleared": cleared,
                    "num_kills": fire.done.total(),
                    "seconds": round(seconds, 1),
                }
            else:
                began = time.monotonic()
                with Client(cast.url, patience=0.0) as client:
                    specs = [specified(n, given.rounds, packed=given.packed) for n in range(len(results[0]))]
                    ids = [submit(client, number, spec) for number, spec in enumerate(specs)]
                    states = wait_for(client, ids)
                figures["seconds_undisturbed"] = round(time.monotonic() - began, 1)
            found, figures[f"blocks_{name}"] = collect(cast, ids)
            results.append(found)
            figures[f"states_{name}"] = dict(Counter(states))
            print(f"{name}: {figures}", flush=True)
        finally:
            cast.end()
    return figures | compared(*results)


def compared(loud: list[Any], quiet: list[Any]) -> dict[str, Any]:
    """Return how many experiments are equal, with the first differences."""
    found = [list(differences(first, second)) for first, second in zip(loud, quiet, strict=True)]
    for number, lines in enumerate(found):
        for line in lines[:10]:
            print(f"experiment {number} differs at {line}")
    return {
        "experiments": len(found),
        "equal": sum(not lines for lines in found),
        "rounds": sum(len(item["rounds"]) for item in loud),
        "metric_values": sum(len(item["points"]) for item in loud),
        "episodes": sum(len(item["episodes"]) + len(item["eval_episodes"]) for item in loud),
        "differences": [line for lines in found for line in lines[:10]][:50],
    }


def main() -> int:
    """Run, print and store the figures; exit 1 on a difference, 2 without PostgreSQL."""
    parser = argparse.ArgumentParser(description="Chaos with real processes.")
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long the kills shall last")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7, help="of the kills")
    parser.add_argument("--packed", action="store_true", help="replicates of CartPole that share processes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/chaos.json")
    given = parser.parse_args()
    try:
        cluster = Cluster()
    except NoPostgresError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    load = os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as directory:
            figures = run(given, cluster, Path(directory))
    finally:
        cluster.remove()
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "load_before": load, "workers": NUM_WORKERS}
    asked = {
        "kills": given.kills,
        "minutes": given.minutes,
        "rounds": given.rounds,
        "seed": given.seed,
        "packed": given.packed,
    }
    given.out.write_text(json.dumps({**machine, "asked": asked, **figures}, indent=1, sort_keys=True) + "\n")
    print(json.dumps(figures, indent=1, sort_keys=True))
    good = figures["equal"] == figures["experiments"] > 0
    good = good and set(figures["states_loud"]) == set(figures["states_quiet"]) == {"succeeded"}
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
