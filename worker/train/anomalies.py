"""Anomaly detectors of one run: they inform and never block anything by themselves (training.md 7.4).

A detector that does not apply (a control, a head without enough data, a zero-variance return) stays
silent: not applicable is not passed. State is plain JSON, so a resume goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.rl.algorithms.base import Algorithm, Reading

_MIN_OPEN_STEPS = 32
_EMA_WEIGHT = 0.2
_SETTLED_ROUND = 10
_ENTROPY_FLOORS: Mapping[str, float] = {
    "op": 0.08,
    "slot": 0.10,
    "blueprint": 0.05,
    "style": 0.08,
    "tempo": 0.05,
    "alpha_target": 0.08,
    "alpha_speed": 0.08,
    "alpha_curve": 0.08,
}


@dataclass
class Detectors:
    """Streaks and moving averages of one run.

    Attributes:
        rounds: planned rounds.
        algorithm: what trains the policy; None where nothing does, and nothing applies.
        streaks: bad rounds in a row by detector.
        raised: detectors that are raised.
        averages: moving averages by metric.
    """

    rounds: int
    algorithm: Algorithm | None
    streaks: dict[str, int] = field(default_factory=dict)
    raised: list[str] = field(default_factory=list)
    averages: dict[str, float] = field(default_factory=dict)

    def observe(self, round_index: int, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
        """Take in a round's metrics and return ``anomaly_raised`` and ``anomaly_cleared`` events."""
        events = []
        for reading in self._readings(round_index, metrics):
            count = self.streaks.get(reading.name, 0) + 1 if reading.is_bad else 0
            self.streaks[reading.name] = count
            if count >= reading.streak and reading.name not in self.raised:
                self.raised.append(reading.name)
                events.append(_event("anomaly_raised", reading, count))
            elif reading.name in self.raised and reading.is_clear:
                self.raised.remove(reading.name)
                events.append(_event("anomaly_cleared", reading, 0))
        return events

    def state_dict(self) -> dict[str, Any]:
        """Return streaks and averages as JSON values."""
        return {"streaks": dict(self.streaks), "raised": list(self.raised), "averages": dict(self.averages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""
        self.streaks, self.raised = dict(state["streaks"]), list(state["raised"])
        self.averages = dict(state["averages"])

    def _readings(self, round_index: int, metrics: Mapping[str, float]) -> Iterator[Reading]:
        if self.algorithm is None:
            return
        yield from self.algorithm.detectors(round_index, metrics)
        for head, floor in _ENTROPY_FLOORS.items():
            if metrics.get(f"policy/open_steps_{head}", 0.0) >= _MIN_OPEN_STEPS:
                yield Reading(f"entropy_{head}", metrics[f"policy/entropy_{head}"], floor, above=False)
        yield from self._drift(round_index, metrics)
        if "policy/wait_unforced" in metrics and math.isfinite(metrics["policy/wait_unforced"]):
            yield Reading("wait_share", metrics["policy/wait_unforced"], 0.9)

    def _drift(self, round_index: int, metrics: Mapping[str, float]) -> Iterator[Reading]:
        norm = metrics.get(f"{self.algorithm.name}/grad_norm", math.nan) if self.algorithm else math.nan
        if math.isfinite(norm) and norm > 0:
            before = self._average("log_grad_norm", math.log(norm))
            if before is not None and round_index > _SETTLED_ROUND:
                yield Reading("grad_norm_drift", abs(math.log(norm) - before) / max(abs(before), 1.0), 0.5)
        for name, metric, share, bound in (
            ("accuracy_drop", "train/accuracy_mean", 0.1, 0.9),
            ("throughput_drop", "sys/env_steps_per_second", 0.1, 0.7),
        ):
            value = metrics.get(metric, math.nan)
            if math.isfinite(value):
                mean = self._average(metric, value)
                if mean is not None and mean > 0 and round_index > share * self.rounds:
                    yield Reading(name, value / mean, bound, above=False)

    def _average(self, name: str, value: float) -> float | None:
        """Return the moving average before ``value``, and move it."""
        before = self.averages.get(name)
        self.averages[name] = value if before is None else before + _EMA_WEIGHT * (value - before)
        return before


def _event(kind: str, reading: Reading, rounds: int) -> dict[str, Any]:
    return {
        "type": kind,
        "env_id": None,
        "severity": "warning" if kind == "anomaly_raised" else "info",
        "detector": reading.name,
        "value": reading.value,
        "threshold": reading.threshold,
        "rounds": rounds,
    }
