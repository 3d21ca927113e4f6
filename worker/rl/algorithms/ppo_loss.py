"""Loss of a PPO minibatch (Schulman et al. 2017, eq. 9), for one run and for a stack of runs.

One joint ratio over the causally relevant heads; values in PopArt units; nothing reduces over runs.
Axes: T step, E environment, H heads, N choices; a minibatch has leading axes [B] or [T, e].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from worker.rl.config import LearnerConfig
from worker.rl.heads import Floors, Heads, evaluate
from worker.rl.nets import PolicyNet, StackedMLP, State

_LOG_RATIO_CLAMP = 20.0
_ADV_EPS = 1e-8
#: Order of the statistics vector returned by ``ppo_loss``; with per-head ratios two more per head follow.
LOSS_STATS = ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_frac", "ratio_max", "ratio_min")


@dataclass(frozen=True)
class Batch:
    """Transitions of an update; leading axes [T, E], [T, e] or [B].

    ``valid``, ``unforced`` [..] and ``open_steps`` [.., H] (relevant, unforced, two or more legal
    choices, or Gaussian) are weights 0 or 1; ``entropy_scale`` [.., H] turns nats into shares of ln n.
    """

    features: Tensor
    ids: Tensor
    actions: Tensor
    rows: Tensor
    relevant: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    target: Tensor
    advantage: Tensor
    valid: Tensor
    unforced: Tensor
    open_steps: Tensor
    entropy_scale: Tensor
    pixels: Tensor | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of the tensors that there are."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with ``change`` applied to every tensor."""
        return Batch(**{name: change(getattr(self, name)) for name in self.names})


@dataclass(frozen=True)
class Replay:
    """A minibatch with what the network needs to run over it again."""

    batch: Batch
    state: State
    resets: tuple[tuple[int, Tensor], ...]


@dataclass(frozen=True)
class LossRule:
    """The numbers of the loss in force in one update.

    Attributes:
        cfg, heads: static settings and layout.
        entropy_coef: c_H of the round.
        floors: probability floors in force, as in the rollout.
        adv_floor: least divisor of the advantages, reward units; like the coefficient a number [] in a captured graph.
        head_weights: [H] of ``ppo.entropy_head_weights``, None where it is empty.
    """

    cfg: LearnerConfig
    heads: Heads
    entropy_coef: float | Tensor
    floors: Floors | None
    adv_floor: float | Tensor
    head_weights: Tensor | None = None


@dataclass(frozen=True)
class StackedRule:
    """The loss of several runs at once: what is the same for all, and what is each run's own, [R] float32.

    Attributes:
        cfg, heads, head_weights, floors: as in ``LossRule``; no floors are in force.
        entropy_coef, adv_floor: as in ``LossRule``, of each run.
        value_coef: weight of the value loss of each run.
    """

    cfg: LearnerConfig
    heads: Heads
    entropy_coef: Tensor
    adv_floor: Tensor
    value_coef: Tensor
    head_weights: Tensor | None
    floors: None = None


#: The loss and its statistics vector, whose entry 3 is the approximate KL.
Loss = Callable[[PolicyNet, Replay, LossRule], tuple[Tensor, Tensor]]


def normalise_advantages(advantage: Tensor, weight: Tensor, floor: float | Tensor) -> Tensor:
    """Return (A - mean) / max(std, floor) with population moments over rows of weight 1.

    A floor [R] stands for several runs, each with moments of its own; advantages and weights are [R, B] then.
    """
    stacked = isinstance(floor, Tensor) and floor.ndim > 0
    share = _shares(weight, stacked=stacked)
    centred = advantage - _spread(_total(advantage * share, stacked=stacked))
    std = _total(centred * centred * share, stacked=stacked).sqrt()
    if isinstance(floor, Tensor):
        return centred / _spread(torch.maximum(std, floor.clamp(min=_ADV_EPS)))
    return centred / std.clamp(min=max(floor, _ADV_EPS))


def ppo_loss(net: PolicyNet | StackedMLP, replay: Replay, rule: LossRule | StackedRule) -> tuple[Tensor, Tensor]:
    """Return L = L_pi + c_v L_V + c_H L_H and the statistics vector (``LOSS_STATS``).

    With a ``StackedRule`` every tensor of the batch has a leading axis of runs, and so have loss [R] and statistics
    [.., R]; each run's are computed as they are alone, in the same order of additions.
    """
    batch, cfg, stacked = replay.batch, rule.cfg.ppo, isinstance(rule, StackedRule)
    logits, values = net.sequence(batch.features, batch.ids, replay.state, replay.resets, batch.pixels)
    relevant = None if rule.heads.always_relevant else batch.relevant
    terms = evaluate(rule.heads, logits, batch.actions, batch.rows, relevant, rule.floors)
    share = _shares(batch.unforced, stacked=stacked)
    advantage = batch.advantage
    if cfg.adv_norm == "minibatch":
        advantage = normalise_advantages(advantage, batch.unforced, rule.adv_floor)
    # log rho = sum over relevant heads of (new - old), clamped
    per_head = terms.log_prob - batch.old_log_prob
    log_ratio = per_head.sum(-1).clamp(-_LOG_RATIO_CLAMP, _LOG_RATIO_CLAMP)
    ratio = log_ratio.exp()
    extra: list[Tensor] = []
    if cfg.ratio == "joint":
        policy_loss = _surrogate(ratio, advantage, share, cfg.clip, stacked=stacked)
    else:
        policy_loss, extra = _per_head_loss(per_head, advantage, batch, cfg.clip)
    value_loss = _value_loss(values.to(ratio.dtype), batch, cfg.value_clip, stacked=stacked)
    entropy_loss = _entropy_loss(terms.entropy, batch, rule, stacked=stacked)
    if isinstance(rule, StackedRule):
        loss = policy_loss + rule.value_coef * value_loss + rule.entropy_coef * entropy_loss
    else:
        loss = policy_loss.add(value_loss, alpha=cfg.value_coef) + rule.entropy_coef * entropy_loss
    with torch.no_grad():
        kl_and_clipped = _ratio_stats(ratio, log_ratio, share, cfg.clip, stacked=stacked)
        counted = torch.where(batch.unforced > 0, ratio, 1.0)
        low, high = counted.aminmax(dim=1) if stacked else counted.aminmax()
        return loss, torch.stack([policy_loss, value_loss, entropy_loss, *kl_and_clipped, high, low, *extra])


def _total(x: Tensor, *, stacked: bool = False) -> Tensor:
    """Return the sum of all elements, [] or of each run [R]."""
    return x.flatten(1).sum(1) if stacked else x.sum()


def _spread(of_runs: Tensor) -> Tensor:
    """Return what is one number of each run, [R], beside rows [R, B]; a number [] as it is."""
    return of_runs.unsqueeze(-1) if of_runs.ndim else of_runs


def _shares(weight: Tensor, *, stacked: bool = False) -> Tensor:
    """Return weights 0 or 1 as shares of their number: a sum of shares is a mean, and 0 without any."""
    return weight / _spread(_total(weight, stacked=stacked)).clamp(min=1)


def _surrogate(ratio: Tensor, advantage: Tensor, share: Tensor, clip: float, *, stacked: bool = False) -> Tensor:
    # L_pi = -mean(min(rho A, clip(rho, 1 - eps, 1 + eps) A)); the clip can bind on one side alone,
    # at 1 + eps for A > 0 and at 1 - eps for A < 0, so the second term may stand at its limit A + eps |A|
    limit = advantage.add(advantage.abs(), alpha=clip)
    return _total((ratio * advantage).clamp(max=limit) * -share, stacked=stacked)


def _per_head_loss(per_head: Tensor, advantage: Tensor, batch: Batch, clip: float) -> tuple[Tensor, list[Tensor]]:
    """Return the sum of each head's own surrogate and [KL, clip fraction] of every head."""
    losses, stats = [], []
    for h in range(per_head.shape[-1]):
        share = _shares(batch.unforced * batch.relevant[..., h])
        log_ratio = per_head[..., h].clamp(-_LOG_RATIO_CLAMP, _LOG_RATIO_CLAMP)
        ratio = log_ratio.exp()
        losses.append(_surrogate(ratio, advantage, share, clip))
        with torch.no_grad():
            stats += _ratio_stats(ratio, log_ratio, share, clip)
    return torch.stack(losses).sum(), stats


def _value_loss(values: Tensor, batch: Batch, clip: float | None, *, stacked: bool = False) -> Tensor:
    # L_V = 0.5 mean((V - R)^2), optionally the larger of that and the loss of the clipped value
    away = values - batch.target
    error = away * away
    if clip is not None:
        # a constant: where the clipped value moves with V it is V, and the two losses are equal
        near = values.detach().clamp(batch.old_value - clip, batch.old_value + clip) - batch.target
        error = error.clamp(min=near * near)
    return _total(error * (0.5 * _shares(batch.valid, stacked=stacked)), stacked=stacked)


def _entropy_loss(entropy: Tensor, batch: Batch, rule: LossRule | StackedRule, *, stacked: bool = False) -> Tensor:
    # L_H = -sum_h m_h mean(H_h / ln n_valid) over relevant, unforced steps with n_valid >= 2
    steps = tuple(range(int(stacked), entropy.ndim - 1))
    share = batch.open_steps / batch.open_steps.sum(steps, keepdim=stacked).clamp(min=1)
    if rule.cfg.ppo.entropy_normalised:
        share = share * batch.entropy_scale
    if rule.head_weights is not None:
        share = share * rule.head_weights
    return _total(entropy * -share, stacked=stacked)


def _ratio_stats(
    ratio: Tensor, log_ratio: Tensor, share: Tensor, clip: float, *, stacked: bool = False
) -> list[Tensor]:
    # approx_kl = mean((rho - 1) - ln rho) (Schulman 2020, estimator k3)
    away = ratio - 1.0
    kl = _total((away - log_ratio) * share, stacked=stacked)
    return [kl, _total(torch.where(away.abs() > clip, share, 0.0), stacked=stacked)]
