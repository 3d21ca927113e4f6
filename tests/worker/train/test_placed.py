"""Environments on the host for policies on a device, which here is the processor, so that every number is equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.worker.train.cases import GYM, GYM_ARMS, GYM_KIT, block, digests, train
from worker.envs.family import Order
from worker.envs.gymnasium.family import FAMILY
from worker.envs.placed import Placed
from worker.train import environments


@pytest.mark.parametrize("base", [GYM, GYM_KIT], ids=["choices", "images-and-parts"])
def test_environments_for_a_device_give_the_numbers_of_those_on_the_host(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = block(base, GYM_ARMS)
    expected = digests(train(plan), "run-A")
    made = []

    def placed(order: Order, overlaps: bool) -> Placed:
        made.append(Placed(FAMILY.train(order, overlaps), order.device))
        return made[-1]

    def family(_plan: object) -> object:
        return replace(FAMILY, train=placed)

    monkeypatch.setattr(environments, "family_of", family)
    assert digests(train(plan), "run-A") == expected
    assert made
