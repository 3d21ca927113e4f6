"""The life of blocks through the use cases, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from app.cli.text import show_text
from app.errors import ConflictError, LeaseLostError
from app.services import steering
from app.services.context import Context
from app.services.experiments import reading
from app.services.results import exports, reports
from app.services.results.finishing import finish_due
from app.services.training import sweeping
from app.store.records import events
from app.store.schema import tables as t
from lockstep.report.rendering.tables import fact_items, flag_texts
from lockstep.status import BlockStatus, Desired, ExperimentStatus, RunStatus
from tests.conftest import Clock
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec


def blocks_of(ctx: Context, experiment_id: str) -> list[str]:
    return [block["status"] for block in reading.list_blocks(ctx, experiment_id)]


def test_block_trained_to_its_end_succeeds_and_is_reported(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": 2}))
    worker = SimulatedWorker(ctx).register()
    for _ in range(2):
        assert worker.claim() is not None
        worker.train(rounds=2)
    assert blocks_of(ctx, experiment_id) == ["succeeded", "succeeded"]
    with ctx.store.read() as session:
        told = events.list_events(session, experiment_id, after=0, limit=1000, types=["block_status"])
    assert [event.text for event in told if event.replicate == 1 and event.status == "succeeded"] == [
        "block of replicate 1 has succeeded"
    ]
    assert finish_due(ctx) == 1
    assert reading.show_experiment(ctx, experiment_id)["status"] == ExperimentStatus.SUCCEEDED
    report = reports.read(ctx, experiment_id).content
    assert report["verdict"]["code"] == "NO_INFERENCE"
    assert report["facts"]["complete_blocks"] == 2
    assert finish_due(ctx) == 0


def test_report_names_the_rounds_at_which_runs_were_resumed(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 4}))
    worker = SimulatedWorker(ctx).register()
    for resume in (1, 3):
        assert worker.claim() is not None
        worker.ready()
        for index in range(worker.held.resume_round, resume + 1):
            worker.hand_in(index)
            worker.checkpoint(index + 1) if index < resume else None
        worker.release("error", "worker_lost", "killed")
    assert worker.claim() is not None
    worker.train(rounds=4)
    finish_due(ctx)
    report = reports.read(ctx, experiment_id).content
    assert list(report["facts"]["resumed_at"].values()) == [[1, 3], [1, 3]]
    gate = next(item for item in report["integrity"] if item["gate"] == "no run resumed")
    assert (
        gate["detail"] == "resumed from a checkpoint: A of replicate 0 at rounds 1, 3; B of replicate 0 at rounds 1, 3"
    )


def test_report_tells_what_holds_only_in_part_with_a_simulator(ctx: Context) -> None:
    limits = {"Common random numbers": "hold for each batch", "Resumed episodes": "began anew", "other": "no fact"}
    facts = []
    for resumed in (False, True):
        experiment_id = submit(ctx, tiny_spec(budget={"rounds": 2}))
        worker = SimulatedWorker(ctx).register()
        assert worker.claim() is not None
        worker.ready(record={"limits": limits})
        if resumed:
            worker.hand_in(0)
            worker.checkpoint(1)
            worker.release("error", "worker_lost", "killed")
            assert worker.claim() is not None
            worker.ready(record={"limits": limits})
        for index in range(int(resumed), 2):
            worker.hand_in(index)
            worker.checkpoint(index + 1)
        worker.release()
        finish_due(ctx)
        facts.append(dict(fact_items(reports.read(ctx, experiment_id).content)))
    assert [told.get("Common random numbers") for told in facts] == ["hold for each batch", "hold for each batch"]
    assert [told.get("Resumed episodes") for told in facts] == [None, "began anew"]
    assert not any("other" in told for told in facts)


def _tell_other_code(ctx: Context, worker: SimulatedWorker, former: str) -> None:
    """Look at what is told of code where an equal experiment is submitted, and where both are compared."""
    spec = tiny_spec(budget={"rounds": 1}, experiment={"replicates": 4})
    again = submit(ctx, spec)
    told = f"an equal experiment, {former}, exists; the code of plug-in 'mine' changed between its runs, so"
    assert any(told in text for text in reading.show_experiment(ctx, again)["warnings"])
    assert exports.compare(ctx, [former, again])["rows"][-1]["key"] != "plug-in code"  # nothing of it ran
    worker.claim()
    worker.ready(record={"plugins": {"mine": "mine 1.0 (cccc)"}})
    row = exports.compare(ctx, [former, again])["rows"][-1]
    first, second = "mine of mine 1.0 (aaaa) and mine 1.0 (bbbb)", "mine of mine 1.0 (cccc)"
    assert (row["key"], row["values"]) == ("plug-in code", [first, first, second, second])
    told = f"an equal experiment, {again}, exists: the same runs again, if plug-in 'mine' is still mine 1.0 (cccc)"
    assert told in reading.show_experiment(ctx, submit(ctx, spec))["warnings"]


def test_code_of_a_plug_in_that_changes_between_blocks_is_told_once_when_a_block_starts(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 1}, experiment={"replicates": 4}))
    worker = SimulatedWorker(ctx).register()
    for code in ("mine 1.0 (aaaa)", "mine 1.0 (aaaa)", "mine 1.0 (bbbb)", "mine 1.0 (bbbb)"):
        assert worker.claim() is not None
        worker.ready(record={"plugins": {"mine": code}})
        worker.hand_in(0)
        worker.checkpoint(1)
        worker.release()
    with ctx.store.read() as session:
        told = events.list_events(session, experiment_id, after=0, limit=1000, types=["plugin_changed"])
    text = (
        "the code of plug-in 'mine' changed from mine 1.0 (aaaa) to mine 1.0 (bbbb); a report over both is invalid: "
        "clone the experiment to train all with one"
    )
    assert [(event.severity, event.replicate, event.text) for event in told] == [("warning", 2, text)]
    _tell_other_code(ctx, worker, experiment_id)
    shown = reading.show_experiment(ctx, experiment_id)
    assert f"warning: {text}" in show_text(shown, []).splitlines()
    finish_due(ctx)
    report = reports.read(ctx, experiment_id).content
    assert [item["detail"] for item in report["integrity"] if item["gate"] == "plug-in code"] == [
        "the code of a plug-in changed between runs (mine: mine 1.0 (aaaa) in replicates 0, 1, mine 1.0 (bbbb) in "
        "replicates 2, 3); clone it to train all with one"
    ]


def test_code_of_a_plug_in_that_changes_before_a_resume_is_told(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 2}))
    worker = SimulatedWorker(ctx).register()
    for code in ("mine 1.0 (aaaa)", "mine 1.0 (bbbb)", "mine 1.0 (bbbb)"):
        assert worker.claim() is not None
        worker.ready(record={"plugins": {"mine": code}})
        if not worker.held.resume_round:
            worker.hand_in(0)
            worker.checkpoint(1)
        worker.release("error", "worker_lost", "killed")
    told = [text for text in reading.show_experiment(ctx, experiment_id)["warnings"] if "plug-in" in text]
    assert [text.partition(";")[0] for text in told] == [
        "the code of plug-in 'mine' changed from mine 1.0 (aaaa) to mine 1.0 (bbbb)"
    ]


def test_claim_repeated_returns_the_same_assignment(ctx: Context) -> None:
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    first = worker.claim()
    second = worker.claim()
    assert first is not None
    assert second is not None
    assert first.assignment_id == second.assignment_id
    assert worker.ready()


def test_round_handed_in_twice_is_stored_once(ctx: Context) -> None:
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    assert worker.hand_in(0).complete
    assert worker.hand_in(0).complete
    with pytest.raises(ConflictError, match="twice with different"):
        worker.hand_in(0, flavour="other")


def test_round_that_is_not_open_is_refused(ctx: Context) -> None:
    submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    with pytest.raises(ConflictError) as refused:
        worker.hand_in(1)
    assert refused.value.code == "round_not_open"


def test_lease_expired_block_goes_back_to_the_last_common_checkpoint(ctx: Context, clock: Clock) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 4}))
    lost, heir = SimulatedWorker(ctx, "lost").register(), SimulatedWorker(ctx, "heir").register()
    sweeping.sweep(ctx)
    lost.claim()
    lost.ready()
    lost.hand_in(0)
    lost.checkpoint(1)
    lost.hand_in(1)
    for _ in range(8):
        clock.advance(0.5)
        heir.beat("idle")
        sweeping.sweep(ctx)
    assert blocks_of(ctx, experiment_id) == ["queued"]
    with pytest.raises(LeaseLostError):
        lost.hand_in(2)
    assignment = heir.claim()
    assert assignment is not None
    assert (assignment.attempt, assignment.resume_round) == (2, 1)
    assert all(run.checkpoint is not None for run in assignment.runs)
    heir.train(rounds=4)
    assert blocks_of(ctx, experiment_id) == ["succeeded"]


def test_control_plane_away_expires_no_lease(ctx: Context, clock: Clock) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    sweeping.sweep(ctx)
    worker.claim()
    worker.ready()
    clock.advance(3600.0)
    sweeping.sweep(ctx)
    assert blocks_of(ctx, experiment_id) == ["running"]
    assert worker.beat().leases[0].valid


def test_cancel_of_running_block_ends_cancelled_even_with_the_last_round(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 1}))
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    assert steering.set_desired(ctx, experiment_id, Desired.CANCEL, "enough", LOCAL)
    assert worker.beat().leases[0].desired == "cancel"
    worker.hand_in(0)
    worker.checkpoint(1)
    worker.release("stopped", "user")
    assert blocks_of(ctx, experiment_id) == ["cancelled"]
    assert reading.show_experiment(ctx, experiment_id)["status"] == ExperimentStatus.CANCELLED


def test_pause_and_resume_continue_at_the_checkpoint(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 3}))
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    worker.hand_in(0)
    steering.set_desired(ctx, experiment_id, Desired.PAUSE, "", LOCAL)
    worker.checkpoint(1)
    worker.release("stopped", "user")
    assert blocks_of(ctx, experiment_id) == ["paused"]
    assert worker.claim() is None
    steering.set_desired(ctx, experiment_id, Desired.RUN, "", LOCAL)
    assignment = worker.claim()
    assert assignment is not None
    assert assignment.resume_round == 1
    worker.train(rounds=3)
    assert blocks_of(ctx, experiment_id) == ["succeeded"]


def test_diverged_run_is_an_outcome_and_the_block_succeeds(ctx: Context) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    worker.hand_in(0, diverged=["B"])
    runs = {run["group_id"]: run for run in reading.list_runs(ctx, experiment_id)}
    assert (runs["B"]["status"], runs["B"]["cause"]) == ("failed", "diverged")
    both, only_a = worker.held, [run for run in worker.held.runs if run.arm == "A"]
    worker.assignment = both.model_copy(update={"runs": only_a})
    worker.hand_in(1)
    worker.assignment = both  # a process saves what has diverged too, as it ended
    worker.checkpoint(2)
    worker.release()
    runs = {run["group_id"]: run for run in reading.list_runs(ctx, experiment_id)}
    assert (runs["A"]["status"], runs["B"]["status"]) == ("succeeded", "failed")
    blocks = reading.list_blocks(ctx, experiment_id)
    assert (blocks[0]["status"], blocks[0]["num_diverged"]) == (BlockStatus.SUCCEEDED, 1)


def test_runs_that_diverge_in_one_round_all_count_and_their_block_has_ended(ctx: Context) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    assert worker.hand_in(0, diverged=["A", "B"]).complete
    block = reading.list_blocks(ctx, experiment_id)[0]
    assert (block["status"], block["num_diverged"], block["open_round"]) == (BlockStatus.SUCCEEDED, 2, 1)


def test_refused_configuration_fails_the_block_with_its_reason(ctx: Context) -> None:
    from app.services.training import assignments
    from lockstep import protocol as p

    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    refusal = p.ReadyRequest(refused=p.Refusal(field="env.id", message="no such environment"))
    assert not assignments.ready(ctx, worker.held.assignment_id, worker.held.lease, refusal).start
    worker.release("error", "config")
    block = reading.list_blocks(ctx, experiment_id)[0]
    assert (block["status"], block["cause"]) == ("failed", "config")
    assert "no such environment" in block["cause_text"]


def test_fault_of_one_arms_reward_that_stops_a_second_block_ends_both_and_names_the_arm(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": 4}, budget={"rounds": 3}))
    worker = SimulatedWorker(ctx).register()
    told = "reward mode 'simplified' raised KeyError: 'speed' in step {} of seed 0x7f{}"

    def stops(rounds: int, text: str, cause: str = "environment") -> None:
        assert worker.claim() is not None
        worker.ready()
        for index in range(rounds):
            worker.hand_in(index)
        worker.release("error", cause, text)

    stops(1, told.format(17, "a0"))
    stops(1, "environment 'mine' raised ConnectionError: no route")  # another fault: tried again, later
    states = [(row["status"], row["attempt"]) for row in reading.list_blocks(ctx, experiment_id)]
    assert states == [("queued", 1), ("queued", 1), ("queued", 0), ("queued", 0)]
    stops(2, told.format(1204, "ff"))
    # at once, and not those of which nothing is known
    states = [(row["status"], row["attempt"]) for row in reading.list_blocks(ctx, experiment_id)]
    assert states == [("failed", 1), ("queued", 1), ("failed", 1), ("queued", 0)]
    [account] = reading.show_experiment(ctx, experiment_id)["causes"]
    assert (account["replicates"], account["arms"]) == ([0, 2], ["B"])
    assert account["text"] == told.format(1204, "ff")
    named = reading.show_run(ctx, account["run_id"])  # whose log to read: of the arm at fault, where it has just failed
    assert (named["group_id"], named["replicate"]) == ("B", 2)
    # before the first round it is the job's fault, whatever its seeds
    stops(0, told.format(3, "1"))
    states = [(row["status"], row["attempt"]) for row in reading.list_blocks(ctx, experiment_id)]
    assert states == [("failed", 1)] + [("failed", 1)] * 3


def test_attempts_that_later_ones_made_up_for_are_named_with_their_cause(ctx: Context, clock: Clock) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": 2}, budget={"rounds": 2}))
    worker = SimulatedWorker(ctx).register()
    for seed in (17, 2031):
        assert worker.claim() is not None
        worker.ready()
        worker.hand_in(0)
        worker.checkpoint(1)
        worker.release("error", "bug", f"RuntimeError: no kernel for seed {seed}")
    for _ in range(2):
        clock.advance(60.0)
        worker.beat("idle")
        assert worker.claim() is not None
        worker.train(rounds=2)
    [item] = reading.show_experiment(ctx, experiment_id)["repeats"]
    assert (item["cause"], item["replicates"]) == ("bug", [0, 1])
    assert finish_due(ctx) == 1
    content = reports.read(ctx, experiment_id).content
    told = "replicates 0, 1 (bug: RuntimeError: no kernel for seed 17)"
    assert content["notes"]["Attempts made again"] == told
    assert dict(flag_texts(content))["RESUMED_RUNS"].endswith(told)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_release_as_completed_before_the_end_is_refused_with_the_last_round_held(
    ctx: Context, clock: Clock, rounds: int
) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    missing = {0: "no round is held", 1: "the last round held is 0", 2: "the checkpoint after the last round, 1,"}
    for _ in range(2):
        worker.claim(), worker.ready()
        for index in range(rounds):
            worker.hand_in(index)
        for _ in range(2):  # the answer may be lost
            with pytest.raises(ConflictError, match=missing[rounds]) as refused:
                worker.release()
            assert refused.value.code == "not_completed"
        clock.advance(1.0)
        worker.beat("idle")
    found = reading.list_blocks(ctx, experiment_id)[0]
    assert (found["status"], found["cause"], found["attempt"]) == ("failed", "bug", 2)


@pytest.mark.parametrize(
    ("outcome", "cause", "ends"), [("error", None, ("bug", 2)), ("stopped", "user", ("preempted", 101))]
)
def test_share_that_ends_again_and_again_unasked_spends_a_budget(
    ctx: Context, clock: Clock, outcome: str, cause: str | None, ends: tuple[str, int]
) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    while worker.claim() is not None:
        worker.ready()
        worker.release(outcome, cause)
        clock.advance(1.0)
        worker.beat("idle")
    found = reading.list_blocks(ctx, experiment_id)[0]
    assert (found["status"], found["cause"], found["attempt"]) == ("failed", *ends)


def test_job_that_brings_its_supervisor_down_at_every_start_spends_a_budget(ctx: Context, clock: Clock) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    attempts = 0
    while worker.claim() is not None:
        attempts += 1
        worker.assignment, worker.incarnation = None, f"start {attempts}"
        clock.advance(2.0)
        worker.register()
    found = reading.list_blocks(ctx, experiment_id)[0]
    assert (found["status"], found["cause"], attempts) == ("failed", "worker_lost", 6)


def test_of_two_processes_of_a_worker_the_one_that_beats_keeps_the_device_for_good(ctx: Context, clock: Clock) -> None:
    term = 3 * ctx.settings.heartbeat_seconds
    first, second = SimulatedWorker(ctx).register(), SimulatedWorker(ctx)
    for start in range(20):
        clock.advance(ctx.settings.heartbeat_seconds)
        second.incarnation = f"start {start}"
        with pytest.raises(ConflictError, match="run one worker on a device") as told:
            second.register()
        assert (told.value.code, told.value.headers) == ("device_in_use", {"Retry-After": "1"})
        first.beat("idle")
    assert len(reading.list_workers(ctx)) == 1
    clock.advance(term)
    second.register()
    for call in (first.claim, first.beat):
        with pytest.raises(ConflictError, match="a newer process of worker w0 on host has taken over device") as told:
            call()
        assert told.value.code == "device_in_use"
    first.incarnation = "again"
    with pytest.raises(ConflictError, match="run one worker on a device"):
        first.register()
    assert second.claim() is None


@pytest.mark.parametrize(("desired", "status"), [(Desired.PAUSE, "paused"), (Desired.CANCEL, "cancelled")])
def test_block_that_stops_is_paused_or_cancelled_once_its_last_device_is_released(
    ctx: Context, desired: Desired, status: str
) -> None:
    experiment_id = submit(ctx, tiny_spec(lockstep={"placement": "one_per_device"}))
    pair = [SimulatedWorker(ctx, name).register() for name in ("w0", "w1")]
    for worker in pair:
        assert worker.claim() is not None
    pair[0].release("stopped", "preempted")
    steering.set_desired(ctx, experiment_id, desired, "", LOCAL)
    assert blocks_of(ctx, experiment_id) == ["stopping"]
    pair[1].release("stopped", "user")
    assert blocks_of(ctx, experiment_id) == [status]


def test_stall_is_noted_by_a_sweep_and_taken_back_once_the_child_shows_progress(ctx: Context) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    assert worker.claim() is not None
    worker.ready()
    for age, is_stalled in ((0.0, False), (ctx.settings.stall_after_seconds, True), (0.1, False)):
        worker.beat(frame_age_seconds=age)
        sweeping.sweep(ctx)
        assert {run["stalled"] for run in reading.list_runs(ctx, experiment_id)} == {is_stalled}


def test_block_whose_runs_have_all_ended_is_ended_by_a_sweep(ctx: Context) -> None:
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    assert worker.claim() is not None
    worker.ready()
    sweeping.sweep(ctx)
    assert blocks_of(ctx, experiment_id) == ["running"]
    with ctx.store.write() as session:  # a server that ended between the two
        session.execute(update(t.run).values(status=RunStatus.SUCCEEDED))
    sweeping.sweep(ctx)
    assert blocks_of(ctx, experiment_id) == ["succeeded"]
