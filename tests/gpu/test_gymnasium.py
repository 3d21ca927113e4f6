"""Gymnasium tasks with policies on an NVIDIA GPU: each family of spaces trains, alone as beside another and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.machine import set_up
from tests.worker.train.cases import BOX_ARMS, GYM, GYM_ARMS, GYM_BOX, GYM_KIT, GYM_LSTM, Arms, block, digests
from worker.rl.algorithms import ppo
from worker.rl.nets import strayed
from worker.train.block import BlockPlan, BlockTrainer, RoundRecord
from worker.train.runs import TrainedRun

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
CUDA = torch.device("cuda", 0)
CASES = [
    pytest.param(GYM, GYM_ARMS, id="choices"),
    pytest.param(GYM_LSTM, GYM_ARMS, id="recurrent"),
    pytest.param(GYM_BOX, BOX_ARMS, id="real-numbers"),
    pytest.param(GYM_KIT, BOX_ARMS, id="images-and-parts"),
]


@pytest.fixture(autouse=True)
def numerics() -> Iterator[None]:
    """Run with the settings of a training process."""
    set_up(tf32=False)
    yield
    torch.set_deterministic_debug_mode("default")


def train(plan: BlockPlan) -> list[RoundRecord]:
    trainer = BlockTrainer(plan, CUDA)
    trainer.warm_up()
    return list(trainer.rounds(0))


@pytest.mark.parametrize(("base", "arms"), CASES)
def test_an_arm_alone_equals_the_arm_beside_another_and_repeats(base: dict[str, Any], arms: Arms) -> None:
    both, alone, again = (train(block(base, arms, **kept)) for kept in ({}, {"only": (0,)}, {}))  # type: ignore[arg-type]
    assert digests(both, "run-A") == digests(alone, "run-A") == digests(again, "run-A")
    assert digests(both, "run-A") != digests(both, "run-B")
    last = both[-1].runs[0]
    assert last.metrics["eval/native_return_mean"] == alone[-1].runs[0].metrics["eval/native_return_mean"]


def test_small_policies_are_trained_on_the_host_with_the_numbers_of_a_cpu_worker() -> None:
    plan, found = block(GYM, GYM_ARMS), []
    for device, at_home in ((CUDA, True), (torch.device("cpu"), False)):
        trainer = BlockTrainer(plan, device, at_home=at_home)
        assert trainer.device.type == "cpu"
        trainer.warm_up()
        found.append(digests(list(trainer.rounds(0)), "run-A"))
    assert found[0] == found[1]


@pytest.mark.parametrize(("base", "arms"), CASES)
def test_a_resumed_block_equals_the_uninterrupted_one(base: dict[str, Any], arms: Arms, tmp_path: Path) -> None:
    plan = block(base, arms)
    whole = train(plan)
    first = BlockTrainer(plan, CUDA)
    records = first.rounds(0)
    next(records)
    first.save_checkpoint(tmp_path, 1)
    second = BlockTrainer(plan, CUDA)
    rest = list(second.rounds(second.load_checkpoint(tmp_path)))
    assert digests(rest, "run-A") == digests(whole, "run-A")[1:]
    assert digests(rest, "run-B") == digests(whole, "run-B")[1:]


def test_an_lstm_learns_on_the_card() -> None:
    trainer = BlockTrainer(block(GYM_LSTM, GYM_ARMS), CUDA)
    trainer.warm_up()
    run = trainer.runs[0]
    assert isinstance(run, TrainedRun)
    before = {name: tensor.detach().clone() for name, tensor in run.learner.net.named_parameters()}
    next(trainer.rounds(0))
    assert strayed(run.learner.net, run.learner.flat) == []
    still = [name for name, tensor in run.learner.net.named_parameters() if torch.equal(tensor, before[name])]
    assert still == []


def test_the_card_trains_what_the_processor_trains() -> None:
    plan = block(GYM, GYM_ARMS)
    there = [r.runs[0].metrics["train/return_mean"] for r in train(plan)]
    here = [r.runs[0].metrics["train/return_mean"] for r in BlockTrainer(plan, torch.device("cpu")).rounds(0)]
    assert there[0] == here[0]


def test_a_graph_reads_the_weights_of_the_entropy_of_heads_that_it_is_given() -> None:
    trainer = BlockTrainer(block(GYM, GYM_ARMS, ppo={"entropy_head_weights": {"action": 1.0}}), CUDA)
    next(trainer.rounds(0))  # captures, with weights whose memory is another tensor's later
    run = trainer.runs[0]
    assert isinstance(run, TrainedRun)
    assert isinstance(run.prepared, ppo.Prepared)
    replay = next(ppo._minibatches(run.learner, run.prepared.replay, np.random.default_rng(0)))
    losses = []
    for weight in (1.0, 0.0):
        rule = replace(run.prepared.rule, head_weights=torch.full((1,), weight, device=CUDA))
        losses.append(float(ppo.loss_and_grad(run.learner, replay, rule)[1][0]))
    assert losses[0] != losses[1]
