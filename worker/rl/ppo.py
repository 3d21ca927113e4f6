"""Proximal policy optimisation, top to bottom: anchor, advantages, loss, update (Schulman et al. 2017).

Notable: one joint ratio over the causally relevant heads; true next observations at truncations;
values in PopArt units; LSTM minibatches of whole environment rows replayed from stored states with
resets inside; a KL stop and a finiteness gate before every step. Nothing reduces over runs.
Axes: T step, E environment, H heads, N choices; a minibatch has leading axes [B] or [T, e].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worker.rl.config import LearnerConfig, PPOConfig
from worker.rl.gae import gae
from worker.rl.heads import Floors, Heads, evaluate
from worker.rl.learner import Learner, adam_step
from worker.rl.minibatch import loss_and_grad, minibatches, with_slopes
from worker.rl.nets import PolicyNet, State
from worker.rl.precision import anchor_limit, autocast
from worker.rl.rollout import PolicyError, Rollout

_LOG_RATIO_CLAMP = 20.0
_KL_STOP_FACTOR = 1.5
_NORM_EPS = 1e-6
_ADV_EPS = 1e-8
#: Order of the statistics vector returned by ``ppo_loss``; with per-head ratios two more per head follow.
LOSS_STATS = ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_frac", "ratio_max", "ratio_min")


class AnchorMismatch(RuntimeError):  # noqa: N818 - the name is the specification's
    """The sequence path does not reproduce the rollout's log-probabilities: a bug, never noise."""


@dataclass(frozen=True)
class Batch:
    """Transitions of an update; leading axes [T, E], [T, e] or [B].

    ``valid``, ``unforced`` [..] and ``open_steps`` [.., H] (relevant, unforced, two or more legal
    choices) are weights 0 or 1; ``entropy_scale`` [.., H] turns nats into shares of ln n.
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

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with ``change`` applied to every tensor."""
        return Batch(**{f.name: change(getattr(self, f.name)) for f in fields(self)})


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
        adv_floor: least divisor of the advantages, reward units.
    """

    cfg: LearnerConfig
    heads: Heads
    entropy_coef: float
    floors: Floors | None
    adv_floor: float


def normalise_advantages(advantage: Tensor, weight: Tensor, floor: float) -> Tensor:
    """Return (A - mean) / max(std, floor) with population moments over rows of weight 1."""
    count = weight.sum().clamp(min=1)
    mean = (advantage * weight).sum() / count
    std = (((advantage - mean) ** 2 * weight).sum() / count).sqrt()
    return (advantage - mean) / std.clamp(min=max(floor, _ADV_EPS))


def ppo_loss(net: PolicyNet, replay: Replay, rule: LossRule) -> tuple[Tensor, Tensor]:
    """Return L = L_pi + c_v L_V + c_H L_H, differentiable, and the statistics vector (``LOSS_STATS``)."""
    batch = replay.batch
    logits, values = net.sequence(batch.features, batch.ids, replay.state, replay.resets)
    with torch.no_grad():
        loss, stats, slopes = _objective(logits, values, batch, rule)
    return with_slopes(loss, (logits, values), slopes), stats


def _objective(
    logits: Tensor, values: Tensor, batch: Batch, rule: LossRule
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return the loss, its statistics and (dL/dlogits, dL/dvalues).

    Every term gives its slope, times its coefficient, beside its value: autograd's bookkeeping over some
    forty operations on a few hundred numbers costs more than the networks. A test compares with finite differences.
    """
    cfg = rule.cfg.ppo
    terms = evaluate(logits, batch.actions, batch.rows, batch.relevant, rule.floors)
    advantage = batch.advantage
    if cfg.adv_norm == "minibatch":
        advantage = normalise_advantages(advantage, batch.unforced, rule.adv_floor)
    # log rho = sum over relevant heads of (new - old)
    per_head = terms.log_prob - batch.old_log_prob
    joint = _surrogate(per_head.sum(-1), advantage, batch.unforced, cfg.clip)
    extra: list[Tensor] = []
    policy_loss, log_prob_slope = joint.loss, joint.slope.unsqueeze(-1).expand_as(per_head)
    if cfg.ratio == "per_head":
        policy_loss, log_prob_slope, extra = _per_head_loss(per_head, advantage, batch, cfg.clip)
    value_loss, value_slope = _value_loss(values.to(advantage.dtype), batch, cfg)
    entropy_loss, entropy_slope = _entropy_loss(terms.entropy, batch, rule)
    loss = policy_loss + cfg.value_coef * value_loss + rule.entropy_coef * entropy_loss
    inside = torch.where(batch.unforced > 0, joint.ratio, 1.0)
    stats = [policy_loss, value_loss, entropy_loss, joint.kl, joint.clipped, inside.max(), inside.min(), *extra]
    return loss, torch.stack(stats), (terms.logit_slope(log_prob_slope, entropy_slope), value_slope)


class _Surrogate(NamedTuple):
    """The clipped surrogate: its mean, its slope in ln rho [..], rho [..], approximate KL and share clipped."""

    loss: Tensor
    slope: Tensor
    ratio: Tensor
    kl: Tensor
    clipped: Tensor


def _surrogate(log_ratio: Tensor, advantage: Tensor, weight: Tensor, clip: float) -> _Surrogate:
    count = weight.sum().clamp(min=1)
    held = log_ratio.clamp(-_LOG_RATIO_CLAMP, _LOG_RATIO_CLAMP)
    ratio = held.exp()
    # L_pi = -mean(min(rho A, clip(rho, 1 - eps, 1 + eps) A)); its slope in ln rho is -rho A where the first is taken
    free, near = ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage
    loss = -(torch.minimum(free, near) * weight).sum() / count
    slope = torch.where((free <= near) & (held == log_ratio), -weight / count * advantage * ratio, 0.0)
    # approx_kl = mean((rho - 1) - ln rho) (Schulman 2020, estimator k3)
    away = ratio - 1.0
    kl = ((away - held) * weight).sum() / count
    return _Surrogate(loss, slope, ratio, kl, ((away.abs() > clip) * weight).sum() / count)


def _per_head_loss(
    per_head: Tensor, advantage: Tensor, batch: Batch, clip: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the sum of each head's own surrogate, its slope [.., H] and [KL, clip fraction] of every head."""
    weights = batch.unforced.unsqueeze(-1) * batch.relevant
    parts = [
        _surrogate(log_ratio, advantage, weight, clip)
        for log_ratio, weight in zip(per_head.unbind(-1), weights.unbind(-1), strict=True)
    ]
    stats = [number for part in parts for number in (part.kl, part.clipped)]
    return torch.stack([p.loss for p in parts]).sum(), torch.stack([p.slope for p in parts], dim=-1), stats


def _value_loss(values: Tensor, batch: Batch, cfg: PPOConfig) -> tuple[Tensor, Tensor]:
    # L_V = 0.5 mean((V - R)^2), optionally the larger of that and the loss of the clipped value
    count = batch.valid.sum().clamp(min=1)
    miss = values - batch.target
    error, slope = miss**2, miss
    if cfg.value_clip is not None:
        moved = values - batch.old_value
        near_miss = batch.old_value + moved.clamp(-cfg.value_clip, cfg.value_clip) - batch.target
        # beyond the clip the nearer value is constant
        near_slope = torch.where(moved.abs() <= cfg.value_clip, near_miss, 0.0)
        slope = torch.where(near_miss**2 > error, near_slope, miss)
        error = torch.maximum(error, near_miss**2)
    return 0.5 * (error * batch.valid).sum() / count, cfg.value_coef * batch.valid / count * slope


def _entropy_loss(entropy: Tensor, batch: Batch, rule: LossRule) -> tuple[Tensor, Tensor]:
    # L_H = -sum_h m_h mean(H_h / ln n_valid) over relevant, unforced steps with n_valid >= 2
    axes, cfg = tuple(range(entropy.ndim - 1)), rule.cfg.ppo
    scale: Tensor | float = batch.entropy_scale if cfg.entropy_normalised else 1.0
    if cfg.entropy_head_weights:
        scale = scale * entropy.new_tensor([cfg.entropy_head_weights.get(name, 1.0) for name in rule.heads.names])
    count = batch.open_steps.sum(axes).clamp(min=1)
    mean = (entropy * scale * batch.open_steps).sum(axes) / count
    return -mean.sum(), -(rule.entropy_coef * batch.open_steps / count * scale)


@dataclass(frozen=True)
class Prepared:
    """A rollout ready for its update, with the anchor pass's diagnostics.

    Attributes:
        replay: the whole rollout [T, E].
        rule: the loss in force.
        returns: [T, E] reward units.
        values: [T, E] reward units, V before the update.
        entropy: [T, E, H] nats.
        anchor_gap: largest |anchor - rollout| of the joint log-probability.
        adv_moments: mean and std of the raw advantages over unforced valid steps, and sigma_R.
    """

    replay: Replay
    rule: LossRule
    returns: Tensor
    values: Tensor
    entropy: Tensor
    anchor_gap: float
    adv_moments: tuple[float, float, float]


@torch.no_grad()
def prepare(learner: Learner, rollout: Rollout, entropy_coef: float, floors: Floors | None) -> Prepared:
    """Run the anchor pass, bootstrap, move the return statistics and form advantages and targets."""
    T, cfg = rollout.num_steps, learner.cfg
    ended = rollout.terminated | rollout.truncated
    rewards = rollout.rewards
    if learner.reward_scaler is not None:
        rewards = learner.reward_scaler(rewards, ended, rollout.valid)
    resets = tuple(
        (t + 1, (~ended[t]).to(rollout.features.dtype))
        for t, any_end in enumerate(ended[:-1].any(1).tolist())
        if any_end
    )
    features, ids = rollout.features[:T], rollout.ids[:T]
    with autocast(features.device, cfg.precision):
        logits, raw_values = learner.net.sequence(features, ids, rollout.initial_state, resets)
        _initialise_returns(learner, rollout, rewards)
        next_values = _next_values(learner, rollout, raw_values.float())
    torch.clear_autocast_cache()
    rows = learner.heads.mask_rows({k: m[:T] for k, m in rollout.masks.items()}, rollout.actions)
    relevant = learner.heads.relevant(rollout.actions)
    if bool((relevant & rollout.valid.unsqueeze(-1) & ~rows.any(-1)).any()):
        raise PolicyError("a relevant head had no legal choice: the environment's masks are wrong")
    terms = evaluate(logits, rollout.actions, rows, relevant, floors)
    gap = _check_anchor(terms.log_prob.sum(-1), rollout, cfg.precision)
    values = learner.denormalise(raw_values.float())
    discount = (cfg.ppo.gamma, cfg.ppo.lambda_)
    advantages, returns = gae(rewards, values, next_values, rollout.terminated, rollout.truncated, discount)
    if learner.popart is not None:
        learner.popart.update(returns[rollout.valid], learner.net.value_out)
    # forced: one legal choice in every relevant head, hence exactly one joint action
    legal = rows.sum(-1)
    open_steps = (legal > 1) & relevant & rollout.valid.unsqueeze(-1)
    unforced = open_steps.any(-1)
    mean, std, sigma = _moments(learner, advantages[unforced], returns[rollout.valid])
    floor = cfg.ppo.adv_std_floor * sigma
    if cfg.ppo.adv_norm == "rollout":
        advantages = normalise_advantages(advantages, unforced.to(advantages.dtype), floor)
    batch = Batch(
        features=features,
        ids=ids,
        actions=rollout.actions,
        rows=rows,
        relevant=relevant,
        old_log_prob=terms.log_prob,
        old_value=learner.normalise(values),
        target=learner.normalise(returns),
        advantage=advantages,
        valid=rollout.valid.to(values.dtype),
        unforced=unforced.to(values.dtype),
        open_steps=open_steps.to(values.dtype),
        entropy_scale=1.0 / legal.clamp(min=2).to(values.dtype).log(),
    )
    rule = LossRule(cfg, learner.heads, entropy_coef, floors, floor)
    replay = Replay(batch, rollout.initial_state, resets)
    return Prepared(replay, rule, returns, values, terms.entropy, gap, (mean, std, sigma))


def update(learner: Learner, prepared: Prepared, lr: float, order: np.random.Generator) -> dict[str, float]:
    """Run the epochs of one update in place and return its metrics (``ppo/`` names without the prefix).

    Args:
        learner: changed: parameters and optimiser.
        prepared: from ``prepare``.
        lr: learning rate of the round.
        order: generator of stream ``minibatch_order``.
    """
    cfg, flat = learner.cfg.ppo, learner.flat
    history: list[Tensor] = []
    norms: list[float] = []
    done = skipped = non_finite = 0
    stopped, stop_epoch = False, math.nan
    for epoch in range(cfg.epochs):
        for replay in minibatches(learner, prepared.replay, order):
            if stopped:
                skipped += 1
                continue
            stats, may = loss_and_grad(learner, replay, prepared.rule, ppo_loss)
            # the one transfer of a minibatch: may this step be taken?
            gate = may.tolist()
            history.append(stats)
            if not all(math.isfinite(g) for g in gate):
                non_finite += 1
            elif cfg.target_kl is not None and gate[2] > _KL_STOP_FACTOR * cfg.target_kl:
                stopped, stop_epoch = True, float(epoch)
                skipped += 1
            else:
                norms.append(gate[1])
                adam_step(flat, learner.adam, lr, cfg.adam_eps, min(1.0, cfg.grad_clip / (gate[1] + _NORM_EPS)))
                done += 1
    learner.dead_updates = 0 if done else learner.dead_updates + 1
    metrics = _summary(torch.stack(history), learner.heads.names)
    metrics |= {
        "kl_stop_epoch": stop_epoch,
        "steps_done": float(done),
        "steps_skipped": float(skipped + non_finite),
        "steps_non_finite": float(non_finite),
        "grad_norm": float(np.mean(norms)) if norms else math.nan,
        "grad_norm_clipped_frac": float(np.mean([n > cfg.grad_clip for n in norms])) if norms else math.nan,
        "lr": lr,
        "entropy_coef": prepared.rule.entropy_coef,
    }
    return metrics


def refresh_observations(learner: Learner, rollout: Rollout) -> None:
    """Merge the round's raw observations into the running statistics, after the update."""
    if learner.obs_norm is not None and not learner.obs_norm_frozen:
        raw = rollout.raw[: rollout.num_steps]
        learner.obs_norm.update(raw.flatten(0, 1), rollout.valid.flatten())


def _summary(history: Tensor, head_names: list[str]) -> dict[str, float]:
    names = list(LOSS_STATS)
    if history.shape[1] > len(names):
        names += [f"{kind}_{head}" for head in head_names for kind in ("approx_kl", "clip_frac")]
    mean = dict(zip(names, history.mean(0).tolist(), strict=True))
    mean["approx_kl_max"] = float(history[:, 3].max())
    mean["ratio_max"], mean["ratio_min"] = float(history[:, 5].max()), float(history[:, 6].min())
    return mean


def _next_values(learner: Learner, rollout: Rollout, raw_values: Tensor) -> Tensor:
    """Return V of the true next observation [T, E] in reward units."""
    needed = rollout.truncated & rollout.valid
    needed[-1] |= ~rollout.terminated[-1]
    steps, envs = (index.tolist() for index in needed.nonzero(as_tuple=True))
    result = torch.cat([raw_values[1:], raw_values[-1:]])
    if steps:
        pairs = list(zip(steps, envs, strict=True))
        views = [rollout.finals.get(t, (rollout.features[t + 1], rollout.ids[t + 1])) for t, _ in pairs]
        features = torch.stack([view[0][e] for view, (_, e) in zip(views, pairs, strict=True)])
        ids = torch.stack([view[1][e] for view, (_, e) in zip(views, pairs, strict=True)])
        # the carried state: after step t, before any reset
        layers = range(len(rollout.initial_state))
        state = tuple(torch.stack([rollout.states[t][k][:, e] for t, e in pairs], dim=1) for k in layers)
        result[steps, envs] = learner.net.step_values(features, ids, state).float()
    return learner.denormalise(result)


def _check_anchor(anchor: Tensor, rollout: Rollout, precision: str) -> float:
    if not bool(torch.isfinite(anchor).all()):
        raise PolicyError("anchor pass: non-finite log-probability")
    gaps = torch.where(rollout.valid, (anchor - rollout.log_probs).abs(), 0.0)
    gap, limit = float(gaps.max()), anchor_limit(anchor.device, precision)
    if gap > limit:
        raise AnchorMismatch(
            f"log-probabilities of rollout and sequence path differ by {gap:.3g} > {limit:g} ({precision})"
        )
    return gap


def _initialise_returns(learner: Learner, rollout: Rollout, rewards: Tensor) -> None:
    """Give PopArt its first statistics from the discounted rewards of the first round."""
    if learner.popart is None or learner.popart.rounds > 0:
        return
    zero = torch.zeros_like(rewards)
    gamma = learner.cfg.ppo.gamma
    _, returns = gae(rewards, zero, zero, rollout.terminated, rollout.truncated, (gamma, 1.0))
    learner.popart.update(returns[rollout.valid], learner.net.value_out)
    learner.popart.rounds = 1


def _moments(learner: Learner, advantages: Tensor, returns: Tensor) -> tuple[float, float, float]:
    sigma = returns.std(correction=0) if learner.popart is None else torch.tensor(learner.popart.std)
    if advantages.numel() == 0:
        return math.nan, math.nan, float(sigma)
    mean, std = torch.stack([advantages.mean(), advantages.std(correction=0)]).tolist()
    return mean, std, float(sigma)
