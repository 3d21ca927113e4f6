"""Time-outs of a running block, limits of ingest, and a plan that writes nothing; on both databases."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sqlalchemy import func, select

from app.errors import ConflictError, InvalidError
from app.services import steering
from app.services.context import Actor, Context
from app.services.experiments import reading, submission
from app.services.training import ingest, sweeping
from app.store.schema import tables as t
from lockstep import protocol as p
from tests.conftest import Clock
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec


def running(ctx: Context, **changes: Any) -> SimulatedWorker:
    submit(ctx, tiny_spec(**changes))
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    return worker


def first_block(ctx: Context, worker: SimulatedWorker) -> dict[str, Any]:
    return reading.list_blocks(ctx, worker.held.experiment_id)[0]


def post(ctx: Context, worker: SimulatedWorker, **given: Any) -> p.PointsReply:
    held = worker.held
    size = len(given["value"])
    columns: dict[str, Any] = {
        "run_id": held.runs[0].run_id,
        "first_seq": 1,
        "names": ["sys/m"],
        "name_index": [0] * size,
        "step": list(range(size)),
        "round": [0] * size,
        "t": [0.0] * size,
    }
    request = p.PointsRequest.model_validate({"series": [{**columns, **given}]})
    return ingest.post_points(ctx, held.assignment_id, held.lease, request)


def test_child_without_a_frame_for_too_long_is_stopped_as_timeout(ctx: Context) -> None:
    settings = ctx.settings.model_copy(update={"stall_after_seconds": 5.0, "stall_kill_seconds": 20.0})
    strict = dataclasses.replace(ctx, settings=settings)
    worker = running(strict)
    worker.beat(frame_age_seconds=10.0)
    sweeping.sweep(strict)
    assert first_block(strict, worker)["status"] == "running"
    worker.beat(frame_age_seconds=21.0)
    sweeping.sweep(strict)
    found = first_block(strict, worker)
    assert (found["status"], found["cause"]) == ("stopping", "timeout")


def test_barrier_that_waits_too_long_stops_the_gang_and_names_the_late_run(ctx: Context, clock: Clock) -> None:
    lockstep = {"placement": "one_per_device", "barrier_timeout_seconds": 60}
    submit(ctx, tiny_spec(lockstep=lockstep))
    pair = [SimulatedWorker(ctx, f"w{n}").register() for n in range(2)]
    assert all(worker.claim() for worker in pair)
    assert [worker.ready() for worker in pair][-1]
    pair[0].hand_in(0)
    sweeping.sweep(ctx)
    for _ in range(62):
        clock.advance(1.0)
        for worker in pair:
            worker.beat()
        sweeping.sweep(ctx)
    found = first_block(ctx, pair[0])
    assert (found["status"], found["cause"]) == ("stopping", "timeout")
    assert pair[1].held.runs[0].run_id in found["cause_text"]
    assert pair[0].held.runs[0].run_id not in found["cause_text"]


def test_points_sent_again_are_stored_once_and_a_gap_is_not_acknowledged(ctx: Context) -> None:
    worker = running(ctx)
    run_id = worker.held.runs[0].run_id
    values = [0.5, None, None, None]
    marks = [(1, "nan"), (2, "inf"), (3, "-inf")]
    for _ in range(3):
        assert post(ctx, worker, value=values, nf=marks).acknowledged == {run_id: 4}
    assert post(ctx, worker, value=[1.0], first_seq=6).acknowledged == {run_id: 4}
    with ctx.store.read() as session:
        rows = session.execute(select(t.point.c.seq, t.point.c.value, t.point.c.kind).order_by(t.point.c.seq)).all()
    assert [tuple(row) for row in rows] == [(1, 0.5, 0), (2, None, 1), (3, None, 2), (4, None, 3), (6, 1.0, 0)]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"value": [0.0] * (p.MAX_POINTS + 1)}, "too_many_points"),
        ({"value": [0.0], "names": [f"m{n}" for n in range(p.MAX_METRIC_NAMES + 1)]}, "too_many_metrics"),
        ({"value": [0.0], "name_index": [1]}, "unknown_name_index"),
        ({"value": [0.0], "step": [1, 2]}, "ragged_points"),
        ({"value": [0.0], "run_id": "run_of_others"}, "foreign_run"),
    ],
)
def test_points_beyond_a_limit_are_refused_and_none_is_stored(ctx: Context, given: dict[str, Any], code: str) -> None:
    worker = running(ctx)
    with pytest.raises(InvalidError) as caught:
        post(ctx, worker, **given)
    assert caught.value.code == code
    with ctx.store.read() as session:
        assert session.execute(select(func.count()).select_from(t.point)).scalar_one() == 0


def test_plan_says_what_would_run_and_writes_nothing(ctx: Context) -> None:
    SimulatedWorker(ctx).register()

    def rows() -> dict[str, int]:
        with ctx.store.read() as session:
            tables = t.metadata.sorted_tables
            return {x.name: session.execute(select(func.count()).select_from(x)).scalar_one() for x in tables}

    before = rows()
    planned = submission.plan(ctx, tiny_spec(experiment={"replicates": 3}))
    assert (planned["num_blocks"], planned["num_runs"], planned["placement"]) == (3, 6, "shared_device")
    assert rows() == before


STEP = "environment 'Moody-v0' (number 3) in step 57 of its episode"


@pytest.mark.parametrize("is_ready", [True, False], ids=["training", "warm-up"])
def test_child_that_hangs_in_code_of_the_user_is_stopped_as_environment(ctx: Context, is_ready: bool) -> None:
    settings = ctx.settings.model_copy(update={"stall_after_seconds": 5.0, "stall_kill_seconds": 20.0})
    strict = dataclasses.replace(ctx, settings=settings)
    submit(strict, tiny_spec())
    worker = SimulatedWorker(strict).register()
    worker.claim()
    if is_ready:
        worker.ready()
    worker.beat(frame_age_seconds=21.0)
    worker.beat(frame_age_seconds=19.0, inside=STEP)
    sweeping.sweep(strict)
    assert first_block(strict, worker)["status"] == ("running" if is_ready else "reserved")
    worker.beat(frame_age_seconds=21.0, inside=STEP)
    sweeping.sweep(strict)
    found = first_block(strict, worker)
    assert (found["status"], found["cause"]) == ("stopping", "environment")
    assert found["cause_text"].startswith(f"{STEP} has not returned for 21 s, the limit is 20 s")


def test_child_not_ready_in_time_because_code_of_the_user_hangs_is_environment_and_counts(
    ctx: Context, clock: Clock
) -> None:
    settings = ctx.settings.model_copy(update={"warmup_seconds": 30.0})
    strict = dataclasses.replace(ctx, settings=settings)

    def fail(**progress: Any) -> dict[str, Any]:
        worker.claim()
        for _ in range(35):  # past the limit, and past what a gap between sweeps adds to it
            clock.advance(1.0)
            worker.beat(**progress)
            sweeping.sweep(strict)
        found = first_block(strict, worker)
        worker.release("stopped", "preempted")
        clock.advance(1.0)
        worker.beat("idle")
        return found

    submit(strict, tiny_spec())
    worker = SimulatedWorker(strict).register()
    ours = fail(frame_age_seconds=16.0)
    assert (ours["cause"], ours["cause_text"]) == ("worker_lost", f"not ready in time: {worker.device.uid}")
    theirs = fail(frame_age_seconds=16.0, inside=STEP)
    assert theirs["cause"] == "environment"
    assert theirs["cause_text"] == f"{STEP} has not returned for 16 s, and the limit until ready is 30 s"
    with ctx.store.read() as session:
        used = session.execute(select(t.block.c.budget_used)).scalars().first()
    assert used == {"worker_lost": 1, "environment": 1}, "no device is held again and again for nothing"


def test_gang_that_waits_for_an_arm_whose_environment_hangs_is_stopped_as_environment(
    ctx: Context, clock: Clock
) -> None:
    lockstep = {"placement": "one_per_device", "barrier_timeout_seconds": 60}
    settings = ctx.settings.model_copy(update={"stall_after_seconds": 40.0})
    strict = dataclasses.replace(ctx, settings=settings)
    submit(strict, tiny_spec(lockstep=lockstep))
    pair = [SimulatedWorker(strict, f"w{n}").register() for n in range(2)]
    assert all(worker.claim() for worker in pair)
    assert [worker.ready() for worker in pair][-1]
    pair[0].hand_in(0)
    for _ in range(62):
        clock.advance(1.0)
        pair[0].beat()
        pair[1].beat(frame_age_seconds=50.0, inside=STEP)
        sweeping.sweep(strict)
    found = first_block(strict, pair[0])
    assert (found["status"], found["cause"]) == ("stopping", "environment")
    assert found["cause_text"].startswith(f"{STEP} has not returned for 50 s, and round 0 waited over 60 s")


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        ("owner_quota_bytes", r"experiments of alice hold .* MiB of files \(LOCKSTEP_OWNER_QUOTA_BYTES\); delete"),
        (
            "owner_quota_points",
            r"of alice hold \d+ of 1 points of metrics \(LOCKSTEP_OWNER_QUOTA_POINTS\); delete",
        ),
        ("quota_bytes", r"all experiments hold .* MiB of files \(LOCKSTEP_QUOTA_BYTES\); delete"),
        ("quota_points", r"all experiments hold \d+ of 1 points of metrics \(LOCKSTEP_QUOTA_POINTS\); delete"),
    ],
)
def test_above_a_quota_new_work_is_refused_and_what_was_taken_goes_on(ctx: Context, quota: str, said: str) -> None:
    full = dataclasses.replace(ctx, settings=ctx.settings.model_copy(update={quota: 1}))
    first, later = submit(full, tiny_spec(experiment={"replicates": 1})), submit(full)
    worker = SimulatedWorker(full).register()
    worker.claim()
    worker.train(rounds=2)
    for work in (
        lambda: submit(full),
        lambda: submission.clone(full, first, {}, LOCAL),
        lambda: submission.extend(full, first, 1, LOCAL, exploratory=True),
    ):
        with pytest.raises(ConflictError, match=said):
            work()
    other = Actor("bob", "submitter", "tok_bob")
    if quota.startswith("owner"):
        submit(full, actor=other)
    else:
        with pytest.raises(ConflictError, match=said):
            submit(full, actor=other)
    worker.claim()
    worker.train(rounds=2)  # what was taken before is trained and stored to its end
    assert reading.list_blocks(full, later)[0]["status"] == "succeeded"
    for experiment_id in (first, later):
        steering.delete(full, experiment_id, LOCAL)
    submit(full)
