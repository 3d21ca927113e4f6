"""Simulated workers that fail as real ones do: killed, cut off, answers lost, fenced by their own clock.

Their training is a chain of hashes: round n depends on every round before it and travels in the
checkpoint, so a lost, doubled or mixed round shows in the digests that the server holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from app.errors import ConflictError, GoneError, LeaseLostError, NotFoundError
from app.services.context import Context
from app.services.training import assignments, ingest, workers
from app.services.training.ingest import Upload
from lockstep import protocol as p
from tests.conftest import Clock
from tests.factories import claim

_CAUSES = {"cancel": "user", "pause": "user", "drain": "preempted", "abort": "preempted"}


def link(chain: str, index: int) -> str:
    """Return the state after a round."""
    return hashlib.sha256(f"{chain}|{index}".encode()).hexdigest()


def ideal_chain(arm: str, replicate: int, rounds: int) -> list[str]:
    """Return the digests of an undisturbed run."""
    chain, found = f"{arm}/{replicate}", []
    for index in range(rounds):
        chain = link(chain, index)
        found.append(chain)
    return found


class Wall(Clock):
    """True time, which workers measure, and the database clock, which may jump away from it."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0
        self.jumped = 0.0

    def __call__(self, at: float) -> float:
        """Return the time of the database clock."""
        return super().__call__(at) + self.elapsed + self.jumped


class FlakyWorker:
    """A supervisor with its child, one step at a time."""

    def __init__(self, ctx: Context, wall: Wall, name: str) -> None:
        self.ctx, self.wall, self.name = ctx, wall, name
        self.starts = 0
        self.cut = False
        self.up = self.asks = False
        self.worker_id = ""
        self._drop()

    def _drop(self) -> None:
        self.held: p.Assignment | None = None
        self.started = False
        self.chains: dict[str, str] = {}
        self.live: list[p.AssignedRun] = []
        self.next_round = self.saved = 0
        self.owes_checkpoint = False
        self.stop_cause: str | None = None
        self.kill_at = float("inf")
        self.heard_at = self.wall.elapsed

    @property
    def device(self) -> p.Device:
        return p.Device(uid=f"cpu:host:{self.name}", kind="cpu", device_class="cpu", model="test", memory_bytes=2**34)

    def start(self) -> None:
        """Start (again) as a new incarnation of the same worker; asks on while its older one was heard lately."""
        self.starts += 1
        self.kill()
        request = p.RegisterRequest(
            name=self.name,
            host="host",
            incarnation=f"{self.name}-{self.starts}",
            device=self.device,
            datasets={"digits": "f" * 64},
        )
        try:
            self.worker_id = workers.register(self.ctx, request).worker_id
        except ConflictError as error:
            if error.code != "device_in_use":
                raise
            self.asks = True
        else:
            self.up, self.cut = True, False

    def kill(self) -> None:
        """kill -9 of supervisor and child."""
        self.up = self.asks = False
        self._drop()

    def is_fenced(self) -> bool:
        """Return whether the child stands still because no heartbeat was answered."""
        settings = self.ctx.settings
        limit = settings.lease_ttl_seconds - 2 * settings.heartbeat_seconds
        return self.wall.elapsed - self.heard_at > limit

    def trains(self) -> list[str]:
        """Return the ids of the runs that a child of this worker trains right now."""
        if self.held is None or not self.started or self.is_fenced() or self.wall.elapsed >= self.kill_at:
            return []
        return [run.run_id for run in self.live]

    def call(self, act: Callable[[], Any], use: Callable[[Any], None], lost: str = "") -> None:
        """Call the server; ``lost`` is request or answer."""
        if not self.up or self.cut or lost == "request":
            return
        try:
            answer = act()
        except (LeaseLostError, NotFoundError):
            self._drop()
            return
        except GoneError:
            self.kill()
            return
        if lost != "answer":
            use(answer)

    def beat(self, lost: str = "") -> None:
        """Send a heartbeat and act on its answer."""
        if self.asks:
            self.start()
        sent = self.wall.elapsed
        reports = []
        if self.held is not None:
            reports = [p.Progress(assignment_id=self.held.assignment_id, lease=self.held.lease)]
        state: Any = "idle" if self.held is None else "working"
        beat = p.HeartbeatRequest(incarnation=f"{self.name}-{self.starts}", state=state, progress=reports)
        self.call(
            lambda: workers.heartbeat(self.ctx, self.worker_id, beat), lambda reply: self._heard(reply, sent), lost
        )

    def _heard(self, reply: p.HeartbeatReply, sent: float) -> None:
        for lease in reply.leases:
            if not lease.valid:
                self._drop()
                return
            self.heard_at = sent
            if lease.desired != "run" and self.stop_cause is None:
                self.stop_cause = _CAUSES[lease.desired]
                within = lease.stop_within_seconds or 60.0
                grace = max(0.5, min(self.held.grace_seconds if self.held else 60.0, within - 2.0))
                self.kill_at = self.wall.elapsed + grace

    def step(self, lost: str = "") -> None:
        """Do the next thing of the share: claim, ready, round, checkpoint or release."""
        held = self.held
        if held is None:
            self.call(lambda: claim(self.ctx, self.worker_id), self._claimed, lost)
        elif self.is_fenced():
            return
        elif self.wall.elapsed >= self.kill_at:
            self.release("stopped", self.stop_cause, lost)
        elif not self.started:
            self._step_ready(held, lost)
        elif self.owes_checkpoint:
            self._step_checkpoint(held, lost)
        elif self.stop_cause is not None or self.next_round >= held.rounds:
            finished = self.next_round >= held.rounds
            self.release("completed" if finished else "stopped", None if finished else self.stop_cause, lost)
        else:
            self._step_round(held, lost)

    def _claimed(self, claimed: p.Assignment | None) -> None:
        if claimed is None:
            return
        self._drop()
        held = self.held = claimed
        self.live = [run for run in held.runs if not run.diverged]
        self.next_round = self.saved = held.resume_round
        for run in self.live:
            self.chains[run.run_id] = f"{run.arm}/{held.replicate}"
            if run.checkpoint is not None:
                body = ingest.read_file(self.ctx, held.assignment_id, held.lease, run.checkpoint.sha256)
                chain, next_round = json.loads(body)
                assert next_round == held.resume_round, "a checkpoint of another round"
                self.chains[run.run_id] = chain
            else:
                assert held.resume_round == 0, "resumed without a checkpoint"

    def _step_ready(self, held: p.Assignment, lost: str) -> None:
        if self.stop_cause is not None:
            self.release("stopped", self.stop_cause, lost)
            return
        request = p.ReadyRequest(device_uid=self.device.uid, resume_round=held.resume_round)

        def use(reply: p.ReadyReply) -> None:
            self.started = reply.start

        self.call(lambda: assignments.ready(self.ctx, held.assignment_id, held.lease, request), use, lost)

    def _step_round(self, held: p.Assignment, lost: str) -> None:
        index = self.next_round
        if index > held.resume_round:
            barrier = assignments.barrier(self.ctx, held.block_id, held.attempt, index - 1) if not self.cut else None
            if barrier is None or barrier.state == "waiting":
                return
            if barrier.state == "aborted":
                self.stop_cause = self.stop_cause or "preempted"
                return
        runs = [self._result(held, run, index) for run in self.live]

        def use(_reply: p.RoundReply) -> None:
            for run in self.live:
                self.chains[run.run_id] = link(self.chains[run.run_id], index)
            self.next_round = index + 1
            self.owes_checkpoint = True

        request = p.RoundRequest(runs=runs, update_order=[0, 1], seconds=0.1)
        self.call(lambda: self._put(held, index, request), use, lost)

    def _put(self, held: p.Assignment, index: int, request: p.RoundRequest) -> p.RoundReply:
        try:
            return assignments.put_round(self.ctx, held.assignment_id, held.lease, index, request)
        except LeaseLostError:
            raise
        except ConflictError as error:
            raise AssertionError(f"{error.code}: {error.detail}") from error

    def _result(self, held: p.Assignment, run: p.AssignedRun, index: int) -> p.RunRound:
        digest = link(self.chains[run.run_id], index)
        value = float(int(digest[:4], 16))
        metrics: dict[str, float | None] = {"eval/accuracy": value / 1000, "train/return_mean": value}
        return p.RunRound(
            run_id=run.run_id,
            digest=digest,
            env_steps=(index + 1) * 10,
            first_seq=(index - held.resume_round) * len(metrics) + 1,
            metrics=metrics,
            episodes=[{"env_id": 0, "episode_idx": index, "round": index, "final_accuracy": value / 1000}],
        )

    def _step_checkpoint(self, held: p.Assignment, lost: str) -> None:
        def act() -> None:
            commits = []
            for run in self.live:
                body = json.dumps([self.chains[run.run_id], self.next_round]).encode()
                digest = hashlib.sha256(body).hexdigest()
                upload = Upload(run.run_id, "checkpoint", f"{run.arm}.safetensors", self.next_round, digest)
                ingest.put_file(self.ctx, held.assignment_id, held.lease, upload, [body])
                commits.append(p.CommitRun(run_id=run.run_id, sha256=digest))
            request = p.CommitRequest(next_round=self.next_round, runs=commits)
            ingest.commit(self.ctx, held.assignment_id, held.lease, request)

        def use(_reply: None) -> None:
            self.saved, self.owes_checkpoint = self.next_round, False

        self.call(act, use, lost)

    def release(self, outcome: Any, cause: Any, lost: str = "", detail: str = "") -> None:
        """End the share; the device check passes with the next heartbeat."""
        held = self.held
        if held is None:
            return
        request = p.ReleaseRequest(outcome=outcome, cause=cause, detail=detail)
        self.call(
            lambda: assignments.release(self.ctx, held.assignment_id, held.lease, request), lambda _: self._drop(), lost
        )
