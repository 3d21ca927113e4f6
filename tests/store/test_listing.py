"""The list of experiments filters by the status that the blocks give, in SQL as in Python."""

from __future__ import annotations

from itertools import combinations, product

from sqlalchemy import insert, update

from app.services.context import Context
from app.services.experiments import reading
from app.store import experiments
from app.store.schema import tables as t
from lockstep.status import BlockStatus, Cause, Desired, ExperimentStatus
from tests.factories import submit, tiny_spec

_STATES = [(status, Cause.DECIDED) for status in BlockStatus] + [(BlockStatus.CANCELLED, None)]


def test_the_filter_says_what_the_blocks_say(ctx: Context) -> None:
    chosen = submit(ctx, tiny_spec(experiment={"replicates": 2}))
    seen: set[ExperimentStatus] = set()
    pairs = [*combinations(_STATES, 2), *((state, state) for state in _STATES)]
    for (first, second), desired, attempt in product(pairs, Desired, (0, 1)):
        with ctx.store.write() as session:
            session.execute(update(t.experiment).values(desired=desired))
            for replicate, (status, cause) in enumerate((first, second)):
                mine = update(t.block).where(t.block.c.experiment_id == chosen, t.block.c.replicate == replicate)
                session.execute(mine.values(status=status, cause=cause, attempt=attempt))
        with ctx.store.read() as session:
            experiment = experiments.get(session, chosen)
            assert experiment is not None
            wanted = experiments.derived_status(experiment, experiments.blocks(session, chosen))
            listed = {
                status: [row.id for row in experiments.list_page(session, experiments.Listing(status=status))]
                for status in (wanted, *(other for other in list(ExperimentStatus)[::3] if other is not wanted))
            }
        assert listed.pop(wanted) == [chosen]
        assert not any(listed.values())
        seen.add(wanted)
    assert seen == set(ExperimentStatus)


def test_a_repeated_block_takes_the_place_of_the_older_one(ctx: Context) -> None:
    chosen = submit(ctx, tiny_spec())
    with ctx.store.write() as session:
        session.execute(update(t.block).values(status=BlockStatus.FAILED, cause=Cause.BUG))
        older = experiments.blocks(session, chosen)[0]
        again = {column.name: getattr(older, column.name) for column in t.block.c}
        again |= {"id": "blk_again", "generation": older.generation + 1, "status": BlockStatus.SUCCEEDED, "cause": None}
        session.execute(insert(t.block).values(again))
    found = {
        status: [item["id"] for item in reading.list_experiments(ctx, reading.ListRequest(status=status))["items"]]
        for status in ("succeeded", "failed", "partial")
    }
    assert found == {"succeeded": [chosen], "failed": [], "partial": []}


def test_pages_of_one_status_leave_none_out(ctx: Context) -> None:
    made = [submit(ctx, tiny_spec(experiment={"name": f"n{index}"})) for index in range(5)]
    with ctx.store.write() as session:
        session.execute(update(t.experiment).where(t.experiment.c.id.in_(made[1::2])).values(desired=Desired.CANCEL))
        session.execute(update(t.block).where(t.block.c.experiment_id.in_(made[1::2])).values(status="cancelled"))
    found, cursor = [], None
    for _ in range(3):
        page = reading.list_experiments(ctx, reading.ListRequest(status="queued", cursor=cursor, limit=2))
        found += [item["id"] for item in page["items"]]
        if (cursor := page["next"]) is None:
            break
    assert found == made[::2][::-1]
    assert cursor is None
