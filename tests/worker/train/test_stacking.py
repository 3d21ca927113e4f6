"""Runs in one stack have the numbers that each has alone, bit for bit; which runs are stacked is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.train.cases import (
    BOX_ARMS,
    GYM,
    GYM_ARMS,
    GYM_BOX,
    GYM_KIT,
    GYM_LSTM,
    Arms,
    block,
    digests,
    policy_bits,
    trainer,
)
from worker.train.block import BlockTrainer
from worker.train.runs import TrainedRun
from worker.train.stacking import _update_key

#: All acted for together; of their updates C's is one of its own, for its clip; D diverges.
ARMS: Arms = [
    {"label": "A"},
    {"label": "B", "overrides": {"ppo.lr": 1e-2, "ppo.target_kl": 1e-3}},
    {"label": "C", "overrides": {"ppo.clip": 0.1, "ppo.gamma": 0.9}},
    {"label": "D", "overrides": {"ppo.lr": 1e18, "ppo.value_coef": 1e18}},
    {"label": "E", "overrides": {"ppo.value_coef": 0.1, "ppo.grad_clip": 0.01, "ppo.entropy_coef_start": 0.2}},
]
LABELS = [f"run-{arm['label']}" for arm in ARMS]
#: Large enough for products that are batched.
WIDE: dict[str, Any] = {"net": {"hidden": 64}, "env": {"n_envs": 4, "rollout_steps": 32}, "ppo": {"minibatches": 4}}


def poured(held: BlockTrainer, arm: str) -> None:
    """Make the policy of an arm not a number."""
    [run] = [run for run in held.runs if run.plan.arm == arm]
    assert isinstance(run, TrainedRun)
    run.learner.flat.data[:] = torch.nan


@pytest.mark.parametrize("base", [pytest.param(GYM, id="choices"), pytest.param(GYM_BOX, id="real")])
@pytest.mark.parametrize("size", [{}, WIDE], ids=["narrow", "wide"])
def test_runs_in_a_stack_equal_runs_one_by_one(base: dict[str, Any], size: dict[str, Any]) -> None:
    plan = block(base, ARMS, **size, obs_norm={"enabled": True}, budget={"rounds": 5})
    together, apart = trainer(plan), trainer(plan, stacked=False)
    stacked, plain = list(together.rounds(0)), list(apart.rounds(0))
    for label in LABELS:
        assert digests(stacked, label) == digests(plain, label)
    assert len(digests(stacked, "run-D")) < 5
    assert policy_bits(together) == policy_bits(apart)


def test_a_run_that_fails_inside_a_round_leaves_its_stack_alone_and_ends_as_it_does_alone() -> None:
    plan = block(GYM, GYM_ARMS, **WIDE)
    found = []
    for stacked in (True, False):
        held = trainer(plan, stacked=stacked)
        rounds = held.rounds(0)
        records = [next(rounds)]
        poured(held, "B")
        records += rounds
        ends = [run.diverged for record in records for run in record.runs if run.run_id == "run-B"]
        found.append([digests(records, "run-A"), digests(records, "run-B"), ends])
    assert found[0] == found[1]
    assert found[0][2] == [None, "non-finite policy: step 0: non-finite action distribution"]
    assert found[0][0] == digests(list(trainer(block(GYM, GYM_ARMS, only=(0,), **WIDE)).rounds(0)), "run-A")


def test_a_stack_resumes_as_runs_one_by_one_and_the_other_way_round(tmp_path: Path) -> None:
    plan = block(GYM, ARMS, **WIDE)
    whole = list(trainer(plan, stacked=False).rounds(0))
    for first, then in ((True, False), (False, True)):
        begun, resumed = trainer(plan, stacked=first), trainer(plan, stacked=then)
        root = tmp_path / str(first)
        next(begun.rounds(0))
        begun.save_checkpoint(root, 1)
        rest = list(resumed.rounds(resumed.load_checkpoint(root)))
        for label in LABELS:
            assert digests(rest, label) == digests(whole, label)[1:]


def test_equal_arms_in_one_stack_give_bit_equal_runs() -> None:
    records = list(trainer(block(GYM, [{"label": label} for label in "ABCDEFGH"], **WIDE)).rounds(0))
    assert all(digests(records, f"run-{label}") == digests(records, "run-A") for label in "BCDEFGH")


def test_arms_of_unequal_shape_or_kind_are_no_stack_and_the_record_says_so() -> None:
    arms: Arms = [{"label": "A"}, {"label": "B", "overrides": {"net.hidden": 24}}, {"label": "C"}]
    arms = [*arms, {"label": "D", "policy": "random"}, {"label": "E", "overrides": {"ppo.prob_floor": {"action": 0.1}}}]
    assert trainer(block(GYM, arms)).warm_up()["stacks"] == [["A", "C"]]
    assert trainer(block(GYM, GYM_ARMS)).warm_up()["stacks"] == [["A", "B"]]
    assert trainer(block(GYM, GYM_ARMS), stacked=False).warm_up()["stacks"] == []
    assert trainer(block(GYM_LSTM, [*GYM_ARMS, *arms[3:4]])).warm_up()["stacks"] == [["A", "B"]]
    assert trainer(block(GYM_KIT, [{"label": "A"}, {"label": "B"}])).warm_up()["stacks"] == []


def test_more_threads_than_one_are_no_stack() -> None:
    held = trainer(block(GYM, GYM_ARMS))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert held.warm_up()["stacks"] == []
        torch.set_num_threads(1)
        assert held.warm_up()["stacks"] == [["A", "B"]]
    finally:
        torch.set_num_threads(before)


def test_updates_share_a_stack_where_what_a_batched_loss_shares_is_equal() -> None:
    held = trainer(block(GYM, ARMS))
    keys = {run.plan.arm: _update_key(run) for run in held.runs}
    assert keys["A"] == keys["B"] == keys["D"] == keys["E"]
    assert keys["C"] not in (None, keys["A"])
    clip, tanh = (_update_key(run) for run in trainer(block(GYM_BOX, BOX_ARMS)).runs)
    assert None not in (clip, tanh)
    assert clip != tanh


def test_a_policy_with_a_memory_that_diverges_ends_its_own_run_and_not_the_block() -> None:
    changes: dict[str, Any] = {
        "env": {"n_envs": 1, "rollout_steps": 2, "kwargs": {"max_episode_steps": 5}},
        "net": {"body": "lstm", "hidden": 64, "lstm_hidden": 8, "lstm_layers": 2},
        "ppo": {"minibatches": 1, "epochs": 4, "lr": 1e-2, "target_kl": None},
        "obs_norm": {"enabled": False},
        "eval": {"episodes": 1, "max_steps": 5},
    }
    arms: Arms = [{"label": "A"}, {"label": "B", "overrides": {"ppo.lr": 100.0}}]
    ends = []
    for number in range(3):
        records = list(trainer(block(GYM_BOX, arms, replicate=number, seed=1000 + number, **changes)).rounds(0))
        assert len(digests(records, "run-A")) == 3
        ends += [run.diverged for record in records for run in record.runs if run.diverged]
    assert any(end.startswith("non-finite policy: anchor pass: with parameters of up to ") for end in ends)
