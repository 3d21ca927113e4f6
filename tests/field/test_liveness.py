"""Field lessons L1 to L15: liveness, leases, claims. Names carry the row of field-lessons.md."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select, text, update

from app.errors import AppError, LeaseLostError
from app.services import steering
from app.services.context import Bell, Context
from app.services.experiments import reading
from app.services.operations import ensure_epoch
from app.services.results.finishing import finish_due
from app.services.training import assignments, sweeping
from app.settings import Settings
from app.store.database.engine import Store
from app.store.schema import tables as t
from lockstep import protocol as p
from lockstep.client import Client
from lockstep.status import Desired
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec
from tests.field.conftest import BRIEF, SOAK, STEADY, ServerProcess, StartLight, block_status, first_block, timeline
from tests.services.simulation import FlakyWorker, Wall


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def sim(database_url: str, tmp_path: Path, ctx: Context, wall: Wall) -> Iterator[Context]:
    """A context on real settings (5 s, 45 s) whose database clock follows the wall."""
    store = Store(database_url, clock=wall)
    settings = Settings(database_url=database_url, data_dir=tmp_path / "sim", backoff_seconds=5.0)
    context = replace(ctx, store=store, settings=settings, bell=Bell())
    ensure_epoch(context)
    sweeping.sweep(context)
    yield context
    store.close()


def pass_time(ctx: Context, wall: Wall, fleet: list[FlakyWorker], seconds: float) -> None:
    """Let time pass in heartbeats of 5 s, with work, beats and sweeps."""
    for _ in range(int(seconds / 5)):
        wall.elapsed += 5.0
        for worker in fleet:
            worker.beat()
            worker.step()
        sweeping.sweep(ctx)
        trained = [run_id for worker in fleet for run_id in worker.trains()]
        assert len(trained) == len(set(trained)), "two owners at one moment"


def states(ctx: Context, experiment_id: str) -> list[str]:
    return [str(item["status"]) for item in reading.list_blocks(ctx, experiment_id)]


def events_of(ctx: Context, experiment_id: str, status: str) -> list[dict[str, Any]]:
    items = reading.list_events(ctx, experiment_id, after=0, limit=200)["items"]
    return [item for item in items if item["type"] == "block_status" and item["status"] == status]


@pytest.mark.server
def test_l01_killed_worker_leaves_running_by_itself(
    make_server: Callable[..., LiveServer], database_url: str, light_worker: StartLight
) -> None:
    server = make_server(database_url, **BRIEF)
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 50}))["id"]
        worker = light_worker(server.url, seconds=0.2)
        wait_until(lambda: block_status(client, experiment_id) == "running", what="running")
        worker.process.kill()
        wait_until(lambda: block_status(client, experiment_id) != "running", what="the expiry")
        assert first_block(client, experiment_id)["status"] in ("queued", "stopping")


def test_l01_killed_worker_leaves_running_within_ttl_interval_and_sweep(sim: Context, wall: Wall) -> None:
    """On a clock of the test's own, because a loaded machine delays sweeps, and that time expires nothing."""
    experiment_id = submit(sim, tiny_spec(budget={"rounds": 9}))
    worker = FlakyWorker(sim, wall, "w")
    worker.start()
    worker.beat()
    worker.step()
    worker.step()
    worker.beat()
    assert states(sim, experiment_id) == ["running"]
    worker.kill()
    settings = sim.settings
    bound = settings.lease_ttl_seconds + settings.heartbeat_seconds + settings.sweep_seconds
    waited = 0.0
    while states(sim, experiment_id) == ["running"] and waited <= bound:
        wall.elapsed += settings.sweep_seconds
        waited += settings.sweep_seconds
        sweeping.sweep(sim)
    assert states(sim, experiment_id) == ["queued"]
    assert settings.lease_ttl_seconds < waited <= bound


def test_l02_worker_cut_off_for_two_ttl_never_shares_its_block(sim: Context, wall: Wall) -> None:
    experiment_id = submit(sim, tiny_spec(budget={"rounds": 12}))
    cut, other = FlakyWorker(sim, wall, "cut"), FlakyWorker(sim, wall, "other")
    for worker in (cut, other):
        worker.start()
        worker.beat()
    pass_time(sim, wall, [cut, other], 30)
    (cut if cut.held else other).cut = True
    pass_time(sim, wall, [cut, other], 2 * sim.settings.lease_ttl_seconds)
    cut.cut = other.cut = False
    pass_time(sim, wall, [cut, other], 200)
    assert states(sim, experiment_id) == ["succeeded"]
    assert reading.list_blocks(sim, experiment_id)[0]["attempt"] == 2


@pytest.mark.server
def test_l03_experiment_of_a_killed_worker_can_be_cancelled_and_deleted(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, **BRIEF)
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec())["id"]
        worker = SimulatedWorker(server.ctx).register()
        wait_until(worker.claim, what="an assignment")
        worker.ready()  # and never again a word: SIGKILL
        client.call("POST", f"experiments/{experiment_id}/cancel")
        wait_until(lambda: block_status(client, experiment_id) == "cancelled", timeout=60, what="cancelled")
        client.call("DELETE", f"experiments/{experiment_id}")
        assert client.call("GET", "experiments")["items"] == []


def test_l04_late_heartbeat_changes_nothing_and_a_late_result_is_refused(sim: Context, wall: Wall) -> None:
    experiment_id = submit(sim, tiny_spec(budget={"rounds": 9}))
    worker = FlakyWorker(sim, wall, "w")
    worker.start()
    worker.beat()
    worker.step()
    worker.step()
    for _ in range(12):
        wall.elapsed += 1.5 * sim.settings.heartbeat_seconds
        sweeping.sweep(sim)
        worker.beat()
    assert states(sim, experiment_id) == ["running"]
    lost = worker.held
    assert lost is not None
    for _ in range(14):
        wall.elapsed += 5.0
        sweeping.sweep(sim)
    late = p.RoundRequest(runs=[worker._result(lost, run, 0) for run in worker.live], seconds=0.1)
    with pytest.raises(LeaseLostError):
        assignments.put_round(sim, lost.assignment_id, lost.lease, 0, late)
    pass_time(sim, wall, [worker], 300)
    assert states(sim, experiment_id) == ["succeeded"]


@pytest.mark.server
def test_l05_fenced_round_and_release_never_end_the_workers_loop(
    make_server: Callable[..., LiveServer], database_url: str, light_worker: StartLight
) -> None:
    server = make_server(database_url, **BRIEF)
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 6}))["id"]
        worker = light_worker(server.url, seconds=0.3)
        wait_until(lambda: first_block(client, experiment_id)["open_round"] >= 1, what="a round")
        with server.ctx.store.write() as session:  # the lease is taken behind its back
            session.execute(update(t.assignment).where(t.assignment.c.state == "active").values(token="0" * 64))
        wait_until(lambda: block_status(client, experiment_id) == "succeeded", what="the end by the same worker")
        assert worker.process.poll() is None
        assert first_block(client, experiment_id)["attempt"] >= 2


def test_l06_four_sweepers_make_one_transition_of_one_expiry(sim: Context, wall: Wall) -> None:
    experiment_id = submit(sim)
    worker = SimulatedWorker(sim).register()
    sweeping.sweep(sim)
    worker.claim()
    worker.ready()
    for _ in range(5):
        wall.elapsed += 12.0  # short of what counts as an absence of the control plane
        gate = threading.Barrier(4)

        def race() -> None:
            gate.wait()  # noqa: B023 - joined within the round
            sweeping.sweep(sim)

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert states(sim, experiment_id) == ["queued"]
    assert len(events_of(sim, experiment_id, "queued")) == 1
    assert len(events_of(sim, experiment_id, "stopping")) == 1


def test_l07_eight_claimers_get_every_job_once(ctx: Context) -> None:
    count = 3_000 if SOAK else 48
    for _ in range(-(-count // 48)):
        submit(ctx, tiny_spec(experiment={"replicates": 48}, budget={"rounds": 1}, eval={"every_rounds": 1}))
    total = 48 * -(-count // 48)
    taken: list[str] = []
    failures: list[BaseException] = []
    give_up = time.monotonic() + (3_600 if SOAK else 240)

    def work(name: str) -> None:
        worker = SimulatedWorker(ctx, name).register()
        while len(taken) < total and time.monotonic() < give_up and not failures:
            if worker.claim() is None:
                time.sleep(0.02)
                continue
            taken.append(worker.held.block_id)
            try:
                worker.train(1)
            except BaseException as error:
                failures.append(error)
                raise

    threads = [threading.Thread(target=work, args=(f"w{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert SimulatedWorker(ctx, "last").register().claim() is None
    assert len(taken) == len(set(taken)) == total


def test_l08_database_away_for_two_ttl_leaves_one_copy_at_most(sim: Context, wall: Wall) -> None:
    experiment_id = submit(sim, tiny_spec(budget={"rounds": 12}))
    fleet = [FlakyWorker(sim, wall, name) for name in ("a", "b")]
    for worker in fleet:
        worker.start()
        worker.beat()
    pass_time(sim, wall, fleet, 20)
    wall.elapsed += 2 * sim.settings.lease_ttl_seconds  # nobody reaches the database: no beat, no sweep
    assert not [run_id for worker in fleet for run_id in worker.trains()], "the child goes on without a lease"
    pass_time(sim, wall, fleet, 300)
    assert states(sim, experiment_id) == ["succeeded"]
    assert reading.list_blocks(sim, experiment_id)[0]["attempt"] == 1


def test_l08_ttl_below_four_intervals_is_refused_at_startup() -> None:
    with pytest.raises(ValidationError, match="at least 4 x"):
        Settings(heartbeat_seconds=5.0, lease_ttl_seconds=19.9)


@pytest.mark.server
@pytest.mark.parametrize("halted", [False, True], ids=["holds_the_gil", "sigstop"])
def test_l09_child_that_shows_no_progress_keeps_its_lease_and_is_stalled(
    make_server: Callable[..., LiveServer], database_url: str, light_worker: StartLight, halted: bool
) -> None:
    server = make_server(database_url, **STEADY, stall_after_seconds=1.5)
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 1}))["id"]
        worker = light_worker(server.url, "gil")
        [pid] = worker.pids()
        if halted:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: client.runs(experiment_id)[0]["stalled"], what="stalled")
        time.sleep(600.0 if SOAK else 0.05)
        assert block_status(client, experiment_id) == "running"
        assert client.runs(experiment_id)[0]["stalled"]
        if halted:
            os.kill(pid, signal.SIGCONT)
        worker.tell("go")
        wait_until(lambda: block_status(client, experiment_id) == "succeeded", timeout=120, what="the end")
        assert first_block(client, experiment_id)["attempt"] == 1


def test_l10_block_of_ten_ttl_runs_once(sim: Context, wall: Wall) -> None:
    experiment_id = submit(sim, tiny_spec(budget={"rounds": 2}))
    worker = FlakyWorker(sim, wall, "w")
    worker.start()
    worker.beat()
    worker.step()
    worker.step()
    for _ in range(int(10 * sim.settings.lease_ttl_seconds / 5)):
        wall.elapsed += 5.0
        worker.beat()
        sweeping.sweep(sim)
    pass_time(sim, wall, [worker], 60)
    assert states(sim, experiment_id) == ["succeeded"]
    assert reading.list_blocks(sim, experiment_id)[0]["attempt"] == 1


def test_l11_random_kills_at_a_short_ttl_leave_nothing_doubled_or_stuck(ctx: Context, wall: Wall) -> None:
    store = Store(ctx.store.url.render_as_string(hide_password=False), clock=wall)
    short = Settings(database_url="", data_dir=ctx.settings.data_dir, heartbeat_seconds=3.0, lease_ttl_seconds=15.0)
    sim = replace(ctx, store=store, settings=short, bell=Bell())
    sweeping.sweep(sim)
    draw = random.Random(11)
    fleet = [FlakyWorker(sim, wall, f"w{index}") for index in range(3)]
    end = 7200.0 if SOAK else 150.0
    experiments: list[str] = []
    while wall.elapsed < end:
        if wall.elapsed < 0.7 * end and len(experiments) < wall.elapsed / 60 + 1:
            experiments.append(submit(sim, tiny_spec(budget={"rounds": 12})))
        for worker in fleet:
            kill_or_start(worker, draw)
        live_on(sim, wall, fleet)
    for _ in range(300):
        for worker in fleet:
            if not worker.up:
                worker.start()
        live_on(sim, wall, fleet)
        ended = [status for experiment_id in experiments for status in states(sim, experiment_id)]
        if set(ended) <= {"succeeded", "failed"}:
            break
    assert set(ended) <= {"succeeded", "failed"}
    assert "succeeded" in ended
    store.close()


def kill_or_start(worker: FlakyWorker, draw: random.Random) -> None:
    if not worker.up and draw.random() < 0.4:
        worker.start()
    elif worker.up and draw.random() < 0.06:
        worker.kill()


def live_on(sim: Context, wall: Wall, fleet: list[FlakyWorker]) -> None:
    """Three seconds of beats, work and a sweep, in which no run has two owners."""
    wall.elapsed += 3.0
    for worker in fleet:
        worker.beat()
        for _ in range(2):
            worker.step()
    sweeping.sweep(sim)
    trained = [run_id for worker in fleet for run_id in worker.trains()]
    assert len(trained) == len(set(trained))


@pytest.mark.server
def test_l12_connections_ended_in_mid_sweep_and_replicas_restarted_leave_no_work_stranded(
    server_process: Callable[..., ServerProcess], database_url: str, ctx: Context, light_worker: StartLight
) -> None:
    twins = [server_process().start()]
    if database_url.startswith("postgresql"):
        twins.append(server_process().start())
    with Client(twins[0].url) as client:
        spec = tiny_spec(experiment={"replicates": 3}, budget={"rounds": 6})
        experiment_id = client.submit(spec)["id"]
        worker = light_worker(twins[-1].url, seconds=0.1)
        wait_until(lambda: first_block(client, experiment_id)["open_round"] >= 1, what="a round")
        for twin in twins:
            if not ctx.store.is_sqlite:
                end_backends(ctx)
            twin.stop()
            twin.start()
        wait_until(
            lambda: (
                {item["status"] for item in client.call("GET", f"experiments/{experiment_id}/blocks")["items"]}
                == {"succeeded"}
            ),
            timeout=180,
            what="all blocks",
        )
        assert worker.process.poll() is None
        ends = [event for event in timeline(client, experiment_id) if event["status"] == "succeeded"]
        assert sum(event["type"] == "block_status" for event in ends) == 3


def end_backends(ctx: Context) -> None:
    """End every other connection to this database, as a restart of PostgreSQL would."""
    with ctx.store.write() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


def test_l13_sweep_at_the_instant_of_the_last_round_never_undoes_success(sim: Context, wall: Wall) -> None:
    outcomes = []
    count = 1_000 if SOAK else 25
    for index in range(count):
        experiment_id = submit(sim, tiny_spec(budget={"rounds": 1}, eval={"every_rounds": 1}))
        worker = SimulatedWorker(sim, f"w{index}").register()
        sweeping.sweep(sim)
        worker.claim()
        worker.ready()
        worker.hand_in(0)
        for _ in range(2):
            wall.elapsed += 18.0  # short of what counts as an absence of the control plane
            sweeping.sweep(sim)
        wall.elapsed += 15.0  # past ttl plus interval: the next sweep expires the lease
        stored: list[bool] = []

        def finish(delay: float) -> None:
            time.sleep(delay)
            try:
                worker.checkpoint(1)  # noqa: B023 - joined within the loop
                stored.append(True)  # noqa: B023
            except AppError:
                stored.append(False)  # noqa: B023

        threads = [
            threading.Thread(target=finish, args=((index % 10) / 1000,)),
            threading.Thread(target=sweeping.sweep, args=(sim,)),
        ]
        for thread in reversed(threads) if index == count - 1 else threads:
            thread.start()
            if index in (0, count - 1):  # once each is first beyond doubt, else they race
                thread.join()
        for thread in threads:
            thread.join()
        sweeping.sweep(sim)
        status = states(sim, experiment_id)[0]
        assert (status == "succeeded") is stored[0], (status, stored)
        outcomes.append(stored[0])
        steering.set_desired(sim, experiment_id, Desired.CANCEL, "", LOCAL) if not stored[0] else finish_due(sim)
    assert outcomes[0]
    assert not outcomes[-1]


def test_l14_cleanup_failure_and_late_results_never_overwrite_a_final_state(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(budget={"rounds": 1}))
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.ready()
    worker.hand_in(0)
    worker.checkpoint(1)
    held = worker.held
    request = p.ReleaseRequest(outcome="error", cause="bug", cleanup="12 GiB still in use")
    assignments.release(ctx, held.assignment_id, held.lease, request)
    assert states(ctx, experiment_id) == ["succeeded"]
    with ctx.store.read() as session:
        row = session.execute(select(t.assignment).where(t.assignment.c.id == held.assignment_id)).one()
    assert (row.state, row.cleanup_status) == ("released", "12 GiB still in use")
    with pytest.raises(LeaseLostError):
        worker.hand_in(1)
    assert states(ctx, experiment_id) == ["succeeded"]


@pytest.mark.server
def test_l15_worker_stopped_by_sigterm_gives_its_block_back_as_preempted(
    server: LiveServer, light_worker: StartLight
) -> None:
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 50}))["id"]
        worker = light_worker(server.url, seconds=0.2)
        wait_until(lambda: first_block(client, experiment_id)["open_round"] >= 1, what="a round")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(timeout=60) == 0
        assert first_block(client, experiment_id)["status"] == "queued"
        assert client.call("GET", "workers")["items"] == []  # it said goodbye: nothing can be given to it
        causes = [event["cause"] for event in timeline(client, experiment_id) if event["status"] == "stopping"]
        assert causes == ["preempted"]
