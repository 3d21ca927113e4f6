"""When what waits will start: pure arithmetic on measured rates, and what the queue says of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import pytest

from app.services.context import Context
from app.services.queue import forecast
from app.services.queue.forecast import Waiting
from app.services.queue.placement import Need, WorkerView
from app.services.queue.waiting import queue_document
from app.store.rows.experiments import BlockState
from tests.conftest import Clock
from tests.factories import SimulatedWorker, submit, tiny_spec


def view(name: str, device_class: str = "cpu", kind: str = "cpu") -> WorkerView:
    return WorkerView(name, name, device_class, kind, 2.0**34, idle=False, healthy=True)


def state(status: str, done: int, began: float | None, ended: float | None = None) -> BlockState:
    at = [None if second is None else datetime.fromtimestamp(second, UTC) for second in (began, ended)]
    return BlockState("exp_0000", 0, 0, status, None, 1, done, at[0], at[1])


ONE = Need(2, "shared_device")


def waits(
    seconds: float | None, need: Need = ONE, experiment_id: str = "exp", owner: str = "ann", *, packs: bool = True
) -> Waiting:
    return Waiting(need, seconds, experiment_id, owner, packs)


def starts(
    views: list[WorkerView], free: dict[str, float], waiting: list[Waiting], limit: int = 64
) -> list[float | None]:
    return forecast.starts(views, free, waiting, forecast.Shares(limit))


def test_each_block_takes_the_device_that_is_free_first() -> None:
    views = [view("a"), view("b")]
    found = starts(views, {"a": 30.0, "b": 10.0}, [waits(100.0), waits(100.0), waits(100.0)])
    assert found == [10.0, 30.0, 110.0]


def test_gang_waits_for_enough_devices_of_one_class() -> None:
    views = [view("a", "h200", "gpu"), view("b", "h200", "gpu"), view("c", "a100", "gpu")]
    free = {"a": 50.0, "b": 70.0, "c": 0.0}
    assert starts(views, free, [waits(10.0, Need(2, "one_per_device")), waits(10.0)]) == [70.0, 0.0]


def test_packed_blocks_start_together_and_free_workers_share_them() -> None:
    views = [replace(view(name), max_blocks=8) for name in "ab"]
    packed = replace(ONE, pack=8, pack_evenly=True)
    queue = [waits(50.0, packed) for _ in range(5)]
    # three of five on the first, two on the second; where that is busy the first takes all
    other = waits(10.0, experiment_id="other")
    assert starts(views, {"a": 0.0, "b": 0.0}, [*queue, other]) == [0.0] * 5 + [50.0]
    assert starts(views, {"a": 0.0, "b": 20.0}, [*queue, other]) == [0.0] * 5 + [20.0]
    alone = [waits(50.0, packed, packs=False) for _ in range(2)]
    assert starts(views[:1], {"a": 0.0}, alone) == [0.0, 50.0]


def test_an_owner_at_the_limit_waits_for_a_worker_of_their_own_and_others_do_not() -> None:
    views = [replace(view(name), max_blocks=8) for name in "abc"]
    free = dict.fromkeys("abc", 0.0)
    queue = [waits(10.0), waits(20.0), waits(10.0), waits(10.0, owner="bob"), waits(10.0)]
    assert starts(views, free, queue, limit=1) == [0.0, 10.0, 30.0, 0.0, 40.0]
    packed = replace(ONE, pack=8, pack_evenly=True)
    assert starts(views, free, [waits(50.0, packed)] * 8 + [waits(10.0)], limit=1) == [0.0] * 8 + [50.0]
    shares = forecast.Shares(2)
    shares.add("ann", 0.0, 7.0)
    shares.add("ann", 0.0, inf)
    assert forecast.starts(views[:1], {"a": 0.0}, [waits(10.0), waits(None), waits(1.0)], shares) == [7.0, 17.0, None]


@pytest.mark.parametrize(
    ("free", "seconds", "expected"),
    [({"a": inf}, 10.0, [None, None]), ({"a": 5.0}, None, [5.0, None]), ({}, 10.0, [None, None])],
    ids=["nothing measured of what runs", "nothing measured of what is ahead", "no worker"],
)
def test_what_hangs_on_an_unmeasured_rate_is_unknown(
    free: dict[str, float], seconds: float | None, expected: list[float | None]
) -> None:
    assert starts([view("a")] if free else [], free, [waits(seconds), waits(10.0)]) == expected


def test_rate_counts_finished_and_running_replicates_and_none_that_waits() -> None:
    states = [state("succeeded", 0, 0.0, 40.0), state("running", 2, 50.0), state("queued", 0, None)]
    # 40 s for 4 rounds, 30 s for 2 rounds
    assert forecast.seconds_a_round(4, states, now=80.0) == pytest.approx(70.0 / 6)
    # 6 of 12 rounds in the 80 s since the first began
    assert forecast.seconds_left(4, states, now=80.0) == pytest.approx(80.0)


def test_nothing_is_left_where_nothing_began_or_all_has_ended() -> None:
    assert forecast.seconds_left(4, [state("queued", 0, None)], now=9.0) is None
    assert forecast.seconds_left(4, [state("running", 0, 1.0)], now=9.0) is None
    assert forecast.seconds_left(4, [state("succeeded", 4, 1.0, 5.0)], now=9.0) is None


def test_queue_says_when_the_next_replicate_starts_and_what_runs(ctx: Context, clock: Clock) -> None:
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": 3}, budget={"rounds": 4}))
    worker = SimulatedWorker(ctx).register()
    assert worker.claim() is not None
    worker.ready()
    assert [item["starts_in_seconds"] for item in queue_document(ctx)["items"]] == [None, None]
    clock.advance(20.0)
    worker.beat()
    worker.hand_in(0)
    document = queue_document(ctx)
    # 20 s a round: three rounds are left of the first replicate, then four of the second
    assert [item["starts_in_seconds"] for item in document["items"]] == pytest.approx([60.0, 140.0], abs=1.0)
    running = document["running"][0]
    assert (running["experiment_id"], running["replicates"], running["workers"]) == (experiment_id, [0], 1)
    assert running["seconds_left"] == pytest.approx(20.0 * 11, abs=5.0)


def test_queue_foresees_the_limit_of_an_owner(ctx: Context, clock: Clock) -> None:
    ctx = replace(ctx, settings=ctx.settings.model_copy(update={"owner_device_limit": 1}))
    submit(ctx, tiny_spec(experiment={"replicates": 3}, budget={"rounds": 4}))
    worker, free = SimulatedWorker(ctx).register(), SimulatedWorker(ctx, "free").register()
    assert worker.claim() is not None
    worker.ready()
    clock.advance(20.0)
    worker.beat(), free.beat("idle")
    worker.hand_in(0)
    items = queue_document(ctx)["items"]
    assert [item["why_waiting"]["code"] for item in items] == ["owner_limit"] * 2
    assert [item["starts_in_seconds"] for item in items] == pytest.approx([60.0, 140.0], abs=1.0)
