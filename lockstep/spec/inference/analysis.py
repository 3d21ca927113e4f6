"""The ``analysis`` section of an experiment: what is registered before the first training step.

Strict frozen models with every default of statistics.md 2. ``complete_analysis`` fills what
depends on the experiment (planned replicates, default metric, demonstrations), so that the hash
covers the resolved plan. Rules that need facts of the experiment live in ``analysis``.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lockstep.spec.metrics import Metric, default_primary, find_metric
from lockstep.spec.text.canonical import canonical_hash

Direction = Literal["max", "min"]
Estimand = Literal["mean", "shift", "learned", "p_superiority"]
LooksMode = Literal["fixed", "planned", "anytime"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class PrimaryMetric(_Strict):
    """A metric with its aggregation over the evaluations of one run."""

    metric: str = Field("eval/accuracy", description="Registered metric, scored by the frozen evaluator")
    aggregate: Literal["final_mean", "auc"] = Field(
        "final_mean",
        description="final_mean: mean over the evaluation episodes at the fixed last step; auc: trapezoid "
        "over the common evaluation grid divided by its range. Best checkpoint is not offered: it is biased",
    )
    direction: Direction = Field("max", description="max: larger is better; min: smaller is better")


def _metric_from_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    return {"metric": value, "aggregate": "final_mean", "direction": "max"}


MetricChoice = Annotated[PrimaryMetric, BeforeValidator(_metric_from_text)]


class Replicates(_Strict):
    """Numbers of blocks; null is filled in from ``experiment.replicates``."""

    planned: int | None = Field(None, ge=1, le=1000, description="Blocks queued; default experiment.replicates")
    max: int | None = Field(None, ge=1, le=1000, description="Most blocks ever analysed; default planned")


class Looks(_Strict):
    """When the data may be looked at; blocks are the clock."""

    mode: LooksMode = Field("fixed", description="fixed: once, at planned; planned: at `at`; anytime: e-values")
    at: Annotated[tuple[Annotated[int, Field(le=1000)], ...], Field(strict=False)] = Field(
        (),
        max_length=5,
        description="planned: complete blocks at each look, increasing, last = analysis.replicates.max",
    )
    boundary: Literal["pocock", "obf"] = Field("pocock", description="planned: shape of the boundary")
    e_value: Literal["sign", "t", "betting"] = Field(
        "sign",
        description="anytime: which e-value. betting: for metrics with two bounds, or estimand learned, and there the "
        "default (estimand mean or learned); it assumes nothing but the bounds and needs differences that fill much of "
        "the range. sign: differences are symmetric when the arms are equal; t: they are normal",
    )


class FailureRule(_Strict):
    """How a failed (diverged) run is scored."""

    floor: float | None = Field(
        None,
        allow_inf_nan=True,
        description="Raw score given to a failed replicate, in units of the primary metric",
    )


class Guardrail(_Strict):
    """A metric that the winner must not harm by more than a margin."""

    metric: str = Field(description="Registered metric")
    direction: Direction | None = Field(None, description="Good direction; default: that of the metric registry")
    max_harm: float | None = Field(None, gt=0, allow_inf_nan=False, description="Margin in raw units, > 0")
    max_harm_rel: float | None = Field(None, gt=0, le=1, description="Margin as a share of the rival's location")

    @model_validator(mode="after")
    def _one_margin(self) -> Self:
        if (self.max_harm is None) == (self.max_harm_rel is None):
            raise ValueError(
                "it needs exactly one of max_harm (raw units) and max_harm_rel (share); give one of the two"
            )
        return self

    @property
    def good_direction(self) -> str:
        """Return the direction in which the metric is good: as given, else as registered, else max."""
        metric = find_metric(self.metric)
        return self.direction or (metric.direction if metric else "max")


class CurveTest(_Strict):
    """Registered steps at which the learning curves are compared jointly."""

    metric: str = Field(description="Registered metric evaluated along training")
    at: Annotated[tuple[Annotated[int, Field(ge=0, le=100_000)], ...], Field(strict=False)] = Field(
        min_length=1, max_length=1000, description="Rounds (evaluation steps) of the joint test, increasing"
    )


class Pilot(_Strict):
    """Where scores for planning come from; they never enter the analysis."""

    experiment: str = Field(min_length=1, max_length=60, description="Id of an experiment that has ended")


class AnalysisSpec(_Strict):
    """The registered analysis (statistics.md 2)."""

    primary: MetricChoice = Field(default_factory=PrimaryMetric, description="The one metric that decides")
    estimand: Estimand = Field(
        "mean",
        description="mean: difference of mean scores, failures at the floor; shift: Hodges-Lehmann, rank tests; "
        "learned: difference of the shares of runs that reach `threshold`; p_superiority: unpaired only",
    )
    threshold: float | None = Field(
        None,
        allow_inf_nan=True,
        # left out of the resolved spec while it is not given, so that analyses from before it keep their hash
        exclude_if=lambda value: value is None,
        description="Raw score from which on a run has learned (min metrics: up to which); also used for time to "
        "threshold. Required by estimand: learned",
    )
    sesoi: float | None = Field(
        None,
        allow_inf_nan=True,
        description="Smallest effect of interest, raw units, > 0 (p_superiority: < .5; learned: a share < 1)",
    )
    inference: Literal["full", "none"] = Field("full", description="none: demonstration, no verdict is offered")
    alpha: float = Field(0.05, ge=0.001, le=0.2, description="Two-sided error level")
    comparisons: Literal["winner", "all_pairs", "vs_control"] = Field("winner", description="Which question is asked")
    control: str | None = Field(None, description="Label of the control arm, for vs_control")
    paired: bool = Field(True, description="Arms share replicate seeds; cannot change after registration")
    replicates: Replicates = Field(default_factory=Replicates, description="Planned and largest number of blocks")
    small_n_fallback: Literal["none", "unpaired_rank"] = Field(
        "none", description="unpaired_rank: with 4 or 5 complete blocks use the unpaired exact rank test"
    )
    looks: Looks = Field(default_factory=Looks, description="When results may be seen")
    pairwise_adjust: Literal["auto", "holm", "max_t"] = Field("auto", description="Adjustment of the pairwise table")
    failure: FailureRule = Field(default_factory=FailureRule, description="Scoring of failed runs")
    guardrails: Annotated[tuple[Guardrail, ...], Field(strict=False)] = Field(
        (), max_length=20, description="Metrics that must not get worse"
    )
    secondary: Annotated[tuple[MetricChoice, ...], Field(strict=False)] = Field(
        (), max_length=100, description="Exploratory metrics, Benjamini-Hochberg at q = .1"
    )
    curve: CurveTest | None = Field(None, description="Joint comparison along training")
    bayes_panel: bool = Field(False, description="Show the reference posterior; never the verdict")
    analysis_seed: int = Field(0, ge=0, le=2**63 - 1, description="Seed of every resampling in the analysis")
    pilot_sd: float | None = Field(None, gt=0, allow_inf_nan=False, description="SD from a pilot, raw units; warns")
    pilot: Pilot | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Earlier experiment whose scores of the primary metric the power of this one is planned with",
    )
    tuning_effort: dict[str, int] | None = Field(None, description="Declared tuning trials per arm; only warns")


def complete_analysis(spec: AnalysisSpec, *, kind: str, replicates: int, env_kind: str) -> AnalysisSpec:
    """Return the analysis with every default that depends on the experiment filled in; idempotent.

    Planned and largest block counts come from ``experiment.replicates``, the metric from the kind
    of environment, and A/A or single-replicate experiments are demonstrations unless said otherwise. An anytime
    analysis of the mean or of shares that learned bets within the bounds of its scores where they have two: the other
    e-values test symmetry, which is another question.
    """
    planned = spec.replicates.planned or replicates
    largest = spec.replicates.max or max(planned, *spec.looks.at, planned)
    update: dict[str, Any] = {"replicates": Replicates(planned=planned, max=largest)}
    if "primary" not in spec.model_fields_set:
        update["primary"] = PrimaryMetric(metric=default_primary(env_kind))
    if "inference" not in spec.model_fields_set and (largest == 1 or kind == "aa"):
        update["inference"] = "none"
    full = spec.model_copy(update=update)
    chosen = spec.looks.mode != "anytime" or "e_value" in spec.looks.model_fields_set
    if chosen or full.estimand not in ("mean", "learned") or reach_of(full) is None:
        return full
    return full.model_copy(update={"looks": spec.looks.model_copy(update={"e_value": "betting"})})


def default_analysis(*, kind: str, replicates: int, env_kind: str = "morphogenesis") -> AnalysisSpec:
    """Return the analysis used when a spec gives none: a demonstration, whatever the numbers."""
    spec = AnalysisSpec(inference="none")
    return complete_analysis(spec, kind=kind, replicates=replicates, env_kind=env_kind)


def reach_of(analysis: AnalysisSpec) -> float | None:
    """Return the largest possible |difference| of two scores, failures included; None without two bounds."""
    if analysis.estimand == "learned":
        return 1.0
    metric, floor = find_metric(analysis.primary.metric), analysis.failure.floor
    if metric is None or metric.lower is None or metric.upper is None:
        return None
    ends = [metric.lower, metric.upper] + ([] if floor is None or not isfinite(floor) else [floor])
    return max(ends) - min(ends)


def estimand_reason(analysis: AnalysisSpec) -> str:
    """Return in one sentence which quantity decides and why it is a sound choice, or what it leaves out."""
    estimand = analysis.estimand
    if estimand == "shift":
        return (
            "estimand shift: a few very bad runs hardly move it, so it can call arms equal of which one sometimes "
            "collapses; the report shows the means beside it."
        )
    if estimand == "learned":
        return f"estimand learned: arms differ in how many runs reach {analysis.threshold:g}, not in how far beyond."
    if estimand == "p_superiority":
        return "estimand p_superiority: how often a run of one arm beats a run of the other, not by how much."
    metric = find_metric(analysis.primary.metric)
    floor = analysis.failure.floor
    told = "an arm that sometimes collapses is not called equal or better"
    if floor is not None:
        provided = "" if _is_worst(metric, floor) else f" if {floor:g} is worse than the scores of successful runs"
        return f"estimand mean: a failed run counts with its score of {floor:g}, so {told}{provided}."
    why = "every run counts with its score"
    if metric is not None and metric.lower is not None and metric.upper is not None:
        why = f"scores are bounded ({metric.lower:g} to {metric.upper:g} {metric.unit})"
    return f"estimand mean: {why}, so {told}."


def _is_worst(metric: Metric | None, score: float) -> bool:
    """Return whether no score can be worse, by the bounds of the metric."""
    worst = None if metric is None else metric.worst_bound
    if metric is None or worst is None:
        return False
    return score <= worst if metric.direction == "max" else score >= worst


def analysis_hash(analysis: AnalysisSpec) -> str:
    """Return the SHA-256 (hex) of a resolved analysis; a non-finite number raises ``ValueError`` (validate first)."""
    return canonical_hash(analysis.model_dump(mode="json"))
