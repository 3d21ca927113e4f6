"""Field lesson L2 over a link that is really cut: at every moment one owner, and the results of an undisturbed run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import pytest

from app.services import access
from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, tiny_spec
from tests.field.conftest import StartLight, first_block, timeline
from tests.links import Link, NoLink, link
from tests.owners import Owners

pytestmark = [pytest.mark.server, pytest.mark.long]
_TTL, _ROUNDS = 3.0, 60


@pytest.fixture
def far() -> Iterator[Link]:
    """A link to a network of its own."""
    try:
        with link() as made:
            yield made
    except NoLink as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("how", "database_url"),
    [("down", "sqlite"), pytest.param("dropped", "postgresql", marks=pytest.mark.pg)],
    indirect=["database_url"],
)
def test_l02_link_cut_for_two_ttl_leaves_one_owner_and_equal_results(
    make_server: Callable[..., LiveServer],
    database_url: str,
    light_worker: StartLight,
    far: Link,
    how: Literal["down", "dropped"],
) -> None:
    lease = {"heartbeat_seconds": 0.5, "lease_ttl_seconds": _TTL, "stall_after_seconds": 60.0}
    hosts = f"{far.address},127.0.0.1"
    server = make_server(database_url, auth="token", bind="0.0.0.0", allowed_hosts=hosts, **lease)
    tokens = {role: access.create(server.ctx, role, role, None, LOCAL).secret for role in ("worker", "admin")}
    there = server.url.replace("127.0.0.1", far.address)
    with Client(server.url, token=tokens["admin"]) as client:
        cut = light_worker(there, "until_told", 0.1, before=far.inside, LOCKSTEP_TOKEN=tokens["worker"])
        experiment_id = client.submit(tiny_spec(budget={"rounds": _ROUNDS}, experiment={"replicates": 1}))["id"]
        wait_until(lambda: first_block(client, experiment_id)["open_round"] == 3, what="rounds")
        other = light_worker(server.url, seconds=0.1, LOCKSTEP_TOKEN=tokens["worker"])
        wait_until(lambda: len(client.workers()) == 2, what="the other worker")
        with Owners([cut.log, other.log]) as owners:
            far.cut(how)
            cut.tell("go")  # it trains on, and knows nothing
            time.sleep(2 * _TTL)
            wait_until(lambda: first_block(client, experiment_id)["attempt"] > 1, what="the other one to have it")
            far.heal(how)
            wait_until(lambda: client.show(experiment_id)["status"] == "succeeded", what="the end")
            wait_until(lambda: "lease_lost" in cut.log.read_text(), timeout=60, what="word of the server")
        assert owners.doubled == []
        assert owners.frozen  # it halted before the lease could be another's
        _check_history(timeline(client, experiment_id))
        assert digests(client, experiment_id) == undisturbed()


def _check_history(events: list[dict[str, Any]]) -> None:
    """The block is given to nobody while somebody holds it."""
    moves = [event["status"] for event in events if event["type"] == "block_status"]
    assert moves[0] == "reserved"
    for before, after in pairwise(moves):
        if after == "reserved":
            assert before == "queued"
    assert moves.count("reserved") > 1


def digests(client: Client, experiment_id: str) -> list[tuple[str, int, str]]:
    """Return the digest of every round of every arm."""
    exported = client.call("GET", f"experiments/{experiment_id}/export")
    rounds, runs = (
        [dict(zip(exported["columns"][name], row, strict=True)) for row in exported["tables"][name]]
        for name in ("rounds", "runs")
    )
    labels = {run["run_id"]: run["group_id"] for run in runs}
    return sorted((labels[row["run_id"]], row["round"], row["digest"]) for row in rounds)


def undisturbed() -> list[tuple[str, int, str]]:
    """Return the digests of ``trainer.py``, which follow from arm, replicate and round alone."""
    return [
        (arm, index, hashlib.sha256(f"{arm}0{index}".encode()).hexdigest()) for arm in "AB" for index in range(_ROUNDS)
    ]
