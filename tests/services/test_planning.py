"""Plans that take their spread from an earlier experiment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.errors import InvalidError
from app.services.context import Context
from app.services.experiments import submission
from app.services.results import finishing
from tests.conftest import wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec

FULL = {"inference": "full"}


def ended(ctx: Context, replicates: int) -> str:
    """Return the id of an experiment that has ended, with scores 60 and 62 + 0..2."""
    experiment_id = submit(ctx, tiny_spec(experiment={"replicates": replicates}, budget={"rounds": 1}))
    worker = SimulatedWorker(ctx).register()
    worker.accuracy = lambda arm, replicate: 60.0 + (2.0 + replicate % 3 if arm == "A" else 0.1 * replicate)
    for _ in range(replicates):
        wait_until(lambda: worker.beat("idle") is not None and worker.claim() is not None, what="a claim")
        worker.train(rounds=1)
    finishing.finish_due(ctx)
    return experiment_id


@pytest.mark.parametrize(("limit", "waves"), [(1, 6), (2, 3), (8, 2)])
def test_an_estimate_counts_the_workers_that_an_owner_may_use(ctx: Context, limit: int, waves: int) -> None:
    ctx = replace(ctx, settings=ctx.settings.model_copy(update={"owner_device_limit": limit}))
    for name in "abc":
        SimulatedWorker(ctx, name).register()
    found = submission.plan(ctx, tiny_spec(experiment={"replicates": 6}))
    assert found["seconds_estimate"] == pytest.approx(waves * found["seconds_per_block_estimate"])


def test_a_plan_with_a_pilot_simulates_its_scores(ctx: Context) -> None:
    pilot = {"pilot": {"experiment": ended(ctx, 4)}}
    found = submission.plan(ctx, tiny_spec(experiment={"replicates": 8}, analysis=FULL | pilot))
    (row,) = found["power"]
    assert (row["sd"], row["pilot_size"]) == (None, 4)
    assert [point["effect"] for point in row["curve"]] == [0.0, 2.0, 3.0, 4.0]
    assert sum(row["curve"][1]["verdicts"].values()) == pytest.approx(1.0)


def test_a_pilot_must_be_known_ended_and_large_enough(ctx: Context) -> None:
    small, running = ended(ctx, 2), submit(ctx)
    for name, blocks in ((running, 0), ("exp_nowhere", 0), (small, 2)):
        spec = tiny_spec(experiment={"replicates": 8}, analysis=FULL | {"pilot": {"experiment": name}})
        with pytest.raises(InvalidError, match=f"has {blocks} complete blocks of eval/accuracy") as refused:
            submission.plan(ctx, spec)
        assert [problem.pointer for problem in refused.value.errors] == ["/analysis/pilot/experiment"]
