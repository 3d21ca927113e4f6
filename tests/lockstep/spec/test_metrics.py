"""What live views show of each registered metric."""

from __future__ import annotations

import pytest

from lockstep.spec.metrics import primary_of, registered, shown_of
from lockstep.spec.resolve import parse
from tests.factories import cartpole_spec, tiny_spec
from worker.envs.base import EpisodeRecord
from worker.train.metrics import train_metrics


@pytest.mark.parametrize("name", registered())
def test_every_metric_that_may_be_primary_has_a_counterpart_that_training_records(name: str) -> None:
    shown = shown_of(name)
    assert shown.primary == name
    told = EpisodeRecord(0, {"success": 1.0})  # which few environments tell, so that it is recorded only then
    assert shown.training in train_metrics([told])
    assert ("success" in name) == (shown.training not in train_metrics([]))


def test_primary_of_a_spec_without_an_analysis_is_that_of_its_task() -> None:
    assert primary_of(parse(cartpole_spec()).document) == "eval/native_return_mean"
    assert primary_of(parse(tiny_spec()).document) == "eval/accuracy"
    assert primary_of({"analysis": None, "env": {"kind": "gymnasium"}}) == "eval/native_return_mean"
