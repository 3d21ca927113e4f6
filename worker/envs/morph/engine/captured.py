"""The captured path: one CUDA graph per environment and topology, replayed on that environment's stream.

The Python that runs eagerly is the Python that is captured; there is no second implementation. A *lane*
is one network's stream, memory pool and accumulators; a lane's graphs never overlap and share its pool,
graphs of different lanes may overlap and share nothing. A training graph takes one batch; a closing graph
packs what the epoch measured and validates. Failure to capture is an error, never another path.
Axes: n batches, B items, W choices per item, S slots.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from worker.capturing import capturing
from worker.envs.morph.engine.eager import Counters, IssuedJobs, Job, Outcome, autocast, outcomes
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.hosts import Pass
from worker.envs.morph.network.network import EpochStats, Network, gradient_figures, packed_stats
from worker.envs.morph.task.data import Items, TrainingData

#: Graphs kept per environment; the least recently used is dropped.
CACHE_SIZE = 512
#: Batches of a lane issued before the next lane's: to change the stream takes as long as half a launch.
_IN_TURN = 4
#: What has run in this process, so that its kernels are loaded: capture must not be what loads them.
_LOADED: set[Hashable] = set()


class CaptureError(RuntimeError):
    """A step could not be captured."""


@dataclass
class Captured:
    """A graph with what its capture returned.

    Attributes:
        graph: to replay.
        packed: result at a fixed address; empty for a training step.
        rows: items that validation runs through segments.
    """

    graph: torch.cuda.CUDAGraph
    packed: Tensor
    rows: int


@dataclass
class Lane:
    """One network's side of capture.

    Attributes:
        stream: where its graphs are captured and replayed.
        pool: their memory.
        pinned, draws: [n, B, W] choices of the epoch, on the host and on the device.
        batch: [1] int64, the batch to take next.
        measured: [n, 2 + S] of each batch the main loss and the gradient norms before clipping, in the order of
            ``Network.stores``.
        dropout: generator of dropout masks, seeded anew for every epoch.
        marks: begin of training, begin and end of validation.
        graphs: by key, least recently used first.
    """

    stream: torch.cuda.Stream
    pool: Any
    pinned: Tensor
    draws: Tensor
    batch: Tensor
    measured: Tensor
    dropout: torch.Generator
    marks: tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event]
    graphs: OrderedDict[Hashable, Captured] = field(default_factory=OrderedDict)


#: Slot, blueprint and operator of grafts.
Grafts = tuple[tuple[int, int, Operator], ...]
#: A job's lane, its training graph (None: validated only) and its closing graph.
Work = tuple[Lane, Captured | None, Captured]


@dataclass
class Replays(IssuedJobs):
    """Jobs under way on a device.

    Attributes:
        began: of the issue, seconds of a monotonic clock.
        lanes: of the jobs.
        landing: pinned, where the results arrive.
        landed: when they have arrived.
    """

    began: float
    lanes: Sequence[Lane]
    landing: Tensor
    landed: torch.cuda.Event


class CapturedEngine:
    """Replays graphs, one stream per environment.

    Args:
        precision: precision of the training pass; validation is float32.
        data: where graphs gather their batches from.
        device: a CUDA device.
    """

    loads = True

    def __init__(self, precision: Literal["fp32", "bf16"], data: TrainingData, device: torch.device) -> None:
        self.precision, self.data, self.device = precision, data, device
        self.counters = Counters()
        self._lanes: dict[int, Lane] = {}
        self._networks: list[Network] = []
        config = data.config
        self._shape = (config.batches_per_step, config.batch_size, data.draw_width)
        self._kind = (precision, config.path, self._shape, config.dtype, device)
        self._places = torch.arange(config.batches_per_step, device=device)[:, None]
        # results leave on a stream of their own, in the order of issue, so that acting never waits for an epoch
        self._gatherer = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._landings: list[Tensor] = []

    def issue(self, jobs: Sequence[Job], val: Items) -> Replays:
        """Start training and validation of every job, and the one copy of all results."""
        began = time.perf_counter()
        for job in jobs:
            self._upload(job)
        work = self._start(jobs, val)
        sizes = [closing.packed.numel() for _, _, closing in work]
        landing, landed = self._gather(work, sum(sizes))
        for job, (_, _, closing) in zip(jobs, work, strict=True):
            job.validator.forward_rows += closing.rows
            self.counters.count(job, val, closing.rows)
        self.counters.issue_seconds += time.perf_counter() - began
        return Replays(jobs, sizes, began, [lane for lane, _, _ in work], landing, landed)

    def collect(self, issued: Replays) -> list[Outcome]:
        """Wait for the jobs of an issue and return what they measured."""
        waited = time.perf_counter()
        issued.landed.synchronize()
        ended = time.perf_counter()
        self.counters.copies += 1
        self.counters.wait_seconds += ended - waited
        self._clock(issued.lanes)
        flat = issued.landing[: sum(issued.sizes)].numpy().copy()
        self._landings.append(issued.landing)
        share = (ended - issued.began) / len(issued.jobs)
        return outcomes(issued.jobs, issued.sizes, flat, [share] * len(issued.jobs))

    def _clock(self, lanes: Sequence[Lane]) -> None:
        """Add the device time of jobs that have ended: of a step's mean environment, its part by these."""
        for lane in lanes:
            begun, trained, closed = lane.marks
            self.counters.train_seconds += begun.elapsed_time(trained) / 1000.0 / len(self._lanes)
            self.counters.validate_seconds += trained.elapsed_time(closed) / 1000.0 / len(self._lanes)

    def _upload(self, job: Job) -> None:
        """Bring the choices of an environment up."""
        lane = self._lane(job)
        if job.draws is not None:
            lane.pinned.copy_(job.draws)
            lane.draws.copy_(lane.pinned, non_blocking=True)

    def _start(self, jobs: Sequence[Job], val: Items) -> list[Work]:
        """Issue every job; hosts whose graphs are known train while those of the others are captured."""
        keys = [_keys(job, val) for job in jobs]
        known = [self._lane(job).graphs.keys() >= set(own) for job, own in zip(jobs, keys, strict=True)]
        parts = [[index for index, is_known in enumerate(known) if is_known]]
        parts += [[index] for index, is_known in enumerate(known) if not is_known]
        work: dict[int, Work] = {}
        for part in parts:
            mine = [self._prepare(jobs[index], val, keys[index]) for index in part]
            self._replay([jobs[index] for index in part], mine)
            work |= zip(part, mine, strict=True)
        return [work[index] for index in range(len(jobs))]

    def _prepare(self, job: Job, val: Items, keys: Sequence[Hashable]) -> Work:
        """Return the graphs of a job, captured now where they are new."""
        lane, training = self._lane(job), None
        if job.draws is not None:
            if job.how.dropout is not None:
                lane.dropout.manual_seed(job.how.dropout.initial_seed())
            body = partial(self._train, lane, job)
            training = self._graph(lane, keys[1], partial(self._train_pieces, job), job, body)
        body = partial(self._close, lane, job, val)
        return lane, training, self._graph(lane, keys[0], partial(self._close_pieces, job, val), job, body)

    def rehearse(self, job: Job, val: Items) -> None:
        """Run both parts of a job once, eagerly, unless their kernels are loaded."""
        pieces = [*self._train_pieces(job), *self._close_pieces(job, val)]
        if _LOADED.issuperset(pieces):
            return
        lane, rows = self._lane(job), job.validator.forward_rows
        self._warm_up(lane, job, lambda: self._train(lane, job))
        self._warm_up(lane, job, lambda: self._close(lane, job, val))
        job.validator.forward_rows = rows
        _LOADED.update(pieces)

    def _train_pieces(self, job: Job) -> list[Hashable]:
        return [(self._kind, job.network.host_params, piece) for piece in _pieces(job)]

    def _close_pieces(self, job: Job, val: Items) -> list[Hashable]:
        trained = _grafts(job.network, (item.slot for item in job.step_plan))
        pieces: list[Hashable] = [("packs", job.draws is None, len(trained)), *(("packs", graft) for graft in trained)]
        run = {slot: graft for slot, *graft in _grafts(job.network, job.val_plan.slots)}
        for slot, part in job.validator.parts(val.x.shape[0], job.val_plan):
            pieces.append((part, slot, *run.get(slot, ())))
        return [(self._kind, job.network.host_params, val.x.shape, piece) for piece in pieces]

    def _replay(self, jobs: Sequence[Job], work: Sequence[Work]) -> None:
        """Issue every graph, batches round robin."""
        main = torch.cuda.current_stream(self.device)
        for lane, _, _ in work:
            lane.stream.wait_stream(main)
            lane.marks[0].record(lane.stream)
        batches = max((job.draws.shape[0] for job in jobs if job.draws is not None), default=0)
        try:
            for start in range(0, batches, _IN_TURN):
                for lane, training, _ in work:
                    if training is not None:
                        self._repeat(lane, training, min(_IN_TURN, batches - start))
            for lane, _, closing in work:
                torch.cuda.set_stream(lane.stream)
                lane.marks[1].record(lane.stream)
                closing.graph.replay()
                lane.marks[2].record(lane.stream)
                self.counters.replays += 1
        finally:
            torch.cuda.set_stream(main)

    def _repeat(self, lane: Lane, training: Captured, times: int) -> None:
        # a context would ask the driver for its devices each time, which takes longer than a launch
        torch.cuda.set_stream(lane.stream)
        for _ in range(times):
            training.graph.replay()
        self.counters.replays += times

    def _gather(self, work: Sequence[Work], size: int) -> tuple[Tensor, torch.cuda.Event]:
        """Issue the copy of all results; return where it lands and the event of its landing."""
        landing = self._landings.pop() if self._landings else torch.empty(0, dtype=torch.float64, pin_memory=True)
        if size > landing.numel():
            landing = torch.empty(2 * size, dtype=torch.float64, pin_memory=True)
        for lane, _, _ in work:
            self._gatherer.wait_stream(lane.stream)
        with torch.cuda.stream(self._gatherer):
            landing[:size].copy_(torch.cat([closing.packed for _, _, closing in work]), non_blocking=True)
            landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            landed.record()
        return landing, landed

    def _train(self, lane: Lane, job: Job) -> Tensor:
        """Take the next batch; captured."""
        if job.network.kernels is None:
            x, y = self.data.gather(lane.draws.index_select(0, lane.batch)[0])
        else:
            x, y = self.data.gather_fused(
                job.network.kernels,
                lane.draws,
                lane.batch,
                torch.bfloat16 if self.precision == "bf16" else torch.float32,
            )
        stats = EpochStats()
        how = Pass(job.how.mode, None if job.how.dropout is None else lane.dropout)
        with autocast(self.precision, self.device):
            job.network.train_batch(x, y, job.step_plan, how, stats)
        row = torch.stack([stats.losses[0], *stats.norms[0]])
        if job.network.kernels is not None:
            job.network.kernels.note(row, lane.measured, lane.batch)
            return row[:0]
        part = lane.measured[:, : row.numel()]
        torch.where(self._places == lane.batch, row, part, out=part)
        lane.batch.add_(1)
        return row[:0]

    def _close(self, lane: Lane, job: Job, val: Items) -> Tensor:
        """Pack what the epoch measured, validate, start anew; captured."""
        parts = [] if job.draws is None else [self._packed(lane, job)]
        parts.append(job.network.magnitude(job.step_plan))
        parts.append(job.validator.run(val.x, val.y, job.val_plan))
        lane.batch.zero_()
        return torch.cat(parts)

    def _packed(self, lane: Lane, job: Job) -> Tensor:
        """Return ``EpochStats.packed`` of the accumulators."""
        network, plan = job.network, job.step_plan
        grads: dict[int, Tensor] = {}
        for item in plan:
            store = network.cell(item.slot).store
            sizes = [param.numel() for param in store.params]
            parts = [part.view(p.shape) for part, p in zip(torch.split(store.grad, sizes), store.params, strict=True)]
            grads[item.slot] = gradient_figures(parts)
        # copied, so that the mean adds in the order in which the plain path adds
        losses, norms = lane.measured[:, 0].clone(), lane.measured[:, 1 : 2 + len(plan)]
        return packed_stats(losses, norms, grads, len(network.slots))

    def _lane(self, job: Job) -> Lane:
        network = job.network
        if id(network) not in self._lanes:
            # held, so that the identity stays its own
            self._networks.append(network)
            batches, slots, dtype = self._shape[0], len(network.slots), network.config.dtype
            self._lanes[id(network)] = Lane(
                stream=torch.cuda.Stream(self.device),  # type: ignore[no-untyped-call]
                pool=torch.cuda.graph_pool_handle(),
                pinned=torch.zeros(self._shape, dtype=torch.int64, pin_memory=True),
                draws=torch.zeros(self._shape, dtype=torch.int64, device=self.device),
                batch=torch.zeros(1, dtype=torch.int64, device=self.device),
                measured=torch.zeros(batches, 2 + slots, dtype=dtype, device=self.device),
                dropout=torch.Generator(self.device),
                marks=(_mark(), _mark(), _mark()),
            )
        return self._lanes[id(network)]

    def _graph(
        self,
        lane: Lane,
        key: Hashable,
        pieces: Callable[[], Sequence[Hashable]],
        job: Job,
        body: Callable[[], Tensor],
    ) -> Captured:
        """Return the graph of a key; ``pieces`` names, for one that is new, the parts whose kernels must have run."""
        found = lane.graphs.get(key)
        if found is not None:
            lane.graphs.move_to_end(key)
            self.counters.hits += 1
            return found
        began, reserved = time.perf_counter(), _reserved(self.device)
        rows, parts = job.validator.forward_rows, pieces()
        try:
            # the first of a lane makes its handles and workspaces, the first with a piece loads its kernels
            if not lane.graphs or not _LOADED.issuperset(parts):
                self._warm_up(lane, job, body)
                job.validator.forward_rows = rows
            captured = _capture(lane, body)
        except RuntimeError as error:
            raise CaptureError(f"capture of {key} failed: {error}; choose engine.path eager") from error
        _LOADED.update(parts)
        captured.rows = job.validator.forward_rows - rows
        job.validator.forward_rows = rows
        if len(lane.graphs) >= CACHE_SIZE:
            lane.graphs.popitem(last=False)
            self.counters.evictions += 1
        lane.graphs[key] = captured
        self.counters.captures += 1
        self.counters.capture_seconds += time.perf_counter() - began
        self.counters.graph_bytes += _reserved(self.device) - reserved
        return captured

    @staticmethod
    def _warm_up(lane: Lane, job: Job, body: Callable[[], Tensor]) -> None:
        """Run the step once for its side effects on libraries, then put every tensor back in place.

        Nobody waits for it: the graphs that follow on the lane's stream come after it.
        """
        touched = [tensor for store in job.network.stores(job.step_plan) for tensor in store.state()]
        touched += [lane.batch, lane.measured]
        lane.stream.wait_stream(torch.cuda.current_stream(lane.stream.device))
        with torch.cuda.stream(lane.stream):
            saved = [tensor.clone() for tensor in touched]
            body()
            for tensor, value in zip(touched, saved, strict=True):
                tensor.copy_(value)


def _grafts(network: Network, slots: Iterable[int]) -> Grafts:
    """Return the grafts of slots, in the order of the slots."""
    grafts = ((slot, network.cell(slot).graft) for slot in sorted(slots))
    return tuple((slot, graft.blueprint, graft.operator) for slot, graft in grafts)


def _keys(job: Job, val: Items) -> tuple[Hashable, ...]:
    """Return what the closing graph of a job computes, and where it trains what its training graph does.

    A graph is told apart by what it reads: a graft that neither trains nor is validated is in no key.
    """
    trained = [item.slot for item in job.step_plan]
    read = _grafts(job.network, {*trained, *job.val_plan.slots})
    closing = "close", id(val.x), job.draws is None, job.step_plan, job.val_plan, read
    if job.draws is None:
        return (closing,)
    return closing, ("train", job.step_plan, _grafts(job.network, trained))


def _pieces(job: Job) -> list[Hashable]:
    """Return what decides which kernels a training step runs: no two of these together bring in another."""
    network, plan = job.network, job.step_plan
    taking = [item.slot for item in plan]
    pieces: list[Hashable] = [("slots", tuple(taking))]
    for position, item in enumerate(plan):
        pieces.append((item, _grafts(network, [item.slot])))
        if item.how == "shadow":
            behind = [later.slot for later in plan[position + 1 :] if later.how == "blend"]
            pieces.append(("tail", item.slot, _grafts(network, behind)))
    return pieces


def _reserved(device: torch.device) -> int:
    """Return ``torch.cuda.memory_reserved``, which makes a table of all figures each time, in a third of its time."""
    return int(torch.cuda.memory.memory_stats_as_nested_dict(device)["reserved_bytes"]["all"]["current"])


def _mark() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _capture(lane: Lane, body: Callable[[], Tensor]) -> Captured:
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(lane.dropout)
    with torch.cuda.stream(lane.stream), capturing(graph, pool=lane.pool):
        packed = body()
    return Captured(graph, packed, 0)
