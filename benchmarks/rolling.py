"""Three servers behind nginx, each restarted while viewers watch: does anybody miss or double a round; run by hand.

    python -m benchmarks.rolling [--viewers 500] [--servers 3] [--seconds 60] [--pooler]

The servers share one PostgreSQL database, with ``--pooler`` by way of PgBouncer in transaction mode. Viewers are
sockets that come back with the cursor of their last frame, as the page does. A simulated worker hands in two rounds a
second through nginx; somebody asks for lists all the while. Each server gets SIGTERM and is started again, one after
the other. Exits 1 when a viewer missed or doubled a round, or a list was not answered.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from benchmarks.control_plane import Simulated, fresh, in_process, times
from benchmarks.viewers import hand_in
from lockstep.client import Client
from tests.conftest import wait_until
from tests.factories import tiny_spec
from tests.field.conftest import ROOT, ServerProcess
from tests.poolers import pgbouncer
from tests.proxies import nginx

ROUND_SECONDS = 0.5


@dataclass
class Watcher:
    """A viewer: the rounds that it was told, in order, and how often it had to come back."""

    rounds: list[int] = field(default_factory=list)
    returns: int = 0
    away: list[float] = field(default_factory=list)

    async def follow(self, address: str) -> None:
        """Follow an experiment to its end."""
        cursor, left = None, 0.0
        while True:
            try:
                async with connect(address, max_size=None, compression=None, ping_interval=None) as socket:
                    await socket.send(json.dumps({"type": "subscribe", "metrics": [], "after": cursor}))
                    async for text in socket:
                        frame = json.loads(text)
                        if left:
                            self.away.append(time.monotonic() - left)
                            left = 0.0
                        if frame["type"] == "ping":
                            await socket.send('{"type":"pong"}')
                        cursor = frame.get("cursor") or cursor
                        self.rounds += [item["round"] for item in frame.get("rounds", [])]
                        if frame["type"] == "end":
                            return
            except (OSError, WebSocketException):
                pass
            left = left or time.monotonic()
            self.returns += 1
            await asyncio.sleep(random.uniform(0.1, 1.0))


def until_taken(act: Callable[[], Any], refused: Counter[str]) -> None:
    """Do what may be repeated until a server has answered it."""
    while True:
        try:
            act()
            return
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (502, 503, 504):
                raise
            refused[str(error.response.status_code)] += 1
        except httpx.TransportError as error:
            refused[type(error).__name__] += 1
        time.sleep(0.1)


def train(worker: Simulated, held: dict[str, Any], rounds: int, refused: Counter[str]) -> None:
    """Hand in rounds, two a second; the runs diverge with the last one, which ends the experiment."""
    for index in range(rounds):
        began = time.monotonic()
        until_taken(partial(hand_in, worker, held, index, is_last=index == rounds - 1), refused)
        if index % 5 == 0 and index < rounds - 1:
            until_taken(partial(worker.beat, "working", held), refused)
        time.sleep(max(0.0, began + ROUND_SECONDS - time.monotonic()))


@contextmanager
def asked(url: str) -> Iterator[tuple[list[float], Counter[str]]]:
    """Ask for a list all the while; the seconds of each answer, and what was no answer."""
    seconds: list[float] = []
    failed: Counter[str] = Counter()
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=30) as http:
            while not ended.wait(0.02):
                began = time.perf_counter()
                try:
                    status = str(http.get(f"{url}/api/v1/experiments").status_code)
                except httpx.TransportError as error:
                    status = type(error).__name__
                seconds.append(time.perf_counter() - began)
                if status != "200":
                    failed[status] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    yield seconds, failed
    ended.set()
    thread.join()


def restart_each(servers: list[ServerProcess], seconds: float) -> list[float]:
    """Stop and start one server after the other; return how long each took to end."""
    took = []
    for server in servers:
        time.sleep(seconds / (len(servers) + 1))
        took.append(round(server.stop(), 2))
        server.start()
    return took


async def watch(url: str, experiment_id: str, count: int, act: Callable[[], Any]) -> tuple[list[Watcher], Any]:
    """Let so many follow while something is done in a thread; return them and its result."""
    address = f"{url.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws"
    watchers = [Watcher() for _ in range(count)]
    following = []
    for watcher in watchers:
        following.append(asyncio.create_task(watcher.follow(address)))
        await asyncio.sleep(0.005)
    await asyncio.sleep(2.0)
    result = await asyncio.to_thread(act)
    async with asyncio.timeout(60):
        await asyncio.gather(*following)
    return watchers, result


def measure(url: str, servers: list[ServerProcess], given: argparse.Namespace) -> dict[str, Any]:
    """Restart each server while all watch; return what was seen."""
    rounds = round(given.seconds / ROUND_SECONDS)
    with Client(url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": rounds + 1}))["id"]
    worker = Simulated(url, 0)
    held = wait_until(worker.claim, what="an assignment")
    worker.ready(held)
    refused: Counter[str] = Counter()

    def act() -> list[float]:
        training = threading.Thread(target=train, args=(worker, held, rounds, refused))
        training.start()
        took = restart_each(servers, given.seconds)
        training.join()
        return took

    with asked(url) as (answers, failed):
        watchers, took = asyncio.run(watch(url, experiment_id, given.viewers, act))
    seen = [Counter(watcher.rounds) for watcher in watchers]
    return {
        "rounds": rounds,
        "viewers_that_missed": sum(set(one) != set(range(rounds)) for one in seen),
        "viewers_that_doubled": sum(max(one.values(), default=0) > 1 for one in seen),
        "viewers_that_came_back": sum(watcher.returns > 0 for watcher in watchers),
        "away_seconds": times([seconds for watcher in watchers for seconds in watcher.away]),
        "stop_seconds": took,
        "lists": {**times(answers), "failed": dict(failed)},
        "worker_asked_again": dict(refused),
    }


def main() -> int:
    """Run the servers, the proxy and the viewers."""
    parser = argparse.ArgumentParser(description="Restart servers one after the other under viewers.")
    parser.add_argument("--viewers", type=int, default=500)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pooler", action="store_true", help="PgBouncer between servers and PostgreSQL")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    name = "rolling_pgbouncer.json" if given.pooler else "rolling.json"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    with fresh("postgresql") as (url, directory), ExitStack() as stack:
        os.environ["LOCKSTEP_PREPARED_STATEMENTS"] = "off" if given.pooler else "on"  # of the servers
        os.environ["LOCKSTEP_LISTEN_URL"] = url
        reached = stack.enter_context(pgbouncer(directory, url, 20) if given.pooler else nullcontext(url))
        servers = [stack.enter_context(in_process(reached, directory)) for _ in range(given.servers)]
        proxy = stack.enter_context(nginx(directory, [server.url for server in servers]))
        found = measure(proxy, servers, given)
    options = {key: value for key, value in vars(given).items() if key != "out"}
    text = json.dumps({"cores": os.cpu_count(), "load_before": load, "asked": options, **found}, indent=1)
    print(text)
    (given.out or ROOT / "benchmarks/results" / name).write_text(text + "\n")
    wrong = found["viewers_that_missed"] + found["viewers_that_doubled"] + len(found["lists"]["failed"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
