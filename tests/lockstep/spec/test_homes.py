"""Which experiments need no GPU, as far as their specification tells."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.spec.homes import is_at_home
from lockstep.spec.resolve import parse
from tests.factories import cartpole_spec, tiny_spec

LSTM = {"body": "lstm", "hidden": 64}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"net": {"hidden": 256}}, True),
        ({"net": {"hidden": 257}}, False),
        ({"net": {**LSTM, "lstm_hidden": 128}}, True),
        ({"net": {**LSTM, "lstm_hidden": 129}}, False),
        ({"net": {"hidden": 64, "encoder": "small"}}, False),
        ({"precision": {"policy": "bf16"}}, False),
        ({"env": {"id": "ALE/Pong-v5"}}, False),
        ({"env": {"id": "ALE/Pong-v5", "wrappers": ["atari"]}}, False),
    ],
)
def test_small_policies_of_simulators_on_the_host(changes: dict[str, Any], expected: bool) -> None:
    assert is_at_home(parse(cartpole_spec(**changes)), is_batched=False) is expected


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5"])
def test_what_learns_nothing_needs_no_gpu(env: str) -> None:
    arms = [{"label": label, "policy": "random"} for label in "AB"]
    resolved = parse(cartpole_spec(arms=arms, env={"id": env}, net={"hidden": 512}))
    assert is_at_home(resolved, is_batched=False)
    assert not is_at_home(resolved, is_batched=True)


def test_hosts_that_grow_may_need_it_where_nothing_learns() -> None:
    arms = [{"label": label, "policy": "random"} for label in "AB"]
    assert not is_at_home(parse(tiny_spec(arms=arms)), is_batched=False)


def test_one_large_arm_is_enough() -> None:
    raw = cartpole_spec()
    raw["arms"][1]["overrides"] = {"net.hidden": 512}
    assert not is_at_home(parse(raw), is_batched=False)


def test_batched_simulators_and_hosts_that_grow_may_need_it() -> None:
    assert not is_at_home(parse(cartpole_spec()), is_batched=True)
    assert not is_at_home(parse(tiny_spec()), is_batched=False)
