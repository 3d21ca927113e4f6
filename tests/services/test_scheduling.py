"""Who gets which devices, in what order, and what the page says while a block waits; on both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.errors import ConflictError
from app.services import steering
from app.services.context import Actor, Context
from app.services.experiments import reading, submission
from app.services.queue import scheduling
from app.services.queue.waiting import queue_document
from app.services.results.finishing import finish_due
from app.services.training import assignments as shares
from app.services.training import sweeping, workers
from app.store.queue import leases
from lockstep import protocol as p
from lockstep.status import Desired
from tests.conftest import Clock
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

ONE_PER_DEVICE: dict[str, Any] = {"lockstep": {"placement": "one_per_device"}}


def with_settings(ctx: Context, **changes: Any) -> Context:
    return replace(ctx, settings=ctx.settings.model_copy(update=changes))


def fleet(ctx: Context, count: int, **given: Any) -> list[SimulatedWorker]:
    return [SimulatedWorker(ctx, f"w{index}", **given).register() for index in range(count)]


def waits(ctx: Context, experiment_id: str) -> str:
    why = reading.show_experiment(ctx, experiment_id)["why_waiting"]
    assert why["text"]
    return str(why["code"])


def block(ctx: Context, experiment_id: str, index: int = 0) -> dict[str, Any]:
    return reading.list_blocks(ctx, experiment_id)[index]


def order_of_claims(worker: SimulatedWorker, rounds: int = 1) -> list[str]:
    """Train what comes, one block after another; return the experiments in order."""
    order = []
    while worker.claim() is not None:
        order.append(worker.held.experiment_id)
        worker.train(rounds)
    return order


def one_round(**changes: Any) -> dict[str, Any]:
    return tiny_spec(budget={"rounds": 1}, eval={"every_rounds": 1}, **changes)


def test_gang_takes_all_devices_or_none(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(**ONE_PER_DEVICE))
    first = SimulatedWorker(ctx, "w0").register()
    assert first.claim() is None
    assert waits(ctx, experiment_id) == "class_unavailable"
    second = SimulatedWorker(ctx, "w1").register()
    assert second.claim() is not None
    assert first.claim() is not None
    assert not first.ready()
    assert second.ready()
    assert first.ready()
    assert block(ctx, experiment_id)["status"] == "running"


def test_gang_of_other_class_is_never_mixed(ctx: Context) -> None:
    submit(ctx, tiny_spec(**ONE_PER_DEVICE))
    SimulatedWorker(ctx, "w0", device_class="small").register()
    other = SimulatedWorker(ctx, "w1", device_class="large").register()
    assert other.claim() is None


def test_gang_rotates_arms_over_devices_by_replicate(ctx: Context) -> None:
    submit(ctx, one_round(experiment={"replicates": 2}, **ONE_PER_DEVICE))
    pair = fleet(ctx, 2)
    seen: list[dict[str, str]] = []
    for _ in range(2):
        for worker in pair:
            assert worker.claim() is not None
        seen.append({worker.name: worker.held.runs[0].arm for worker in pair})
        for worker in pair:
            worker.ready()
        for worker in pair:
            worker.hand_in(0)
        for worker in pair:
            worker.checkpoint(1)
            worker.release()
    assert seen == [{"w0": "A", "w1": "B"}, {"w0": "B", "w1": "A"}]


def test_gang_member_that_ends_first_leaves_its_peer_alone(ctx: Context) -> None:
    experiment_id = submit(ctx, one_round(**ONE_PER_DEVICE))
    first, second = fleet(ctx, 2)
    for worker in (first, second):
        worker.claim()
    for worker in (first, second):
        worker.ready()
    for worker in (first, second):
        worker.hand_in(0)
    first.checkpoint(1)
    first.release()
    assert block(ctx, experiment_id)["status"] == "running"
    second.checkpoint(1)
    second.release()
    assert block(ctx, experiment_id)["status"] == "succeeded"


def test_barrier_waits_for_the_peer_and_names_it(ctx: Context) -> None:
    submit(ctx, tiny_spec(**ONE_PER_DEVICE))
    first, second = fleet(ctx, 2)
    first.claim(), second.claim(), first.ready(), second.ready()
    reply = first.hand_in(0)
    assert reply.missing == [second.held.runs[0].run_id]
    held = first.held
    assert shares.barrier(ctx, held.block_id, held.attempt, 0).state == "waiting"
    assert second.hand_in(0).complete
    assert shares.barrier(ctx, held.block_id, held.attempt, 0).state == "complete"


def test_without_a_barrier_a_fast_run_leads_and_rounds_complete_together(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(lockstep={"placement": "one_per_device", "barrier": "none"}))
    first, second = fleet(ctx, 2)
    first.claim(), second.claim(), first.ready(), second.ready()
    first.hand_in(0)
    assert not first.hand_in(1).complete
    assert block(ctx, experiment_id)["open_round"] == 0
    first.checkpoint(2)
    first.release()
    second.hand_in(0)
    second.hand_in(1)
    second.checkpoint(2)
    assert block(ctx, experiment_id)["status"] == "succeeded"


def test_peer_lost_ends_the_attempt_for_all_and_both_resume_at_the_common_checkpoint(
    ctx: Context, clock: Clock
) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 3}, **ONE_PER_DEVICE))
    first, second = fleet(ctx, 2)
    sweeping.sweep(ctx)
    first.claim(), second.claim(), first.ready(), second.ready()
    first.hand_in(0), second.hand_in(0)
    first.checkpoint(1)
    second.checkpoint(1)
    first.hand_in(1), second.hand_in(1)
    first.checkpoint(2)
    for _ in range(8):
        clock.advance(0.5)
        first.beat()
        sweeping.sweep(ctx)
    assert first.beat().leases[0].desired == "abort"
    assert block(ctx, experiment_id)["status"] == "stopping"
    first.release("stopped", "preempted")
    assert block(ctx, experiment_id)["status"] == "queued"
    spare = SimulatedWorker(ctx, "w2").register()
    assert spare.claim() is not None
    assert first.claim() is not None
    assert {spare.held.resume_round, first.held.resume_round} == {1}


def test_priority_then_fair_share_then_submission_order_decide(ctx: Context) -> None:
    bob = Actor("bob", "local")
    first = submit(ctx, one_round())
    second = submit(ctx, one_round())
    urgent = submit(ctx, one_round(experiment={"priority": 90}))
    fair = submit(ctx, one_round(), actor=bob)
    with ctx.store.write() as session:
        from app.store.queue.scheduling import add_usage

        add_usage(session, ctx.store.now(session), "alice", 5000.0)
    worker = SimulatedWorker(ctx).register()
    assert order_of_claims(worker) == [urgent, fair, first, second]


def test_device_time_of_completed_blocks_counts_for_fair_share(ctx: Context, clock: Clock) -> None:
    submit(ctx, one_round())
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    clock.advance(600.0)
    worker.train(1)
    with ctx.store.read() as session:
        from app.store.queue.scheduling import owner_use

        assert owner_use(session, ctx.store.now(session)).shares["alice"] == pytest.approx(600.0, abs=60.0)
    runs = reading.list_runs(ctx, reading.list_experiments(ctx, reading.ListRequest())["items"][0]["id"])
    assert all(run["device_seconds"] == pytest.approx(300.0, abs=30.0) for run in runs)


def test_manual_order_acts_among_equals(ctx: Context) -> None:
    ids = [submit(ctx, one_round()) for _ in range(3)]
    steering.reorder(ctx, ids[2], LOCAL, before=None, after=None)
    steering.reorder(ctx, ids[0], LOCAL, before=None, after=ids[1])
    assert order_of_claims(SimulatedWorker(ctx).register()) == [ids[2], ids[1], ids[0]]


def test_owner_at_the_limit_waits_and_others_behind_a_long_queue_go_on(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "_BATCH", 2)
    limited = with_settings(ctx, owner_device_limit=1)
    mine = submit(limited, one_round(experiment={"replicates": 5}))
    first, second = fleet(limited, 2)
    assert first.claim() is not None
    assert second.claim() is None
    assert waits(limited, mine) == "owner_limit"
    theirs = submit(limited, one_round(), actor=Actor("bob", "local"))
    claimed = second.claim()
    assert claimed is not None
    assert claimed.experiment_id == theirs


def test_gang_that_has_waited_holds_its_class_from_later_blocks(ctx: Context, clock: Clock) -> None:
    patient = with_settings(ctx, gang_patience_seconds=5.0, lease_ttl_seconds=60.0)
    submit(patient, one_round())
    first, second = (SimulatedWorker(patient, name).register() for name in ("a", "b"))
    assert first.claim() is not None
    wide = submit(patient, tiny_spec(**ONE_PER_DEVICE))
    third = SimulatedWorker(patient, "c", device_class="other").register()
    for worker in (second, third):
        worker.beat("idle")
    clock.advance(6.0)
    later = submit(patient, one_round(experiment={"replicates": 3}))
    assert second.claim() is None
    claimed = third.claim()
    assert claimed is not None
    assert claimed.experiment_id == later
    assert queue_document(patient)["items"][0]["experiment_id"] == wide
    reasons = [item["why_waiting"]["code"] for item in queue_document(patient)["items"]]
    assert reasons == ["needs_devices", "held_for_gang", "held_for_gang"]


def test_auto_on_cpu_is_shared_and_stays_so(ctx: Context) -> None:
    experiment_id = submit(ctx, one_round(experiment={"replicates": 2}))
    pair = fleet(ctx, 2)
    assignments = [worker.claim() for worker in pair]
    assert [item.placement for item in assignments if item] == ["shared_device", "shared_device"]
    assert reading.show_experiment(ctx, experiment_id)["placement"] == "shared_device"


def test_auto_on_idle_gpus_takes_one_device_for_each_arm(ctx: Context) -> None:
    submit(ctx, one_round(lockstep={"placement": "auto"}))
    pair = fleet(ctx, 2, kind="gpu", device_class="H")
    assignments = [worker.claim() for worker in pair]
    assert [item.placement for item in assignments if item] == ["one_per_device", "one_per_device"]


def test_the_explanation_makes_the_pass_of_the_scheduler(ctx: Context) -> None:
    submit(ctx, one_round(experiment={"replicates": 2}, lockstep={"placement": "auto"}))
    trio = fleet(ctx, 3, kind="gpu", device_class="H")
    told = [item["why_waiting"]["code"] for item in queue_document(ctx)["items"]]
    assert told == ["starting", "behind_in_order"], "the placement of the first block holds for the second"
    assert len([worker for worker in trio if worker.claim()]) == 2
    assert [item["why_waiting"]["code"] for item in queue_document(ctx)["items"]] == ["needs_devices"]


def test_why_waiting_names_each_reason(ctx: Context, clock: Clock) -> None:
    experiment_id = submit(ctx, tiny_spec())
    assert waits(ctx, experiment_id) == "class_unavailable"
    blind = SimulatedWorker(ctx, "blind", datasets={}).register()
    assert waits(ctx, experiment_id) == "missing_data"
    images = submit(ctx, tiny_spec(env={"task": "cifar_baseline", "n_envs": 2, "horizon": 150}))
    assert "lockstep data fetch cifar10" in reading.show_experiment(ctx, images)["why_waiting"]["text"]
    steering.set_desired(ctx, images, Desired.CANCEL, "", LOCAL)
    workers.drain(ctx, blind.worker_id, LOCAL, now=False)
    worker = SimulatedWorker(ctx).register()
    assert waits(ctx, experiment_id) == "starting"
    steering.pause_queue(ctx, LOCAL, paused=True)
    assert waits(ctx, experiment_id) == "paused"
    steering.pause_queue(ctx, LOCAL, paused=False)
    worker.claim()
    behind = submit(ctx, tiny_spec())
    assert waits(ctx, behind) == "needs_devices"
    worker.release("error", "bug", detail="boom")
    assert waits(ctx, experiment_id) == "backoff"
    assert queue_document(ctx)["items"][0]["why_waiting"]["code"] == "starting"


def test_block_behind_others_is_told_so(ctx: Context) -> None:
    submit(ctx, tiny_spec(**ONE_PER_DEVICE))
    last = submit(ctx, tiny_spec(**ONE_PER_DEVICE))
    fleet(ctx, 2)
    assert waits(ctx, last) == "behind_in_order" or waits(ctx, last) == "needs_devices"


def test_reservation_not_collected_in_time_goes_back_without_budget(ctx: Context, clock: Clock) -> None:
    slow = with_settings(ctx, reservation_seconds=3.0)
    experiment_id = submit(slow)
    worker = SimulatedWorker(slow).register()
    sweeping.sweep(slow)
    assert scheduling.tick(slow) == 1
    for _ in range(60):
        clock.advance(0.5)
        worker.beat("idle")
        sweeping.sweep(slow)
    found = block(slow, experiment_id)
    assert (found["status"], found["cause"], found["attempt"]) == ("queued", None, 1)
    assert reading.show_worker(slow, worker.worker_id)["status"] == "idle"
    assert worker.claim() is not None


def test_worker_that_beats_keeps_what_it_has_not_collected_yet(ctx: Context, clock: Clock) -> None:
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    sweeping.sweep(ctx)
    scheduling.tick(ctx)
    for _ in range(10):
        clock.advance(0.5)
        worker.beat("idle")
        sweeping.sweep(ctx)
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "reserved"
    assert worker.claim() is not None


def test_ready_deadline_stops_the_gang_and_names_the_late_device(ctx: Context, clock: Clock) -> None:
    strict = with_settings(ctx, warmup_seconds=3.0)
    experiment_id = submit(strict)
    worker = SimulatedWorker(strict).register()
    sweeping.sweep(strict)
    worker.claim()
    for _ in range(8):
        clock.advance(0.5)
        worker.beat()
        sweeping.sweep(strict)
    found = block(strict, experiment_id)
    assert found["status"] == "stopping"
    assert worker.device.uid in found["cause_text"]


def test_drain_finishes_the_block_and_takes_none(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": 2}))
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    workers.drain(ctx, worker.worker_id, LOCAL, now=False)
    assert worker.beat().drain
    worker.train(2)
    assert [item["status"] for item in reading.list_blocks(ctx, experiment_id)] == ["succeeded", "queued"]
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "retired"


def test_drain_now_stops_at_the_round_border_as_preempted(ctx: Context) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim(), worker.ready(), worker.hand_in(0)
    workers.drain(ctx, worker.worker_id, LOCAL, now=True)
    assert worker.beat().leases[0].desired == "drain"
    worker.checkpoint(1)
    worker.release("stopped", "preempted")
    found = block(ctx, experiment_id)
    assert (found["status"], found["open_round"]) == ("queued", 1)
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "retired"


def test_preempted_with_the_last_results_in_succeeds(ctx: Context) -> None:
    experiment_id = submit(ctx, one_round())
    worker = SimulatedWorker(ctx).register()
    worker.claim(), worker.ready()
    workers.drain(ctx, worker.worker_id, LOCAL, now=True)
    worker.beat()
    worker.hand_in(0)
    worker.checkpoint(1)
    worker.release("stopped", "preempted")
    assert (block(ctx, experiment_id)["status"], block(ctx, experiment_id)["cause"]) == ("succeeded", None)


def fail_fast(ctx: Context, clock: Clock, worker: SimulatedWorker, cause: str = "bug", detail: str = "boom") -> None:
    """Claim what comes first and fail it at once."""
    clock.advance(1.0)
    assert worker.claim() is not None
    worker.release("error", cause, detail=detail)


def test_fast_failures_of_two_experiments_quarantine_the_device_until_an_operator_clears_it(
    ctx: Context, clock: Clock
) -> None:
    worker = SimulatedWorker(ctx).register()
    sweeping.sweep(ctx)
    ids = []
    for priority in (10, 90):
        ids.append(submit(ctx, tiny_spec(experiment={"priority": priority})))
        fail_fast(ctx, clock, worker, detail="CUDA error: device lost")
    shown = reading.show_worker(ctx, worker.worker_id)
    assert shown["status"] == "quarantined"
    assert "2 different experiments" in shown["status_text"]
    assert "device lost" in shown["status_text"]
    assert [block(ctx, experiment_id)["status"] for experiment_id in ids] == ["queued", "queued"]
    again = SimulatedWorker(ctx)
    for again.incarnation in ("second", "third"):
        clock.advance(2.0)
        shown = reading.show_worker(ctx, again.register().worker_id)
        assert shown["status"] == "quarantined"
        assert shown["status_text"].count("before its restart") == 1
    workers.clear(ctx, again.worker_id, LOCAL)
    again.beat("idle")
    assert reading.show_worker(ctx, again.worker_id)["status"] == "idle"
    with pytest.raises(ConflictError, match="not quarantined"):
        workers.clear(ctx, again.worker_id, LOCAL)


def test_an_experiment_that_fails_again_and_again_spends_its_budget_and_never_quarantines(
    ctx: Context, clock: Clock
) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    for _ in range(2):
        fail_fast(ctx, clock, worker)
    assert (block(ctx, experiment_id)["status"], block(ctx, experiment_id)["cause"]) == ("failed", "bug")
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "idle"


@pytest.mark.parametrize("cause", ["environment", "config", "oom"])
def test_what_the_job_did_never_counts_against_the_device(ctx: Context, clock: Clock, cause: str) -> None:
    submit(ctx), submit(ctx)
    worker = SimulatedWorker(ctx).register()
    for _ in range(2):
        fail_fast(ctx, clock, worker, cause)
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "idle"


def test_experiments_that_fail_on_another_worker_too_do_not_quarantine(ctx: Context, clock: Clock) -> None:
    ids = [submit(ctx), submit(ctx)]
    fleet = [SimulatedWorker(ctx, f"w{number}").register() for number in range(2)]
    for worker in fleet:
        clock.advance(1.0)
        assert worker.claim() is not None
    for worker in fleet:
        worker.release("error", "bug", detail="boom")
    for worker in reversed(fleet):  # each gets what failed on the other
        fail_fast(ctx, clock, worker)
    assert {reading.show_worker(ctx, worker.worker_id)["status"] for worker in fleet} == {"idle"}
    assert [block(ctx, experiment_id)["status"] for experiment_id in ids] == ["failed", "failed"]


def test_a_success_between_two_failures_clears_the_device(ctx: Context, clock: Clock) -> None:
    worker = SimulatedWorker(ctx).register()
    submit(ctx)
    fail_fast(ctx, clock, worker)
    submit(ctx, one_round(experiment={"priority": 90}))
    assert worker.claim() is not None
    worker.train(1)
    submit(ctx, one_round(experiment={"priority": 90}))
    fail_fast(ctx, clock, worker)
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "idle"


def test_a_refused_configuration_fails_the_queued_blocks_and_no_other_experiment(ctx: Context) -> None:
    experiment_id, innocent = submit(ctx, one_round(experiment={"replicates": 3})), submit(ctx, one_round())
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    refusal = p.Refusal(field="env.kwargs", message="TypeError: unexpected keyword 'lenght'", remedy="correct it")
    shares.ready(ctx, worker.held.assignment_id, worker.held.lease, p.ReadyRequest(refused=refusal))
    worker.release("error", "config")
    found = reading.list_blocks(ctx, experiment_id)
    assert [(item["status"], item["cause"]) for item in found] == [("failed", "config")] * 3
    assert "'lenght'" in found[0]["cause_text"]
    assert found[1]["cause_text"].startswith("same cause as replicate 0: ")
    assert "'lenght'" in found[2]["cause_text"]
    assert {run["status"] for run in reading.list_runs(ctx, experiment_id)} == {"failed"}
    assert reading.show_experiment(ctx, experiment_id)["status"] == "failed"
    assert worker.claim() is not None
    worker.train(1)
    assert block(ctx, innocent)["status"] == "succeeded"


@pytest.mark.parametrize("cause", ["bug", "timeout", "environment"])
def test_a_second_equal_failure_before_the_first_round_fails_the_queued_blocks(
    ctx: Context, clock: Clock, cause: str
) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": 3}))
    worker = SimulatedWorker(ctx).register()
    fail_fast(ctx, clock, worker, cause)
    assert [item["status"] for item in reading.list_blocks(ctx, experiment_id)] == ["queued"] * 3
    assert worker.claim() is not None, "the others go on while the first backs off"
    worker.ready(), worker.hand_in(0)
    worker.checkpoint(1)
    worker.release("stopped", "preempted")
    fail_fast(ctx, clock, worker, cause)
    first, *others = reading.list_blocks(ctx, experiment_id)
    assert (first["status"], first["attempt"]) == ("failed", 2)
    assert [(item["status"], item["cause"]) for item in others] == [("failed", cause)] * 2
    assert all(item["cause_text"].startswith("same cause as replicate 0: boom") for item in others)


def test_a_failure_after_the_first_round_costs_its_own_block_alone(ctx: Context, clock: Clock) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": 2}))
    worker = SimulatedWorker(ctx).register()
    for attempt in range(2):
        clock.advance(1.0)
        worker.claim(), worker.ready()
        if attempt == 0:
            worker.hand_in(0)
            worker.checkpoint(1)
        worker.release("error", "environment", detail="ValueError: boom")
        clock.advance(1.0)
    found = reading.list_blocks(ctx, experiment_id)
    assert [item["status"] for item in found] == ["failed", "queued"]


def test_one_start_may_be_lost_and_come_back_any_number_of_times(ctx: Context, clock: Clock) -> None:
    worker = SimulatedWorker(ctx).register()
    seen = {worker.worker_id}
    for _ in range(3):
        for _ in range(40):  # in small steps: after one long one the server would think that it had been away itself
            clock.advance(ctx.settings.lease_ttl_seconds / 20)
            sweeping.sweep(ctx)
        assert reading.show_worker(ctx, worker.worker_id)["status"] == "lost"
        seen.add(worker.register().worker_id)
    assert len(seen) == 4
    assert reading.show_worker(ctx, worker.register().worker_id)["id"] == worker.worker_id


@pytest.mark.parametrize(
    ("cause", "budget"),
    [("worker_lost", 5), ("oom", 1), ("bug", 1), ("timeout", 1), ("environment", 1), ("device", 3), ("config", 0)],
)
def test_requeue_budget_of_a_cause_is_spent_and_then_the_block_fails(
    ctx: Context, clock: Clock, cause: str, budget: int
) -> None:
    experiment_id = submit(ctx)
    attempts = 0
    while block(ctx, experiment_id)["status"] == "queued":
        clock.advance(1.0)
        worker = SimulatedWorker(ctx, f"w{attempts}").register()
        assert worker.claim() is not None
        worker.ready()
        worker.release("error", cause, detail="boom")
        workers.drain(ctx, worker.worker_id, LOCAL, now=False)
        attempts += 1
    found = block(ctx, experiment_id)
    assert (attempts, found["status"], found["cause"]) == (budget + 1, "failed", cause)
    assert "boom" in found["cause_text"]


def test_out_of_memory_twice_pinned_on_an_arm_is_that_arms_outcome(ctx: Context) -> None:
    experiment_id = submit(ctx)
    for attempt in range(2):
        worker = SimulatedWorker(ctx, f"w{attempt}").register()
        worker.claim(), worker.ready()
        guilty = next(run.run_id for run in worker.held.runs if run.arm == "B")
        request = p.ReleaseRequest(outcome="error", cause="oom", pinned_run=guilty)
        shares.release(ctx, worker.held.assignment_id, worker.held.lease, request)
        workers.drain(ctx, worker.worker_id, LOCAL, now=False)
    runs = {run["group_id"]: run for run in reading.list_runs(ctx, experiment_id)}
    assert (runs["B"]["status"], runs["B"]["cause"]) == ("failed", "diverged")
    assert block(ctx, experiment_id)["status"] == "queued"
    SimulatedWorker(ctx, "last").register()
    assert scheduling.tick(ctx) == 1


def test_after_out_of_memory_a_larger_device_is_preferred(ctx: Context) -> None:
    submit(ctx)
    small = SimulatedWorker(ctx, "small", memory_bytes=2**30).register()
    small.claim(), small.ready()
    small.release("error", "oom")
    large = SimulatedWorker(ctx, "large", memory_bytes=2**34).register()
    assert small.claim() is None
    assert large.claim() is not None


def test_retry_makes_a_new_generation_and_leaves_the_failed_one(ctx: Context) -> None:
    experiment_id = submit(ctx, one_round())
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    refused = p.ReadyRequest(refused=p.Refusal(field="env", message="no"))
    shares.ready(ctx, worker.held.assignment_id, worker.held.lease, refused)
    worker.release("error", "config")
    submission.retry(ctx, experiment_id, LOCAL)
    assert worker.claim() is not None
    worker.train(1)
    found = [(item["generation"], item["status"]) for item in reading.list_blocks(ctx, experiment_id)]
    assert found == [(0, "failed"), (1, "succeeded")]
    assert reading.show_experiment(ctx, experiment_id)["status"] == "succeeded"
    with pytest.raises(ConflictError, match="no block"):
        submission.retry(ctx, experiment_id, LOCAL)


def test_retry_of_a_paused_experiment_strands_no_block(ctx: Context) -> None:
    experiment_id = submit(ctx, one_round(experiment={"replicates": 2}))
    worker = SimulatedWorker(ctx).register()
    for _ in range(2):
        worker.claim()
        worker.release("error", "oom")
    steering.set_desired(ctx, experiment_id, Desired.PAUSE, "", LOCAL)
    submission.retry(ctx, experiment_id, LOCAL)
    assert steering.set_desired(ctx, experiment_id, Desired.RUN, "", LOCAL)
    assert len(order_of_claims(worker)) == 2


def test_extension_after_the_result_was_seen_is_refused_unless_exploratory(ctx: Context) -> None:
    spec = one_round(experiment={"replicates": 6}, analysis={"inference": "full"})
    experiment_id = submit(ctx, spec)
    order_of_claims(SimulatedWorker(ctx).register())
    finish_due(ctx)  # the report is there: `show`, `watch` and every page tell its verdict
    with pytest.raises(ConflictError) as refused:
        submission.extend(ctx, experiment_id, 2, LOCAL, exploratory=False)
    assert refused.value.code == "extension_breaks_guarantee"
    assert "ask with exploratory: true (lockstep extend --exploratory) to add blocks" in str(refused.value)
    submission.extend(ctx, experiment_id, 2, LOCAL, exploratory=True)
    assert reading.show_experiment(ctx, experiment_id)["exploratory_from"] == 6


def test_planned_look_that_decides_cancels_what_is_queued_as_decided(ctx: Context) -> None:
    analysis = {"inference": "full", "looks": {"mode": "planned", "at": [8, 16]}}
    spec = one_round(experiment={"replicates": 16, "kind": "aa"}, analysis=analysis)
    spec["arms"] = [{"label": "A", "reward": "shaped"}, {"label": "B", "reward": "shaped"}]
    experiment_id = submit(ctx, spec)
    worker = SimulatedWorker(ctx).register()
    for _ in range(8):
        worker.claim()
        worker.held.runs.sort(key=lambda run: run.arm)
        twin = [run.model_copy(update={"arm": "A"}) for run in worker.held.runs]
        worker.assignment = worker.held.model_copy(update={"runs": twin})
        worker.train(1)
    while finish_due(ctx):
        pass
    states = [(item["status"], item["cause"]) for item in reading.list_blocks(ctx, experiment_id)]
    assert states == [("succeeded", None)] * 8 + [("cancelled", "decided")] * 8
    assert reading.show_experiment(ctx, experiment_id)["status"] == "succeeded"


def test_worker_on_a_device_in_use_under_another_name_is_refused(ctx: Context) -> None:
    SimulatedWorker(ctx, "one", uid="cpu:host:0").register()
    with pytest.raises(ConflictError) as refused:
        SimulatedWorker(ctx, "two", uid="cpu:host:0").register()
    assert refused.value.code == "device_in_use"


def test_pause_is_undone_before_it_took_effect(ctx: Context) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim(), worker.ready(), worker.hand_in(0)
    steering.set_desired(ctx, experiment_id, Desired.PAUSE, "", LOCAL)
    steering.set_desired(ctx, experiment_id, Desired.RUN, "", LOCAL)
    worker.checkpoint(1)
    worker.release("stopped", "user")
    assert block(ctx, experiment_id)["status"] == "queued"


def test_a_worker_that_was_lost_with_an_offer_gets_that_one_and_no_second(ctx: Context, clock: Clock) -> None:
    lost, other = fleet(ctx, 2)
    ttl = ctx.settings.lease_ttl_seconds
    clock.advance(0.7 * ttl)
    other.beat("idle")
    submit(ctx, tiny_spec(experiment={"replicates": 3}))
    assert scheduling.tick(ctx) == 2
    # silent since it registered: lost before its offer is overdue
    clock.advance(0.6 * ttl)
    other.beat("idle")
    sweeping.sweep(ctx)
    assert lost.beat("idle").status == "idle"
    assert scheduling.tick(ctx) == 0
    assert lost.claim() is not None
    assert other.claim() is not None
    assert lost.held.block_id != other.held.block_id


def test_a_claim_that_read_an_offer_before_its_acceptance_leaves_the_token(ctx: Context) -> None:
    worker = fleet(ctx, 1)[0]
    submit(ctx, tiny_spec())
    assert worker.claim() is not None
    worker.ready()
    with ctx.store.write() as session:
        assert not leases.collect(session, {worker.held.assignment_id: leases.token_hash("another")}, 2e9)
    assert worker.hand_in(worker.held.resume_round) is not None
