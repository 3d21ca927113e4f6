"""Static controls copy what grew in a finished run, looked up once, at submission."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidError
from app.services.context import Context
from app.services.experiments import reading, submission
from app.store import experiments
from app.store.records import results
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

GROWN = {"r0c0": "bottleneck", "r0c1": "conv_heavy"}


def trained_run(ctx: Context, rounds: int = 2) -> str:
    """Train an experiment and return the id of its first run."""
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    worker.train(rounds)
    return str(reading.list_runs(ctx, experiment_id)[0]["id"])


def evaluate(ctx: Context, run_id: str, index: int, topology: dict[str, str], **row: Any) -> None:
    """Hand in one evaluation episode of a run, of its first attempt."""
    with ctx.store.write() as session:
        run = experiments.run(session, run_id)
        assert run is not None
        base = {"round": index, "env_id": 0, "episode_idx": 0, "mode": "greedy", "topology": topology}
        told = results.EpisodesOf(run, 1, "cpu", [{**base, **row}])
        results.insert_eval_episodes(session, ctx.store.now(session), [told])


def wanting(run_id: str, episode: int = 0, **changes: Any) -> dict[str, Any]:
    copied = {"label": "S", "policy": "static_matched", "static_set": {"run": run_id, "episode": episode}}
    return tiny_spec(arms=[{"label": "A"}, copied], **changes)


def refused(ctx: Context, spec: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidError) as error:
        submission.check(ctx, spec)
    return {problem.code: problem.pointer for problem in error.value.errors}


def test_copy_takes_the_last_evaluation_and_greedy_where_both_were_played(ctx: Context) -> None:
    run_id = trained_run(ctx)
    evaluate(ctx, run_id, 0, {"r0c0": "norm"})
    evaluate(ctx, run_id, 1, GROWN)
    evaluate(ctx, run_id, 1, {"r0c1": "norm"}, mode="sample")
    evaluate(ctx, run_id, 1, {"r0c0": "attention"}, episode_idx=1)
    assert submission.check(ctx, wanting(run_id)).resolved.arms[1].static_set == GROWN
    assert submission.check(ctx, wanting(run_id, 1)).resolved.arms[1].static_set == {"r0c0": "attention"}


def test_copy_is_written_into_the_spec_like_one_given_by_hand(ctx: Context) -> None:
    run_id = trained_run(ctx)
    evaluate(ctx, run_id, 1, GROWN)
    by_hand = wanting(run_id)
    by_hand["arms"][1]["static_set"] = GROWN
    checked = submission.check(ctx, wanting(run_id))
    assert checked.resolved.document["arms"][1]["static_set"] == GROWN
    assert checked.resolved.hash == submission.check(ctx, by_hand).resolved.hash
    experiment_id = submission.submit(ctx, wanting(run_id), LOCAL)
    with ctx.store.read() as session:
        assert experiments.arms(session, experiment_id)[1].static_set == GROWN
        stored = experiments.get(session, experiment_id)
        assert stored is not None
        assert stored.submitted["arms"][1]["static_set"] == {"run": run_id, "episode": 0}


def test_copy_of_what_is_not_there_is_refused_at_the_field_that_names_it(ctx: Context) -> None:
    run_id = trained_run(ctx)
    evaluate(ctx, run_id, 1, {})
    assert refused(ctx, wanting("run_none")) == {"unknown_run": "/arms/1/static_set/run"}
    assert refused(ctx, wanting(run_id, 3)) == {"unknown_episode": "/arms/1/static_set/episode"}
    assert refused(ctx, wanting(run_id)) == {"nothing_grown": "/arms/1/static_set/episode"}
    other = wanting(run_id, env={"task": "digits_small"})
    assert refused(ctx, other) == {"other_task": "/arms/1/static_set/run"}


def test_copy_from_a_run_that_still_trains_is_refused(ctx: Context) -> None:
    run_id = str(reading.list_runs(ctx, submit(ctx))[0]["id"])
    assert refused(ctx, wanting(run_id)) == {"run_not_finished": "/arms/1/static_set/run"}


def test_copy_into_a_slot_that_is_not_enabled_is_refused(ctx: Context) -> None:
    run_id = trained_run(ctx)
    evaluate(ctx, run_id, 1, GROWN)
    assert refused(ctx, wanting(run_id, env={"slots": ["r0c0"]})) == {"slot_not_enabled": "/arms/1/static_set"}
