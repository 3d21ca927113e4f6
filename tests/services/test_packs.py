"""A worker may be given several blocks of one experiment in one go; each is still a block of its own."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from app.cli.text import plan_text
from app.services import steering
from app.services.context import Context
from app.services.experiments import reading, submission
from app.services.queue import scheduling, sharing
from app.services.queue.waiting import queue_document
from app.services.training import sweeping, workers
from app.services.training.block_ends import shared_seconds
from app.store.queue import blocks as store_blocks
from app.store.queue.blocks import Why
from app.store.queue.scheduling import owner_use
from lockstep import protocol as p
from lockstep.status import Cause, Desired
from tests.conftest import Clock
from tests.factories import LOCAL, SimulatedWorker, cartpole_spec, submit

GYM: dict[str, Any] = {"environments": {"gymnasium": {}}}
GPU: dict[str, Any] = {"kind": "gpu", "device_class": "H"}


def packs(ctx: Context, name: str = "w0", **given: Any) -> SimulatedWorker:
    """Return a registered worker that can hold eight blocks."""
    return SimulatedWorker(ctx, name, **{"max_blocks": 8, **GYM, **given}).register()


def cartpoles(ctx: Context, replicates: int, **changes: Any) -> str:
    analysis = {"inference": "none", "failure": {"floor": 0.0}}
    given = {"experiment": {"replicates": replicates}, "budget": {"rounds": 1}, "analysis": analysis}
    return submit(ctx, cartpole_spec(**{**given, **changes}))


def claimed(worker: SimulatedWorker) -> list[SimulatedWorker]:
    """Claim and return the worker once for each block that it is given, in the order of the replicates."""
    first = worker.claim()
    return [] if first is None else [seat(worker, one) for one in (first, *first.beside)]


def seat(worker: SimulatedWorker, assignment: p.Assignment) -> SimulatedWorker:
    held = copy.copy(worker)
    held.assignment = assignment
    return held


def replicates(seats: list[SimulatedWorker]) -> list[int]:
    return [one.held.replicate for one in seats]


def states(ctx: Context, experiment_id: str) -> dict[int, str]:
    return {row["replicate"]: row["status"] for row in reading.list_blocks(ctx, experiment_id)}


def test_one_worker_is_given_all_that_waits_and_shows_it(ctx: Context) -> None:
    experiment_id, other = cartpoles(ctx, 5), cartpoles(ctx, 2)
    worker = packs(ctx)
    seats = claimed(worker)
    assert replicates(seats) == [0, 1, 2, 3, 4]
    assert len({one.held.lease for one in seats}) == 5
    assert replicates(claimed(worker)) == [0, 1, 2, 3, 4]  # a repeated claim hands out the same
    [shown] = reading.list_workers(ctx)
    assert [block["replicate"] for block in shown["holds"]["blocks"]] == [0, 1, 2, 3, 4]
    document = queue_document(ctx)
    assert [(row["experiment_id"], row["workers"], row["replicates"]) for row in document["running"]] == [
        (experiment_id, 1, [0, 1, 2, 3, 4])
    ]
    assert {item["experiment_id"] for item in document["items"]} == {other}
    with ctx.store.read() as session:
        assert owner_use(session, ctx.store.now(session)).in_use == {"alice": 1}


def test_no_worker_that_could_train_is_left_without_its_share(ctx: Context) -> None:
    cartpoles(ctx, 8)
    first, second, third = (packs(ctx, name) for name in ("w0", "w1", "w2"))
    assert replicates(claimed(first)) == [0, 3, 6]
    assert replicates(claimed(second)) == [1, 4, 7]
    assert replicates(claimed(third)) == [2, 5]


def test_free_workers_share_what_waits_unless_the_spec_says_how_many(ctx: Context) -> None:
    cartpoles(ctx, 1)
    assert replicates(claimed(packs(ctx))) == [0]
    first, second = packs(ctx, "w1"), packs(ctx, "w2")
    analysis = {"inference": "none", "failure": {"floor": 0.0}}
    planned = submission.plan(ctx, cartpole_spec(experiment={"replicates": 6}, analysis=analysis))
    assert planned["packs"] == {"replicates": 3, "workers": 2}
    assert planned["pack_limit"] == {"replicates": 16, "why": "at most 32 runs in one process"}
    told = "side by side: up to 3 replicates on each of 2 free workers; a later one gets a share"
    assert told in plan_text(planned).splitlines()
    cartpoles(ctx, 6)
    assert replicates(claimed(first)) == [0, 2, 4]
    assert replicates(claimed(second)) == [1, 3, 5]
    cartpoles(ctx, 6, lockstep={"pack": 5}, experiment={"replicates": 6, "priority": 90})
    assert replicates(claimed(packs(ctx, "w3"))) == [0, 1, 2, 3, 4]


def test_a_worker_with_a_gpu_is_given_several_blocks_of_small_policies_and_one_of_others(ctx: Context) -> None:
    gpu = {"kind": "gpu", "device_class": "H", "max_blocks": 8}
    first, second = packs(ctx, "g0", **gpu), packs(ctx, "g1", **gpu)
    raw = cartpole_spec(experiment={"replicates": 6}, analysis={"inference": "none", "failure": {"floor": 0.0}})
    planned = submission.plan(ctx, raw)
    assert (planned["placement"], planned["packs"]) == ("shared_device", {"replicates": 3, "workers": 2})
    cartpoles(ctx, 6)
    assert replicates(claimed(first)) == [0, 2, 4]
    assert replicates(claimed(second)) == [1, 3, 5]
    cartpoles(ctx, 4, net={"hidden": 512}, lockstep={"placement": "shared_device"})
    assert replicates(claimed(packs(ctx, "g2", **gpu))) == [0]
    assert sharing.share(ctx) == 0
    assert replicates(claimed(packs(ctx, "c0"))) == [1, 2, 3]


def test_a_worker_that_holds_one_block_is_left_one_and_no_more(ctx: Context) -> None:
    large = {"net": {"hidden": 512}, "lockstep": {"placement": "shared_device"}}
    gpu = {"kind": "gpu", "device_class": "H", "max_blocks": 8}
    first, second = packs(ctx, "c0"), packs(ctx, "g0", **gpu)
    cartpoles(ctx, 6, **large)
    assert (replicates(claimed(first)), replicates(claimed(second))) == ([0, 2, 3, 4, 5], [1])
    packs(ctx, "g1", **gpu)
    assert sharing.share(ctx) == 1


def test_small_policies_leave_the_gpu_free_where_a_cpu_slot_is(ctx: Context) -> None:
    gpu, cpu = packs(ctx, "a", kind="gpu", device_class="H"), packs(ctx, "b")
    cartpoles(ctx, 1)
    assert (claimed(gpu), replicates(claimed(cpu))) == ([], [0])


def wanted(seats: list[SimulatedWorker]) -> list[str]:
    return [one.beat().leases[0].desired for one in seats]


def test_a_worker_that_registers_later_is_given_its_share(ctx: Context, clock: Clock) -> None:
    experiment_id = cartpoles(ctx, 5)
    seats = claimed(packs(ctx))
    assert all(one.ready() for one in seats)
    assert sharing.share(ctx) == 0  # nobody is free
    late = packs(ctx, "w1")
    assert sharing.share(ctx) == 2
    assert sharing.share(ctx) == 0  # they are on their way
    assert wanted(seats) == ["run", "run", "run", "drain", "drain"]
    seats[4].release("stopped", "preempted")
    clock.advance(8.0)  # a round of a busy machine
    for one in seats[:4]:
        one.beat()
    late.beat("idle")
    assert claimed(late) == []
    assert sharing.share(ctx) == 0  # what waits comes first
    waits = "waits for others that a free worker is given with it"
    why = reading.show_experiment(ctx, experiment_id)["why_waiting"]
    assert (why["code"], why["text"]) == ("shared", f"{waits}, at most 12 s")
    seats[3].release("stopped", "preempted")
    again = claimed(late)
    assert replicates(again) == [3, 4]  # side by side, as they came
    with ctx.store.read() as session:
        block = store_blocks.get(session, again[0].held.block_id)
    assert block is not None
    assert (block.attempt, block.budget_used) == (2, {})
    assert sharing.share(ctx) == 0


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({}, {"lockstep": {"pack": 8}}),
        ({"environments": {}}, {}),
        ({"memory_bytes": 2**20, "kind": "gpu", "device_class": "small"}, {}),
    ],
    ids=["a number is taken at its word", "it has no such environment", "it is too small"],
)
def test_what_another_worker_cannot_or_may_not_take_stays(
    ctx: Context, given: dict[str, Any], changes: dict[str, Any]
) -> None:
    cartpoles(ctx, 4, **changes)
    seats = claimed(packs(ctx))
    assert len(seats) == 4
    packs(ctx, "w1", **given)
    assert sharing.share(ctx) == 0


def test_a_free_worker_that_the_queue_suits_or_whose_owner_is_at_the_limit_takes_nothing_back(ctx: Context) -> None:
    cartpoles(ctx, 4)
    assert len(claimed(packs(ctx))) == 4
    limited = replace(ctx, settings=ctx.settings.model_copy(update={"owner_device_limit": 1}))
    packs(ctx, "w1")
    assert sharing.share(limited) == 0
    cartpoles(ctx, 1)
    assert sharing.share(ctx) == 0


def test_what_waits_to_be_tried_again_is_given_to_a_free_worker_before_anything_is_taken_back(ctx: Context) -> None:
    cartpoles(ctx, 3)
    seats = claimed(packs(ctx))
    assert all(one.ready() for one in seats)
    seats[2].release("error", "bug", "it broke")
    packs(ctx, "w1")
    assert sharing.share(ctx) == 0


@pytest.mark.parametrize(("rounds", "moved"), [(10, 0), (100, 1)])
def test_what_is_nearly_done_stays(ctx: Context, clock: Clock, rounds: int, moved: int) -> None:
    cartpoles(ctx, 3, budget={"rounds": rounds})
    seats = claimed(packs(ctx))
    assert all(one.ready() for one in seats)
    clock.advance(2.0)
    for one in seats:
        one.hand_in(0)
    packs(ctx, "w1")
    assert sharing.share(ctx) == moved  # rounds of two seconds


@pytest.mark.parametrize(
    ("held", "rooms", "expected"),
    [
        ([(6, "abcdef")], [8], "abc"),
        ([(6, "abcdef")], [8] * 2, "abcd"),
        ([(6, "abcdef")], [8] * 9, "abcde"),
        ([(6, "abcdef")], [1], "a"),
        ([(6, "abcdef")], [1, 8], "abc"),
        ([(2, "ab"), (1, "c")], [8], "a"),
        ([(1, "a"), (1, "b")], [8] * 3, ""),
        ([(6, "ab")], [8], "ab"),
        ([(5, "abcde"), (1, "f")], [8], "ab"),
        ([(8, "abcdefgh"), (2, "ij")], [8], "abcd"),
    ],
)
def test_even_shares(held: list[tuple[int, str]], rooms: list[int], expected: str) -> None:
    found = sharing.to_give_back([sharing.Held(number, list(movable)) for number, movable in held], rooms)
    assert found == list(expected)


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({"max_blocks": 1}, {}),
        ({}, {"lockstep": {"pack": 1}}),
        ({}, {"net": {"encoder": "small"}}),
        ({"memory_bytes": 2**28}, {}),
    ],
    ids=["a worker of one block", "pack 1", "no stack", "memory"],
)
def test_what_cannot_be_packed_or_gains_nothing_is_trained_one_by_one(
    ctx: Context, given: dict[str, Any], changes: dict[str, Any]
) -> None:
    cartpoles(ctx, 3, **changes)
    assert replicates(claimed(packs(ctx, **given))) == [0]


def test_arms_on_devices_of_their_own_are_not_packed(ctx: Context) -> None:
    cartpoles(ctx, 3, lockstep={"placement": "one_per_device"})
    first, second = packs(ctx), packs(ctx, "w1")
    assert replicates(claimed(first)) == replicates(claimed(second)) == [0]


def test_the_limit_of_devices_counts_a_packed_worker_once(ctx: Context) -> None:
    ctx = replace(ctx, settings=ctx.settings.model_copy(update={"owner_device_limit": 1}))
    cartpoles(ctx, 4)
    assert replicates(claimed(packs(ctx))) == [0, 1, 2, 3]
    cartpoles(ctx, 1)
    assert claimed(packs(ctx, "w1")) == []


@pytest.mark.parametrize(("limit", "expected"), [(1, [8, 0, 0]), (2, [4, 4, 0])])
def test_shares_are_cut_for_the_workers_that_the_owner_may_use(ctx: Context, limit: int, expected: list[int]) -> None:
    ctx = replace(ctx, settings=ctx.settings.model_copy(update={"owner_device_limit": limit}))
    workers = [packs(ctx, name) for name in ("w0", "w1", "w2")]
    analysis = {"inference": "none", "failure": {"floor": 0.0}}
    planned = submission.plan(ctx, cartpole_spec(experiment={"replicates": 8}, analysis=analysis))
    assert planned["packs"] == {"replicates": expected[0], "workers": limit}
    cartpoles(ctx, 8)
    assert sorted((len(claimed(worker)) for worker in workers), reverse=True) == expected


def test_no_share_is_left_to_workers_that_are_held_for_several_at_once(ctx: Context, clock: Clock) -> None:
    gpus = [packs(ctx, name, kind="gpu", device_class="g") for name in ("g0", "g1")]
    cartpoles(ctx, 1)
    assert replicates(claimed(gpus[0])) == [0]
    cartpoles(ctx, 1, lockstep={"placement": "one_per_device"})
    clock.advance(ctx.settings.gang_patience_seconds + 1)
    slot = packs(ctx)
    cartpoles(ctx, 6)
    for gpu in gpus:
        gpu.beat("working" if gpu.assignment else "idle")
    slot.beat("idle")
    assert len(claimed(slot)) == 6


def test_one_fails_and_the_others_go_on_and_it_is_not_packed_again(ctx: Context, clock: Clock) -> None:
    experiment_id = cartpoles(ctx, 4, budget={"rounds": 2})
    worker = packs(ctx, max_blocks=3)
    seats = claimed(worker)
    assert all(one.ready() for one in seats)
    seats[1].hand_in(0)
    failed = seats[1].held.block_id
    seats[1].release("error", "bug", "the environment broke")
    assert reading.list_workers(ctx)[0]["status"] == "busy"
    assert states(ctx, experiment_id) == {0: "running", 1: "queued", 2: "running", 3: "queued"}
    for one in (seats[0], seats[2]):
        for index in range(2):
            one.hand_in(index)
            one.checkpoint(index + 1)
    assert states(ctx, experiment_id) == {0: "succeeded", 1: "queued", 2: "succeeded", 3: "queued"}
    for one in (seats[0], seats[2]):
        one.release()
    clock.advance(3600.0)
    worker.beat("idle")
    assert replicates(claimed(worker)) == [1]
    with ctx.store.read() as session:
        block = store_blocks.get(session, failed)
    assert block is not None
    assert block.budget_used == {"bug": 1}


def test_a_free_gpu_takes_its_share_of_small_policies_from_a_cpu_slot(ctx: Context) -> None:
    cartpoles(ctx, 6)
    seats = claimed(packs(ctx))
    assert all(one.ready() for one in seats)
    gpu = packs(ctx, "g0", **GPU)
    assert sharing.share(ctx) == 3
    assert wanted(seats) == ["run"] * 3 + ["drain"] * 3
    for one in seats[3:]:
        one.release("stopped", "preempted")
    gpu.beat("idle")
    assert replicates(claimed(gpu)) == [3, 4, 5]


def test_a_pack_on_a_gpu_is_paused_extended_resumed_and_cancelled(ctx: Context) -> None:
    experiment_id = cartpoles(ctx, 4)
    worker = packs(ctx, "g0", **GPU)
    seats = claimed(worker)
    assert all(one.ready() for one in seats[:2])  # the others are still to come
    steering.set_desired(ctx, experiment_id, Desired.PAUSE, "", LOCAL)
    assert wanted(seats) == ["pause"] * 4
    submission.extend(ctx, experiment_id, 2, LOCAL, exploratory=True)
    for one in seats:
        one.release("stopped", "user")
    assert states(ctx, experiment_id) == {**dict.fromkeys(range(4), "paused"), 4: "queued", 5: "queued"}
    assert claimed(worker) == []
    steering.set_desired(ctx, experiment_id, Desired.RUN, "", LOCAL)
    again = claimed(worker)
    assert replicates(again) == list(range(6))
    assert all(one.ready() for one in again)
    steering.set_desired(ctx, experiment_id, Desired.CANCEL, "", LOCAL)
    assert wanted(again) == ["cancel"] * 6
    for one in again:
        one.release("stopped", "user")
    assert set(states(ctx, experiment_id).values()) == {"cancelled"}
    assert reading.list_workers(ctx)[0]["status"] == "idle"


def test_a_lost_worker_gives_every_block_back_and_they_are_packed_anew(ctx: Context, clock: Clock) -> None:
    experiment_id = cartpoles(ctx, 4)
    seats = claimed(packs(ctx))
    assert all(one.ready() for one in seats)
    sweeping.sweep(ctx)
    for _ in range(8):
        clock.advance(0.5)
        sweeping.sweep(ctx)
    assert set(states(ctx, experiment_id).values()) == {"queued"}
    first, second = packs(ctx, "w1"), packs(ctx, "w2")
    assert replicates(claimed(first)) == [0, 2]
    assert replicates(claimed(second)) == [1, 3]


def test_what_a_lost_worker_held_waits_for_the_last_of_it(ctx: Context, clock: Clock) -> None:
    cartpoles(ctx, 3)
    worker = packs(ctx)
    seats = claimed(worker)
    assert all(one.ready() for one in seats)
    sweeping.sweep(ctx)
    for _ in range(8):  # of the first two nothing is heard any more
        clock.advance(0.5)
        seats[2].beat()
        sweeping.sweep(ctx)
    other = packs(ctx, "w1")
    assert claimed(other) == []
    for _ in range(8):
        clock.advance(0.5)
        other.beat("idle")
        sweeping.sweep(ctx)
    assert replicates(claimed(other)) == [0, 1, 2]


@pytest.mark.parametrize("asked", [True, False], ids=["drains", "ends"])
@pytest.mark.parametrize("number", [1, 4])
def test_what_leaves_a_worker_together_is_assigned_together(
    ctx: Context, clock: Clock, number: int, asked: bool
) -> None:
    cartpoles(ctx, number)
    worker = packs(ctx, "g0", **GPU)
    seats = claimed(worker)
    assert all(one.ready() for one in seats)
    if asked:
        workers.drain(ctx, worker.worker_id, LOCAL, now=True)
        assert wanted(seats) == ["drain"] * number
    other = packs(ctx, "g1", **GPU)
    for one in seats:
        assert claimed(other) == []
        clock.advance(0.5)
        one.release("stopped", "preempted")
        other.beat("idle")
    if not asked:
        worker.beat("leaving")
    assert replicates(claimed(other)) == list(range(number))


def test_one_is_cancelled_and_the_heartbeat_of_all_says_so_of_it_alone(ctx: Context) -> None:
    experiment_id = cartpoles(ctx, 3)
    worker = packs(ctx)
    seats = claimed(worker)
    assert all(one.ready() for one in seats)
    with ctx.store.write() as session:
        block = store_blocks.get(session, seats[1].held.block_id, lock=True)
        assert block is not None
        why = Why("alice", Cause.USER, "enough")
        store_blocks.stop(session, ctx.store.now(session), block, why, grace_seconds=9.0, desired=Desired.CANCEL)
    wanted = {one.held.replicate: one.beat().leases[0].desired for one in seats}
    assert wanted == {0: "run", 1: "cancel", 2: "run"}
    seats[1].release("stopped", "user")
    assert states(ctx, experiment_id) == {0: "running", 1: "cancelled", 2: "running"}


def test_blocks_share_the_seconds_of_their_device(ctx: Context, clock: Clock) -> None:
    experiment_id = cartpoles(ctx, 3)
    seats = claimed(packs(ctx))
    assert all(one.ready() for one in seats)
    ends = (300.0, 100.0, 50.0)
    for one, seconds in zip(seats, ends, strict=True):
        clock.advance(seconds)
        for other in seats:
            if other.assignment is not None and other.held.replicate >= one.held.replicate:
                other.beat()
        one.hand_in(0)
        one.checkpoint(1)
    by_replicate: dict[int, float] = {}
    for run in reading.list_runs(ctx, experiment_id):
        by_replicate[run["replicate"]] = by_replicate.get(run["replicate"], 0.0) + run["device_seconds"]
    assert by_replicate == {0: pytest.approx(100.0), 1: pytest.approx(150.0), 2: pytest.approx(200.0)}


@pytest.mark.parametrize(
    ("first", "later", "number", "taken"),
    [
        ({**GPU, "memory_bytes": 2**36}, {**GPU, "memory_bytes": 2**37}, 1, True),
        ({"memory_bytes": 2**34}, {**GPU, "memory_bytes": 2**37}, 1, True),
        ({"memory_bytes": 2**34}, {"memory_bytes": 2**35}, 1, False),
        ({"memory_bytes": 2**34}, {"memory_bytes": 2**35}, 2, True),
    ],
    ids=["of the host of a GPU", "a GPU has none for it", "of a CPU slot", "shared with another replicate"],
)
def test_who_ran_out_of_memory_asks_for_more_of_the_same(
    ctx: Context, first: dict[str, Any], later: dict[str, Any], number: int, taken: bool
) -> None:
    cartpoles(ctx, number)
    worker = packs(ctx, "w0", **first)
    seats = claimed(worker)
    assert all(one.ready() for one in seats)
    for one in seats:
        one.release("error", "oom")
    other = packs(ctx, "w1", **later)
    assert (worker.claim() is not None) is taken
    assert (other.claim() is not None) is (number == 2 or not taken)


@pytest.mark.parametrize(
    ("now", "ends", "expected"),
    [(10.0, [None], 10.0), (10.0, [None, None], 5.0), (10.0, [4.0, None, None], 4 / 3 + 3.0), (4.0, [4.0, None], 2.0)],
)
def test_shares_of_a_device_add_up(now: float, ends: list[float | None], expected: float) -> None:
    assert shared_seconds(0.0, now, ends) == pytest.approx(expected)


def test_a_claim_in_explanation_is_the_claim_that_follows(ctx: Context) -> None:
    experiment_id = cartpoles(ctx, 3)
    packs(ctx)
    items = queue_document(ctx)["items"]
    assert [item["why_waiting"]["code"] for item in items] == ["starting"] * 3
    assert scheduling.tick(ctx) == 3
    assert set(states(ctx, experiment_id).values()) == {"reserved"}
