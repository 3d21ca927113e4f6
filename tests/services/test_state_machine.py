"""The queue under random kills, partitions, clock jumps, lost answers and steering, on both databases.

Each run of the machine is a history of about 50 steps; after it everything is let run, and nothing may
be stuck, lost, doubled or mixed.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select, text

from app.errors import ConflictError
from app.services import steering
from app.services.artifacts import FileStore
from app.services.context import Bell, Context
from app.services.experiments import reading
from app.services.operations import ensure_epoch
from app.services.queue import scheduling
from app.services.training import sweeping, workers
from app.settings import Settings
from app.store.database.engine import Store
from app.store.records import points
from app.store.records.points import MetricNames
from app.store.schema import tables as t
from lockstep.status import (
    ASSIGNMENT_TRANSITIONS,
    BLOCK_TRANSITIONS,
    LIVE_ASSIGNMENT,
    RUN_TRANSITIONS,
    WORKER_TRANSITIONS,
    BlockStatus,
    Desired,
)
from tests.conftest import empty_postgres
from tests.factories import LOCAL, submit, tiny_spec
from tests.rounds import counted_rounds
from tests.services.simulation import FlakyWorker, Wall, ideal_chain

NUM_WORKERS = st.integers(2, 5)
LOST = st.sampled_from(["", "", "", "request", "answer"])
WHO = st.integers(0, 4)
_FINAL: dict[str, set[Any]] = {
    "block": {status for status, targets in BLOCK_TRANSITIONS.items() if not targets},
    "run": {status for status, targets in RUN_TRANSITIONS.items() if not targets},
    "assignment": {state for state, targets in ASSIGNMENT_TRANSITIONS.items() if not targets},
    "worker": {status for status, targets in WORKER_TRANSITIONS.items() if not targets},
}


@contextmanager
def refusable(code: str) -> Iterator[None]:
    """Allow a refusal with one code; any other fails the history."""
    try:
        yield
    except ConflictError as error:
        if error.code != code:
            raise


class QueueMachine(RuleBasedStateMachine):
    """The control plane with its workers, driven by hypothesis."""

    make_url: Callable[[Path], str]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="lockstep-machine-"))
        self.wall = Wall()
        counter = itertools.count()
        store = Store(
            type(self).make_url(self.directory),
            new_id=lambda prefix: f"{prefix}_{next(counter):010d}",
            clock=self.wall,
        )
        given = Settings(database_url="", data_dir=self.directory, backoff_seconds=5.0, gang_patience_seconds=20.0)
        self.ctx = Context(store, given, FileStore(self.directory / "files"), MetricNames(), Bell())
        ensure_epoch(self.ctx)
        sweeping.sweep(self.ctx)
        self.fleet: list[FlakyWorker] = []
        self.experiments: list[str] = []
        self.final: dict[tuple[str, Any], str] = {}

    @initialize(count=NUM_WORKERS)
    def start_fleet(self, count: int) -> None:
        self.fleet = [FlakyWorker(self.ctx, self.wall, f"w{index}") for index in range(count)]
        for worker in self.fleet:
            worker.start()
            worker.beat()

    def who(self, number: int) -> FlakyWorker:
        return self.fleet[number % len(self.fleet)]

    @precondition(lambda self: len(self.experiments) < 4)
    @rule(replicates=st.integers(1, 2), rounds=st.integers(1, 3), placement=st.sampled_from(["auto", "one_per_device"]))
    def submit(self, replicates: int, rounds: int, placement: str) -> None:
        spec = tiny_spec(
            experiment={"replicates": replicates}, budget={"rounds": rounds}, lockstep={"placement": placement}
        )
        self.experiments.append(submit(self.ctx, spec))

    @rule(number=WHO, lost=LOST, repeat=st.integers(1, 4))
    def work(self, number: int, lost: str, repeat: int) -> None:
        worker = self.who(number)
        for _ in range(repeat):
            worker.step(lost)

    @rule(seconds=st.floats(0.5, 9.0), lost=LOST, deaf=WHO)
    def pass_time(self, seconds: float, lost: str, deaf: int) -> None:
        """Time passes; every worker beats, one of them perhaps unheard."""
        self.wall.elapsed += seconds
        for index, worker in enumerate(self.fleet):
            worker.beat(lost if index == deaf else "")
        sweeping.sweep(self.ctx)

    @rule(seconds=st.floats(5.0, 40.0))
    def pass_time_in_silence(self, seconds: float) -> None:
        """The control plane is away: no heartbeat, no sweep."""
        self.wall.elapsed += seconds

    @rule(seconds=st.sampled_from([-3600.0, -90.0, 90.0, 3600.0]), sweepers=st.integers(1, 4))
    def jump(self, seconds: float, sweepers: int) -> None:
        self.wall.jumped += seconds
        for _ in range(sweepers):
            sweeping.sweep(self.ctx)

    @rule(number=WHO)
    def kill(self, number: int) -> None:
        self.who(number).kill()

    @rule(number=WHO)
    def restart(self, number: int) -> None:
        self.who(number).start()

    @rule(number=WHO)
    def toggle_partition(self, number: int) -> None:
        self.who(number).cut = not self.who(number).cut

    @rule(
        number=WHO, cause=st.sampled_from(["bug", "oom", "worker_lost", "timeout", "environment", "device", "config"])
    )
    def child_dies(self, number: int, cause: str) -> None:
        self.who(number).release("error", cause, detail="boom")

    @rule(number=WHO, now=st.booleans())
    def drain(self, number: int, now: bool) -> None:
        worker = self.who(number)
        if worker.up:
            with refusable("worker_retired"):
                workers.drain(self.ctx, worker.worker_id, LOCAL, now=now)

    @rule(number=st.integers(0, 3), desired=st.sampled_from([Desired.PAUSE, Desired.RUN, Desired.CANCEL]))
    def steer(self, number: int, desired: Desired) -> None:
        if number < len(self.experiments):
            with refusable("terminal"):
                steering.set_desired(self.ctx, self.experiments[number], desired, "", LOCAL)

    @rule(paused=st.booleans())
    def pause_queue(self, paused: bool) -> None:
        steering.pause_queue(self.ctx, LOCAL, paused=paused)

    @rule()
    def tick(self) -> None:
        scheduling.tick(self.ctx)

    @invariant()
    def no_run_is_trained_twice_at_once(self) -> None:
        trained = Counter(run_id for worker in self.fleet for run_id in worker.trains())
        assert not [run_id for run_id, count in trained.items() if count > 1]

    @invariant()
    def leases_are_exclusive_and_of_the_current_attempt(self) -> None:
        with self.ctx.store.read() as session:
            live = session.execute(
                select(t.assignment, t.block.c.attempt.label("current"), t.block.c.status)
                .join(t.block, t.block.c.id == t.assignment.c.block_id)
                .where(t.assignment.c.state.in_(LIVE_ASSIGNMENT))
            ).all()
        assert len({row.device_uid for row in live}) == len(live)
        assert all(row.attempt == row.current for row in live)
        assert all(row.status in ("reserved", "running", "stopping") for row in live)

    @invariant()
    def terminal_states_are_final(self) -> None:
        with self.ctx.store.read() as session:
            for name, column in (("block", "status"), ("run", "status"), ("assignment", "state"), ("worker", "status")):
                table = t.metadata.tables[name]
                for key, status in session.execute(select(table.c.id, table.c[column])):
                    known = self.final.setdefault((name, key), status) if status in _FINAL[name] else status
                    assert self.final.get((name, key), known) == status, f"{name} {key} left {known} for {status}"

    def teardown(self) -> None:
        try:
            if self.fleet:
                self.let_run()
                self.check_outcome()
        finally:
            self.ctx.store.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def let_run(self) -> None:
        steering.pause_queue(self.ctx, LOCAL, paused=False)
        for experiment_id in self.experiments:
            with refusable("terminal"):
                steering.set_desired(self.ctx, experiment_id, Desired.RUN, "", LOCAL)
        for _ in range(400):
            self.wall.elapsed += 3.0
            for worker in self.fleet:
                worker.cut = False
                if not worker.up:
                    worker.start()
                worker.beat()
                for _ in range(3):
                    worker.step()
            sweeping.sweep(self.ctx)
            if not self.open_blocks():
                return
        raise AssertionError(f"stuck: {self.open_blocks()}")

    def open_blocks(self) -> list[Any]:
        with self.ctx.store.read() as session:
            rows = session.execute(select(t.block.c.id, t.block.c.status, t.block.c.cause, t.block.c.cause_text))
            return [tuple(row) for row in rows if row.status not in _FINAL["block"]]

    def check_outcome(self) -> None:
        for experiment_id in self.experiments:
            blocks = {row["id"]: row for row in reading.list_blocks(self.ctx, experiment_id)}
            runs = {row["id"]: row for row in reading.list_runs(self.ctx, experiment_id)}
            self.check_timeline(experiment_id)
            with self.ctx.store.read() as session:
                rounds = counted_rounds(session, experiment_id)
                values = points.last_values(session, experiment_id, ["eval/accuracy", "train/return_mean"])
                episodes = session.execute(
                    text("SELECT run_id, round FROM episodes WHERE experiment_id = :id"), {"id": experiment_id}
                ).all()
            for run_id, run in runs.items():
                if blocks[run["block_id"]]["status"] != BlockStatus.SUCCEEDED:
                    continue
                assert run["status"] == "succeeded"
                mine = [row.digest for row in rounds if row.run_id == run_id]
                assert mine == ideal_chain(run["group_id"], run["replicate"], len(mine))
                assert len(mine) == run["rounds_done"] > 0
                expected = Counter(
                    {(name, n): 1 for name in ("eval/accuracy", "train/return_mean") for n in range(len(mine))}
                )
                assert Counter((row.name, row.round) for row in values if row.run_id == run_id) == expected
                assert Counter(row.round for row in episodes if row.run_id == run_id) == Counter(range(len(mine)))

    def check_timeline(self, experiment_id: str) -> None:
        """Every recorded transition of a block is one that the table allows."""
        at: dict[str, BlockStatus] = {}
        after = 0
        while items := reading.list_events(self.ctx, experiment_id, after=after, limit=200)["items"]:
            after = items[-1]["seq"]
            for event in items:
                if event["type"] == "block_status":
                    before = at.get(event["block_id"], BlockStatus.QUEUED)
                    assert event["status"] in BLOCK_TRANSITIONS[before], event
                    assert event["actor"]
                    at[event["block_id"]] = BlockStatus(event["status"])


def run_machine(make_url: Callable[[Path], str], steps: int) -> None:
    """Run histories of 50 steps until about ``steps`` have been made."""
    machine = type("Machine", (QueueMachine,), {"make_url": staticmethod(make_url)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, steps // 50),
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # a failing history prints as code; shrinking it takes minutes
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


def _sqlite(template: Path) -> Callable[[Path], str]:
    def make(directory: Path) -> str:
        shutil.copy(template, directory / "lockstep.db")
        return f"sqlite:///{directory / 'lockstep.db'}"

    return make


def _postgresql(url: str) -> Callable[[Path], str]:
    def make(_directory: Path) -> str:
        empty_postgres(url)
        return url

    return make


@pytest.mark.long
def test_queue_on_sqlite_under_random_faults_keeps_its_invariants(sqlite_template: Path) -> None:
    run_machine(_sqlite(sqlite_template), 500)


@pytest.mark.pg
def test_queue_on_postgresql_under_random_faults_keeps_its_invariants(pg_url: str) -> None:
    run_machine(_postgresql(pg_url), 500)


@pytest.mark.slow
def test_queue_on_sqlite_over_ten_thousand_steps_keeps_its_invariants(sqlite_template: Path) -> None:
    run_machine(_sqlite(sqlite_template), 10_000)


@pytest.mark.slow
@pytest.mark.pg
def test_queue_on_postgresql_over_ten_thousand_steps_keeps_its_invariants(pg_url: str) -> None:
    run_machine(_postgresql(pg_url), 10_000)
