"""The replicate clock: which registered analyses are due, and which blocks each of them sees.

Blocks are the clock. A look exists when its number of *complete* blocks is reached: a lost block counts for nothing.
Before that nothing may be computed, so an analysis that is not due sees no block at all. What a look has analysed
once is never changed by blocks that finish or are repeated later. Nothing here reads a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.report.inputs import ReportInputs, Table, score_table
from lockstep.stats.sequential import look_levels


@dataclass(frozen=True)
class Clock:
    """One analysis: its level, look k of K, and the blocks that it may see.

    Attributes:
        level: two-sided level in force.
        look: number of the look (1-based), None where there are none.
        num_looks: how many are registered.
        levels: the level of each.
        blocks: replicates that enter, lost ones before the last of them included.
        seen: every replicate that has ended and belongs to the registered analysis.
        complete: how many of ``seen`` are complete.
        due: how many complete blocks this analysis waits for.
        reached: whether it may be made.
        cut: whether no block is still to come although some were cancelled or never ran.
    """

    level: float
    look: int | None
    num_looks: int
    levels: tuple[float, ...]
    blocks: tuple[int, ...]
    seen: tuple[int, ...]
    complete: int
    due: int
    reached: bool
    cut: bool = False

    @property
    def is_short(self) -> bool:
        """Return whether fewer blocks are complete than this analysis waits for."""
        return self.complete < self.due


def due_analyses(inputs: ReportInputs) -> list[Clock]:
    """Return every analysis that is due, in order; when none is, the one that is waited for."""
    table = score_table(inputs, inputs.analysis.primary.metric)
    seen = finished_blocks(inputs, table)
    complete = [r for r in seen if is_complete(inputs, table, r)]
    if inputs.analysis.looks.mode != "planned":
        return [_single(inputs, seen, complete)]
    return _planned(inputs, seen, complete)


def finished_blocks(inputs: ReportInputs, table: Table) -> list[int]:
    """Return replicate indices in which every arm has a row, in order, without exploratory ones."""
    labels = [arm.label for arm in inputs.arms]
    replicates = sorted({replicate for _, replicate in table})
    limit = None if inputs.extension is None else inputs.extension.first_block
    return [r for r in replicates if all((a, r) in table for a in labels) and (limit is None or r < limit)]


def is_complete(inputs: ReportInputs, table: Table, replicate: int) -> bool:
    """Return whether every arm of a finished block has an outcome, a failure included."""
    rows = [table[arm.label, replicate] for arm in inputs.arms]
    return all(row.status == "failed" or (row.status == "ok" and row.raw is not None) for row in rows)


def cancelled_blocks(inputs: ReportInputs) -> tuple[int, ...]:
    """Return the replicates that a user cancelled."""
    if inputs.cancelled is not None:
        return inputs.cancelled
    return tuple(sorted({row.replicate for row in inputs.scores if row.status == "lost" and row.cause == "user"}))


def is_extendable(inputs: ReportInputs, clock: Clock) -> bool:
    """Return whether more blocks may still join the registered analysis: any number, or up to a further look."""
    mode = inputs.analysis.looks.mode
    return mode == "anytime" or (mode == "planned" and (clock.look or 0) < clock.num_looks)


def _single(inputs: ReportInputs, seen: Sequence[int], complete: Sequence[int]) -> Clock:
    alpha, planned = inputs.analysis.alpha, planned_blocks(inputs)
    anytime = inputs.analysis.looks.mode == "anytime"
    ended = inputs.ended is not False or len(seen) >= planned
    blocks = tuple(seen) if ended or anytime else ()
    # an anytime analysis may be made after any block: stopping it cuts nothing
    cut = ended and not anytime and _is_cut(inputs, seen, planned)
    return Clock(alpha, None, 1, (alpha,), blocks, tuple(seen), len(complete), planned, ended or anytime, cut)


def _planned(inputs: ReportInputs, seen: Sequence[int], complete: Sequence[int]) -> list[Clock]:
    at = inputs.analysis.looks.at
    levels = look_levels(at, inputs.analysis.looks.boundary, inputs.analysis.alpha)
    waiting = [
        Clock(level, k + 1, len(at), levels, (), tuple(seen), len(complete), due, False)
        for k, (level, due) in enumerate(zip(levels, at, strict=True))
    ]
    chosen = _chosen(at, inputs.looks_taken, complete)
    # a lost block is passed on, so that it can be asked what it would have changed
    lost = [r for r in seen if r not in complete]
    looks = [
        replace(clock, blocks=tuple(sorted({*own, *(r for r in lost if r < max(own))})), reached=True)
        for clock, own in zip(waiting, chosen, strict=False)
    ]
    if inputs.look is not None:
        if not 1 <= inputs.look <= len(at):
            raise ValueError(f"look must be 1..{len(at)}, got {inputs.look}")
        return looks[: inputs.look] if inputs.look <= len(looks) else [waiting[inputs.look - 1]]
    ended = len(seen) >= at[-1] if inputs.ended is None else inputs.ended
    if ended and len(looks) < len(at):
        cut = _is_cut(inputs, seen, planned_blocks(inputs))
        if not looks or len(complete) > len(chosen[-1]):
            looks.append(replace(waiting[len(looks)], blocks=tuple(seen), reached=True))
        looks[-1] = replace(looks[-1], cut=cut)
    return looks or waiting[:1]


def _chosen(at: Sequence[int], taken: Sequence[Sequence[int]], complete: Sequence[int]) -> list[frozenset[int]]:
    """Return the complete blocks of every look that is reached; those of a look that was taken stay."""
    sets: list[frozenset[int]] = []
    for number, due in enumerate(at):
        before = sets[-1] if sets else frozenset()
        later = [r for r in complete if r not in before][: due - len(before)]
        if number < len(taken):
            sets.append(frozenset(taken[number]))
        elif len(before) + len(later) < due:
            break
        else:
            sets.append(before.union(later))
    return sets


def planned_blocks(inputs: ReportInputs) -> int:
    """Return how many blocks belong to the registered analysis."""
    return inputs.planned_blocks if inputs.extension is None else inputs.extension.first_block


def _is_cut(inputs: ReportInputs, seen: Sequence[int], planned: int) -> bool:
    return len(seen) < planned or any(r in seen for r in cancelled_blocks(inputs))
