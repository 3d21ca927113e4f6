"""Minibatches of a PPO update; loss and gradient of one of them, on CUDA as one graph replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from worker.rl.heads import Floors
from worker.rl.learner import Learner
from worker.rl.nets import PolicyNet
from worker.rl.precision import autocast
from worker.rl.replayed import Replayed

if TYPE_CHECKING:
    from worker.rl.ppo import LossRule, Replay

    #: The loss and its statistics vector, whose entry 3 is the approximate KL.
    Loss = Callable[[PolicyNet, Replay, LossRule], tuple[Tensor, Tensor]]


class _WithSlopes(torch.autograd.Function):
    """A number whose slopes in two tensors are known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, _logits: Tensor, _values: Tensor, *slopes: Tensor) -> Tensor:
        ctx.save_for_backward(*slopes)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logit_slope, value_slope = ctx.saved_tensors
        return None, grads[0] * logit_slope, grads[0] * value_slope, None, None


def with_slopes(loss: Tensor, outputs: tuple[Tensor, Tensor], slopes: tuple[Tensor, Tensor]) -> Tensor:
    """Return ``loss`` as a function of ``outputs`` (logits, values) with the given gradients."""
    like = tuple(slope.to(output.dtype) for slope, output in zip(slopes, outputs, strict=True))
    joined: Tensor = _WithSlopes.apply(loss, *outputs, *like)  # type: ignore[no-untyped-call]
    return joined


def minibatches(learner: Learner, whole: Replay, order: np.random.Generator) -> Iterator[Replay]:
    """Yield disjoint parts of a rollout: shuffled transitions [B], or whole environment rows [T, e] for an LSTM."""
    count, batch = learner.cfg.ppo.minibatches, whole.batch
    if not learner.net.recurrent:
        flat = batch.map(lambda x: x.flatten(0, 1))
        index = torch.from_numpy(order.permutation(len(flat.valid))).to(flat.valid.device)
        shuffled = flat.map(lambda x: x[index])
        edges = np.linspace(0, len(index), count + 1).round().astype(int)
        for a, b in pairwise(edges.tolist()):
            yield replace(whole, batch=shuffled.map(lambda x, a=a, b=b: x[a:b]), state=(), resets=())  # type: ignore[misc]
        return
    rows = torch.from_numpy(order.permutation(batch.valid.shape[1])).to(batch.valid.device)
    for part in rows.tensor_split(count):
        yield replace(
            whole,
            batch=batch.map(lambda x, p=part: x[:, p]),  # type: ignore[misc]
            state=tuple(s[:, part] for s in whole.state),
            resets=tuple((t, keep[part]) for t, keep in whole.resets),
        )


def loss_and_grad(learner: Learner, replay: Replay, rule: LossRule, loss_of: Loss) -> tuple[Tensor, Tensor]:
    """Fill the flat gradient; return the loss statistics and [loss, gradient norm, KL].

    On CUDA a recurrent minibatch without resets inside is one graph replay.
    """
    flat = learner.flat
    if flat.data.is_cuda and learner.net.recurrent and not replay.resets and rule.cfg.ppo.adv_norm == "rollout":
        return _replayed(learner, replay, rule, loss_of)
    flat.grad.zero_()
    with autocast(flat.data.device, learner.cfg.precision):
        loss, stats = loss_of(learner.net, replay, rule)
    loss.backward()  # type: ignore[no-untyped-call]
    return stats, torch.stack([loss.detach(), flat.grad.norm(), stats[3]])


def _replayed(learner: Learner, replay: Replay, rule: LossRule, loss_of: Loss) -> tuple[Tensor, Tensor]:
    """``loss_and_grad`` as a graph; what changes between rounds comes in as tensors."""
    names = [item.name for item in fields(replay.batch)]
    coefficient = torch.full((), rule.entropy_coef, device=learner.device)
    floors = [] if rule.floors is None else [rule.floors.value, rule.floors.allowed]
    inputs = [*(getattr(replay.batch, name) for name in names), *replay.state, coefficient, *floors]

    def run(parts: list[Tensor]) -> list[Tensor]:
        state = tuple(parts[len(names) : len(names) + len(replay.state)])
        rest = parts[len(names) + len(state) :]
        batch = replace(replay.batch, **dict(zip(names, parts, strict=False)))
        own = replace(rule, entropy_coef=rest[0], floors=Floors(*rest[1:]) if floors else None)  # type: ignore[arg-type]
        with autocast(learner.device, learner.cfg.precision):
            loss, stats = loss_of(learner.net, replace(replay, batch=batch, state=state), own)
        grads = torch.autograd.grad(loss, list(learner.net.parameters()), allow_unused=True, materialize_grads=True)
        torch.cat([part.reshape(-1) for part in grads], out=learner.flat.grad)
        return [stats, torch.stack([loss.detach(), learner.flat.grad.norm(), stats[3]])]

    key = (*replay.batch.rows.shape, len(floors))
    if key not in learner.graphs:
        learner.graphs[key] = Replayed(run, inputs)
    stats, gate = learner.graphs[key](inputs)
    return stats.clone(), gate
