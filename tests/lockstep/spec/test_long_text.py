"""A refusal quotes the beginning of a long text, wherever in a specification somebody wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.specs import app
from lockstep.quoting import quoted, shortened
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from lockstep.spec.rules import Registered, check
from lockstep.spec.text.problems import InvalidSpecError, Problem
from lockstep.text import control_at
from tests.factories import cartpole_spec, tiny_spec

LONG = "long" * 25_000
REGISTERED = Registered(
    {"mine": {"env_kinds": ["gymnasium"], "schema": {"properties": {"price": {"type": "number"}}}}},
    {"corridor": {"properties": {"length": {"type": "integer"}}}},
    {"gymnasium": {"CartPole-v1": {"arguments": ["length"]}}},
)


def refused(raw: dict[str, Any]) -> list[Problem]:
    try:
        return check(parse(raw), REGISTERED)[0]
    except InvalidSpecError as error:
        return list(error.problems)


def replaced(document: Any, value: Any) -> Any:
    """Return a document with ``value`` in the place of each leaf, and a long key in each mapping."""
    if isinstance(document, dict):
        return {key: replaced(item, value) for key, item in document.items()} | {LONG: 1}
    if isinstance(document, list) and document:
        return [replaced(item, value) for item in document]
    return value


@pytest.mark.parametrize("value", [LONG, {LONG: LONG}, [LONG]], ids=["text", "mapping", "list"])
def test_no_field_of_a_specification_is_refused_with_all_of_a_long_text(value: Any) -> None:
    problems = refused({**replaced(dict(parse(cartpole_spec()).document), value), "preset": None})
    assert len(problems) > 150
    for problem in problems:
        assert max(map(len, (problem.pointer, problem.message, problem.remedy))) < 600, str(problem)[:600]


RULES: list[dict[str, Any]] = [
    cartpole_spec(preset=LONG),
    cartpole_spec(preset={LONG: 1}),
    cartpole_spec(reward={"mode": LONG}),
    cartpole_spec(reward={LONG: 1}),
    cartpole_spec(reward={"mode": "mine", LONG: 1}),
    cartpole_spec(reward={"mode": "mine", "price": LONG}),
    cartpole_spec(env={"wrappers": [LONG]}),
    cartpole_spec(env={"wrappers": [LONG, LONG]}),
    cartpole_spec(env={"id": "corridor", "kwargs": {LONG: 1}}),
    cartpole_spec(env={"id": "corridor", "kwargs": {"length": LONG}}),
    cartpole_spec(ppo={"prob_floor": {LONG: 7}}),
    cartpole_spec(analysis={"primary": LONG, "control": LONG}),
    cartpole_spec(arms=[{"label": "A", "overrides": {f"ppo.{LONG}": 1}}, {"label": "B"}]),
    cartpole_spec(arms=[{"label": "A", "overrides": {LONG: 1}}, {"label": "B", "overrides": {f"env.{LONG}": 1}}]),
    cartpole_spec(arms=[{"label": "A", "overrides": {f"{LONG}.lr": 1}}, {"label": "B"}]),
    cartpole_spec(**{LONG: float("inf")}),
    cartpole_spec(**{LONG: "\x00"}),
    tiny_spec(env={"task": LONG}),
    tiny_spec(env={"slots": [LONG]}),
    tiny_spec(arms=[{"label": "A", "policy": "static", "static_set": {LONG: LONG}}, {"label": "B"}]),
    {"env": {"id": LONG}, **{k: v for k, v in cartpole_spec().items() if k not in ("env", "preset")}},
]


@pytest.mark.parametrize("raw", RULES, ids=range(len(RULES)))
def test_no_rule_refuses_with_all_of_a_long_text(raw: dict[str, Any]) -> None:
    problems = refused(raw)
    assert problems
    for problem in problems:
        assert max(map(len, (problem.pointer, problem.message, problem.remedy))) < 600, str(problem)[:600]


def test_the_command_that_checks_a_specification_prints_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text(json.dumps(merge(tiny_spec(), {"ppo": {LONG: 1}, "env": {"task": LONG}})))
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 1
    assert "unknown key 'longlong" in result.stderr
    assert len(result.stderr) < 1_000


def test_a_text_is_quoted_whole_up_to_a_length() -> None:
    assert (shortened("a" * 80), shortened("a" * 81)) == ("a" * 80, "a" * 77 + "...")
    assert (quoted("it's"), quoted(1.5), quoted(["a"])) == ('"it\'s"', "1.5", "['a']")
    assert quoted(LONG) == "'" + LONG[:76] + "..."
    assert control_at({LONG: "\x00"}) == f"/{shortened(LONG)}"
