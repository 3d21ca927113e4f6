"""The graft timeline of a round: what counts after a resume, and who has none."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from app.errors import ConflictError, NotFoundError
from app.services.context import Context
from app.services.results import grafts
from app.services.training import assignments
from lockstep import protocol as p
from tests.conftest import Clock
from tests.factories import SimulatedWorker, cartpole_spec, submit, tiny_spec


def germinated(env: int, blueprint: str, step: int = 1) -> dict[str, Any]:
    told = {"slot": "r0c0", "blueprint": blueprint, "params": 614, "alpha": 0.0, "c": None, "cf": None}
    return {"type": "graft_germinated", "env_id": env, "step": step, **told}


def hand_in(worker: SimulatedWorker, index: int, events: list[dict[str, Any]]) -> None:
    """Hand in a round in which the first run had these events."""
    held = worker.held
    runs = [
        p.RunRound(
            run_id=run.run_id,
            digest=hashlib.sha256(f"{run.arm}{index}".encode()).hexdigest(),
            env_steps=10,
            first_seq=index + 1,
            metrics={"train/return_mean": 1.0},
            events=events if run is held.runs[0] else [],
        )
        for run in held.runs
    ]
    assignments.put_round(
        worker.ctx, held.assignment_id, held.lease, index, p.RoundRequest(runs=runs, update_order=[0, 1], seconds=0.1)
    )


def test_round_trained_again_shows_the_events_that_count(ctx: Context, clock: Clock) -> None:
    submit(ctx, tiny_spec(budget={"rounds": 3}))
    worker = SimulatedWorker(ctx).register()
    assert worker.claim() is not None
    worker.ready()
    run_id = worker.held.runs[0].run_id
    hand_in(worker, 0, [germinated(0, "norm"), germinated(1, "lora")])
    worker.checkpoint(1)
    hand_in(worker, 1, [germinated(1, "superseded")])
    worker.release("error", "worker_lost", "killed")
    clock.advance(60.0)
    worker.beat("idle")
    assert worker.claim() is not None
    worker.ready()
    clock.advance(1.0)
    hand_in(worker, 1, [germinated(1, "attention", step=3)])
    found = grafts.timeline(ctx, run_id)
    assert (found["round"], found["rounds"], found["horizon"], found["envs"]) == (1, 2, 8, [0, 1])
    assert [(item["env_id"], item["blueprint"], item["step"]) for item in found["changes"]] == [(1, "attention", 3)]
    first = grafts.timeline(ctx, run_id, 0)["changes"]
    assert [(item["env_id"], item["blueprint"], item["stage"], item["alpha"]) for item in first] == [
        (0, "norm", "GERMINATED", 0.0),
        (1, "lora", "GERMINATED", 0.0),
    ]
    with pytest.raises(NotFoundError, match="completed 2 rounds; there is no round 2"):
        grafts.timeline(ctx, run_id, 2)


def test_other_families_grow_nothing(ctx: Context) -> None:
    submit(ctx, cartpole_spec())
    with ctx.store.read() as session:
        run_id = session.connection().exec_driver_sql("SELECT id FROM run").scalars().first()
    with pytest.raises(ConflictError, match="only morphogenesis grows grafts"):
        grafts.timeline(ctx, str(run_id))
