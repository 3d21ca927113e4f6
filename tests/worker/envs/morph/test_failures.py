"""A failure in the middle of a change leaves the old state; a failed capture is an error and is not remembered."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.envs.morph.factories import germinate, make, play, tiny
from worker.envs.morph.engine import captured
from worker.envs.morph.engine.captured import CapturedEngine, CaptureError
from worker.envs.morph.engine.eager import Counters
from worker.envs.morph.life.stages import Stage
from worker.envs.morph.network.params import ParamStore


def test_a_failure_in_the_middle_of_a_germination_leaves_the_state_and_the_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm, shaken = make(tiny()), make(tiny())
    for envs in (calm, shaken):
        envs.begin_round(0)
    world = shaken.runs[0].world
    network, before = world.networks[0], world.networks[0].store.flat.clone()
    legal = world.legality()
    plain = ParamStore.initialise

    def breaks_after_writing(store: ParamStore, generator: np.random.Generator) -> None:
        plain(store, generator)
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(ParamStore, "initialise", breaks_after_writing)
        with pytest.raises(MemoryError, match="injected"):
            play(shaken, germinate(shaken, 0))
    assert world.table.stage[0].tolist() == [Stage.DORMANT] * 2
    assert world.table.germinations[0].tolist() == [0, 0]
    assert network.live == [None, None]
    assert torch.equal(network.store.flat, before)
    again = world.legality()
    assert np.array_equal(again.op, legal.op)
    assert np.array_equal(again.blueprint, legal.blueprint)
    # what comes after is what comes after without the failure, to the bit
    for envs in (calm, shaken):
        play(envs, germinate(envs, 0))
    other = calm.runs[0].world.networks[0]
    assert [cell is not None for cell in network.live] == [cell is not None for cell in other.live]
    for ours, theirs in zip(network.live, other.live, strict=True):
        if ours is not None and theirs is not None:
            assert torch.equal(ours.store.flat, theirs.store.flat)
            assert torch.equal(ours.store.momentum, theirs.store.momentum)


def test_a_failed_capture_is_an_error_that_the_next_attempt_does_not_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = object.__new__(CapturedEngine)
    engine.device, engine.counters = torch.device("cpu"), Counters()
    monkeypatch.setattr(captured, "_LOADED", {"kernels"})
    stream: Any = SimpleNamespace(wait_stream=lambda _: None)
    lane: Any = SimpleNamespace(graphs=OrderedDict(older=object()), stream=stream)
    job: Any = SimpleNamespace(validator=SimpleNamespace(forward_rows=0))
    # the driver, which this machine may lack
    monkeypatch.setattr(captured, "_reserved", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)

    def fails(*_args: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured, "_capture", fails)
    with pytest.raises(CaptureError, match=r"shape failed: operation not permitted.*choose engine.path eager"):
        engine._graph(lane, "shape", lambda: ["kernels"], job, lambda: torch.zeros(1))
    assert list(lane.graphs) == ["older"]
    assert engine.counters.captures == 0
    whole: Any = SimpleNamespace(rows=0)
    monkeypatch.setattr(captured, "_capture", lambda *_: whole)
    assert engine._graph(lane, "shape", lambda: ["kernels"], job, lambda: torch.zeros(1)) is whole
    assert list(lane.graphs) == ["older", "shape"]
