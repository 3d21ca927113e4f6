"""Which idle workers a block gets, or why it waits: pure, so that scheduler and explanation agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerView:
    """A worker as the scheduler sees it."""

    id: str
    device_uid: str
    device_class: str
    kind: str
    memory_bytes: float
    idle: bool
    healthy: bool
    quarantined: bool = False
    max_blocks: int = 1
    datasets: Mapping[str, str] = field(default_factory=dict)
    rewards: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Need:
    """What a block needs.

    Attributes:
        num_arms: runs of the block that still train.
        placement: auto, one_per_device or shared_device.
        memory_bytes: estimate for a shared device.
        min_memory_bytes: more than this on each device (after an out-of-memory).
        dataset: data set a worker must have, with the fingerprint once it is pinned.
        rewards: registered (not built-in) reward modes in use.
        environment: registered environment in use.
        pack: blocks of its experiment that one worker may hold at once.
        pack_evenly: whether a worker takes no more than its even share of those among the free workers.
        at_home: whether a worker with a GPU trains it on its host, where one device is as good as several.
    """

    num_arms: int
    placement: str
    memory_bytes: float = 0.0
    min_memory_bytes: float = 0.0
    dataset: str | None = None
    fingerprint: str | None = None
    rewards: frozenset[str] = frozenset()
    environment: str | None = None
    pack: int = 1
    pack_evenly: bool = False
    at_home: bool = False


@dataclass(frozen=True)
class Fit:
    """Workers to assign, in the order of their device ids, and the placement this means.

    Attributes:
        slot: place among the blocks that the worker is given in one go.
    """

    placement: str
    workers: tuple[WorkerView, ...]
    slot: int = 0


@dataclass(frozen=True)
class Wait:
    """Why a block waits: a stable code, a sentence and the numbers in it."""

    code: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    device_class: str | None = None


def fit(need: Need, workers: Sequence[WorkerView], held: frozenset[str] = frozenset()) -> Fit | Wait:
    """Choose workers for a block.

    Args:
        need: what the block needs.
        workers: every registered worker.
        held: device classes reserved for a block that waits longer.
    """
    able = [worker for worker in workers if worker.healthy and _has_data(need, worker)]
    if not able:
        return _nobody(need, workers)
    # after an out-of-memory a larger device is taken if one exists; else the same size is tried once more
    roomy = [worker for worker in able if _has_more(need, worker)] or able
    idle = [worker for worker in roomy if worker.idle and worker.device_class not in held]
    chosen = _choose(need, idle)
    return chosen or _waiting(need, roomy, held)


def _has_more(need: Need, worker: WorkerView) -> bool:
    """Return whether a worker has more memory than a block ran out of; that of a GPU is not where it trains at home."""
    is_used = worker.kind == "cpu" or not need.at_home
    return need.min_memory_bytes == 0 or (is_used and worker.memory_bytes > need.min_memory_bytes)


@dataclass
class Pack:
    """Workers that are given blocks of one experiment in one pass over the queue.

    Attributes:
        size: blocks that each may hold at most.
        left: blocks of the experiment that the pass has not looked at.
        need: what such a block needs.
        held: blocks given to each worker, by its id.
    """

    size: int
    left: int
    need: Need
    held: dict[str, int] = field(default_factory=dict)

    def join(self, workers: Mapping[str, WorkerView]) -> Fit | None:
        """Return the worker with the fewest blocks that has room for one more, or None."""
        free = [(count, name) for name, count in self.held.items() if self._has_room(workers[name], count)]
        return Fit("shared_device", (workers[min(free)[1]],), min(free)[0]) if free else None

    def has_room(self, workers: Mapping[str, WorkerView]) -> bool:
        """Return whether another block may join."""
        counts = self.held.items()
        return self.left > 0 and any(count < self._most(workers[name]) for name, count in counts)

    def _has_room(self, worker: WorkerView, count: int) -> bool:
        in_memory = worker.memory_bytes == 0 or (count + 1) * self.need.memory_bytes <= worker.memory_bytes
        return count < self._most(worker) and in_memory

    def _most(self, worker: WorkerView) -> int:
        return min(self.size, most_blocks(self.need, worker))


def most_blocks(need: Need, worker: WorkerView) -> int:
    """Return how many blocks of an experiment a worker can train at once: on a GPU their runs form no stack."""
    return worker.max_blocks if worker.kind == "cpu" or need.at_home else 1


def pack_size(need: Need, waiting: int, workers: Sequence[WorkerView], most: int | None = None) -> int:
    """Return how many of ``waiting`` blocks of an experiment one worker may hold: its even share among the free ones.

    A worker that becomes free later is given its share of what these hold (``app.services.queue.sharing``).

    Args:
        need: what such a block needs.
        waiting: blocks to divide.
        workers: those that may be chosen, were they free.
        most: workers that the owner may use.
    """
    if need.pack == 1 or not need.pack_evenly:
        return need.pack
    able = _sharing(need, [w for w in workers if w.idle and w.healthy and _has_data(need, w)])[:most]
    return min(need.pack, even_share(waiting, [most_blocks(need, worker) for worker in able]))


def even_share(num_blocks: int, rooms: Sequence[int]) -> int:
    """Return how many blocks each worker takes where they are divided evenly; who has less room takes what it holds."""
    shares = range(1, max(rooms, default=1) + 1)
    return next((share for share in shares if sum(min(share, room) for room in rooms) >= num_blocks), shares[-1])


def class_to_hold(need: Need, workers: Sequence[WorkerView]) -> str | None:
    """Return the device class that a waiting block of several devices may hold: one with enough healthy workers."""
    if need.placement != "one_per_device":
        return None
    able = [worker for worker in workers if worker.healthy and _has_data(need, worker)]
    counts = _by_class(able)
    fitting = [name for name, members in sorted(counts.items()) if len(members) >= need.num_arms]
    return fitting[0] if fitting else None


def device_order(workers: Sequence[WorkerView], num_arms: int, replicate: int) -> list[int]:
    """Return for arm i the index of its device: (i + replicate) mod K of the sorted set."""
    return [(arm + replicate) % len(workers) for arm in range(num_arms)]


def _choose(need: Need, idle: Sequence[WorkerView]) -> Fit | None:
    if need.placement == "one_per_device":
        return _several(need.num_arms, idle)
    if need.placement == "auto" and not need.at_home:
        several = _several(need.num_arms, [worker for worker in idle if worker.kind == "gpu"])
        if several is not None and need.num_arms > 1:
            return several
    fitting = _sharing(need, idle)
    return Fit("shared_device", (fitting[0],)) if fitting else None


def _sharing(need: Need, idle: Sequence[WorkerView]) -> list[WorkerView]:
    """Return the workers that hold all arms on one device, in the order in which they are chosen."""
    fitting = [w for w in idle if w.kind == "cpu" or w.memory_bytes >= need.memory_bytes]
    if need.at_home:  # a GPU would do nothing meanwhile
        fitting.sort(key=lambda worker: worker.kind != "cpu")
    return fitting


def _several(size: int, idle: Sequence[WorkerView]) -> Fit | None:
    for _, members in sorted(_by_class(idle).items()):
        if len(members) >= size:
            chosen = sorted(members, key=lambda worker: worker.device_uid)[:size]
            return Fit("one_per_device", tuple(chosen))
    return None


def _by_class(workers: Sequence[WorkerView]) -> dict[str, list[WorkerView]]:
    by_class: dict[str, list[WorkerView]] = {}
    for worker in workers:
        by_class.setdefault(worker.device_class, []).append(worker)
    return by_class


def _has_data(need: Need, worker: WorkerView) -> bool:
    if need.dataset is not None:
        fingerprint = worker.datasets.get(need.dataset)
        if fingerprint is None or (need.fingerprint is not None and fingerprint != need.fingerprint):
            return False
    if need.environment is not None and need.environment not in worker.environments:
        return False
    return need.rewards <= worker.rewards


def _nobody(need: Need, workers: Sequence[WorkerView]) -> Wait:
    healthy = [worker for worker in workers if worker.healthy]
    if healthy:
        wanted = [f"data set {need.dataset}"] if need.dataset else []
        wanted += [f"reward {name}" for name in sorted(need.rewards)]
        wanted += [f"environment {need.environment}"] if need.environment else []
        text = f"none of {len(healthy)} workers has {', '.join(wanted)}{_remedy(need, healthy)}"
        return Wait("missing_data", text, {"workers": len(healthy)})
    quarantined = sum(worker.quarantined for worker in workers)
    if quarantined:
        text = f"all {quarantined} workers are quarantined"
        return Wait("quarantined", text, {"quarantined": quarantined})
    return Wait("class_unavailable", "no worker is registered; start one with `lockstep worker`", {"workers": 0})


def _remedy(need: Need, workers: Sequence[WorkerView]) -> str:
    """Return how a data set or a plug-in that no worker has gets to one."""
    if need.dataset is None or any(need.dataset in worker.datasets for worker in workers):
        offered = {name for worker in workers for name in (*worker.rewards, *worker.environments)}
        lacking = {*need.rewards, *([need.environment] if need.environment else [])} - offered
        return "; install the package that has it where a worker runs and restart that worker" if lacking else ""
    if need.dataset == "cifar10":
        return "; run `lockstep data fetch cifar10 --data-dir DIR` on a worker's host and start it with --data-dir DIR"
    return "; start a worker with --data-dir of a folder that holds it"


def _waiting(need: Need, roomy: Sequence[WorkerView], held: frozenset[str]) -> Wait:
    idle = [worker for worker in roomy if worker.idle]
    if any(worker.device_class in held for worker in idle):
        text = "idle devices are held for a block that has waited longer for several at once"
        return Wait("held_for_gang", text, {"idle": len(idle)})
    if need.placement == "one_per_device":
        counts = _by_class(roomy)
        name = max(sorted(counts), key=lambda key: len(counts[key]))
        if len(counts[name]) < need.num_arms:
            text = f"needs {need.num_arms} workers of one class; {len(counts[name])} {name} registered"
            return Wait("class_unavailable", text, {"needed": need.num_arms, "registered": len(counts[name])}, name)
        free = sum(worker.idle for worker in counts[name])
        text = f"needs {need.num_arms} idle {name} workers at once; {free} idle"
        return Wait("needs_devices", text, {"needed": need.num_arms, "idle": free}, name)
    if idle:
        text = f"needs about {_gib(need.memory_bytes)} GiB on one device"
        return Wait("insufficient_memory", text, {"needed_bytes": need.memory_bytes})
    return Wait("needs_devices", f"needs 1 idle worker; {len(roomy)} registered, all busy", {"needed": 1, "idle": 0})


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}"
