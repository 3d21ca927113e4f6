"""How many replicates a worker may hold: what is said, what auto chooses, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.spec.packing import Packing, packing_of
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse
from lockstep.spec.rules import check
from tests.factories import cartpole_spec, tiny_spec


def cartpole(**changes: Any) -> dict[str, Any]:
    fixed = {"experiment": {"replicates": 12}, "analysis": {"sesoi": 25.0, "failure": {"floor": 0.0}}}
    return cartpole_spec(**merge(fixed, changes))


def test_auto_is_left_out_of_the_resolved_spec_so_that_older_ones_keep_their_hash() -> None:
    plain = parse(cartpole())
    assert "pack" not in plain.document["lockstep"]
    assert parse(cartpole(lockstep={"pack": "auto"})).hash == plain.hash
    assert parse(cartpole(lockstep={"pack": 1})).hash != plain.hash


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (cartpole(), Packing(16, evenly=True)),
        (cartpole(arms=[{"label": "A"}, {"label": "B", "policy": "random"}]), Packing(16, evenly=True)),
        (cartpole(lockstep={"pack": 5}), Packing(5, evenly=False)),
        (cartpole(lockstep={"pack": 1}), Packing(1, evenly=False)),
        (cartpole(lockstep={"placement": "one_per_device"}), Packing(1, evenly=True)),
        (cartpole(net={"body": "lstm"}, ppo={"minibatches": 1}), Packing(16, evenly=True)),
        (cartpole(arms=[{"label": "A"}, {"label": "B", "overrides": {"net.body": "lstm"}}]), Packing(16, evenly=True)),
        (cartpole(precision={"policy": "bf16"}), Packing(1, evenly=True)),
        (cartpole(net={"encoder": "small"}), Packing(1, evenly=True)),
        (cartpole(ppo={"prob_floor": {"action": 0.1}}), Packing(1, evenly=True)),
        (tiny_spec(), Packing(1, evenly=True)),
        (
            cartpole(analysis={"looks": {"mode": "planned", "at": [6, 9, 12]}, "replicates": {"max": 12}}),
            Packing(3, evenly=True),
        ),
        (cartpole(analysis={"looks": {"mode": "anytime"}}), Packing(1, evenly=True)),
    ],
)
def test_packing_follows_what_is_said_or_what_pays(spec: dict[str, Any], expected: Packing) -> None:
    assert packing_of(parse(spec)) == expected


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (tiny_spec(lockstep={"pack": 2}), "not_applicable"),
        (cartpole(lockstep={"pack": 2, "placement": "one_per_device"}), "contradiction"),
    ],
)
def test_a_pack_that_cannot_be_is_refused_with_its_field(spec: dict[str, Any], code: str) -> None:
    [problem] = [problem for problem in check(parse(spec))[0] if problem.pointer == "/lockstep/pack"]
    assert (problem.code, bool(problem.remedy)) == (code, True)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (cartpole(), "at most 32 runs in one process"),
        (cartpole(lockstep={"pack": 5}), "lockstep.pack is 5"),
        (cartpole(analysis={"looks": {"mode": "anytime"}}), "the next look at the data comes after 1"),
        (cartpole(net={"encoder": "small"}), "arm A has net.encoder small, which is not stacked"),
        (tiny_spec(), "env.kind morphogenesis is not trained in stacks"),
    ],
)
def test_a_limit_says_why(spec: dict[str, Any], why: str) -> None:
    assert packing_of(parse(spec)).why == why
