"""Loss of a PPO minibatch (Schulman et al. 2017, eq. 9), for one run and for a stack of runs.

One joint ratio over the causally relevant heads; values in PopArt units; nothing reduces over runs.
Axes: T step, E environment, H heads, N choices; a minibatch has leading axes [B] or [T, e].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from worker.rl import gaussian
from worker.rl.config import LearnerConfig
from worker.rl.heads import Floors, Heads, evaluate, log_probabilities
from worker.rl.nets import PolicyNet, State

NumberT = TypeVar("NumberT", Tensor, float, float | Tensor)

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


@dataclass(frozen=True)
class Slopes:
    """A loss, [] or of each run [R], its statistics, and its derivatives by logits [.., H, N] and values [..]."""

    loss: Tensor
    stats: Tensor
    by_logits: Tensor
    by_values: Tensor


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


def ppo_loss(net: PolicyNet, replay: Replay, rule: LossRule) -> tuple[Tensor, Tensor]:
    """Return the loss of a minibatch and the statistics vector."""
    batch = replay.batch
    logits, values = net.sequence(batch.features, batch.ids, replay.state, replay.resets, batch.pixels)
    return loss_of_outputs(logits, values, batch, rule)


def loss_of_outputs(
    logits: Tensor, values: Tensor, batch: Batch, rule: LossRule | StackedRule
) -> tuple[Tensor, Tensor]:
    """Return L = L_pi + c_v L_V + c_H L_H and the statistics vector (``LOSS_STATS``).

    With a ``StackedRule`` every tensor of the batch has a leading axis of runs, and so have loss [R] and statistics
    [.., R]; each run's are computed as they are alone, in the same order of additions.
    """
    cfg, stacked = rule.cfg.ppo, isinstance(rule, StackedRule)
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


def slopes_of_loss(logits: Tensor, values: Tensor, batch: Batch, rule: LossRule | StackedRule) -> Slopes:
    """Return loss, statistics and derivatives by logits and values; one head's are written out.

    Recorded, the some fifty small operations of the loss would cost twice what they do, and those of their derivatives
    as much again. Several heads, floors and ratios per head are recorded.
    """
    heads = rule.heads
    if len(heads.specs) > 1 or not heads.always_relevant or rule.floors is not None or rule.cfg.ppo.ratio != "joint":
        return _recorded(logits, values, batch, rule)
    with torch.no_grad():
        return _written_out(logits, values, batch, rule)


@torch.enable_grad()
def _recorded(logits: Tensor, values: Tensor, batch: Batch, rule: LossRule | StackedRule) -> Slopes:
    logits, values = logits.detach().requires_grad_(), values.detach().requires_grad_()
    loss, stats = loss_of_outputs(logits, values, batch, rule)
    by_logits, by_values = torch.autograd.grad(loss.sum(), (logits, values))
    return Slopes(loss.detach(), stats, by_logits, by_values)


def _written_out(logits: Tensor, values: Tensor, batch: Batch, rule: LossRule | StackedRule) -> Slopes:
    cfg, stacked = rule.cfg.ppo, isinstance(rule, StackedRule)
    of_value: float | Tensor = rule.value_coef if isinstance(rule, StackedRule) else cfg.value_coef
    of_entropy = rule.entropy_coef
    head = _Density(logits, batch, rule.heads) if rule.heads.specs[0].is_gaussian else _Choice(logits, batch)
    share, advantage = _shares(batch.unforced, stacked=stacked), batch.advantage
    if cfg.adv_norm == "minibatch":
        advantage = normalise_advantages(advantage, batch.unforced, rule.adv_floor)
    moved = head.log_prob - batch.old_log_prob.squeeze(-1)
    log_ratio = moved.clamp(-_LOG_RATIO_CLAMP, _LOG_RATIO_CLAMP)
    ratio = log_ratio.exp()
    # d(rho A) / d ln rho = rho A, and 0 where the clip binds
    gain, limit, less = ratio * advantage, advantage.add(advantage.abs(), alpha=cfg.clip), -share
    by_log_prob = torch.where((gain <= limit) & (moved == log_ratio), gain, 0.0) * less
    losses = [_total(torch.minimum(gain, limit) * less, stacked=stacked)]
    # d(0.5 (V - R)^2) / dV = V - R, and 0 where the loss of the clipped value is larger
    away, of_valid = values - batch.target, _shares(batch.valid, stacked=stacked)
    error, by_values = away * away, away * of_valid
    if cfg.value_clip is not None:
        near = torch.clamp(values, batch.old_value - cfg.value_clip, batch.old_value + cfg.value_clip) - batch.target
        near = near * near
        by_values = torch.where(error >= near, by_values, 0.0)
        error = torch.maximum(error, near)
    losses.append(_total(error * (0.5 * of_valid), stacked=stacked))
    by_entropy = -_entropy_shares(batch, rule, stacked=stacked).squeeze(-1)
    losses.append(_total(head.entropy * by_entropy, stacked=stacked))
    counted = torch.where(batch.unforced > 0, ratio, 1.0)
    low, high = counted.aminmax(dim=1) if stacked else counted.aminmax()
    stats = [*losses, *_ratio_stats(ratio, log_ratio, share, cfg.clip, stacked=stacked), high, low]
    return Slopes(
        loss=losses[0] + of_value * losses[1] + of_entropy * losses[2],
        stats=torch.stack(stats),
        by_logits=head.by_logits(by_log_prob, by_entropy * _spread(of_entropy)),
        by_values=by_values * _spread(of_value),
    )


class _Choice:
    """Log-probability and entropy [..] of the only head, whose actions are choices."""

    def __init__(self, logits: Tensor, batch: Batch) -> None:
        log_p = log_probabilities(logits.squeeze(-2), batch.rows.squeeze(-2), None)
        self._p, self._log_p, self._taken = log_p.exp(), log_p, batch.actions
        self.log_prob = log_p.gather(-1, batch.actions).squeeze(-1)
        self.entropy = -(self._p * log_p).sum(-1)

    def by_logits(self, by_log_prob: Tensor, by_entropy: Tensor) -> Tensor:
        """Return the derivative by logits [.., 1, N] for those by log-probability and entropy [..]."""
        # d ln p_a / dx_k = [k = a] - p_k,  dH / dx_k = -p_k (ln p_k + H); both are 0 where a choice is illegal
        away = torch.addcmul(
            by_log_prob.unsqueeze(-1), self._log_p + self.entropy.unsqueeze(-1), by_entropy.unsqueeze(-1)
        )
        return (self._p * -away).scatter_add_(-1, self._taken, by_log_prob.unsqueeze(-1)).unsqueeze(-2)


class _Density:
    """Log-density and entropy [..] of the only head, whose actions are real numbers."""

    def __init__(self, logits: Tensor, batch: Batch, heads: Heads) -> None:
        mean, log_std = gaussian.parameters(logits.squeeze(-2))
        self._narrow = (-log_std).exp()
        self._z = (batch.actions - mean) * self._narrow
        self.log_prob = gaussian.log_density(batch.actions, mean, log_std, squashed=heads.squashed)
        self.entropy = gaussian.entropy(log_std)

    def by_logits(self, by_log_prob: Tensor, by_entropy: Tensor) -> Tensor:
        """Return the derivative by means and log standard deviations [.., 1, 2 A], as ``_Choice`` does."""
        # d ln p / d mean = z / std,  d ln p / d ln std = z^2 - 1,  dH / d ln std = 1
        z, taken = self._z, by_log_prob.unsqueeze(-1)
        by_log_std = torch.addcmul(by_entropy.unsqueeze(-1), z * z - 1.0, taken)
        return torch.cat([z * self._narrow * taken, by_log_std], dim=-1).unsqueeze(-2)


def _total(x: Tensor, *, stacked: bool = False) -> Tensor:
    """Return the sum of all elements, [] or of each run [R]."""
    return x.flatten(1).sum(1) if stacked else x.sum()


def _spread(of_runs: NumberT) -> NumberT:
    """Return what is one number of each run, [R], beside rows [R, B]; a number as it is."""
    return of_runs.unsqueeze(-1) if isinstance(of_runs, Tensor) and of_runs.ndim else of_runs


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
    return _total(entropy * -_entropy_shares(batch, rule, stacked=stacked), stacked=stacked)


def _entropy_shares(batch: Batch, rule: LossRule | StackedRule, *, stacked: bool) -> Tensor:
    """Return [.., H], by what the entropy of each head counts in a step."""
    steps = tuple(range(int(stacked), batch.open_steps.ndim - 1))
    share = batch.open_steps / batch.open_steps.sum(steps, keepdim=stacked).clamp(min=1)
    if rule.cfg.ppo.entropy_normalised:
        share = share * batch.entropy_scale
    if rule.head_weights is not None:
        share = share * rule.head_weights
    return share


def _ratio_stats(
    ratio: Tensor, log_ratio: Tensor, share: Tensor, clip: float, *, stacked: bool = False
) -> list[Tensor]:
    # approx_kl = mean((rho - 1) - ln rho) (Schulman 2020, estimator k3)
    away = ratio - 1.0
    kl = _total((away - log_ratio) * share, stacked=stacked)
    return [kl, _total(torch.where(away.abs() > clip, share, 0.0), stacked=stacked)]
