"""The account of one episode, and the row that reports it (environment.md 13, training.md 7.2).

One record per environment and episode, the same for every policy. A missing value is None, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from worker.envs.morph.engine.validate import Measured
from worker.envs.morph.life.stages import Op

SCHEMA = 1


@dataclass
class Account:
    """Counters of one environment's episode.

    Attributes:
        ops: executed ops by index.
        pruned: prunings by cause (policy, ramp, governor).
        dwell_training: steps spent in TRAINING by every graft that left it.
        time_to_fossil: age of every graft at FOSSILIZE, steps.
        accuracies: validation accuracy after each step, pp.
        rollback: (cause, step), or None.
        flagged: reward-hacking patterns already reported.
        length: transitions with valid = 1.
        rows_before: forward rows of the validator when the episode began.
        final: latest validation of main.
    """

    ops: list[int] = field(default_factory=lambda: [0] * len(Op))
    n_vetoed: int = 0
    pruned: dict[str, int] = field(default_factory=lambda: {"policy": 0, "ramp": 0, "governor": 0})
    dwell_training: list[int] = field(default_factory=list)
    time_to_fossil: list[int] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    rollback: tuple[str, int] | None = None
    skipped_batches: int = 0
    train_examples: int = 0
    device_seconds: float = 0.0
    flagged: set[str] = field(default_factory=set)
    length: int = 0
    rows_before: int = 0
    final: Measured | None = None

    def counts(self) -> dict[str, Any]:
        """Return the counting metrics of the row."""
        n_ops = sum(self.ops)
        shares = {f"op_share_{op.name.lower()}": self.ops[op] / n_ops if n_ops else None for op in Op}
        cause, step = self.rollback or (None, None)
        return {
            "n_germinated": self.ops[Op.GERMINATE],
            "n_advanced": self.ops[Op.ADVANCE],
            "n_fossilized": self.ops[Op.FOSSILIZE],
            "n_pruned_policy": self.pruned["policy"],
            "n_pruned_ramp": self.pruned["ramp"],
            "n_pruned_governor": self.pruned["governor"],
            "n_invalid": 0,
            "n_vetoed": self.n_vetoed,
            **shares,
            "rollbacks": int(self.rollback is not None),
            "rollback_cause": cause,
            "rollback_step": step,
            "mean_dwell_training": mean_or_none(self.dwell_training),
            "mean_time_to_fossil": mean_or_none(self.time_to_fossil),
            "skipped_batches": self.skipped_batches,
            "train_examples": self.train_examples,
            "device_seconds": self.device_seconds,
        }

    def returns(self, raw: float, penalty: float | None) -> dict[str, Any]:
        """Return the reward metrics: raw without the rollback penalty, and with it."""
        return {
            "episode_return_raw": raw,
            "episode_reward": raw,
            "rollback_penalty": penalty,
            "episode_return": raw + (penalty or 0.0),
            "episode_length": self.length,
            "env_steps": self.length,
        }


def mean_or_none(values: list[int] | list[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return math.fsum(values) / len(values) if values else None


def number_or_none(value: float) -> float | None:
    """Return the value, or None where it was not measured or is not finite."""
    return float(value) if math.isfinite(value) else None
