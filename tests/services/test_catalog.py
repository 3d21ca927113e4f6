"""Registries of tasks that workers announce: kept once, and asked at every plan and submission."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.errors import InvalidError
from app.services.context import Context
from app.services.experiments import reading, submission
from app.store.schema import tables
from tests.factories import SimulatedWorker, cartpole_spec, submit, tiny_spec

NO_ANALYSIS = {"inference": "none", "failure": {"floor": 0.0}}

POLE = {"ids": ["CartPole-v0", "CartPole-v1"], "arguments": ["render_mode"]}
BROKEN = {"ids": ["Lander-v3"], "defect": "Box2D is not installed"}


def worker(ctx: Context, name: str, *groups: dict[str, Any]) -> None:
    SimulatedWorker(ctx, name, environments={"gymnasium": {}}, tasks={"gymnasium": list(groups)}).register()


def told(ctx: Context, **env: Any) -> list[tuple[str, str]]:
    try:
        return [
            ("warning", text) for text in submission.plan(ctx, cartpole_spec(env=env))["warnings"] if "env.id" in text
        ]
    except InvalidError as error:
        return [(item.pointer, item.code) for item in error.errors]


#: What an earlier version let workers announce of a reward and of an environment.
BAD_REWARDS: list[dict[str, Any]] = [
    {"schema": {"properties": {"price": "number"}}},
    {"schema": {"properties": {"price": {"minimum": "a"}}}},
    {"schema": {"properties": {"price": {"default": "x", "type": "number"}}}},
    {"schema": None},
    {"env_kinds": None},
    {"tasks": 5},
    {"defect": None},
]
BAD_ENVIRONMENTS: list[dict[str, Any]] = [
    {"properties": {"length": "number"}},
    {"properties": {"length": {"default": {"a": 1}}}},
    {"properties": 5},
]


def test_what_an_earlier_version_let_pass_is_a_defect_and_hinders_nobody_else(ctx: Context) -> None:
    old = SimulatedWorker(ctx, "old").register()
    stored = {
        "rewards": {f"bad{i}": facts for i, facts in enumerate(BAD_REWARDS)},
        "environments": {f"worse{i}": facts for i, facts in enumerate(BAD_ENVIRONMENTS)},
    }
    with ctx.store.write() as session:
        session.execute(update(tables.worker).values(**stored))
    submission.plan(ctx, tiny_spec())
    for name in stored["rewards"]:
        with pytest.raises(InvalidError) as refused:
            submission.plan(ctx, tiny_spec(arms=[{"label": "A", "overrides": {"reward.mode": name}}, {"label": "B"}]))
        assert [item.code for item in refused.value.errors] == ["defective_reward"], name
    for name in stored["environments"]:
        assert told(ctx, id=name, kwargs={"length": 1}) == [("/env/id", "defective_environment")]
    shown = reading.show_worker(ctx, old.worker_id)
    assert {item["name"] for item in shown["defects"]} == {*stored["rewards"], *stored["environments"]}
    SimulatedWorker(ctx, "new", environments={"worse0": {"properties": {"length": {}}}}).register()
    assert told(ctx, id="worse0", kwargs={"length": 1}, max_episode_steps=9) == []


def test_no_block_is_given_to_a_worker_whose_own_plug_in_is_defective(ctx: Context) -> None:
    given: dict[str, Any] = {
        "environments": {"worse": {"properties": {}}},
        "rewards": {"bad": {"env_kinds": ["gymnasium"]}},
    }
    old, new = (SimulatedWorker(ctx, name, **given).register() for name in ("old", "new"))
    for stored in ({"environments": {"worse": BAD_ENVIRONMENTS[0]}}, {"rewards": {"bad": BAD_REWARDS[0]}}):
        with ctx.store.write() as session:
            whole = update(tables.worker).where(tables.worker.c.id == old.worker_id)
            session.execute(whole.values(**{**given, **stored}))
        arms = [{"label": "A", "reward": "bad"}, {"label": "B"}]
        submit(ctx, cartpole_spec(env={"id": "worse", "max_episode_steps": 9}, arms=arms, analysis=NO_ANALYSIS))
        assert old.claim() is None
        assert new.claim() is not None
        new.train(3)


def test_a_task_is_refused_where_no_worker_has_it_and_taken_where_one_can_build_it(ctx: Context) -> None:
    [(kind, text)] = told(ctx, id="CartPole-v7")
    assert (kind, "not checked" in text) == ("warning", True)
    for name in ("a", "b"):
        worker(ctx, name, POLE, BROKEN)
    assert told(ctx, id="CartPole-v7") == [("/env/id", "unknown_environment")]
    assert told(ctx, id="Lander-v3") == [("/env/id", "defective_environment")]
    assert told(ctx, id="CartPole-v1", kwargs={"lenght": 3}) == [("/env/kwargs/lenght", "unknown_key")]
    assert told(ctx, id="CartPole") == []
    with pytest.raises(InvalidError, match="no registered worker knows"):
        submission.submit(ctx, cartpole_spec(env={"id": "CartPole-v7"}), None)  # type: ignore[arg-type]
    worker(ctx, "c", {"ids": ["Lander-v3"], "arguments": []})
    assert told(ctx, id="Lander-v3") == []
    with ctx.store.read() as session:
        kept = session.execute(select(tables.meta.c.key).where(tables.meta.c.key.like("tasks:%"))).all()
    assert len(kept) == 2
