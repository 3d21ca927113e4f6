"""Reward mode and its constants (training.md 2.4 to 2.11): every number that the built-in modes use.

The worker computes with this very record. A registered mode may take
further fields by its schema, so extra keys are judged by ``lockstep.spec.rules``.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from lockstep.spec.sections import NonNegative, Positive, Real, Section


class Reward(Section):
    """Reward mode and constants; pp = percentage points, costs in reward units; null = the task's value."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    mode: str = Field("shaped", description="Registered reward mode")
    disable_pbrs: bool = Field(False, description="Leave out the potential F (2.4)")
    disable_terminal: bool = Field(False, description="Leave out the pay of the last step")
    disable_anti_gaming: bool = Field(False, description="Leave out the ratio penalty and the shock (2.5, 2.6)")
    death_pay: NonNegative = Field(
        10.0, description="What a governor rollback costs, reward units; sparse and minimal pay sparse_scale instead"
    )
    # potential (2.4)
    pbrs_weight: NonNegative = Field(
        0.3, description="Weight w of the potential F_t = w (gamma Phi(s_t+1) - Phi(s_t)), reward units per unit of Phi"
    )
    potential_epoch_bonus: NonNegative = Field(
        0.3, description="Growth of Phi per epoch in a stage, up to the next stage's Phi, units of Phi per epoch"
    )
    # shared terms (2.5)
    host_floor: Positive = Field(200.0, description="Least host size by which rent and shock divide, parameters")
    slot_overhead: NonNegative = Field(
        0.0039,
        description="Parameters of the host that a graft in BLENDING or later counts as its own, share of the host",
    )
    rent_weight: NonNegative = Field(
        0.5, description="Rent = min(rent_cap, rent_weight ln(1 + eff / h)), reward units per step"
    )
    rent_cap: NonNegative = Field(1.5, description="Largest rent of a step, reward units")
    shock_weight: NonNegative = Field(
        0.1958, description="Price of squared changes of alpha times parameters over host size, reward units"
    )
    shock_cap: NonNegative = Field(1.0, description="Largest shock of a step, reward units")
    occupancy_cost: NonNegative = Field(
        0.01, description="Price of each graft beyond the first, live or fossilised, reward units per step"
    )
    fossil_cost: NonNegative = Field(0.002, description="Price of each fossilised graft, reward units per step")
    # attribution (2.6)
    timing_base: NonNegative = Field(0.4, description="tau of a graft germinated at epoch 0; it rises to 1, share")
    timing_epochs: Positive = Field(10.0, description="Epoch of germination from which tau is 1, epochs")
    ratio_threshold: Positive = Field(
        5.0, description="Credit over effect (P0 / cf) above which the ratio penalty begins, ratio"
    )
    ratio_weight: NonNegative = Field(
        0.1, description="Ratio penalty per threshold that P0 / cf lies above the threshold, reward units"
    )
    ratio_cap: NonNegative = Field(0.3, description="Largest ratio penalty of a step, reward units")
    ratio_min_credit: NonNegative = Field(1.0, description="Credit P0 up to which there is no ratio penalty, pp")
    ratio_min_effect: NonNegative = Field(
        0.1, description="Effect cf up to which the penalty follows the credit alone, pp"
    )
    ratio_credit_scale: Positive = Field(10.0, description="Credit P0 at which that penalty reaches its cap, pp")
    # decision pressure (2.6)
    blend_base: NonNegative = Field(
        0.1, description="Pressure W_b of a BLENDING slot while cf < 0, at its first epoch, reward units per step"
    )
    blend_slope: NonNegative = Field(0.05, description="Growth of W_b per epoch in BLENDING, reward units per epoch")
    blend_cap: NonNegative = Field(0.3, description="Largest growth of W_b, reward units")
    hold_base: NonNegative = Field(
        0.1, description="Pressure W_h of a HOLDING slot with c > 0 at the end of the grace, reward units per step"
    )
    hold_slope: NonNegative = Field(0.05, description="Growth of W_h per epoch after the grace, reward units per epoch")
    hold_cap: NonNegative = Field(0.3, description="Largest pressure W_h, reward units")
    hold_grace: NonNegative = Field(2.0, description="Epochs in HOLDING without W_h, epochs")
    # synergy and hindsight (2.6)
    synergy_weight: NonNegative = Field(0.1, description="Largest synergy of a slot, reward units per step")
    synergy_scale: NonNegative = Field(
        0.5, description="Slope of the synergy in the sum of interactions I_ij, 1 per pp"
    )
    hindsight_weight: NonNegative = Field(
        0.1, description="Largest hindsight credit of one scaffold event, reward units"
    )
    hindsight_scale: NonNegative = Field(
        0.1, description="Slope of the hindsight credit in boost times contribution, 1 per pp"
    )
    hindsight_cap: NonNegative = Field(0.2, description="Largest hindsight credit of one commitment, reward units")
    # costs and pay of ops (2.6)
    germinate_cost: NonNegative = Field(0.15, description="Price of GERMINATE, reward units")
    alpha_target_cost: NonNegative = Field(0.005, description="Price of SET_ALPHA_TARGET, reward units")
    advance_training_cost: NonNegative = Field(0.1, description="Price of ADVANCE from TRAINING, reward units")
    prune_cost: NonNegative = Field(0.005, description="Price of any PRUNE, reward units")
    prune_harmful_pay: NonNegative = Field(
        0.15, description="Pay of PRUNE of a graft with c below prune_harmful_below, reward units"
    )
    prune_weak_pay: NonNegative = Field(0.1, description="Pay of PRUNE of a graft with c from there to 0, reward units")
    prune_harmful_below: Real = Field(-0.5, description="Contribution c below which a graft is harmful, pp")
    prune_good_base: NonNegative = Field(
        0.3, description="Price of PRUNE of a graft with c >= 0, at c = 0, reward units"
    )
    prune_good_slope: NonNegative = Field(0.05, description="Growth of that price with c, reward units per pp")
    prune_good_cap: NonNegative = Field(0.9, description="Largest price of that kind, reward units")
    fossilize_cost: NonNegative = Field(0.01, description="Price of any FOSSILIZE, reward units")
    fossilize_base: NonNegative = Field(
        0.5, description="Pay of FOSSILIZE with c >= commit_min_contribution and cf >= 0, part without c, reward units"
    )
    fossilize_slope: NonNegative = Field(0.1, description="Growth of that pay with c, reward units per pp")
    fossilize_bonus: NonNegative = Field(
        3.0, description="Bonus of that pay: fossilize_bonus tanh(1 / 3), reward units"
    )
    fossilize_weak_cost: NonNegative = Field(
        0.2, description="Price of FOSSILIZE with cf >= 0 and a smaller c, reward units"
    )
    fossilize_harm_base: NonNegative = Field(
        0.5, description="Price of FOSSILIZE while cf < 0, part without cf, reward units"
    )
    fossilize_harm_slope: NonNegative = Field(0.2, description="Growth of that price with |cf|, reward units per pp")
    fossilize_harm_cap: NonNegative = Field(1.0, description="Largest growth of that price, reward units")
    ransomware_cost: NonNegative = Field(
        0.3, description="Further price of FOSSILIZE of a graft that only seems to help, reward units"
    )
    ransomware_contribution: NonNegative = Field(0.1, description="It seems to help when c is above this, pp")
    ransomware_effect: Real = Field(-0.2, description="and does not when cf is below this, pp")
    commit_min_contribution: Positive = Field(
        1.0, description="Contribution c from which a commitment is paid, pp; also what simplified counts"
    )
    commit_epochs: Positive = Field(5.0, description="Epochs in HOLDING at which a commitment is paid in full, epochs")
    terminal_accuracy_weight: NonNegative = Field(
        0.05, description="Pay of the last step per pp of accuracy a_T (shaped, escrow), reward units per pp"
    )
    # escrow (2.7)
    escrow_step: NonNegative = Field(2.0, description="Largest change of a slot's ledger in one step, reward units")
    # basic and basic_plus (2.8)
    basic_commit_base: NonNegative = Field(
        0.3, description="Pay C of a commitment, part without contributions, reward units"
    )
    basic_commit_slope: NonNegative = Field(
        0.5, description="Growth of C with the harmonic mean of c and cf, reward units per pp"
    )
    basic_harm_cost: NonNegative = Field(
        0.5, description="Price of a commitment with cf <= 0 that seems to help, reward units"
    )
    basic_weak_cost: NonNegative = Field(
        0.2, description="Price of any other commitment that is not paid, reward units"
    )
    basic_accuracy_weight: NonNegative = Field(
        5.0, description="Pay of the last step for accuracy gained, (a_T - a_0) / 100, reward units"
    )
    basic_plus_share: NonNegative = Field(0.3, description="Share of C that is paid at once; the rest is a pool, share")
    basic_plus_min_steps: Positive = Field(
        5.0, description="Least number of steps over which the pool is released, steps"
    )
    basic_plus_low: Real = Field(-0.05, description="Least release of a step, reward units")
    basic_plus_high: NonNegative = Field(0.1, description="Largest release of a step, reward units")
    # simplified (2.9)
    op_cost: NonNegative = Field(0.01, description="Price of any op but WAIT (simplified), reward units")
    simplified_accuracy_weight: NonNegative = Field(
        3.0, description="Pay of the last step for accuracy a_T / 100, reward units"
    )
    simplified_graft_weight: NonNegative = Field(
        2.0, description="Pay of the last step per fossilised graft that contributes, reward units"
    )
    # sparse and minimal (2.10); param_* also weigh the parameters of basic
    sparse_scale: Positive = Field(
        1.0, description="Factor on the pay of the last step (sparse, minimal), reward units"
    )
    param_budget: Positive = Field(
        500_000.0, description="Parameters that param_weight prices (sparse, minimal; rent of basic), parameters"
    )
    param_weight: NonNegative = Field(0.1, description="Price of that many parameters, reward units")
    early_prune_cost: NonNegative = Field(0.1, description="Price of PRUNE of a young graft (minimal), reward units")
    early_prune_age: NonNegative = Field(10.0, description="Age below which a graft is young, epochs")
    # loss family (2.11)
    loss_weight: NonNegative = Field(
        5.0, description="Pay per unit of psi = loss / sigma by which the loss falls, reward units"
    )
    loss_pbrs_weight: NonNegative = Field(
        0.1, description="Weight of the potential in the loss family, reward units per unit of Phi"
    )
    loss_baseline: NonNegative | None = Field(None, description="Loss of an untrained network; null = the task's, nats")
    loss_target: NonNegative | None = Field(
        None, description="Loss that is paid in full at the last step; null = the task's, nats"
    )
    loss_sigma: Positive | None = Field(
        None, description="Loss that counts as one unit of psi; null = the task's, nats"
    )
    loss_rent_weight: NonNegative | None = Field(
        None, description="Rent per ln(1 + added parameters / host); null = the task's, reward units"
    )
    loss_rent_cap: NonNegative = Field(5.0, description="Largest rent of a step in the loss family, reward units")
    loss_rent_grace: NonNegative = Field(3.0, description="Steps without that rent, steps")
