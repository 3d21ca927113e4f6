"""The reward modes as pure functions of a transition: components by name, and ledgers (training.md 2.6-2.11).

A mode returns its components; their sum is the reward. Ledgers are the only state: tensors carried in
the context and returned updated. Death pay is laid over all of them in ``registry``.
Axes: E environment, S slot in action order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from worker.envs.morph.context import RewardContext
from worker.envs.morph.rewards import terms
from worker.envs.morph.rewards.config import RewardConfig
from worker.envs.morph.stages import Op

Components = dict[str, Tensor]
Ledgers = dict[str, Tensor]
Mode = Callable[[RewardContext, RewardConfig, float], tuple[Components, Ledgers]]

#: Measurements whose minimum is a stable contribution.
_WINDOW = 3


def shaped(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = A + F + W_b + W_h + Syn + Hind - rent - shock - occ - fos + X + T (2.6)."""
    shared, ledgers = _shaped_without_attribution(ctx, cfg, gamma)
    own = {"attribution": terms.attribution(ctx, cfg), "ratio_penalty": terms.ratio_penalty(ctx, cfg)}
    return own | shared, ledgers


def escrow(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """As shaped, but contributions are paid into an account that is kept only by committing (2.7)."""
    shared, ledgers = _shaped_without_attribution(ctx, cfg, gamma)
    paid, own = _escrow(ctx, cfg)
    return {"escrow": paid} | shared, ledgers | own


def basic(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = F - 0.1 eff / 500000 + C + 5 (a_T - a_0) / 100 at the last step (2.8)."""
    return _basic(ctx, cfg, gamma) | {"commit": _basic_commit(ctx, cfg).sum(1)}, {}


def basic_plus(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """As basic, but most of a positive C is released while the graft keeps contributing (2.8)."""
    commit = _basic_commit(ctx, cfg)
    released, ledgers = _release(ctx, cfg, commit)
    now = torch.where(commit > 0, cfg.basic_plus_share * commit, commit).sum(1)
    return _basic(ctx, cfg, gamma) | {"commit": now, "release": released}, ledgers


def simplified(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = F - 0.01 [op != WAIT] + 3 a_T / 100 + 2 N at the last step (2.9)."""
    dtype = ctx.post.accuracy.dtype
    good = terms.is_fossil(ctx.post) & (ctx.post.contribution >= cfg.commit_min_contribution)
    pay = cfg.simplified_accuracy_weight * ctx.post.accuracy / 100
    pay = pay + cfg.simplified_graft_weight * good.sum(1).to(dtype)
    return {
        "shaping": terms.shaping(ctx, cfg, gamma, cfg.pbrs_weight),
        "op_cost": -cfg.op_cost * (ctx.executed_op != Op.WAIT).to(dtype),
        "terminal": terms.terminal_accuracy(ctx, cfg, 1.0, pay),
    }, {}


def sparse(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:  # noqa: ARG001 - one signature for all modes
    """R = scale clamp(committed_acc / 100 - 0.1 fossil_params / 500000, -1, 1) at the last step (2.10)."""
    fossil = torch.where(terms.is_fossil(ctx.post), ctx.post.params, 0.0).sum(1)
    score = terms.measured(ctx.post.committed_accuracy) / 100 - cfg.param_weight * fossil / cfg.param_budget
    return {"terminal": cfg.sparse_scale * score.clamp(-1, 1) * terms.last_step(ctx)}, {}


def minimal(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = sparse - 0.1 per PRUNE of a graft younger than 10 steps (2.10)."""
    components, _ = sparse(ctx, cfg, gamma)
    early = terms.targeted(ctx, Op.PRUNE) & (ctx.pre.age < cfg.early_prune_age)
    return components | {"early_prune": -cfg.early_prune_cost * early.sum(1).to(ctx.post.accuracy.dtype)}, {}


def loss(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = 5 (psi(l_t) - psi(l_t+1)) - rent_l + 0.1 (gamma Phi' - Phi) + terminal (2.11)."""
    baseline, target, sigma = cfg.loss_baseline, cfg.loss_target, cfg.loss_sigma
    weight = cfg.loss_rent_weight
    if baseline is None or target is None or sigma is None or weight is None:
        raise ValueError("reward.mode loss: give reward.loss_baseline, loss_target, loss_sigma, loss_rent_weight")

    def psi(value: Tensor) -> Tensor:
        return value.clamp(max=2 * baseline) / sigma

    added = ctx.post.params.sum(1)
    charged = (ctx.t >= cfg.loss_rent_grace).to(added.dtype)
    rent = (weight * torch.log1p(added / ctx.host_params)).clamp(max=cfg.loss_rent_cap) * charged
    score = ((baseline - ctx.post.loss) / (baseline - target)).clamp(0, 1)
    return {
        "loss_gain": cfg.loss_weight * (psi(ctx.pre.loss) - psi(ctx.post.loss)),
        "rent": -rent,
        "shaping": terms.shaping(ctx, cfg, gamma, cfg.loss_pbrs_weight),
        "terminal": terms.terminal_accuracy(ctx, cfg, 1.0, score),
    }, {}


MODES: Mapping[str, Mode] = {
    "shaped": shaped,
    "simplified": simplified,
    "sparse": sparse,
    "escrow": escrow,
    "basic": basic,
    "basic_plus": basic_plus,
    "minimal": minimal,
    "loss": loss,
}


def _shaped_without_attribution(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    hindsight, ledgers = _hindsight(ctx, cfg, gamma)
    components = {
        "shaping": terms.shaping(ctx, cfg, gamma, cfg.pbrs_weight),
        "blending_pressure": terms.blending_pressure(ctx, cfg),
        "holding_pressure": terms.holding_pressure(ctx, cfg),
        "synergy": terms.synergy(ctx, cfg),
        "hindsight": hindsight,
        "rent": -terms.rent(ctx, cfg),
        "shock": -terms.shock(ctx, cfg),
        "occupancy": -terms.occupancy(ctx, cfg),
        "fossil_rent": -terms.fossil_rent(ctx, cfg),
        "op_pay": terms.op_pay(ctx, cfg),
        "terminal": terms.terminal_accuracy(ctx, cfg, cfg.terminal_accuracy_weight, ctx.post.accuracy),
    }
    return components, ledgers


def _hindsight(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> tuple[Tensor, Ledgers]:
    """Pay a commit of b for earlier scaffolds: Hind = sum_a 0.1 tanh(0.1 boost c_b) gamma^delay, capped.

    An event is the first step in which I_ab > 0 was measured while both grafts live; its boost is that
    I_ab. Ledgers [E, S, S]: ``scaffold_boost`` (0 = no event) and ``scaffold_step``.
    """
    now = ctx.post.interactions
    boost = ctx.ledgers.get("scaffold_boost", torch.zeros_like(now))
    step = ctx.ledgers.get("scaffold_step", torch.zeros_like(now))
    c = ctx.pre.contribution.unsqueeze(1)
    delay = ctx.t.to(now.dtype).view(-1, 1, 1) - step
    value = cfg.hindsight_weight * torch.tanh(cfg.hindsight_scale * boost * c) * gamma**delay
    commits = _committed(ctx)
    pay = terms.measured(torch.where((boost > 0) & commits, value, 0.0)).sum((1, 2)).clamp(max=cfg.hindsight_cap)
    present = terms.is_live(ctx.post) | terms.is_fossil(ctx.post)
    both = present.unsqueeze(1) & present.unsqueeze(2)
    fresh = both & (boost == 0) & (now > 0)
    boost = torch.where(fresh, now, torch.where(both, boost, 0.0))
    step = torch.where(fresh, ctx.t.to(now.dtype).view(-1, 1, 1), torch.where(both, step, 0.0))
    return pay, {"scaffold_boost": boost, "scaffold_step": step}


def _committed(ctx: RewardContext) -> Tensor:
    """Return [E, 1, S] bool: the slot committed in this step."""
    return terms.targeted(ctx, Op.FOSSILIZE).unsqueeze(1)


def _escrow(ctx: RewardContext, cfg: RewardConfig) -> tuple[Tensor, Ledgers]:
    """Return sum_i dL_i [E] and the ledgers ``escrow`` [E, S] and ``escrow_window`` [E, S, 3]."""
    post = ctx.post
    held = ctx.ledgers.get("escrow", torch.zeros_like(post.contribution))
    window = ctx.ledgers.get(
        "escrow_window", torch.full((*held.shape, _WINDOW), torch.nan, dtype=held.dtype, device=held.device)
    )
    fossil = terms.is_fossil(post)
    present = (terms.is_live(post) | fossil) & ~ctx.rolled_back.unsqueeze(1)
    seen = ~post.contribution.isnan() & present
    shifted = torch.cat([window[..., 1:], post.contribution.unsqueeze(-1)], dim=-1)
    window = torch.where(seen.unsqueeze(-1), shifted, window)
    window = torch.where(present.unsqueeze(-1), window, torch.nan)
    # c~ = min of the last three measured c_i
    stable = torch.where(window.isnan(), torch.inf, window).amin(-1)
    stable = torch.where(stable.isinf(), torch.nan, stable)
    positive = terms.measured(stable).clamp(min=0)
    split = positive / positive.sum(1, keepdim=True).clamp(min=1e-12)
    credit = positive * terms.credit_share(positive, post.cf) + terms.ratio_penalty(ctx, cfg).unsqueeze(1) * split
    change = (credit.clamp(min=0) - held).clamp(-cfg.escrow_step, cfg.escrow_step)
    harm = seen & (stable < 0)
    level = torch.where(harm, 0.0, held + change)
    change = torch.where(harm, stable - held, change)
    # nothing measured: nothing moves; committed: kept; gone: returned
    still = fossil | ~seen
    level, change = torch.where(still, held, level), torch.where(still, 0.0, change)
    level, change = torch.where(present, level, 0.0), torch.where(present, change, -held)
    returns = ctx.is_last.unsqueeze(1) & present & ~fossil
    change = torch.where(returns, change - level, change)
    return change.sum(1), {"escrow": torch.where(returns, 0.0, level), "escrow_window": window}


def _basic(ctx: RewardContext, cfg: RewardConfig, gamma: float) -> Components:
    gain = (ctx.post.accuracy - ctx.initial_accuracy) / 100
    return {
        "shaping": terms.shaping(ctx, cfg, gamma, cfg.pbrs_weight),
        "rent": -cfg.param_weight * terms.effective_params(ctx, cfg) / cfg.param_budget,
        "terminal": terms.terminal_accuracy(ctx, cfg, cfg.basic_accuracy_weight, gain),
    }


def _basic_commit(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return C [E, S], non-zero on the slot that FOSSILIZE committed."""
    c, cf = ctx.pre.contribution, ctx.pre.cf.unsqueeze(1)
    m = (ctx.pre.epochs_in_stage.to(c.dtype) / cfg.commit_epochs).clamp(max=1.0)
    harmonic = 2 * c * cf / (c + cf)
    good = (cfg.basic_commit_base + cfg.basic_commit_slope * harmonic) * m
    harmful = (cf <= 0) & (c > cfg.ransomware_contribution)
    poor = torch.where(harmful, -cfg.basic_harm_cost, -cfg.basic_weak_cost).to(c.dtype)
    pay = torch.where((cf > 0) & (c >= cfg.commit_min_contribution), good, poor)
    unmeasured = c.isnan() | cf.isnan()
    return torch.where(terms.targeted(ctx, Op.FOSSILIZE) & ~unmeasured, pay, 0.0)


def _release(ctx: RewardContext, cfg: RewardConfig, commit: Tensor) -> tuple[Tensor, Ledgers]:
    """Release pools [E] per step; ledgers ``pool``, ``pool_rate``, ``pool_paid``, ``pool_base`` [E, S]."""
    zero = torch.zeros_like(commit)
    pool, rate, paid, base = (ctx.ledgers.get(name, zero) for name in ("pool", "pool_rate", "pool_paid", "pool_base"))
    now = terms.measured(ctx.post.contribution)
    # clamp(pool / max(R_left, 5) * c_now / max(c_at_commit, 1), -0.05, +0.1)
    wanted = (rate * now / base.clamp(min=1.0)).clamp(cfg.basic_plus_low, cfg.basic_plus_high)
    release = torch.where(pool > 0, torch.minimum(wanted, pool - paid), 0.0)
    paid = paid + release.clamp(min=0)
    starts = commit > 0
    fresh = (1 - cfg.basic_plus_share) * commit
    left = (ctx.horizon - 1 - ctx.t).to(commit.dtype).clamp(min=cfg.basic_plus_min_steps).unsqueeze(1)
    return release.sum(1), {
        "pool": torch.where(starts, fresh, pool),
        "pool_rate": torch.where(starts, fresh / left, rate),
        "pool_paid": torch.where(starts, 0.0, paid),
        "pool_base": torch.where(starts, terms.measured(ctx.pre.contribution), base),
    }
