"""Terms shared by reward modes, as pure functions of one transition (training.md 2.4 to 2.6).

Attribution, shaping, rent and terminal terms read ``post``; terms that judge the action read ``pre``;
the shaping difference and the shock read both. Unmeasured values are NaN and pay 0. No loop over
environments or slots; what no environment has to pay is not worked out. Axes: E environment, S slot in action order.
"""

from __future__ import annotations

import math

import numpy as np

from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.rewards.arrays import (
    Array,
    Bools,
    Moment,
    Transition,
    at_least,
    at_most,
    log1p,
    measured,
    some,
    tanh,
    total,
)
from worker.envs.morph.rewards.config import RewardConfig

_WAIT, _GERMINATE, _SET_ALPHA_TARGET = int(Op.WAIT), int(Op.GERMINATE), int(Op.SET_ALPHA_TARGET)
_PRUNE, _FOSSILIZE, _ADVANCE = Op.PRUNE, Op.FOSSILIZE, Op.ADVANCE
_TRAINING, _BLENDING, _HOLDING = Stage.TRAINING, Stage.BLENDING, Stage.HOLDING
#: Potential of each stage and the most that epochs spent in it may add, by stage integer.
_POTENTIAL = {
    Stage.GERMINATED: (1.0, 1.0),
    Stage.TRAINING: (2.0, 1.5),
    Stage.BLENDING: (3.5, 2.0),
    Stage.HOLDING: (5.5, 0.5),
    Stage.FOSSILIZED: (6.0, 0.0),
}
_POTENTIALS = np.zeros((2, max(Stage) + 1))
for _stage, _values in _POTENTIAL.items():
    _POTENTIALS[:, _stage] = _values
_BY_TYPE = {kind: _POTENTIALS.astype(kind) for kind in (np.dtype(np.float32), np.dtype(np.float64))}


def targeted(ctx: Transition, op: Op) -> Bools:
    """Return [E, S]: the slot on which ``op`` was executed."""
    found: Bools = (ctx.executed_op == int(op))[:, None] & ctx.addressed
    return found


def last_step(ctx: Transition) -> Array:
    """Return [E] 1.0 at the horizon."""
    found: Array = ctx.is_last.astype(ctx.dtype)
    return found


def potential(state: Moment, cfg: RewardConfig) -> Array:
    """Return Phi(s) [E] = sum_i Phi(stage_i) + min(0.3 e_i, gap_i)."""
    potentials, gaps = _BY_TYPE[state.accuracy.dtype]
    bonus = np.minimum(cfg.potential_epoch_bonus * state.epochs, gaps[state.stage])
    return total(potentials[state.stage] + bonus)


def shaping(ctx: Transition, cfg: RewardConfig, gamma: float, weight: float) -> Array:
    """Return F [E] = w (gamma Phi(s') - Phi(s)), with Phi(s') = 0 where the task ended (Ng et al. 1999)."""
    if cfg.disable_pbrs:
        return ctx.zero
    after = np.where(ctx.terminated, 0.0, potential(ctx.post, cfg))
    shaped: Array = weight * (gamma * after - potential(ctx.pre, cfg))
    return shaped


def effective_params(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return eff [E] = sum over BLENDING, HOLDING, FOSSILIZED of (0.0039 host + alpha_i params_i)."""
    each = cfg.slot_overhead * ctx.host_params[:, None] + ctx.post.alpha * ctx.post.params
    return total(np.where(ctx.post.is_blended, each, 0.0))


def rent(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return [E] = min(0.5 ln(1 + eff / h), 1.5), h = max(host, 200)."""
    floor = at_least(ctx.host_params, cfg.host_floor)
    return at_most(cfg.rent_weight * log1p(effective_params(ctx, cfg) / floor), cfg.rent_cap)


def shock(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return [E] = min(0.1958 sum_i (change of alpha_i)^2 params_i / h, 1).

    The parameters are those of the graft that changed, which is gone after an immediate prune.
    """
    if cfg.disable_anti_gaming:
        return ctx.zero
    moved = (ctx.post.alpha - ctx.pre.alpha) ** 2 * np.maximum(ctx.pre.params, ctx.post.params)
    floor = at_least(ctx.host_params, cfg.host_floor)
    return at_most(cfg.shock_weight * total(moved) / floor, cfg.shock_cap)


def occupancy(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return [E] = 0.01 max(0, n_live + n_fossil - 1)."""
    count = (ctx.post.is_live | ctx.post.is_fossil).sum(1).astype(ctx.dtype)
    cost: Array = cfg.occupancy_cost * at_least(count - 1, 0)
    return cost


def fossil_rent(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return [E] = 0.002 n_fossil."""
    cost: Array = cfg.fossil_cost * ctx.post.is_fossil.sum(1).astype(ctx.dtype)
    return cost


def credit_share(positive: Array, cf: Array) -> Array:
    """Return [E, 1] = min(1, max(cf, 0) / P): no more than the total effect is credited."""
    credited = total(positive)
    share = np.where(credited > 0, at_least(measured(cf), 0) / at_least(credited, 1e-12), 0.0)
    return at_most(share, 1.0)[:, None]


def attribution(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return A [E] without ratio penalty: capped positive and full negative contributions."""
    c = ctx.post.paying
    germinated = ctx.post.germinated_at.astype(c.dtype)
    # tau = 0.4 + 0.6 g / 10 for a germination epoch g < 10, else 1
    tau = at_most(cfg.timing_base + (1 - cfg.timing_base) * germinated / cfg.timing_epochs, 1.0)
    positive = at_least(c, 0) * tau
    return total(positive * credit_share(positive, ctx.post.cf) + at_most(c, 0))


def ratio_penalty(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return [E] <= 0: summed ablation credit far above the total effect."""
    if cfg.disable_anti_gaming:
        return ctx.zero
    cf, credit = ctx.post.cf, total(at_least(ctx.post.paying, 0))
    charged = (credit > cfg.ratio_min_credit) & ~np.isnan(cf)
    if not some(charged):
        return -ctx.zero
    excess = credit / at_least(cf, cfg.ratio_min_effect) - cfg.ratio_threshold
    steep = at_most(cfg.ratio_weight * excess / cfg.ratio_threshold, cfg.ratio_cap)
    flat = cfg.ratio_cap * at_most(credit / cfg.ratio_credit_scale, 1.0)
    penalty = np.where(cf > cfg.ratio_min_effect, np.where(excess > 0, steep, 0.0), flat)
    return -np.where(charged, penalty, 0.0)


def blending_pressure(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return W_b [E] <= 0: the longest-blending graft while the grafts together do harm."""
    counts = ctx.pre.is_in(_BLENDING) & (ctx.pre.cf < 0)[:, None]
    if not some(counts):
        return -ctx.zero
    cost = cfg.blend_base + at_most(cfg.blend_slope * ctx.pre.epochs, cfg.blend_cap)
    worst: Array = -np.where(counts, cost, 0.0).max(1)
    return worst


def holding_pressure(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return W_h [E] <= 0: the good graft held longest without a decision."""
    waits = ctx.pre.is_in(_HOLDING) & (ctx.pre.contribution > 0) & (ctx.pre.epochs >= cfg.hold_grace)
    if not some(waits):
        return -ctx.zero
    waits &= ~(targeted(ctx, _FOSSILIZE) | targeted(ctx, _PRUNE))
    slope = cfg.hold_slope * at_least(ctx.pre.epochs - cfg.hold_grace, 0)
    worst: Array = -np.where(waits, at_most(cfg.hold_base + slope, cfg.hold_cap), 0.0).max(1)
    return worst


def synergy(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return Syn [E] = sum_i 0.1 tanh(0.5 sum_j I_ij) where positive, c_i > 0 and cf > 0."""
    pays = (ctx.post.contribution > 0) & (ctx.post.cf > 0)[:, None]
    if not some(pays):
        return ctx.zero
    summed = total(measured(ctx.post.interactions))
    pays &= summed > 0
    return total(np.where(pays, cfg.synergy_weight * tanh(cfg.synergy_scale * summed), 0.0))


def op_pay(ctx: Transition, cfg: RewardConfig) -> Array:
    """Return X [E]: costs and pay of the executed op, judged on s_t."""
    if ctx.ops == {_WAIT}:
        return ctx.zero
    dtype = ctx.pre.accuracy.dtype
    germinate = (ctx.executed_op == _GERMINATE).astype(dtype)
    retarget = (ctx.executed_op == _SET_ALPHA_TARGET).astype(dtype)
    advance = (targeted(ctx, _ADVANCE) & ctx.pre.is_in(_TRAINING)).any(1).astype(dtype)
    costs = cfg.germinate_cost * germinate + cfg.alpha_target_cost * retarget + cfg.advance_training_cost * advance
    prune = total(np.where(targeted(ctx, _PRUNE), _prune_pay(ctx, cfg), 0.0)) if _PRUNE in ctx.ops else ctx.zero
    commit = ctx.zero
    if _FOSSILIZE in ctx.ops:
        commit = total(np.where(targeted(ctx, _FOSSILIZE), _commit_pay(ctx, cfg), 0.0))
    pay: Array = prune + commit - costs
    return pay


def _prune_pay(ctx: Transition, cfg: RewardConfig) -> Array:
    c = ctx.pre.contribution
    good = -at_most(cfg.prune_good_base + cfg.prune_good_slope * c, cfg.prune_good_cap)
    bad = np.where(c < cfg.prune_harmful_below, cfg.prune_harmful_pay, cfg.prune_weak_pay).astype(c.dtype)
    pay: Array = measured(np.where(c >= 0, good, np.where(c < 0, bad, np.nan))) - cfg.prune_cost
    return pay


def _commit_pay(ctx: Transition, cfg: RewardConfig) -> Array:
    c, cf = ctx.pre.contribution, ctx.pre.cf[:, None]
    m = at_most(ctx.pre.epochs / cfg.commit_epochs, 1.0)
    bonus = cfg.fossilize_bonus * math.tanh(1 / 3)
    good = m * (cfg.fossilize_base + cfg.fossilize_slope * c + bonus)
    ransom = (c > cfg.ransomware_contribution) & (cf < cfg.ransomware_effect)
    slope = at_most(cfg.fossilize_harm_slope * np.abs(cf), cfg.fossilize_harm_cap)
    harm = -cfg.fossilize_harm_base - slope - cfg.ransomware_cost * ransom.astype(c.dtype)
    kept = np.where(c >= cfg.commit_min_contribution, good, -cfg.fossilize_weak_cost)
    pay = np.where(cf < 0, harm, kept)
    kept_pay: Array = np.where(np.isnan(c) | np.isnan(cf), 0.0, pay) - cfg.fossilize_cost
    return kept_pay


def terminal_accuracy(ctx: Transition, cfg: RewardConfig, weight: float, gain: Array) -> Array:
    """Return [E]: ``weight * gain`` at the last step unless terminal pay is switched off."""
    if cfg.disable_terminal:
        return ctx.zero
    paid: Array = weight * gain * last_step(ctx)
    return paid
