"""Registered metrics: name, unit, direction, bounds and whether the arm's own reward enters.

A metric that is computed from an arm's training reward cannot judge arms that differ in reward:
their returns are in different currencies. Prefixes ``train/``, ``reward/`` and ``xeval/`` are
always reward dependent, registered or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MORPHOGENESIS = "morphogenesis"
GYMNASIUM = "gymnasium"
_BOTH = (MORPHOGENESIS, GYMNASIUM)
_MORPH = (MORPHOGENESIS,)
_GYM = (GYMNASIUM,)
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


_PERCENT = (0.0, 100.0)
_POINTS = (-100.0, 100.0)
_FREE: tuple[float | None, float | None] = (None, None)
_RATIO: tuple[float | None, float | None] = (1.0, None)
_POSITIVE: tuple[float | None, float | None] = (0.0, None)
#: name under eval/ (also scored under sampled actions as stochastic_<name>), unit, direction, bounds,
#: reward dependent, env kinds, description
_ROWS = (
    ("accuracy", "%", "max", _PERCENT, False, _MORPH, "test accuracy of the network as it stands"),
    ("committed_accuracy", "%", "max", _PERCENT, False, _MORPH, "test accuracy with committed grafts only"),
    ("gain_over_twin", "pp", "max", _POINTS, False, _MORPH, "accuracy minus that of an ungrafted host"),
    ("loss", "nats", "min", _POSITIVE, False, _MORPH, "test loss of the network as it stands"),
    ("fossils", "count", "max", _POSITIVE, False, _MORPH, "grafts committed at the end of an episode"),
    ("param_ratio", "ratio", "min", _RATIO, False, _MORPH, "total parameters per host parameter"),
    ("native_return_mean", "return", "max", _FREE, False, _GYM, "return in the environment's own reward"),
    ("return_mean", "reward", "max", _FREE, True, _BOTH, "return in the arm's own reward"),
)


def _registry() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for prefix, suffix in (("eval/", ""), ("eval/stochastic_", ", under sampled actions")):
        for name, unit, direction, bounds, dependent, kinds, text in _ROWS:
            full = prefix + name
            found[full] = Metric(full, unit, direction, *bounds, dependent, kinds, text + suffix)
    return found


METRICS: dict[str, Metric] = _registry()


def find_metric(name: str) -> Metric | None:
    """Return the registered metric, or None."""
    return METRICS.get(name)


def is_reward_dependent(name: str) -> bool:
    """Return whether a metric is computed from the arm's own training reward.

    Unknown names count as dependent: a metric nobody described cannot be trusted to be neutral.
    """
    if name.startswith(REWARD_PREFIXES):
        return True
    metric = METRICS.get(name)
    return metric is None or metric.reward_dependent


def default_primary(env_kind: str) -> str:
    """Return the primary metric used when a spec names none."""
    return "eval/native_return_mean" if env_kind == GYMNASIUM else "eval/accuracy"


def primary_of(spec: Mapping[str, Any]) -> str:
    """Return the registered primary metric of a resolved specification."""
    analysis = spec["analysis"]
    return str(analysis["primary"]["metric"]) if analysis else default_primary(spec["env"]["kind"])


@dataclass(frozen=True)
class Shown:
    """What live views show of a primary metric: an evaluation may be rare, training is recorded every round.

    Attributes:
        primary: the metric that is judged.
        training: its counterpart among the metrics of every round, or the nearest one.
        field: where the live comparison of arms holds its mean over the last episodes.
        label, unit: of that field, for people.
    """

    primary: str
    training: str
    field: str
    label: str
    unit: str


#: name under eval/: training counterpart, field of the comparison, label, unit
_SHOWN = {
    "accuracy": ("train/accuracy_mean", "accuracy", "accuracy", "%"),
    "committed_accuracy": ("train/committed_accuracy_mean", "committed_accuracy", "committed accuracy", "%"),
    "gain_over_twin": ("train/accuracy_mean", "accuracy", "accuracy", "%"),
    "loss": ("train/loss_mean", "loss", "loss", "nats"),
    "fossils": ("train/grafts_fossilized_mean", "grafts_fossilized", "grafts committed", ""),
    "param_ratio": ("train/param_ratio_mean", "param_ratio", "parameters per host parameter", ""),
    "native_return_mean": ("train/native_return_mean", "native_return", "native return", ""),
    "return_mean": ("train/return_mean", "reward", "reward", ""),
}


def shown_of(primary: str) -> Shown:
    """Return what live views show of a registered primary metric."""
    return Shown(primary, *_SHOWN[primary.removeprefix("eval/").removeprefix("stochastic_")])


def primary_candidates(env_kind: str) -> tuple[str, ...]:
    """Return the reward-independent metrics that an environment kind offers as primary."""
    return tuple(m.name for m in METRICS.values() if env_kind in m.env_kinds and not m.reward_dependent)
