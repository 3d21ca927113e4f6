"""Constants of the reward modes: one flat, typed record, every number of training.md 2.4 to 2.11.

A spec's ``reward`` section holds exactly these names next to ``mode``; missing ones keep the default.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

#: baseline, target (nats) and sigma of the loss family by the beginning of a task's name.
_LOSS_TASKS: Mapping[str, tuple[float, float, float, float]] = {
    "digits": (2.3, 0.1, 0.05, 0.05),
    "cifar": (2.3, 0.3, 0.05, 0.05),
    "synth": (2.3, 0.3, 0.05, 0.05),
    "lm_tiny": (5.545, 1.0, 0.15, 0.01),
    "tinystories": (5.545, 1.0, 0.15, 0.01),
}


@dataclass(frozen=True)
class RewardConfig:
    """Constants; pp = percentage points, costs in reward units. ``None`` means the task's value."""

    disable_pbrs: bool = False
    disable_terminal: bool = False
    disable_anti_gaming: bool = False
    death_pay: float = 10.0
    # potential (2.4)
    pbrs_weight: float = 0.3
    potential_epoch_bonus: float = 0.3
    # shared terms (2.5)
    host_floor: float = 200.0
    slot_overhead: float = 0.0039
    rent_weight: float = 0.5
    rent_cap: float = 1.5
    shock_weight: float = 0.1958
    shock_cap: float = 1.0
    occupancy_cost: float = 0.01
    fossil_cost: float = 0.002
    # attribution (2.6)
    timing_base: float = 0.4
    timing_epochs: float = 10.0
    ratio_threshold: float = 5.0
    ratio_weight: float = 0.1
    ratio_cap: float = 0.3
    ratio_min_credit: float = 1.0
    ratio_min_effect: float = 0.1
    ratio_credit_scale: float = 10.0
    # decision pressure (2.6)
    blend_base: float = 0.1
    blend_slope: float = 0.05
    blend_cap: float = 0.3
    hold_base: float = 0.1
    hold_slope: float = 0.05
    hold_cap: float = 0.3
    hold_grace: float = 2.0
    # synergy and hindsight (2.6)
    synergy_weight: float = 0.1
    synergy_scale: float = 0.5
    hindsight_weight: float = 0.1
    hindsight_scale: float = 0.1
    hindsight_cap: float = 0.2
    # costs and pay of ops (2.6)
    germinate_cost: float = 0.15
    alpha_target_cost: float = 0.005
    advance_training_cost: float = 0.1
    prune_cost: float = 0.005
    prune_harmful_pay: float = 0.15
    prune_weak_pay: float = 0.1
    prune_harmful_below: float = -0.5
    prune_good_base: float = 0.3
    prune_good_slope: float = 0.05
    prune_good_cap: float = 0.9
    fossilize_cost: float = 0.01
    fossilize_base: float = 0.5
    fossilize_slope: float = 0.1
    fossilize_bonus: float = 3.0
    fossilize_weak_cost: float = 0.2
    fossilize_harm_base: float = 0.5
    fossilize_harm_slope: float = 0.2
    fossilize_harm_cap: float = 1.0
    ransomware_cost: float = 0.3
    ransomware_contribution: float = 0.1
    ransomware_effect: float = -0.2
    commit_min_contribution: float = 1.0
    commit_epochs: float = 5.0
    terminal_accuracy_weight: float = 0.05
    # escrow (2.7)
    escrow_step: float = 2.0
    # basic and basic_plus (2.8)
    basic_commit_base: float = 0.3
    basic_commit_slope: float = 0.5
    basic_harm_cost: float = 0.5
    basic_weak_cost: float = 0.2
    basic_accuracy_weight: float = 5.0
    basic_plus_share: float = 0.3
    basic_plus_min_steps: float = 5.0
    basic_plus_low: float = -0.05
    basic_plus_high: float = 0.1
    # simplified (2.9)
    op_cost: float = 0.01
    simplified_accuracy_weight: float = 3.0
    simplified_graft_weight: float = 2.0
    # sparse and minimal (2.10); param_* also weigh the parameters of basic
    sparse_scale: float = 1.0
    param_budget: float = 500_000.0
    param_weight: float = 0.1
    early_prune_cost: float = 0.1
    early_prune_age: float = 10.0
    # loss family (2.11)
    loss_weight: float = 5.0
    loss_pbrs_weight: float = 0.1
    loss_baseline: float | None = None
    loss_target: float | None = None
    loss_sigma: float | None = None
    loss_rent_weight: float | None = None
    loss_rent_cap: float = 5.0
    loss_rent_grace: float = 3.0

    @classmethod
    def parse(cls, section: Mapping[str, Any], task: str) -> RewardConfig:
        """Read a spec's ``reward`` section; an unknown key or bad value raises ``ValueError``."""
        given = {key: value for key, value in section.items() if key != "mode"}
        known = {f.name: f.default for f in fields(cls)}
        for key, value in given.items():
            if key not in known:
                raise ValueError(f"reward.{key} is unknown; known are {sorted(known)}")
            _check(key, value, known[key])
        return _with_task(cls(**given), task)

    def hash(self) -> str:
        """Return the SHA-256 of the resolved constants as canonical JSON."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _check(key: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"reward.{key}={value!r}: give true or false")
        return
    if value is None and default is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"reward.{key}={value!r}: give a finite number")
    if value < 0 and (default is None or default >= 0):
        raise ValueError(f"reward.{key}={value!r}: give a number >= 0")
    if value == 0 and key in _DIVISORS:
        raise ValueError(f"reward.{key}=0 divides; give a number > 0")


_DIVISORS = frozenset(
    {
        "host_floor",
        "timing_epochs",
        "ratio_threshold",
        "ratio_credit_scale",
        "commit_epochs",
        "basic_plus_min_steps",
        "param_budget",
        "sparse_scale",
        "loss_sigma",
        "commit_min_contribution",
    }
)


def _with_task(cfg: RewardConfig, task: str) -> RewardConfig:
    """Fill the loss constants from the task where the spec leaves them open."""
    row = next((row for name, row in _LOSS_TASKS.items() if task.startswith(name)), None)
    if row is None:
        return cfg
    names = ("loss_baseline", "loss_target", "loss_sigma", "loss_rent_weight")
    missing = {n: v for n, v in zip(names, row, strict=True) if getattr(cfg, n) is None}
    return replace(cfg, **missing)  # type: ignore[arg-type]  # every value is a float
