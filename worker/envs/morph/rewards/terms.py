"""Terms shared by reward modes, as pure functions of one transition (training.md 2.4 to 2.6).

Attribution, shaping, rent and terminal terms read ``post``; terms that judge the action read ``pre``;
the shaping difference and the shock read both. Unmeasured values are NaN and pay 0. No loop over
environments or slots. Axes: E environment, S slot in action order.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from worker.envs.morph.context import RewardContext, SlotState
from worker.envs.morph.rewards.config import RewardConfig
from worker.envs.morph.stages import Op, Stage

#: Potential of each stage and the most that epochs spent in it may add, by stage integer.
_POTENTIAL = {
    Stage.GERMINATED: (1.0, 1.0),
    Stage.TRAINING: (2.0, 1.5),
    Stage.BLENDING: (3.5, 2.0),
    Stage.HOLDING: (5.5, 0.5),
    Stage.FOSSILIZED: (6.0, 0.0),
}
_NUM_STAGES = 11


@lru_cache
@torch.inference_mode(False)
def _potentials(like: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return potential and gap by stage integer, [11] each."""
    table = torch.zeros(2, _NUM_STAGES, dtype=like, device=device)
    for stage, values in _POTENTIAL.items():
        table[:, stage] = torch.tensor(values, dtype=like)
    return table[0], table[1]


@lru_cache
@torch.inference_mode(False)
def _membership(stages: tuple[Stage, ...], device: torch.device) -> Tensor:
    """Return [11] bool by stage integer."""
    return torch.tensor([stage in stages for stage in range(_NUM_STAGES)], device=device)


def measured(x: Tensor) -> Tensor:
    """Return ``x`` with unmeasured entries paying 0."""
    return torch.nan_to_num(x, nan=0.0)


def is_stage(state: SlotState, *stages: Stage) -> Tensor:
    """Return [E, S] bool."""
    return _membership(stages, state.stage.device)[state.stage]


def is_live(state: SlotState) -> Tensor:
    """Return [E, S] bool: GERMINATED, TRAINING, BLENDING or HOLDING."""
    return is_stage(state, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)


def is_fossil(state: SlotState) -> Tensor:
    """Return [E, S] bool."""
    return is_stage(state, Stage.FOSSILIZED)


def targeted(ctx: RewardContext, op: Op) -> Tensor:
    """Return [E, S] bool: the slot on which ``op`` was executed."""
    return (ctx.executed_op == op).unsqueeze(1) & ctx.addressed


def last_step(ctx: RewardContext) -> Tensor:
    """Return [E] 1.0 at the horizon."""
    return ctx.is_last.to(ctx.post.accuracy.dtype)


def potential(state: SlotState, cfg: RewardConfig) -> Tensor:
    """Return Phi(s) [E] = sum_i Phi(stage_i) + min(0.3 e_i, gap_i)."""
    dtype = state.accuracy.dtype
    potentials, gaps = _potentials(dtype, state.stage.device)
    bonus = torch.minimum(cfg.potential_epoch_bonus * state.epochs_in_stage.to(dtype), gaps[state.stage])
    return (potentials[state.stage] + bonus).sum(1)


def shaping(ctx: RewardContext, cfg: RewardConfig, gamma: float, weight: float) -> Tensor:
    """Return F [E] = w (gamma Phi(s') - Phi(s)), with Phi(s') = 0 where the task ended (Ng et al. 1999)."""
    if cfg.disable_pbrs:
        return torch.zeros_like(ctx.post.accuracy)
    after = torch.where(ctx.terminated, 0.0, potential(ctx.post, cfg))
    return weight * (gamma * after - potential(ctx.pre, cfg))


def effective_params(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return eff [E] = sum over BLENDING, HOLDING, FOSSILIZED of (0.0039 host + alpha_i params_i)."""
    on = is_stage(ctx.post, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
    each = cfg.slot_overhead * ctx.host_params.unsqueeze(1) + ctx.post.alpha * ctx.post.params
    return torch.where(on, each, 0.0).sum(1)


def rent(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return [E] = min(0.5 ln(1 + eff / h), 1.5), h = max(host, 200)."""
    floor = ctx.host_params.clamp(min=cfg.host_floor)
    return (cfg.rent_weight * torch.log1p(effective_params(ctx, cfg) / floor)).clamp(max=cfg.rent_cap)


def shock(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return [E] = min(0.1958 sum_i (change of alpha_i)^2 params_i / h, 1).

    The parameters are those of the graft that changed, which is gone after an immediate prune.
    """
    if cfg.disable_anti_gaming:
        return torch.zeros_like(ctx.post.accuracy)
    params = torch.maximum(ctx.pre.params, ctx.post.params)
    moved = ((ctx.post.alpha - ctx.pre.alpha) ** 2 * params).sum(1)
    return (cfg.shock_weight * moved / ctx.host_params.clamp(min=cfg.host_floor)).clamp(max=cfg.shock_cap)


def occupancy(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return [E] = 0.01 max(0, n_live + n_fossil - 1)."""
    count = (is_live(ctx.post) | is_fossil(ctx.post)).sum(1).to(ctx.post.accuracy.dtype)
    return cfg.occupancy_cost * (count - 1).clamp(min=0)


def fossil_rent(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return [E] = 0.002 n_fossil."""
    return cfg.fossil_cost * is_fossil(ctx.post).sum(1).to(ctx.post.accuracy.dtype)


def credit_share(positive: Tensor, cf: Tensor) -> Tensor:
    """Return [E, 1] = min(1, max(cf, 0) / P): no more than the total effect is credited."""
    total = positive.sum(1)
    share = torch.where(total > 0, measured(cf).clamp(min=0) / total.clamp(min=1e-12), 0.0)
    return share.clamp(max=1.0).unsqueeze(1)


def attribution(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return A [E] without ratio penalty: capped positive and full negative contributions."""
    c = measured(ctx.post.contribution)
    germinated = ctx.post.germinated_at.to(c.dtype)
    # tau = 0.4 + 0.6 g / 10 for a germination epoch g < 10, else 1
    tau = (cfg.timing_base + (1 - cfg.timing_base) * germinated / cfg.timing_epochs).clamp(max=1.0)
    positive = c.clamp(min=0) * tau
    return (positive * credit_share(positive, ctx.post.cf) + c.clamp(max=0)).sum(1)


def ratio_penalty(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return [E] <= 0: summed ablation credit far above the total effect."""
    if cfg.disable_anti_gaming:
        return torch.zeros_like(ctx.post.accuracy)
    credit = measured(ctx.post.contribution).clamp(min=0).sum(1)
    cf = ctx.post.cf
    excess = credit / cf.clamp(min=cfg.ratio_min_effect) - cfg.ratio_threshold
    steep = (cfg.ratio_weight * excess / cfg.ratio_threshold).clamp(max=cfg.ratio_cap)
    flat = cfg.ratio_cap * (credit / cfg.ratio_credit_scale).clamp(max=1.0)
    penalty = torch.where(cf > cfg.ratio_min_effect, torch.where(excess > 0, steep, 0.0), flat)
    return -torch.where((credit > cfg.ratio_min_credit) & ~cf.isnan(), penalty, 0.0)


def blending_pressure(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return W_b [E] <= 0: the longest-blending graft while the grafts together do harm."""
    e = ctx.pre.epochs_in_stage.to(ctx.pre.accuracy.dtype)
    cost = cfg.blend_base + (cfg.blend_slope * e).clamp(max=cfg.blend_cap)
    counts = is_stage(ctx.pre, Stage.BLENDING) & (ctx.pre.cf < 0).unsqueeze(1)
    return -torch.where(counts, cost, 0.0).amax(1)


def holding_pressure(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return W_h [E] <= 0: the good graft held longest without a decision."""
    e = ctx.pre.epochs_in_stage.to(ctx.pre.accuracy.dtype)
    cost = (cfg.hold_base + cfg.hold_slope * (e - cfg.hold_grace).clamp(min=0)).clamp(max=cfg.hold_cap)
    decided = targeted(ctx, Op.FOSSILIZE) | targeted(ctx, Op.PRUNE)
    waits = is_stage(ctx.pre, Stage.HOLDING) & (ctx.pre.contribution > 0) & (e >= cfg.hold_grace) & ~decided
    return -torch.where(waits, cost, 0.0).amax(1)


def synergy(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return Syn [E] = sum_i 0.1 tanh(0.5 sum_j I_ij) where positive, c_i > 0 and cf > 0."""
    total = measured(ctx.post.interactions).sum(2)
    pays = (total > 0) & (ctx.post.contribution > 0) & (ctx.post.cf > 0).unsqueeze(1)
    return torch.where(pays, cfg.synergy_weight * torch.tanh(cfg.synergy_scale * total), 0.0).sum(1)


def op_pay(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    """Return X [E]: costs and pay of the executed op, judged on s_t."""
    dtype = ctx.pre.accuracy.dtype
    germinate = (ctx.executed_op == Op.GERMINATE).to(dtype)
    retarget = (ctx.executed_op == Op.SET_ALPHA_TARGET).to(dtype)
    advance = (targeted(ctx, Op.ADVANCE) & is_stage(ctx.pre, Stage.TRAINING)).any(1).to(dtype)
    costs = cfg.germinate_cost * germinate + cfg.alpha_target_cost * retarget + cfg.advance_training_cost * advance
    prune = torch.where(targeted(ctx, Op.PRUNE), _prune_pay(ctx, cfg), 0.0).sum(1)
    commit = torch.where(targeted(ctx, Op.FOSSILIZE), _commit_pay(ctx, cfg), 0.0).sum(1)
    return prune + commit - costs


def _prune_pay(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    c = ctx.pre.contribution
    good = -(cfg.prune_good_base + cfg.prune_good_slope * c).clamp(max=cfg.prune_good_cap)
    bad = torch.where(c < cfg.prune_harmful_below, cfg.prune_harmful_pay, cfg.prune_weak_pay).to(c.dtype)
    return measured(torch.where(c >= 0, good, torch.where(c < 0, bad, torch.nan))) - cfg.prune_cost


def _commit_pay(ctx: RewardContext, cfg: RewardConfig) -> Tensor:
    c, cf = ctx.pre.contribution, ctx.pre.cf.unsqueeze(1)
    m = (ctx.pre.epochs_in_stage.to(c.dtype) / cfg.commit_epochs).clamp(max=1.0)
    bonus = cfg.fossilize_bonus * math.tanh(1 / 3)
    good = m * (cfg.fossilize_base + cfg.fossilize_slope * c + bonus)
    ransom = (c > cfg.ransomware_contribution) & (cf < cfg.ransomware_effect)
    slope = (cfg.fossilize_harm_slope * cf.abs()).clamp(max=cfg.fossilize_harm_cap)
    harm = -cfg.fossilize_harm_base - slope - cfg.ransomware_cost * ransom.to(c.dtype)
    kept = torch.where(c >= cfg.commit_min_contribution, good, -cfg.fossilize_weak_cost)
    pay = torch.where(cf < 0, harm, kept)
    return torch.where(c.isnan() | cf.isnan(), 0.0, pay) - cfg.fossilize_cost


def terminal_accuracy(ctx: RewardContext, cfg: RewardConfig, weight: float, gain: Tensor) -> Tensor:
    """Return [E]: ``weight * gain`` at the last step unless terminal pay is switched off."""
    if cfg.disable_terminal:
        return torch.zeros_like(gain)
    return weight * gain * last_step(ctx)
