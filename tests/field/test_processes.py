"""Field lessons L16 to L20: cancel, processes, drain. Real processes, no torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.services import steering
from app.services.context import Context
from app.services.experiments import reading
from app.services.training import workers
from lockstep.client import Client
from lockstep.status import Desired
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec
from tests.field.conftest import SOAK, STEADY, StartLight, block_status, first_block, is_running, timeline
from worker.supervision import supervisor
from worker.supervision.control import Control
from worker.supervision.devices import Bound, HostLock
from worker.supervision.options import Options
from worker.supervision.pack import PackRunner
from worker.supervision.starter import Starter


@pytest.mark.server
@pytest.mark.parametrize("mode", ["family", "native"])
def test_l16_l17_cancel_ends_descendants_and_hung_children_within_grace(
    make_server: Callable[..., LiveServer], database_url: str, light_worker: StartLight, mode: str
) -> None:
    server = make_server(database_url, **STEADY, grace_seconds=1.0)
    with Client(server.url) as client:
        spec = tiny_spec(budget={"rounds": 5}, lockstep={"grace_seconds": 1.0})
        experiment_id = client.submit(spec)["id"]
        worker = light_worker(server.url, mode)
        pids = worker.pids()
        assert all(is_running(pid) for pid in pids)
        client.call("POST", f"experiments/{experiment_id}/cancel")
        began = time.monotonic()
        wait_until(lambda: not any(is_running(pid) for pid in pids), timeout=11.0, what="the end of every process")
        assert time.monotonic() - began <= 1.0 + 10.0
        wait_until(lambda: block_status(client, experiment_id) == "cancelled", timeout=60, what="cancelled")
        assert worker.process.poll() is None
        wait_until(lambda: client.call("GET", "workers")["items"][0]["status"] == "idle", what="the device")


@pytest.mark.server
def test_l18_stop_lets_the_child_finish_its_checkpoint(server: LiveServer, light_worker: StartLight) -> None:
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 9}))["id"]
        worker = light_worker(server.url, "slow_stop", 5.0 if SOAK else 1.0)
        wait_until(lambda: first_block(client, experiment_id)["open_round"] == 1, what="a round")
        client.call("POST", f"experiments/{experiment_id}/pause")
        wait_until(lambda: block_status(client, experiment_id) == "paused", what="paused")
        kept = [a["next_round"] for a in client.call("GET", f"experiments/{experiment_id}/artifacts")["items"]]
        assert 1 in kept
        assert worker.process.poll() is None


@pytest.mark.server
def test_a_deleted_work_folder_is_made_anew_or_ends_its_worker_with_a_sentence(
    server: LiveServer, light_worker: StartLight, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 4}))["id"]
        worker = light_worker(server.url, "plain", 1.0)
        wait_until(lambda: first_block(client, experiment_id)["open_round"] == 1, what="a round")
        work.rename(tmp_path / "deleted")  # in one step, while others write there
        wait_until(lambda: block_status(client, experiment_id) == "succeeded", what="the end")
        wait_until(lambda: [*work.glob("*/*/held")], what="a folder that is held")
        work.rename(tmp_path / "deleted-again")
        work.touch()
        client.submit(tiny_spec())
        assert worker.process.wait(timeout=60) == 3
        assert "error: nothing can be written to the folder" in worker.log.read_text().splitlines()[-1]


@pytest.mark.server
def test_l19_killed_child_reads_worker_lost_and_drain_takes_no_other_block(
    server: LiveServer, light_worker: StartLight
) -> None:
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec(experiment={"replicates": 2}, budget={"rounds": 6}))["id"]
        worker = light_worker(server.url, "until_told")
        os.kill(int(worker.note("ready")), signal.SIGKILL)
        wait_until(
            lambda: (
                [e["cause"] for e in timeline(client, experiment_id) if e["status"] == "stopping"] == ["worker_lost"]
            ),
            what="worker_lost",
        )
        wait_until(lambda: block_status(client, experiment_id) == "running", what="the second attempt")
        worker_id = client.call("GET", "workers")["items"][0]["id"]
        client.call("POST", f"workers/{worker_id}/drain", json={"now": False})
        worker.tell("go")
        assert worker.process.wait(timeout=120) == 0
        blocks = client.call("GET", f"experiments/{experiment_id}/blocks")["items"]
        assert [item["status"] for item in blocks] == ["succeeded", "queued"]


@pytest.mark.server
@pytest.mark.parametrize("how", ["drain", "sigterm"])
def test_l19_idle_worker_that_is_drained_or_told_to_stop_ends_and_is_given_nothing(
    server: LiveServer, light_worker: StartLight, how: str
) -> None:
    with Client(server.url) as client:
        worker = light_worker(server.url)
        found = wait_until(lambda: client.call("GET", "workers")["items"], what="the worker")
        wait_until(lambda: client.call("GET", "workers")["items"][0]["status"] == "idle", what="idle")
        if how == "drain":
            client.call("POST", f"workers/{found[0]['id']}/drain", json={"now": False})
        else:
            worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(timeout=60) == 0
        assert client.call("GET", f"workers/{found[0]['id']}")["status"] == "retired"
        experiment_id = client.submit(tiny_spec())["id"]
        time.sleep(1.0)
        assert block_status(client, experiment_id) == "queued"


@pytest.mark.server
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("mode", ["family", "native"])
def test_what_a_training_process_started_ends_with_a_supervisor_that_is_killed(
    server: LiveServer, light_worker: StartLight, mode: str
) -> None:
    with Client(server.url) as client:
        client.submit(tiny_spec())
        worker = light_worker(server.url, mode)
        pids = worker.pids()
        assert all(is_running(pid) for pid in pids)
        worker.process.kill()
        wait_until(lambda: not any(is_running(pid) for pid in pids), timeout=60, what="the end of every process")


@pytest.mark.server
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_process_that_never_leaves_after_its_last_word_frees_its_worker(
    server: LiveServer, light_worker: StartLight
) -> None:
    with Client(server.url) as client:
        worker = light_worker(server.url, "stays", EXIT_SECONDS="0.5")
        ids = [client.submit(tiny_spec(budget={"rounds": 1}))["id"] for _ in range(2)]
        wait_until(lambda: {client.show(item)["status"] for item in ids} == {"succeeded"}, what="both")
        assert "lease_lost" not in worker.log.read_text()


#: A trainer that at once says its last word for every assignment and takes its time to leave.
_SLOW_TO_LEAVE = """
import json, os, time
frames, commands = (int(os.environ[f"LOCKSTEP_{name}_FD"]) for name in ("FRAMES", "COMMANDS"))
first = json.loads(os.fdopen(commands, "rb").readline())
for one in (first, *first["beside"]):
    left = {"type": "left", "assignment": one["assignment"]["assignment_id"]}
    os.write(frames, json.dumps(left).encode() + b"\\n")
time.sleep(60)
"""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_process_of_a_pack_that_all_have_left_is_ended(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_EXIT_SECONDS", 0.2)
    submit(ctx, tiny_spec(experiment={"replicates": 2}))
    pair = [SimulatedWorker(ctx, name).register() for name in ("a", "b")]
    first, second = [worker.claim() for worker in pair]
    assert first is not None
    assert second is not None
    bound = Bound(pair[0].device, HostLock.take("cpu:h:0", tmp_path), {})
    options = Options("http://127.0.0.1:9", None, None, 1, None, tmp_path, 2**20, None)
    starter = Starter([sys.executable, "-S", "-c", _SLOW_TO_LEAVE], {}, tmp_path / "log", stopped=lambda: False)
    control, both = Control(options.url, None), first.model_copy(update={"beside": [second]})
    pack = PackRunner(control, both, bound, tmp_path, starter, options)
    for seat in pack._seats:
        seat.command = {"assignment": {"assignment_id": seat.name}}
    pack._train(pack._seats)
    assert pack.child is not None
    assert pack.child.exit_text() == "killed by SIGKILL"
    pack.child.close()
    for runner in pack.runners:
        runner._spool.close()
    control.close()
    bound.lock.release()


STAGES: dict[str, Callable[[SimulatedWorker], Any]] = {
    "assigned": lambda _worker: None,
    "collected": lambda worker: worker.claim(),
    "ready": lambda worker: (worker.claim(), worker.ready()),
    "first_round": lambda worker: (worker.claim(), worker.ready(), worker.hand_in(0)),
}


@pytest.mark.parametrize("stage", list(STAGES))
def test_l20_cancel_at_a_step_of_the_launch_leaves_the_device_idle(ctx: Context, stage: str) -> None:
    from app.services.queue import scheduling

    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    assert scheduling.tick(ctx) == 1
    STAGES[stage](worker)
    steering.set_desired(ctx, experiment_id, Desired.CANCEL, "", LOCAL)
    if worker.assignment is None:
        worker.claim()  # it collects what was cancelled meanwhile
    assert worker.beat().leases[0].desired == "cancel"
    worker.release("stopped", "user")
    assert reading.list_blocks(ctx, experiment_id)[0]["status"] == "cancelled"
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "idle"


@pytest.mark.server
@pytest.mark.parametrize("mode", ["wait_before_ready", "wait_in_round"])
def test_l20_cancel_while_the_child_starts_or_trains_leaves_the_device_idle(
    sqlite_server: LiveServer, light_worker: StartLight, mode: str
) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = client.submit(tiny_spec())["id"]
        worker = light_worker(sqlite_server.url, mode)
        worker.note("stage")
        client.call("POST", f"experiments/{experiment_id}/cancel")
        wait_until(lambda: block_status(client, experiment_id) == "cancelled", timeout=60, what="cancelled")
        wait_until(lambda: client.call("GET", "workers")["items"][0]["status"] == "idle", what="the device")


def test_l20_cancel_at_the_start_barrier_of_a_gang_frees_both_devices(ctx: Context) -> None:
    experiment_id = submit(ctx, tiny_spec(lockstep={"placement": "one_per_device"}))
    pair = [SimulatedWorker(ctx, name).register() for name in ("a", "b")]
    for worker in pair:
        worker.claim()
    assert not pair[0].ready()
    steering.set_desired(ctx, experiment_id, Desired.CANCEL, "", LOCAL)
    for worker in pair:
        worker.beat()
        worker.release("stopped", "user")
    assert reading.list_blocks(ctx, experiment_id)[0]["status"] == "cancelled"
    assert {item["status"] for item in reading.list_workers(ctx)} == {"idle"}
    workers.drain(ctx, pair[0].worker_id, LOCAL, now=True)


@pytest.mark.server
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_share_ends_with_its_process_whatever_holds_its_pipes(server: LiveServer, light_worker: StartLight) -> None:
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec())["id"]
        light_worker(server.url, "daemon")
        wait_until(lambda: any(item["cause"] for item in timeline(client, experiment_id)), timeout=60, what="its end")


@pytest.mark.server
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_thread_that_dies_ends_the_share_with_its_error(server: LiveServer, light_worker: StartLight) -> None:
    with Client(server.url) as client:
        experiment_id = client.submit(tiny_spec())["id"]
        worker = light_worker(server.url, "lost_file")

        def reasons() -> list[str]:
            return [item["text"] for item in timeline(client, experiment_id) if item["cause"] == "worker_lost"]

        wait_until(reasons, timeout=60, what="the end of the share")
        assert "the worker's thread sender died: FileNotFoundError" in reasons()[0]
        assert worker.process.poll() is None
