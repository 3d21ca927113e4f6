"""Registries of tasks that workers announce: kept once, and asked at every plan and submission."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from app.errors import InvalidError
from app.services.context import Context
from app.services.experiments import submission
from app.store.schema import tables
from tests.factories import SimulatedWorker, cartpole_spec

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
