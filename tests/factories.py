"""Builders of specs and of simulated workers, in the open."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.errors import AppError
from app.services.context import Actor, Context
from app.services.experiments import submission
from app.services.queue import claims
from app.services.training import assignments, ingest, workers
from app.services.training.ingest import Upload
from lockstep import protocol as p
from lockstep.spec.presets import merge

LOCAL = Actor("alice", "local")


def tiny_spec(**changes: Any) -> dict[str, Any]:
    """Return a valid two-arm spec that trains in about a second a round on one CPU thread."""
    spec: dict[str, Any] = {
        "experiment": {"name": "tiny", "seed": 7, "replicates": 1},
        "preset": "digits_cpu",
        "budget": {"rounds": 2},
        "env": {"n_envs": 2, "horizon": 8, "batches_per_step": 2},
        "ppo": {"minibatches": 2, "epochs": 2},
        "net": {"hidden": 16, "lstm_hidden": 16},
        "eval": {"episodes": 2, "every_rounds": 2},
        "arms": [{"label": "A", "reward": "shaped"}, {"label": "B", "reward": "simplified"}],
        "analysis": {"primary": "eval/accuracy", "sesoi": 2.0, "inference": "none", "failure": {"floor": 0.0}},
    }
    return merge(spec, changes)


def cartpole_spec(**changes: Any) -> dict[str, Any]:
    """Return a valid two-arm CartPole spec whose rounds take a fraction of a second; the analysis is left open."""
    spec: dict[str, Any] = {
        "experiment": {"name": "cartpole", "seed": 7, "replicates": 1},
        "preset": "gym_classic",
        "budget": {"rounds": 3},
        "env": {"id": "CartPole-v1"},
        "eval": {"episodes": 2, "every_rounds": 3},
        "arms": [{"label": "A"}, {"label": "B", "overrides": {"ppo.clip": 0.1}}],
    }
    return merge(spec, changes)


def submit(ctx: Context, spec: Mapping[str, Any] | None = None, actor: Actor = LOCAL) -> str:
    """Submit a spec and return the id."""
    return submission.submit(ctx, spec or tiny_spec(), actor)


def claim(ctx: Context, worker_id: str) -> p.Assignment | None:
    """Hand one worker what it was offered, after a look at the queue where that is nothing; raise why it is to go."""
    seen = claims.look(ctx, [worker_id])
    answer = {**seen.answers, **(claims.tell(ctx, seen.others) if seen.others else {})}.get(worker_id)
    if isinstance(answer, AppError):
        raise answer
    return answer


class SimulatedWorker:
    """A worker without a trainer: speaks the protocol through the use cases."""

    def __init__(
        self, ctx: Context, name: str = "w0", *, kind: Any = "cpu", device_class: str = "cpu", **given: Any
    ) -> None:
        self.ctx = ctx
        self.name = name
        self.incarnation = f"{name}-1"
        self.device = p.Device(
            uid=given.pop("uid", f"cpu:host:{name}" if kind == "cpu" else f"GPU-{name}"),
            kind=kind,
            device_class=device_class,
            model="test",
            memory_bytes=given.pop("memory_bytes", 2**34),
        )
        self.given = {"datasets": {"digits": "f" * 64}, **given}
        self.worker_id = ""
        self.assignment: p.Assignment | None = None
        #: Accuracy by arm and replicate; None: made up.
        self.accuracy: Callable[[str, int], float] | None = None

    def register(self) -> SimulatedWorker:
        """Register and pass the device check."""
        request = p.RegisterRequest(
            name=self.name, host="host", incarnation=self.incarnation, device=self.device, **self.given
        )
        self.worker_id = workers.register(self.ctx, request).worker_id
        self.beat("idle")
        return self

    def beat(self, state: str = "working", **progress: Any) -> p.HeartbeatReply:
        """Send a heartbeat."""
        reports = []
        if self.assignment is not None:
            reports = [p.Progress(assignment_id=self.assignment.assignment_id, lease=self.assignment.lease, **progress)]
        beat = p.HeartbeatRequest(incarnation=self.incarnation, state=state, progress=reports)
        return workers.heartbeat(self.ctx, self.worker_id, beat)

    def claim(self) -> p.Assignment | None:
        """Claim once."""
        self.assignment = claim(self.ctx, self.worker_id)
        return self.assignment

    @property
    def held(self) -> p.Assignment:
        """The assignment held."""
        assert self.assignment is not None
        return self.assignment

    def ready(self, **warm_up: Any) -> bool:
        """Say that the child is ready; return whether the start barrier is open."""
        held = self.held
        request = p.ReadyRequest(device_uid=self.device.uid, resume_round=held.resume_round, warm_up=warm_up)
        return assignments.ready(self.ctx, held.assignment_id, held.lease, request).start

    def hand_in(self, index: int, *, flavour: str = "", diverged: Sequence[str] = (), **given: Any) -> p.RoundReply:
        """Hand in a round of every run of the share, with made-up but reproducible numbers."""
        held = self.held
        runs = [self._round(run, index, flavour, diverged, **given) for run in held.runs if not run.diverged]
        request = p.RoundRequest(runs=runs, update_order=[0, 1], seconds=0.1)
        return assignments.put_round(self.ctx, held.assignment_id, held.lease, index, request)

    def _round(self, run: p.AssignedRun, index: int, flavour: str, diverged: Sequence[str], **given: Any) -> p.RunRound:
        value = float(int(hashlib.sha256(f"{run.arm}{self.held.replicate}{index}".encode()).hexdigest()[:4], 16))
        accuracy = value / 1000 if self.accuracy is None else self.accuracy(run.arm, self.held.replicate)
        metrics: dict[str, float | None] = {"eval/accuracy": accuracy, "train/return_mean": value}
        first = (index - self.held.resume_round) * len(metrics) + 1
        episode = {"env_id": 0, "episode_idx": index, "round": index, "final_accuracy": value / 1000}
        return p.RunRound(
            run_id=run.run_id,
            digest=hashlib.sha256(f"{run.arm}{index}{flavour}".encode()).hexdigest(),
            env_steps=(index + 1) * 10,
            first_seq=first,
            metrics=metrics,
            episodes=[{**episode, "episode_reward": value, **given}],
            diverged="NaN in the policy" if run.arm in diverged else None,
        )

    def checkpoint(self, next_round: int) -> None:
        """Upload and commit a checkpoint of every run."""
        held = self.held
        commits = []
        for run in held.runs:
            if run.diverged:
                continue
            body = json.dumps([run.run_id, held.attempt, next_round]).encode()
            digest = hashlib.sha256(body).hexdigest()
            upload = Upload(run.run_id, "checkpoint", f"{run.arm}.safetensors", next_round, digest)
            ingest.put_file(self.ctx, held.assignment_id, held.lease, upload, [body])
            commits.append(p.CommitRun(run_id=run.run_id, sha256=digest))
        request = p.CommitRequest(next_round=next_round, runs=commits)
        ingest.commit(self.ctx, held.assignment_id, held.lease, request)

    def release(self, outcome: str = "completed", cause: str | None = None, detail: str = "") -> None:
        """End the share and pass the device check."""
        held = self.held
        request = p.ReleaseRequest(outcome=outcome, cause=cause, detail=detail)
        assignments.release(self.ctx, held.assignment_id, held.lease, request)
        self.assignment = None
        self.beat("idle")

    def train(self, rounds: int) -> None:
        """Train a claimed share to its end."""
        assert self.ready()
        for index in range(self.held.resume_round, rounds):
            self.hand_in(index)
            self.checkpoint(index + 1)
        self.release()
