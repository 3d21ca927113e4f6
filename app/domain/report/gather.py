"""From records to outcomes: join scores by replicate index, orient them, choose the blocks.

Nothing is averaged over replicates. Blocks decided after data were seen (an exploratory
extension) and blocks beyond the current look stay out of the registered analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.analysis_spec import AnalysisSpec
from app.domain.metrics import find_metric
from app.domain.report.inputs import ReportInputs, ScoreRow
from app.domain.stats.design import Design
from app.domain.stats.looks import look_levels
from app.domain.stats.scores import ArmScores, arm_scores

#: (arm, replicate) -> score row of one metric
Table = Mapping[tuple[str, int], ScoreRow]


@dataclass(frozen=True)
class Clock:
    """Where the analysis stands: level in force, look k of K, and the blocks that may be seen."""

    level: float
    look: int | None
    num_looks: int
    levels: tuple[float, ...]
    blocks: tuple[int, ...]
    reached: bool


@dataclass(frozen=True)
class MetricScores:
    """Arms of one metric over given blocks; ``blocks[arm][i]`` is the replicate index of value i."""

    metric: str
    direction: str
    arms: tuple[ArmScores, ...]
    blocks: Mapping[str, tuple[int, ...]]


def score_table(inputs: ReportInputs, metric: str) -> dict[tuple[str, int], ScoreRow]:
    """Return the rows of one metric by (arm, replicate); two rows for one run are an error."""
    known = {arm.label for arm in inputs.arms}
    table: dict[tuple[str, int], ScoreRow] = {}
    for row in inputs.scores:
        if row.metric != metric or row.arm not in known:
            continue
        if (row.arm, row.replicate) in table:
            raise ValueError(f"{metric}: arm {row.arm!r}, replicate {row.replicate} has two scores; keep one")
        table[row.arm, row.replicate] = row
    return table


def direction_of(analysis: AnalysisSpec, metric: str) -> str:
    """Return max or min for a metric: as registered in the analysis, else as in the registry."""
    if metric == analysis.primary.metric:
        return analysis.primary.direction
    for guard in analysis.guardrails:
        if guard.metric == metric:
            return guard.good_direction
    known = find_metric(metric)
    for choice in analysis.secondary:
        if choice.metric == metric and (known is None or choice.direction != "max"):
            return choice.direction
    return known.direction if known else "max"


def finished_blocks(inputs: ReportInputs, table: Table) -> list[int]:
    """Return replicate indices in which every arm has a row, in order, without exploratory ones."""
    labels = [arm.label for arm in inputs.arms]
    replicates = sorted({replicate for _, replicate in table})
    limit = None if inputs.extension is None else inputs.extension.first_block
    return [r for r in replicates if all((a, r) in table for a in labels) and (limit is None or r < limit)]


def clock(inputs: ReportInputs) -> Clock:
    """Return level, look and visible blocks under the registered look mode."""
    analysis = inputs.analysis
    blocks = finished_blocks(inputs, score_table(inputs, analysis.primary.metric))
    if analysis.looks.mode != "planned":
        return Clock(analysis.alpha, None, 1, (analysis.alpha,), tuple(blocks), True)
    at = analysis.looks.at
    levels = look_levels(at, analysis.looks.boundary, analysis.alpha)
    done = sum(1 for n in at if n <= len(blocks))
    look = inputs.look if inputs.look is not None else max(1, done)
    if not 1 <= look <= len(at):
        raise ValueError(f"look must be 1..{len(at)}, got {look}")
    return Clock(levels[look - 1], look, len(at), levels, tuple(blocks[: at[look - 1]]), done >= look)


def metric_scores(inputs: ReportInputs, metric: str, blocks: Iterable[int]) -> MetricScores:
    """Return oriented outcomes of one metric.

    Paired designs keep the given blocks; unpaired designs keep every row of each arm among them
    and any further replicate of that arm alone.
    """
    table, direction = score_table(inputs, metric), direction_of(inputs.analysis, metric)
    wanted = list(blocks)
    arms, indices = [], {}
    for arm in inputs.arms:
        rows = _rows_of(arm.label, table, wanted, inputs)
        arms.append(_oriented(arm.label, rows, direction))
        indices[arm.label] = tuple(row.replicate for row in rows)
    return MetricScores(metric, direction, tuple(arms), indices)


def design_of(analysis: AnalysisSpec, level: float, kind: str = "ab") -> Design:
    """Return the registered design in oriented units at the level in force."""
    floor = analysis.failure.floor
    sign = 1.0 if analysis.primary.direction == "max" else -1.0
    return Design(
        paired=analysis.paired,
        estimand=analysis.estimand,
        sesoi=analysis.sesoi,
        level=level,
        floor=None if floor is None else sign * floor,
        comparisons=analysis.comparisons,
        control=analysis.control,
        adjust=analysis.pairwise_adjust,
        fallback=analysis.small_n_fallback,
        mode=analysis.looks.mode,
        e_value=analysis.looks.e_value,
        inference=analysis.inference,
        seed=analysis.analysis_seed,
        identity_check=kind == "aa",
    )


def _rows_of(label: str, table: Table, blocks: Sequence[int], inputs: ReportInputs) -> list[ScoreRow]:
    if inputs.analysis.paired:
        return [table[label, r] for r in blocks if (label, r) in table]
    limit = None if inputs.extension is None else inputs.extension.first_block
    seen = sorted(r for arm, r in table if arm == label)
    look_end = max(blocks) if blocks and inputs.analysis.looks.mode == "planned" else None
    return [table[label, r] for r in seen if (limit is None or r < limit) and (look_end is None or r <= look_end)]


def _oriented(label: str, rows: Sequence[ScoreRow], direction: str) -> ArmScores:
    # a successful run without a score fails the gate "primary present"; here it counts as lost
    statuses = ["lost" if row.status == "ok" and row.raw is None else row.status for row in rows]
    return arm_scores(label, [row.raw for row in rows], statuses, direction)
