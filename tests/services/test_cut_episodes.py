"""A report says at which limit of steps episodes of evaluation were cut."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.results.reports import where_cut


@pytest.mark.parametrize(
    ("limits", "outcomes", "told"),
    [
        ({}, {"done"}, "at the environment's own limit"),
        ({}, {"done", "horizon"}, "at the environment's own limit"),
        ({}, {"capped"}, "after 100,000 steps (eval.max_steps)"),
        ({"env": {"max_episode_steps": 50}}, {"done", "horizon"}, "after 50 steps (env.max_episode_steps)"),
        ({"env": {"max_episode_steps": 50}}, {"done"}, "after 50 steps (env.max_episode_steps)"),
        ({"eval": {"max_steps": 30}}, {"done"}, "after 30 steps (eval.max_steps)"),
        (
            {"eval": {"max_steps": 30}},
            {"horizon", "capped"},
            "at the environment's own limit, or after 30 steps (eval.max_steps)",
        ),
    ],
)
def test_the_limit_in_force_is_named(limits: dict[str, dict[str, Any]], outcomes: set[str], told: str) -> None:
    assert where_cut({"eval": {}, "env": {}, **limits}, outcomes) == told
