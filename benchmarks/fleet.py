"""A thousand workers before ten thousand queued blocks: how long a claim takes, and what gives out first; run by hand.

    python -m benchmarks.fleet [--workers 1000] [--blocks 10000] [--servers 1] [--loads 60:5 300:15]

Workers are simulated in this process, a connection each: they register, claim, say ready, beat and end their block
after so many seconds on average (exponential). All claim at once first, then each as it becomes free, for
``--seconds``. Once for each load: seconds that a block is held, and seconds between beats. Servers, PostgreSQL and
this process share the machine; the processor time of each is told, and what PostgreSQL's connections were at, looked
at ten times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from sqlalchemy import text

from app.store.database.engine import Store
from benchmarks.control_plane import fresh, in_process, last_round, times
from lockstep import protocol as p
from tests import postgres
from tests.factories import tiny_spec
from tests.field.conftest import ROOT

_TICKS = os.sysconf("SC_CLK_TCK")


class Wire:
    """One connection that is kept; a client library would take more processor time than the server."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, document: Any = None, lease: str = "", method: str = "POST") -> tuple[int, Any]:
        """Return status and document of the answer below ``/api/v1/``."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._place.hostname, self._place.port)
        reader, writer = self._streams
        body = b"" if document is None else json.dumps(document).encode()
        fenced = f"{p.LEASE_HEADER}: {lease}\r\n" if lease else ""
        head = f"{method} /api/v1/{path} HTTP/1.1\r\nHost: {self._place.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}{fenced}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(answer.partition("content-length:")[2].split()[0]) if "content-length:" in answer else 0
        content = await reader.readexactly(length)
        return int(answer.split()[1]), json.loads(content) if content else None

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()


@dataclass
class Notes:
    """What all workers saw, in seconds; claims of the first wave apart."""

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    beats: list[float] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Worker:
    """A worker of its own device."""

    def __init__(self, url: str, number: int, hold: float, notes: Notes) -> None:
        self._wire = Wire(url)
        self._number, self._hold, self._notes = number, hold, notes
        self._beat_seconds = 5.0
        self._chance = random.Random(number)
        self._id = ""
        self._held: dict[str, Any] | None = None

    async def register(self) -> None:
        """Register and say that it is idle."""
        device = {"uid": f"cpu:fleet:{self._number}", "kind": "cpu", "device_class": "c", "model": "m"}
        body = {"name": f"w{self._number}", "host": "fleet", "incarnation": "1", "datasets": {"digits": "f" * 64}}
        _, answer = await self._wire.ask("workers", {**body, "device": {**device, "memory_bytes": 2**34}})
        self._id, self._beat_seconds = answer["worker_id"], answer["heartbeat_seconds"]
        await self._beat()

    async def work(self, until: float) -> None:
        """Claim, beat and release until then; register first."""
        times = self._notes.first
        while time.perf_counter() < until:
            await self._claim(times)
            if self._held is not None:
                await self._train(self._held, until)
                times = self._notes.later
        self._wire.close()

    async def _claim(self, times: list[float]) -> None:
        began = time.perf_counter()
        status, held = await self._wire.ask(f"workers/{self._id}/claim?wait=25")
        if status == 200:
            times.append(time.perf_counter() - began)
            self._notes.blocks.append(held["block_id"])
            self._held = held
            await self._tell("ready", {"device_uid": f"cpu:fleet:{self._number}", "resume_round": 0})
        else:
            self._notes.errors[f"claim {status}"] += 1
            await self._beat()

    async def _train(self, held: dict[str, Any], until: float) -> None:
        end = min(until, time.perf_counter() + self._chance.expovariate(1 / self._hold))
        next_beat = time.perf_counter() + self._chance.random() * self._beat_seconds
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(max(0.0, min(next_beat, end) - now))
            if time.perf_counter() >= next_beat:
                next_beat = max(next_beat + self._beat_seconds, time.perf_counter())
                await self._beat()
        await self._tell("rounds/0", last_round(held), "PUT")
        self._held = None
        await self._beat()

    async def _tell(self, path: str, document: Any, method: str = "POST") -> None:
        assert self._held is not None
        held = self._held
        status, _ = await self._wire.ask(f"assignments/{held['assignment_id']}/{path}", document, held["lease"], method)
        if status >= 300:
            self._notes.errors[f"{path} {status}"] += 1

    async def _beat(self) -> None:
        held = self._held
        progress = [{"assignment_id": held["assignment_id"], "lease": held["lease"]}] if held else []
        body = {"incarnation": "1", "state": "working" if held else "idle", "progress": progress}
        began = time.perf_counter()
        status, _ = await self._wire.ask(f"workers/{self._id}/heartbeat", body)
        self._notes.beats.append(time.perf_counter() - began)
        if status >= 300:
            self._notes.errors[f"heartbeat {status}"] += 1


class Watch:
    """What PostgreSQL's connections are at, ten times a second, and the processor time of everybody."""

    def __init__(self, servers: list[int]) -> None:
        self.seen: Counter[str] = Counter()
        self._servers, self._ended = servers, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> Watch:
        """Begin."""
        self._began, self._before, self._commits = time.perf_counter(), self._spent(), self._committed()
        self._thread.start()
        return self

    def stop(self) -> dict[str, Any]:
        """Return cores in use by part, transactions a second, and how many connections were at what on average."""
        seconds = time.perf_counter() - self._began
        after, commits = self._spent(), self._committed() - self._commits
        self._ended.set()
        self._thread.join()
        looks = max(1, self.seen.pop("looks", 1))
        cores = {part: round((after[part] - self._before[part]) / seconds, 2) for part in after}
        at = {what: round(count / looks, 2) for what, count in self.seen.most_common(6)}
        return {"cores": cores, "transactions_per_second": round(commits / seconds, 1), "connections_at": at}

    def _spent(self) -> dict[str, float]:
        with postgres.admin() as connection:
            pids = [int(str(row[0])) for row in connection.execute("SELECT pid FROM pg_stat_activity")]
            parent = int(_stat(connection.info.backend_pid)[1])
        databases = sum(map(_processor, pids)) + _processor(parent, ended=True)
        return {"servers": sum(map(_processor, self._servers)), "postgresql": databases, "workers": time.process_time()}

    def _committed(self) -> int:
        with postgres.admin() as connection:
            asked = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'lockstep_bench'"
            [found] = connection.execute(asked).fetchone() or (0,)
        return int(str(found))

    def _look(self) -> None:
        what = "coalesce(wait_event_type || ' ' || wait_event, 'processor'), left(query, 60)"
        asked = f"SELECT {what} FROM pg_stat_activity WHERE datname = 'lockstep_bench' AND state = 'active'"
        with postgres.admin() as connection:
            while not self._ended.wait(0.1):
                self.seen["looks"] += 1
                for event, query in connection.execute(asked):
                    self.seen[f"{event}: {' '.join(str(query).split())}"] += 1


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process behind its name: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _processor(pid: int, *, ended: bool = False) -> float:
    """Return the processor seconds of a process so far, or those of its children that have ended; 0 once it is gone."""
    try:
        user, system, of_children, systems = map(int, _stat(pid)[11:15])
    except OSError:
        return 0.0
    return (of_children + systems if ended else user + system) / _TICKS


async def drive(
    urls: list[str], given: argparse.Namespace, hold: float, notes: Notes, servers: list[int]
) -> dict[str, Any]:
    """Let all workers work; return the load of the first wave and of the rest."""
    workers = [Worker(urls[number % len(urls)], number, hold, notes) for number in range(given.workers)]
    for first in range(0, len(workers), 20):
        await asyncio.gather(*(worker.register() for worker in workers[first : first + 20]))
    watch = Watch(servers).start()
    until = time.perf_counter() + given.seconds
    working = [asyncio.create_task(worker.work(until)) for worker in workers]
    while len(notes.first) < given.workers and time.perf_counter() < until:
        await asyncio.sleep(0.05)
    wave = await asyncio.to_thread(watch.stop)
    wave["seconds"] = round(given.seconds - (until - time.perf_counter()), 1)
    left = until - time.perf_counter()
    rest = await _afterwards(left, notes, servers) if left > 1.0 else None  # the first wave took all the time
    await asyncio.gather(*working)
    return {"first_wave": wave, "afterwards": rest}


async def _afterwards(seconds: float, notes: Notes, servers: list[int]) -> dict[str, Any]:
    """Return the load of the time after the first wave."""
    watch = Watch(servers).start()
    begun = len(notes.later)
    await asyncio.sleep(seconds)
    rest = await asyncio.to_thread(watch.stop)
    rest["claims_per_second"] = round((len(notes.later) - begun) / seconds, 1)
    return rest


def calls(urls: list[str]) -> dict[str, Any]:
    """Return how many claims and heartbeats the servers have worked on, and the mean seconds of each."""
    told = "\n".join(httpx.get(f"{url}/metrics", timeout=60).text for url in urls).splitlines()
    found = {}
    for name in ("claim", "heartbeat"):
        count, seconds = (
            sum(float(line.split()[1]) for line in told if line.startswith(f"lockstep_{name}_seconds_{part}"))
            for part in ("count", "sum")
        )
        found[name] = {"n": round(count), "mean": round(seconds / max(1.0, count), 4)}
    return found


def measure(given: argparse.Namespace, hold: float, beat: float) -> dict[str, Any]:
    """Run the fleet once; return what it saw."""
    servers = {"HEARTBEAT_SECONDS": beat, "LEASE_TTL_SECONDS": 9 * beat, "OWNER_DEVICE_LIMIT": 2 * given.workers}
    os.environ |= {f"LOCKSTEP_{name}": str(value) for name, value in servers.items()}
    notes = Notes()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    with fresh("postgresql") as (url, directory), ExitStack() as stack:
        running = [stack.enter_context(in_process(url, directory)) for _ in range(given.servers)]
        urls = [server.url for server in running]
        for first in range(0, given.blocks, 1_000):
            spec = tiny_spec(experiment={"replicates": min(1_000, given.blocks - first)}, budget={"rounds": 1})
            httpx.post(f"{urls[0]}/api/v1/experiments", json=spec, timeout=120).raise_for_status()
        with closing(Store(url)) as store, store.write() as session:
            session.execute(text("ANALYZE"))  # as autovacuum does within a minute
        pids = [server.process.pid for server in running if server.process is not None]
        found = asyncio.run(drive(urls, given, hold, notes, pids))
        found["calls_in_servers"] = calls(urls)
    seen = {"claims_first_wave": notes.first, "claims_afterwards": notes.later, "heartbeats": notes.beats}
    doubled = len(notes.blocks) - len(set(notes.blocks))
    told = {
        "hold_seconds": hold,
        "beat_seconds": beat,
        "load_before": load,
        **{name: times(seconds) for name, seconds in seen.items()},
    }
    ends = {"blocks_claimed": len(notes.blocks), "claimed_twice": doubled, "errors": dict(notes.errors)}
    return {**told, **found, **ends}


def main() -> int:
    """Run the fleet for each interval of beats, print and write what it saw."""
    parser = argparse.ArgumentParser(description="Many workers before a long queue.")
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--loads", nargs="+", default=["60:5", "300:15"], help="HOLD:BEAT in seconds, for each run")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/fleet_postgresql.json")
    given = parser.parse_args()
    asked = {name: value for name, value in vars(given).items() if name != "out"}
    measured = []
    for hold, beat in (map(float, load.split(":")) for load in given.loads):
        measured.append(measure(given, hold, beat))
        print(json.dumps(measured[-1], indent=1), flush=True)
    document = {"cores": os.cpu_count(), "lockstep": version("lockstep"), "asked": asked, "measured": measured}
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(found["claimed_twice"] or found["errors"] for found in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
