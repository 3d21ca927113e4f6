"""Workers as actors of a Ray cluster, which says where they run and never what has been trained.

Each worker has a placement group of one bundle: it begins when there is room for it alone, keeps its device while it
is started again, and gives it back when it retires. Ray starts an actor again that it has lost; what an actor tells Ray
is the exit code of its worker, which only this program reads. Blocks, attempts and results are the server's.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import typer
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from app.cli.keeping import FINAL, UNUSABLE, Fleet

#: How long a cluster may take to answer; when it is said that workers have no place; how often ends are looked for, and
#: how often workers are asked to drain, for Ray may have moved one meanwhile.
_CONNECT_SECONDS, _ROOM_SECONDS, _LOOK_SECONDS, _AGAIN_SECONDS = 5.0, 10.0, 0.5, 5.0
#: Calls that an actor answers at a time: Ray repeats the one that lasts when it has lost sight of an actor meanwhile.
_CALLS = 16
#: Exit codes after which another start would change nothing. A device may be another process's for a moment only: the
#: worker of an actor that was killed drains before it lets go of it.
_FINAL = tuple(code for code in FINAL if code != UNUSABLE)


class NoCluster(Exception):  # noqa: N818 - a state of affairs
    """No cluster can be used; the message says which and why."""


@dataclass(frozen=True)
class Order:
    """What to start.

    Attributes:
        worker: arguments of each worker.
        secrets: added to the environment of each.
        bundle: what each takes of the cluster, as Ray names it.
    """

    worker: Sequence[str]
    secrets: Mapping[str, str]
    bundle: Mapping[str, float]


class Keeper:
    """The actor of one worker: starts it again when it fails, and drains it when asked or when the actor ends.

    Args:
        number: of the worker.
        order: what to start.
    """

    def __init__(self, number: int, order: Order) -> None:
        self._number = number
        command = [sys.executable, "-m", "worker", *order.worker, "--until-input-ends"]
        self._fleet = Fleet([command], first=number, environment=order.secrets, final=_FINAL)

    def keep(self) -> int:
        """Run the worker to its end and return its exit code."""
        log = os.path.realpath("/proc/self/fd/1")
        address = ray.util.get_node_ip_address()
        typer.echo(f"worker {self._number} is on {platform.node()} ({address}); its log there: {log}")
        return self._fleet.wait()

    def drain(self) -> None:
        """Ask the worker to stop at its next round border."""
        self._fleet.drain()


class RayFleet:
    """All workers of one launch.

    Args:
        count: how many.
        order: what to start.
    """

    def __init__(self, count: int, order: Order) -> None:
        self._order = order
        self._groups: dict[int, PlacementGroup] = {}
        self._keepers: dict[int, Any] = {}
        self._ends: dict[Any, int] = {}
        self._stopping = threading.Event()
        for number in range(count):
            self._start(number)

    def run(self) -> int:
        """Wait for the end of all; return the highest exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: self._stopping.set())
        codes: list[int] = []
        tell_at, drain_at = time.monotonic() + _ROOM_SECONDS, 0.0
        while self._ends:
            ended, _ = ray.wait(list(self._ends), timeout=_LOOK_SECONDS)
            codes += [self._code(end) for end in ended]
            if self._stopping.is_set() and time.monotonic() > drain_at:
                self._drain()
                drain_at = time.monotonic() + _AGAIN_SECONDS
            elif time.monotonic() > tell_at:
                self._tell_of_room()
                tell_at = float("inf")
        return max(codes, default=0)

    def _drain(self) -> None:
        """Ask every worker to stop at its next round border, again where Ray has moved one; without a place it ends."""
        for number, keeper in self._keepers.items():
            if self._has_room(number):
                keeper.drain.remote()
            else:
                ray.kill(keeper)

    def _start(self, number: int) -> None:
        group = placement_group([dict(self._order.bundle)], name=f"lockstep-worker-{number}")
        keeper = ray.remote(Keeper).options(
            num_cpus=self._order.bundle.get("CPU", 0),
            num_gpus=self._order.bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=_CALLS,
        )
        self._groups[number] = group
        self._keepers[number] = keeper.remote(number, self._order)
        self._ends[self._keepers[number].keep.remote()] = number

    def _code(self, end: Any) -> int:
        """Return the exit code of a worker that has ended, and give back what it had of the cluster."""
        number = self._ends.pop(end)
        try:
            code = int(ray.get(end))
        except ray.exceptions.RayError as error:
            code = 0 if self._stopping.is_set() else UNUSABLE
            if not self._stopping.is_set():
                told = str(error).strip().rpartition("\n")[2]
                typer.echo(f"worker {number} cannot be kept: {told}; each node needs lockstep[worker,ray]", err=True)
        del self._keepers[number]
        remove_placement_group(self._groups.pop(number))
        return code

    def _has_room(self, number: int) -> bool:
        return bool(self._groups[number].wait(timeout_seconds=0.1))

    def _tell_of_room(self) -> None:
        without = [number for number in self._groups if not self._has_room(number)]
        if without:
            each = ", ".join(f"{amount:g} {name}" for name, amount in self._order.bundle.items())
            typer.echo(f"{len(without)} workers wait for room: the cluster has no {each} free for each", err=True)


def connect(address: str | None) -> None:
    """Connect to a cluster.

    Args:
        address: host:port of its head; None: RAY_ADDRESS, else that which this machine is a node of.

    Raises:
        NoCluster: says why.
    """
    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    if "://" in wanted:
        raise NoCluster(f"{wanted}: give HOST:PORT of the cluster's head, and run this on one of its nodes")
    try:
        if wanted != "auto":  # Ray asks for two minutes
            host, _, port = wanted.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        ray.init(address=wanted, log_to_driver=True, configure_logging=False)
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        told = str(error).strip().splitlines()[0].rstrip(".")
        raise NoCluster(f"no Ray cluster at {wanted} ({told})") from error
