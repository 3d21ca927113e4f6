"""One worker trains several replicates in one process: every block stays a block, and no number changes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.services.queue import sharing
from app.settings import Settings
from app.store import experiments
from app.store.queue import blocks
from app.store.queue.blocks import Why
from lockstep.client import Client
from lockstep.spec.presets import merge
from lockstep.status import Cause, Desired
from tests.conftest import FAST, LiveServer, WorkerProcess, start_server, wait_until
from tests.e2e.following import follow
from tests.e2e.numbers import numbers_of
from tests.e2e.test_kills import child_of
from tests.factories import cartpole_spec

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
ROUNDS, REPLICATES = 8, 4


@dataclass
class House:
    """A server and its only worker, for all tests of this module."""

    server: LiveServer
    worker: WorkerProcess
    client: Client
    #: An experiment whose replicates were trained one after the other.
    apart: str = ""

    def numbers(self, experiment_id: str) -> dict[tuple[str, int], Any]:
        return numbers_of(self.client, self.server.ctx, experiment_id)

    def done(self, experiment_id: str) -> list[int]:
        """Return the rounds that each replicate has handed in."""
        runs = sorted(self.client.runs(experiment_id), key=lambda run: (run["replicate"], run["group_id"]))
        return [int(run["rounds_done"]) for run in runs if run["group_id"] == "A"]

    def packed(self, experiment_id: str) -> list[list[int]]:
        """Return of each start of a replicate those that were packed with it, itself among them."""
        ready = events(self.client, experiment_id, "warmup_completed")
        return [sorted([event["replicate"], *event["payload"].get("packed_with", [])]) for event in ready]


def spec(**lockstep: Any) -> dict[str, Any]:
    return cartpole_spec(
        experiment={"replicates": REPLICATES},
        budget={"rounds": ROUNDS},
        env={"n_envs": 2, "rollout_steps": 96},
        checkpoint={"every_rounds": 2},
        lockstep=lockstep,
        analysis={"inference": "none", "failure": {"floor": 0.0}},
    )


def events(client: Client, experiment_id: str, kind: str) -> list[dict[str, Any]]:
    """Return all events of a kind; the timeline of a fast task is longer than a page."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {"limit": 2000}
    while (page := client.call("GET", f"experiments/{experiment_id}/events", params=params))["items"]:
        found += [event for event in page["items"] if event["type"] == kind]
        params["after"] = page["next"]
        if page["next"] is None:
            break
    return found


@pytest.fixture(scope="module")
def house(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    place = tmp_path_factory.mktemp("packs")
    shutil.copy(sqlite_template, place / "lockstep.db")
    given: dict[str, Any] = {**FAST, "database_url": f"sqlite:///{place / 'lockstep.db'}", "data_dir": place / "data"}
    server = start_server(Settings(**given))
    environment = {**os.environ, "LOCKSTEP_LOCK_DIR": str(place / "locks"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "worker",
        "--api",
        server.url,
        "--device",
        "cpu",
        "--work-dir",
        str(place / "work"),
    ]
    with (place / "worker.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    worker = WorkerProcess(process, place / "worker.log")
    with Client(server.url) as client:
        made = House(server, worker, client)
        made.apart = client.submit(spec(pack=1))["id"]
        follow(server.url, made.apart)
        yield made
    worker.end()
    server.stop()


def test_one_worker_packs_what_waits_and_each_number_is_that_of_the_block_alone(house: House) -> None:
    began = time.time()
    packed = house.client.submit(spec())["id"]
    wait_until(lambda: len((house.client.workers()[0]["holds"] or {"blocks": []})["blocks"]) == 4, what="the pack")
    assert follow(house.server.url, packed)[-1]["status"] == "succeeded"
    assert house.packed(house.apart) == [[0], [1], [2], [3]]
    assert house.packed(packed) == [[0, 1, 2, 3]] * 4
    assert house.numbers(packed) == house.numbers(house.apart)
    # the blocks share each second of the device
    seconds = sum(float(run["device_seconds"]) for run in house.client.runs(packed))
    assert 0 < seconds < time.time() - began


def test_a_killed_pack_gives_every_block_back_and_they_go_on_in_other_packs(house: House) -> None:
    disturbed = house.client.submit(spec(pack=3))["id"]
    wait_until(lambda: min(house.done(disturbed)[:3]) >= 3, what="rounds after a checkpoint")
    pid = child_of(house.worker)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert follow(house.server.url, disturbed)[-1]["status"] == "succeeded"
    assert house.numbers(disturbed) == house.numbers(house.apart)
    starts = house.packed(disturbed)
    assert starts[:3] == [[0, 1, 2]] * 3
    assert len(starts) == 7
    assert {run["resumed"] for run in house.client.runs(disturbed) if run["replicate"] < 3} == {1}


def test_one_block_of_a_pack_is_cancelled_and_the_others_go_on(house: House) -> None:
    experiment = house.client.submit(spec())["id"]
    wait_until(lambda: min(house.done(experiment)) >= 1, what="a round of each")
    store = house.server.ctx.store
    with store.write() as session:
        [block] = [row for row in experiments.blocks(session, experiment) if row.replicate == 2]
        held = blocks.get(session, block.id, lock=True)
        assert held is not None
        why = Why("user", Cause.USER, "this replicate alone")
        blocks.stop(session, store.now(session), held, why, grace_seconds=10.0, desired=Desired.CANCEL)
    follow(house.server.url, experiment)
    states = {
        row["replicate"]: row["status"] for row in house.client.call("GET", f"experiments/{experiment}/blocks")["items"]
    }
    assert states == {0: "succeeded", 1: "succeeded", 2: "cancelled", 3: "succeeded"}
    whole, found = house.numbers(house.apart), house.numbers(experiment)
    assert all(found[key] == whole[key] for key in whole if key[1] != 2)
    assert house.packed(experiment) == [[0, 1, 2, 3]] * 4  # nobody started again


def test_a_worker_that_starts_later_is_given_its_share_of_a_pack(
    house: House, monkeypatch: pytest.MonkeyPatch, start_worker: Callable[..., WorkerProcess]
) -> None:
    monkeypatch.setattr(sharing, "WORTH_SECONDS", 0.0)
    experiment = house.client.submit(merge(spec(), {"budget": {"rounds": 10_000}}))["id"]
    wait_until(lambda: min(house.done(experiment)) >= 2, what="rounds of each")
    start_worker(house.server.url, "--host", "another")
    wait_until(lambda: house.packed(experiment)[4:] == [[2, 3]] * 2, timeout=300, what="two that are trained elsewhere")
    ready = events(house.client, experiment, "warmup_completed")[4:]
    resumed = {event["replicate"]: event["round"] for event in ready}
    assert min(resumed.values()) >= 2, "nothing was lost"
    wait_until(lambda: house.done(experiment)[2] > resumed[2], what="rounds on the second worker")
    blocks_of = house.client.call("GET", f"experiments/{experiment}/blocks")["items"]
    assert {row["replicate"]: row["attempt"] for row in blocks_of} == {0: 1, 1: 1, 2: 2, 3: 2}
    devices = {run["replicate"]: run["device"] for run in house.client.runs(experiment)}
    assert devices[0] == devices[1] != devices[2] == devices[3]
    house.client.steer(experiment, "cancel")
    follow(house.server.url, experiment)
