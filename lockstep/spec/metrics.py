"""Registered metrics: name, unit, direction, bounds and whether the arm's own reward enters.

A metric that is computed from an arm's training reward cannot judge arms that differ in reward:
their returns are in different currencies. Prefixes ``train/``, ``reward/`` and ``xeval/`` are
always reward dependent, registered or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.environments.family import Shown

#: Everything below these is derived from the training reward or measured while training on it.
REWARD_PREFIXES = ("train/", "reward/", "xeval/")


@dataclass(frozen=True)
class Metric:
    """A score that the frozen evaluator produces, one number per run and evaluation.

    ``lower`` and ``upper`` are bounds of attainable values in ``unit`` (None: unbounded).
    """

    name: str
    unit: str
    direction: str
    lower: float | None
    upper: float | None
    reward_dependent: bool
    env_kinds: tuple[str, ...]
    description: str

    @property
    def worst_bound(self) -> float | None:
        """Return the bound on the bad side, in raw units, or None when there is none."""
        return self.lower if self.direction == "max" else self.upper


#: Units that a number beside the name of a field needs; a count or a return speaks for itself.
_SHOWN_UNITS = {"%": "%", "pp": "%", "nats": "nats"}
#: Under greedy and, where a spec asks for both, under sampled actions.
_PREFIXES = (("eval/", ""), ("eval/stochastic_", ", under sampled actions"))


def registered() -> dict[str, Metric]:
    """Return every metric by its full name."""
    metrics: dict[str, Metric] = {}
    for prefix, suffix in _PREFIXES:
        for family in FAMILIES.values():
            for score in family.scores:
                full = prefix + score.name
                kinds = (*metrics[full].env_kinds, family.name) if full in metrics else (family.name,)
                metrics[full] = Metric(
                    full,
                    score.unit,
                    score.direction,
                    score.lower,
                    score.upper,
                    score.reward_dependent,
                    kinds,
                    score.description + suffix,
                )
    return metrics


def find_metric(name: str) -> Metric | None:
    """Return the registered metric, or None."""
    return registered().get(name)


def is_reward_dependent(name: str) -> bool:
    """Return whether a metric is computed from the arm's own training reward.

    Unknown names count as dependent: a metric nobody described cannot be trusted to be neutral.
    """
    if name.startswith(REWARD_PREFIXES):
        return True
    metric = find_metric(name)
    return metric is None or metric.reward_dependent


def default_primary(env_kind: str) -> str:
    """Return the primary metric used when a spec names none."""
    return FAMILIES[env_kind].primary


def primary_of(spec: Mapping[str, Any]) -> str:
    """Return the registered primary metric of a resolved specification."""
    analysis = spec["analysis"]
    return str(analysis["primary"]["metric"]) if analysis else default_primary(spec["env"]["kind"])


def shown_of(primary: str) -> Shown:
    """Return what live views show of a registered primary metric."""
    name = primary.removeprefix("eval/").removeprefix("stochastic_")
    score = next(score for family in FAMILIES.values() for score in family.scores if score.name == name)
    return Shown(primary, score.training, score.field, score.label, _SHOWN_UNITS.get(score.unit, ""))


def primary_candidates(env_kind: str) -> tuple[str, ...]:
    """Return the reward-independent metrics that an environment kind offers as primary."""
    return tuple(m.name for m in registered().values() if env_kind in m.env_kinds and not m.reward_dependent)
