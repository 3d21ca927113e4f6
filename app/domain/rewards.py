"""Reward mode and its constants (training.md 2.4 to 2.11): every number that the built-in modes use.

The names are those of the worker's own record; a test on its side compares the two. A registered mode may
take further fields by its schema, so extra keys are judged by ``app.domain.rules``.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field, FiniteFloat

from app.domain.sections import NonNegative, Positive, Section


class Reward(Section):
    """Reward mode and constants; pp = percentage points, costs in reward units; null = the task's value."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    mode: str = Field("shaped", description="Registered reward mode")
    disable_pbrs: bool = False
    disable_terminal: bool = False
    disable_anti_gaming: bool = False
    death_pay: NonNegative = 10.0
    # potential (2.4)
    pbrs_weight: NonNegative = 0.3
    potential_epoch_bonus: NonNegative = 0.3
    # shared terms (2.5)
    host_floor: Positive = 200.0
    slot_overhead: NonNegative = 0.0039
    rent_weight: NonNegative = 0.5
    rent_cap: NonNegative = 1.5
    shock_weight: NonNegative = 0.1958
    shock_cap: NonNegative = 1.0
    occupancy_cost: NonNegative = 0.01
    fossil_cost: NonNegative = 0.002
    # attribution (2.6)
    timing_base: NonNegative = 0.4
    timing_epochs: Positive = 10.0
    ratio_threshold: Positive = 5.0
    ratio_weight: NonNegative = 0.1
    ratio_cap: NonNegative = 0.3
    ratio_min_credit: NonNegative = 1.0
    ratio_min_effect: NonNegative = 0.1
    ratio_credit_scale: Positive = 10.0
    # decision pressure (2.6)
    blend_base: NonNegative = 0.1
    blend_slope: NonNegative = 0.05
    blend_cap: NonNegative = 0.3
    hold_base: NonNegative = 0.1
    hold_slope: NonNegative = 0.05
    hold_cap: NonNegative = 0.3
    hold_grace: NonNegative = 2.0
    # synergy and hindsight (2.6)
    synergy_weight: NonNegative = 0.1
    synergy_scale: NonNegative = 0.5
    hindsight_weight: NonNegative = 0.1
    hindsight_scale: NonNegative = 0.1
    hindsight_cap: NonNegative = 0.2
    # costs and pay of ops (2.6)
    germinate_cost: NonNegative = 0.15
    alpha_target_cost: NonNegative = 0.005
    advance_training_cost: NonNegative = 0.1
    prune_cost: NonNegative = 0.005
    prune_harmful_pay: NonNegative = 0.15
    prune_weak_pay: NonNegative = 0.1
    prune_harmful_below: FiniteFloat = -0.5
    prune_good_base: NonNegative = 0.3
    prune_good_slope: NonNegative = 0.05
    prune_good_cap: NonNegative = 0.9
    fossilize_cost: NonNegative = 0.01
    fossilize_base: NonNegative = 0.5
    fossilize_slope: NonNegative = 0.1
    fossilize_bonus: NonNegative = 3.0
    fossilize_weak_cost: NonNegative = 0.2
    fossilize_harm_base: NonNegative = 0.5
    fossilize_harm_slope: NonNegative = 0.2
    fossilize_harm_cap: NonNegative = 1.0
    ransomware_cost: NonNegative = 0.3
    ransomware_contribution: NonNegative = 0.1
    ransomware_effect: FiniteFloat = -0.2
    commit_min_contribution: Positive = 1.0
    commit_epochs: Positive = 5.0
    terminal_accuracy_weight: NonNegative = 0.05
    # escrow (2.7)
    escrow_step: NonNegative = 2.0
    # basic and basic_plus (2.8)
    basic_commit_base: NonNegative = 0.3
    basic_commit_slope: NonNegative = 0.5
    basic_harm_cost: NonNegative = 0.5
    basic_weak_cost: NonNegative = 0.2
    basic_accuracy_weight: NonNegative = 5.0
    basic_plus_share: NonNegative = 0.3
    basic_plus_min_steps: Positive = 5.0
    basic_plus_low: FiniteFloat = -0.05
    basic_plus_high: NonNegative = 0.1
    # simplified (2.9)
    op_cost: NonNegative = 0.01
    simplified_accuracy_weight: NonNegative = 3.0
    simplified_graft_weight: NonNegative = 2.0
    # sparse and minimal (2.10); param_* also weigh the parameters of basic
    sparse_scale: Positive = 1.0
    param_budget: Positive = 500_000.0
    param_weight: NonNegative = 0.1
    early_prune_cost: NonNegative = 0.1
    early_prune_age: NonNegative = 10.0
    # loss family (2.11)
    loss_weight: NonNegative = 5.0
    loss_pbrs_weight: NonNegative = 0.1
    loss_baseline: NonNegative | None = None
    loss_target: NonNegative | None = None
    loss_sigma: Positive | None = None
    loss_rent_weight: NonNegative | None = None
    loss_rent_cap: NonNegative = 5.0
    loss_rent_grace: NonNegative = 3.0
