"""A worker on a link that is cut while it trains, with the server at this end and another worker that takes over.

    python -m benchmarks.cut_link [--ttl 8] [--rounds 40] [--database URL] [--out FILE]

Run it as root. A worker in a network namespace of its own trains over TCP; another one waits beside the server. The
link is cut for twice the lease time and healed: once as a cable that is pulled, once as packets that are lost without a
word (no RST). Checked each time: the block has one owner at every moment, by the table of processes and by its
history; the first owner halted before the lease could pass on; and digests, metrics, episodes and report equal those of
the same experiment left alone. By default the database is SQLite.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.chaos import differences, facts
from benchmarks.machine import save
from benchmarks.served import process
from lockstep.client import Client
from tests.factories import tiny_spec
from tests.links import Link, NoLink, link
from tests.owners import Owners

_PORT = 7571
_CUTS: tuple[Any, ...] = ("down", "dropped")
_WAIT_SECONDS = 300.0


def wait(condition: Callable[[], Any], what: str) -> None:
    """Wait until a condition is true.

    Raises:
        TimeoutError: it is not within five minutes.
    """
    give_up = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {_WAIT_SECONDS:.0f} s")
        time.sleep(0.1)


class Stage:
    """A server that is called from both ends of a link, and its workers.

    Args:
        folder: for everything that is written.
        far: the link.
        options: of the command line.
    """

    def __init__(self, folder: Path, far: Link, options: argparse.Namespace) -> None:
        self._folder, self._far = folder, far
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "LOCKSTEP_DATA_DIR": str(folder / "data"),
            "LOCKSTEP_LOCK_DIR": str(folder / "locks"),
            "LOCKSTEP_AUTH": "token",
            "LOCKSTEP_BIND": "0.0.0.0",
            "LOCKSTEP_ALLOWED_HOSTS": f"{far.address},127.0.0.1",
            "LOCKSTEP_LEASE_TTL_SECONDS": str(options.ttl),
            "LOCKSTEP_HEARTBEAT_SECONDS": str(options.ttl / 8),
            "LOCKSTEP_SWEEP_SECONDS": "1",
            "LOCKSTEP_BACKOFF_SECONDS": "1",
            **({"LOCKSTEP_DATABASE_URL": options.database} if options.database else {}),
        }
        self._lockstep("db", "upgrade")
        self._tokens = {role: self._token(role) for role in ("worker", "admin")}
        self.url = f"http://127.0.0.1:{_PORT}"

    def _lockstep(self, *words: str) -> str:
        command = [sys.executable, "-m", "app.cli.admin", *words]
        return subprocess.run(command, env=self._environment, check=True, capture_output=True, text=True).stdout

    def _token(self, role: str) -> str:
        said = self._lockstep("token", "create", "--role", role, "--name", role)
        return next(word for word in said.split() if word.startswith("lsk_"))

    @contextlib.contextmanager
    def served(self) -> Iterator[Client]:
        """Run the server for the block and yield a client of it."""
        command = ["app.cli.admin", "serve", "--port", str(_PORT)]
        running = process(command, self._folder / "server.log", self._environment)
        with running, Client(self.url, token=self._tokens["admin"]) as client:
            yield client

    @contextlib.contextmanager
    def worker(self, name: str, *, cut: bool) -> Iterator[Path]:
        """Run a worker for the block, at the other end of the link or at this one; yield its log."""
        log = self._folder / f"{name}.log"
        url = f"http://{self._far.address}:{_PORT}" if cut else self.url
        command = [*(self._far.inside if cut else []), sys.executable, "-m", "worker", "--api", url, "--device", "cpu"]
        command += ["--host", name, "--work-dir", str(self._folder / name)]
        environment = {**self._environment, "LOCKSTEP_TOKEN": self._tokens["worker"]}
        with log.open("wb") as output:
            started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            yield log
        finally:
            started.terminate()
            started.wait(timeout=60)


def block(client: Client, experiment_id: str) -> dict[str, Any]:
    """Return the first block of an experiment."""
    found: dict[str, Any] = client.call("GET", f"experiments/{experiment_id}/blocks")["items"][0]
    return found


def train(client: Client, stage: Stage, far: Link, how: Any, options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Train the experiment, cut in one way or left alone (None); return its facts and what was seen."""
    spec = tiny_spec(
        experiment={"seed": 5, "replicates": 1},
        budget={"rounds": options.rounds},
        eval={"episodes": 2, "every_rounds": 2},
    )
    name = how or "undisturbed"
    with stage.worker(f"far-{name}", cut=True) as far_log:
        experiment_id = client.submit(spec)["id"]
        wait(lambda: block(client, experiment_id)["open_round"] > 2, "the first rounds")
        with stage.worker(f"near-{name}", cut=False) as near_log, Owners([far_log, near_log]) as owners:
            wait(lambda: len(client.workers()) == 2, "the other worker")
            taken_over = False
            if how is not None:
                far.cut(how)
                time.sleep(2 * options.ttl)
                taken_over = block(client, experiment_id)["attempt"] > 1
                far.heal(how)
            wait(lambda: client.show(experiment_id)["status"] == "succeeded", "the end")
    found, stops = facts(client, experiment_id)
    moves = [
        event["status"]
        for event in client.call("GET", f"experiments/{experiment_id}/events", params={"limit": 200})["items"]
        if event["type"] == "block_status"
    ]
    given_while_held = sum(after == "reserved" and before != "queued" for before, after in pairwise(moves))
    return found, {
        "attempts": block(client, experiment_id)["attempt"],
        "taken_over_while_cut": taken_over,
        "halted_processes": len(owners.frozen),
        "looks": owners.looks,
        "looks_with_two_owners": len(owners.doubled),
        "given_while_held": given_while_held,
        "stops": dict(stops),
    }


def run(folder: Path, far: Link, options: argparse.Namespace) -> dict[str, Any]:
    """Train three times, twice over a cut; return what was seen and whether all is as it should be."""
    stage, seen, results = Stage(folder, far, options), {}, {}
    with stage.served() as client:
        for how in (*_CUTS, None):
            name = how or "undisturbed"
            results[name], seen[name] = train(client, stage, far, how, options)
            print(name, seen[name], flush=True)
    differing = {how: list(differences(results[how], results["undisturbed"]))[:5] for how in _CUTS}
    one_owner = not any(one["looks_with_two_owners"] or one["given_while_held"] for one in seen.values())
    fenced = all(seen[how]["taken_over_while_cut"] and seen[how]["halted_processes"] for how in _CUTS)
    return {**seen, "differences": differing, "holds": one_owner and fenced and not any(differing.values())}


def main() -> int:
    """Run, print and store; exit 1 where something is not as it should be, 2 where no link can be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ttl", type=float, default=8.0, help="LOCKSTEP_LEASE_TTL_SECONDS; an eighth between beats")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--database", help="URL of an empty database; default SQLite")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder, link() as far:
            found = run(Path(folder), far, options)
    except NoLink as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    asked = {"ttl": options.ttl, "rounds": options.rounds, "database": (options.database or "sqlite").partition(":")[0]}
    report = {"schema": 1, "asked": asked, **found}
    print(report)
    save(options.out, report)
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
