"""What accumulates stays in FP32 or wider, and counts in int64, whatever the policy computes in (training.md 1.11)."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.spec.sections import ObsNorm
from tests.worker.rl.cases import HEADS, build_heads, learner_config, make_learner, random_rollout
from worker.envs.base import HeadSpec
from worker.rl.algorithms.gae import gae
from worker.rl.algorithms.ppo import Prepared, loss_and_grad, prepare
from worker.rl.algorithms.ppo_loss import ppo_loss
from worker.rl.cuda import autocast
from worker.rl.heads import evaluate, log_probabilities
from worker.rl.normalise import ObsNormalizer, PopArt, RewardScaler
from worker.rl.stacks import stack_of_one

T, E = 12, 4
CPU = torch.device("cpu")


def dtypes_of(record: object) -> dict[str, torch.dtype]:
    tensors = {f.name: getattr(record, f.name) for f in fields(record)}  # type: ignore[arg-type]
    return {name: x.dtype for name, x in tensors.items() if isinstance(x, Tensor)}


@pytest.mark.parametrize("body", ["mlp", "lstm"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_round_accumulates_in_fp32_and_counts_in_int64(body: str, precision: str) -> None:
    config = replace(
        learner_config(body),
        precision=precision,
        return_norm="popart",
        reward_norm="return_std",
        obs_norm=ObsNorm(enabled=True),
    )
    learner = make_learner(config, HEADS, 5, E)
    rollout = random_rollout(learner, HEADS, T, np.random.default_rng(2))
    with autocast(CPU, precision):
        logits, _ = learner.net.step(rollout.features[0], rollout.ids[0], learner.net.initial_state(E))
    # the network does compute in the policy's precision, or this shows nothing
    assert logits.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)

    stored = {name: getattr(rollout, name).dtype for name in ("features", "log_probs", "rewards")}
    assert set(stored.values()) == {torch.float32}
    assert rollout.actions.dtype == torch.int64
    prepared: Prepared = prepare(learner, rollout, 0.01, None)
    assert set(dtypes_of(prepared).values()) == {torch.float32}
    batch = dtypes_of(prepared.replay.batch)
    kept = {"ids": torch.int64, "actions": torch.int64, "rows": torch.bool, "relevant": torch.bool}
    assert batch == {name: kept.get(name, torch.float32) for name in batch}
    with autocast(CPU, precision):
        loss, stats = ppo_loss(learner.net, prepared.replay, prepared.rule)
    assert (loss.dtype, stats.dtype) == (torch.float32, torch.float32)
    _, gate = loss_and_grad(learner, prepared.replay, prepared.rule, stack_of_one(learner))
    assert {gate.dtype, learner.flat.grad.dtype, learner.flat.data.dtype} == {torch.float32}
    assert {learner.adam.m.dtype, learner.adam.v.dtype} == {torch.float32}
    state = learner.state_dict()
    wide = {
        name: x.dtype for name, x in state.items() if name.startswith(("obs_norm/", "return_norm/", "reward_norm/"))
    }
    assert len(wide) == 6
    assert set(wide.values()) == {torch.float64}


def test_softmax_and_entropy_of_bf16_logits_are_fp32() -> None:
    logits = torch.randn(6, 1, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    mask = torch.ones(6, 1, 3, dtype=torch.bool)
    assert log_probabilities(logits, mask, None).dtype == torch.float32
    relevant = torch.ones(6, 1, dtype=torch.bool)
    heads = build_heads((HeadSpec("op", 3),))
    terms = evaluate(heads, logits, torch.zeros(6, 1, dtype=torch.int64), mask, relevant, None)
    assert (terms.log_prob.dtype, terms.entropy.dtype) == (torch.float32, torch.float32)


def test_running_statistics_of_a_long_run_keep_what_fp32_would_lose() -> None:
    # 2^24 + 1 is no FP32 number: a count or sum kept there would stand still
    norm = ObsNormalizer(torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool), 10.0)
    many = torch.tensor([2.0**24], dtype=torch.float64)
    norm.load_state_dict({"count": many, "mean": torch.zeros(1), "m2": many})
    norm.update(torch.ones(1, 1), torch.ones(1, dtype=torch.bool))
    assert float(norm.count) == 2.0**24 + 1
    assert float(norm.mean) > 0.0
    scaler = RewardScaler(1, 0.99, CPU)
    scaler.load_state_dict({"carry": torch.zeros(1, dtype=torch.float64), "moments": many.repeat(3)})
    scaler(torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool))
    assert scaler.moments.tolist() == [2.0**24 + 1] * 3
    popart = PopArt()
    popart.update(torch.tensor([1e8, 1e8 + 8]), torch.nn.Linear(1, 1, device="meta").to_empty(device="cpu"))
    # the difference of two moments of 1e16: FP32 would give 0 or noise of 1e4
    assert popart.std == pytest.approx(4.0, abs=1.0)


def test_gae_keeps_the_dtype_of_its_input_and_never_narrows_it() -> None:
    flags = torch.zeros(3, 2, dtype=torch.bool)
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(3, 2, dtype=dtype)
        assert [y.dtype for y in gae(x, x, x, flags, flags, (0.99, 0.95))] == [dtype, dtype]
