"""A toy algorithm, both halves, outside of the packages: one policy-gradient step a round (Williams 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.spec import algorithms
from worker.rl.algorithms.base import Algorithm, Prepared, Reading
from worker.rl.heads import Floors, evaluate
from worker.rl.learner import Learner, adam_step
from worker.rl.rollout import Rollout

LEARNING_RATE, ADAM_EPS = 0.02, 1e-8

SPEC = algorithms.Algorithm("reinforce", lambda _data, _named: None, lambda _index, _arm, _env: iter(()))


@dataclass(frozen=True)
class Weighed:
    """Log-probabilities with their graph, how the policy chose, and what followed each step."""

    log_prob: Tensor
    summary: Tensor
    to_go: Tensor


def _prepare(learner: Learner, rollout: Rollout, round_index: int, floors: Floors | None) -> Weighed:
    del round_index
    steps = rollout.num_steps
    logits, _ = learner.net.sequence(rollout.features[:steps], rollout.ids[:steps], rollout.initial_state, ())
    masks = {name: mask[:steps] for name, mask in rollout.masks.items()}
    choices = learner.heads.choices(masks, rollout.actions, rollout.valid)
    terms = evaluate(learner.heads, logits, rollout.actions, choices.rows, choices.relevant, floors)
    # G_t = r_t + gamma G_{t+1}
    to_go = torch.zeros_like(rollout.rewards)
    after = torch.zeros_like(rollout.rewards[0])
    for t in reversed(range(steps)):
        after = rollout.rewards[t] + learner.cfg.gamma * after
        to_go[t] = after
    summary = learner.heads.summary(choices, rollout.actions, rollout.valid, terms.entropy.detach())
    return Weighed(terms.log_prob.sum(-1), summary, to_go)


def _update(
    learner: Learner, rollout: Rollout, prepared: Prepared, round_index: int, order: np.random.Generator
) -> dict[str, float]:
    del rollout, round_index, order
    assert isinstance(prepared, Weighed)
    loss = -(prepared.log_prob * (prepared.to_go - prepared.to_go.mean())).mean()
    learner.flat.grad.zero_()
    torch.autograd.backward([loss])
    adam_step(learner.flat, learner.adam, LEARNING_RATE, ADAM_EPS, 1.0)
    return {"policy_loss": float(loss.detach()), "steps_skipped": 0.0, "steps_non_finite": 0.0}


def _detectors(round_index: int, metrics: Mapping[str, float]) -> Iterator[Reading]:
    del round_index
    yield Reading("loss_size", abs(metrics["reinforce/policy_loss"]), 1e6, streak=1)


ALGORITHM = Algorithm(
    name="reinforce",
    floors=lambda _learner, _round, _never: None,
    prepare=_prepare,
    update=_update,
    detectors=_detectors,
    essential=("policy_loss",),
)
