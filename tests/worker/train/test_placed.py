"""Environments on the host for policies on a device, which here is the processor, so that every number is equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.worker.train.cases import CPU, GYM, GYM_ARMS, GYM_KIT, GYM_LSTM, block, digests, train
from worker.envs.family import Order
from worker.envs.gymnasium.family import FAMILY
from worker.envs.placed import Placed
from worker.train import environments
from worker.train.block import BlockTrainer


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Placed]:
    """Let environments be built for a device; they come here."""
    found: list[Placed] = []

    def placed(order: Order, overlaps: bool) -> Placed:
        found.append(Placed(FAMILY.train(order, overlaps), order.device))
        return found[-1]

    monkeypatch.setattr(environments, "family_of", lambda _: replace(FAMILY, train=placed))
    return found


@pytest.mark.parametrize("base", [GYM, GYM_KIT], ids=["choices", "images-and-parts"])
def test_environments_for_a_device_give_the_numbers_of_those_on_the_host(
    base: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    plan = block(base, GYM_ARMS)
    expected = digests(train(plan), "run-A")
    made = request.getfixturevalue("made")
    assert digests(train(plan), "run-A") == expected
    assert made


def test_where_nothing_learns_images_live_where_their_environments_do(made: list[Placed]) -> None:
    arms = [{"label": label, "policy": "random"} for label in "AB"]
    trainer = BlockTrainer(block(GYM_KIT, arms), CPU, at_home=True)
    assert trainer.envs is made[0].host
    trainer.close()


@pytest.mark.parametrize(
    ("base", "stays"),
    [
        (GYM, False),
        (GYM_LSTM, False),
        (GYM_KIT, True),
        (GYM | {"net": {"hidden": 512}}, True),
        (GYM_LSTM | {"net": {"hidden": 8, "lstm_hidden": 256}}, True),
        (GYM | {"precision": {"policy": "bf16"}}, True),
    ],
    ids=["small", "small-lstm", "images", "large", "large-lstm", "bf16"],
)
def test_small_policies_of_numbers_live_where_their_environments_do(
    base: dict[str, Any], stays: bool, made: list[Placed]
) -> None:
    trainer = BlockTrainer(block(base, GYM_ARMS), CPU, at_home=True)
    assert (trainer.envs is made[0]) is stays
    assert (trainer.envs is made[0].host) is not stays
    if not stays:
        assert trainer.warm_up()["stacks"] == [["A", "B"]]
    trainer.close()
