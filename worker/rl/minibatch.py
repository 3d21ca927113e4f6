"""Loss and gradient of one minibatch of a PPO update; on CUDA as one graph replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING

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
