"""The reward modes as pure functions of a transition: components by name, and ledgers (training.md 2.6-2.11).

A mode returns its components; their sum is the reward. Ledgers are the only state: arrays carried in
the transition and returned updated. Death pay is laid over all of them in ``registry``.
Axes: E environment, S slot in action order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from worker.envs.morph.life.stages import Op
from worker.envs.morph.rewards import terms
from worker.envs.morph.rewards.arrays import (
    Array,
    Bools,
    Transition,
    at_least,
    at_most,
    log1p,
    lowest,
    measured,
    some,
    tanh,
    total,
)
from worker.envs.morph.rewards.config import RewardConfig

Components = dict[str, Array]
Ledgers = dict[str, Array]
Mode = Callable[[Transition, RewardConfig, float], tuple[Components, Ledgers]]

#: Measurements whose minimum is a stable contribution.
_WINDOW = 3


def shaped(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = A + F + W_b + W_h + Syn + Hind - rent - shock - occ - fos + X + T (2.6)."""
    shared, ledgers = _shaped_without_attribution(ctx, cfg, gamma)
    own = {"attribution": terms.attribution(ctx, cfg), "ratio_penalty": terms.ratio_penalty(ctx, cfg)}
    return own | shared, ledgers


def escrow(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """As shaped, but contributions are paid into an account that is kept only by committing (2.7)."""
    shared, ledgers = _shaped_without_attribution(ctx, cfg, gamma)
    paid, own = _escrow(ctx, cfg)
    return {"escrow": paid} | shared, ledgers | own


def basic(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = F - 0.1 eff / 500000 + C + 5 (a_T - a_0) / 100 at the last step (2.8)."""
    return _basic(ctx, cfg, gamma) | {"commit": total(_basic_commit(ctx, cfg))}, {}


def basic_plus(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """As basic, but most of a positive C is released while the graft keeps contributing (2.8)."""
    commit = _basic_commit(ctx, cfg)
    released, ledgers = _release(ctx, cfg, commit)
    now = total(np.where(commit > 0, cfg.basic_plus_share * commit, commit))
    return _basic(ctx, cfg, gamma) | {"commit": now, "release": released}, ledgers


def simplified(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = F - 0.01 [op != WAIT] + 3 a_T / 100 + 2 N at the last step (2.9)."""
    good = ctx.post.is_fossil & (ctx.post.contribution >= cfg.commit_min_contribution)
    pay = cfg.simplified_accuracy_weight * ctx.post.accuracy / 100
    pay = pay + cfg.simplified_graft_weight * good.sum(1).astype(ctx.dtype)
    return {
        "shaping": terms.shaping(ctx, cfg, gamma, cfg.pbrs_weight),
        "op_cost": -cfg.op_cost * (ctx.executed_op != Op.WAIT).astype(ctx.dtype),
        "terminal": terms.terminal_accuracy(ctx, cfg, 1.0, pay),
    }, {}


def sparse(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:  # noqa: ARG001 - one signature for all modes
    """R = scale clamp(committed_acc / 100 - 0.1 fossil_params / 500000, -1, 1) at the last step (2.10)."""
    fossil = total(np.where(ctx.post.is_fossil, ctx.post.params, 0.0))
    score = measured(ctx.post.committed_accuracy) / 100 - cfg.param_weight * fossil / cfg.param_budget
    return {"terminal": cfg.sparse_scale * _bounded(score, -1, 1) * terms.last_step(ctx)}, {}


def minimal(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = sparse - 0.1 per PRUNE of a graft younger than 10 steps (2.10)."""
    components, _ = sparse(ctx, cfg, gamma)
    early = terms.targeted(ctx, Op.PRUNE) & (ctx.pre.age < cfg.early_prune_age)
    return components | {"early_prune": -cfg.early_prune_cost * early.sum(1).astype(ctx.dtype)}, {}


def loss(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
    """R = 5 (psi(l_t) - psi(l_t+1)) - rent_l + 0.1 (gamma Phi' - Phi) + terminal (2.11)."""
    baseline, target, sigma = cfg.loss_baseline, cfg.loss_target, cfg.loss_sigma
    weight = cfg.loss_rent_weight
    if baseline is None or target is None or sigma is None or weight is None:
        raise ValueError("reward.mode loss: give reward.loss_baseline, loss_target, loss_sigma, loss_rent_weight")

    def psi(value: Array) -> Array:
        scaled: Array = at_most(value, 2 * baseline) / sigma
        return scaled

    added = total(ctx.post.params)
    charged = (ctx.t >= cfg.loss_rent_grace).astype(added.dtype)
    rent = at_most(weight * log1p(added / ctx.host_params), cfg.loss_rent_cap) * charged
    score = _bounded((baseline - ctx.post.loss) / (baseline - target), 0, 1)
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


def _shaped_without_attribution(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Components, Ledgers]:
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


def _hindsight(ctx: Transition, cfg: RewardConfig, gamma: float) -> tuple[Array, Ledgers]:
    """Pay a commit of b for earlier scaffolds: Hind = sum_a 0.1 tanh(0.1 boost c_b) gamma^delay, capped.

    An event is the first step in which I_ab > 0 was measured while both grafts live; its boost is that
    I_ab. Ledgers [E, S, S]: ``scaffold_boost`` (0 = no event) and ``scaffold_step``.
    """
    now = ctx.post.interactions
    boost, step = (ctx.ledgers.get(name, np.zeros_like(now)) for name in ("scaffold_boost", "scaffold_step"))
    helps, known = now > 0, boost > 0
    if not (some(helps) or some(known)):  # nothing to pay for, nothing to remember
        return ctx.zero, {"scaffold_boost": boost, "scaffold_step": step}
    pay = _scaffold_pay(ctx, cfg, gamma, boost, step)
    present = ctx.post.is_live | ctx.post.is_fossil
    both = present[:, None] & present[:, :, None]
    fresh = both & (boost == 0) & helps
    boost = np.where(fresh, now, np.where(both, boost, 0.0))
    step = np.where(fresh, ctx.t.astype(now.dtype)[:, None, None], np.where(both, step, 0.0))
    return pay, {"scaffold_boost": boost, "scaffold_step": step}


def _scaffold_pay(ctx: Transition, cfg: RewardConfig, gamma: float, boost: Array, step: Array) -> Array:
    """Return what the commits of this step pay for the scaffolds known before it, [E]."""
    pays = (boost > 0) & terms.targeted(ctx, Op.FOSSILIZE)[:, None]
    if not some(pays):
        return ctx.zero
    delay = ctx.t.astype(boost.dtype)[:, None, None] - step
    discount = torch.pow(gamma, torch.from_numpy(delay)).numpy()
    value = cfg.hindsight_weight * tanh(cfg.hindsight_scale * boost * ctx.pre.contribution[:, None]) * discount
    paid = torch.from_numpy(measured(np.where(pays, value, 0.0))).sum((1, 2)).numpy()
    return at_most(paid, cfg.hindsight_cap)


def _escrow(ctx: Transition, cfg: RewardConfig) -> tuple[Array, Ledgers]:
    """Return sum_i dL_i [E] and the ledgers ``escrow`` [E, S] and ``escrow_window`` [E, S, 3]."""
    post = ctx.post
    held = ctx.ledgers.get("escrow", np.zeros_like(post.contribution))
    window = ctx.ledgers.get("escrow_window", np.full((*held.shape, _WINDOW), np.nan, dtype=held.dtype))
    fossil = post.is_fossil
    present = (post.is_live | fossil) & ~ctx.rolled_back[:, None]
    seen = ~np.isnan(post.contribution) & present
    window = _windowed(window, post.contribution, seen, present)
    # c~ = min of the last three measured c_i
    stable = lowest(np.where(np.isnan(window), np.inf, window))
    stable = np.where(np.isinf(stable), np.nan, stable)
    positive = at_least(measured(stable), 0)
    split = positive / at_least(total(positive), 1e-12)[:, None]
    credit = positive * terms.credit_share(positive, post.cf) + terms.ratio_penalty(ctx, cfg)[:, None] * split
    change = _bounded(at_least(credit, 0) - held, -cfg.escrow_step, cfg.escrow_step)
    harm = seen & (stable < 0)
    level = np.where(harm, 0.0, held + change)
    change = np.where(harm, stable - held, change)
    # nothing measured: nothing moves; committed: kept; gone: returned
    still = fossil | ~seen
    level, change = np.where(still, held, level), np.where(still, 0.0, change)
    level, change = np.where(present, level, 0.0), np.where(present, change, -held)
    returns = ctx.is_last[:, None] & present & ~fossil
    change = np.where(returns, change - level, change)
    return total(change), {"escrow": np.where(returns, 0.0, level), "escrow_window": window}


def _windowed(window: Array, contribution: Array, seen: Bools, present: Bools) -> Array:
    """Return the last measured contributions [E, S, 3], newest last; NaN where no graft is."""
    shifted = np.concatenate([window[..., 1:], contribution[..., None]], axis=-1)
    return np.where(present[..., None], np.where(seen[..., None], shifted, window), np.nan)


def _basic(ctx: Transition, cfg: RewardConfig, gamma: float) -> Components:
    gain = (ctx.post.accuracy - ctx.initial_accuracy) / 100
    return {
        "shaping": terms.shaping(ctx, cfg, gamma, cfg.pbrs_weight),
        "rent": -cfg.param_weight * terms.effective_params(ctx, cfg) / cfg.param_budget,
        "terminal": terms.terminal_accuracy(ctx, cfg, cfg.basic_accuracy_weight, gain),
    }


def _basic_commit(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return C [E, S], non-zero on the slot that FOSSILIZE committed."""
    c, cf = ctx.pre.contribution, ctx.pre.cf[:, None]
    m = at_most(ctx.pre.epochs / cfg.commit_epochs, 1.0)
    harmonic = 2 * c * cf / (c + cf)
    good = (cfg.basic_commit_base + cfg.basic_commit_slope * harmonic) * m
    harmful = (cf <= 0) & (c > cfg.ransomware_contribution)
    poor = np.where(harmful, -cfg.basic_harm_cost, -cfg.basic_weak_cost).astype(c.dtype)
    pay = np.where((cf > 0) & (c >= cfg.commit_min_contribution), good, poor)
    unmeasured = np.isnan(c) | np.isnan(cf)
    return np.where(terms.targeted(ctx, Op.FOSSILIZE) & ~unmeasured, pay, 0.0)


def _release(ctx: Transition, cfg: RewardConfig, commit: Array) -> tuple[Array, Ledgers]:
    """Release pools [E] per step; ledgers ``pool``, ``pool_rate``, ``pool_paid``, ``pool_base`` [E, S]."""
    zero = np.zeros_like(commit)
    pool, rate, paid, base = (ctx.ledgers.get(name, zero) for name in ("pool", "pool_rate", "pool_paid", "pool_base"))
    # clamp(pool / max(R_left, 5) * c_now / max(c_at_commit, 1), -0.05, +0.1)
    wanted = _bounded(rate * ctx.post.paying / at_least(base, 1.0), cfg.basic_plus_low, cfg.basic_plus_high)
    release = np.where(pool > 0, np.minimum(wanted, pool - paid), 0.0)
    paid = paid + at_least(release, 0)
    starts = commit > 0
    fresh = (1 - cfg.basic_plus_share) * commit
    left = at_least((ctx.horizon - 1 - ctx.t).astype(commit.dtype), cfg.basic_plus_min_steps)[:, None]
    return total(release), {
        "pool": np.where(starts, fresh, pool),
        "pool_rate": np.where(starts, fresh / left, rate),
        "pool_paid": np.where(starts, 0.0, paid),
        "pool_base": np.where(starts, ctx.pre.paying, base),
    }


def _bounded(x: Array, low: float, high: float) -> Array:
    return at_most(at_least(x, low), high)
