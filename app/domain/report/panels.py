"""Data behind the plots: every replicate's score, profiles, and the statistic against its boundary."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from app.domain.report.gather import Clock, MetricScores
from app.domain.report.numbers import number
from app.domain.stats.bca import MIN_REPLICATES
from app.domain.stats.design import Design
from app.domain.stats.evalue import evalue_path
from app.domain.stats.experiment import ExperimentResult, PairResult
from app.domain.stats.registered import paired_differences, registered_test
from app.domain.stats.robust import profile
from app.domain.stats.scores import FlooredArm

_GRID = 101


def score_panel(result: ExperimentResult, scores: MetricScores, sign: float) -> list[dict[str, Any]]:
    """Return every replicate that enters the analysis, in raw units; failures stand at the floor."""
    return [
        {
            "arm": arm.label,
            "replicate": scores.blocks[arm.label][int(position)],
            "value": number(sign * float(value)),
            "status": "failed" if np.isneginf(ranked) else "ok",
        }
        for arm in result.arms
        for position, value, ranked in zip(arm.replicates, arm.values, arm.ranked, strict=True)
    ]


def profile_panel(result: ExperimentResult, sign: float) -> dict[str, Any] | None:
    """Return the share of replicates above tau on a common grid (raw units), from ten replicates on."""
    if min(arm.values.size for arm in result.arms) < MIN_REPLICATES:
        return None
    everything = sign * np.concatenate([arm.values for arm in result.arms])
    taus = np.linspace(float(everything.min()), float(everything.max()), _GRID)
    return {
        "tau": [number(float(t)) for t in taus],
        "arms": [
            {"arm": arm.label, "share": [float(s) for s in profile(sign * arm.values, taus)]} for arm in result.arms
        ],
    }


def nondeterminism(result: ExperimentResult) -> dict[str, float | None] | None:
    """Return the SD within blocks of identical arms against the SD between replicates, None below two blocks."""
    if min(arm.values.size for arm in result.arms) < 2:
        return None
    blocks = np.column_stack([arm.values for arm in result.arms])
    within, between = float(np.sqrt(blocks.var(axis=1, ddof=1).mean())), float(blocks.mean(axis=1).std(ddof=1))
    return {"nondeterminism_sd": number(within), "seed_sd": number(between)}


def sequential_panel(
    pair: PairResult | None, clock: Clock, design: Design, at: tuple[int, ...]
) -> dict[str, Any] | None:
    """Return the deciding comparison's statistic against its boundary, look by look or block by block."""
    if pair is None or not design.paired or pair.a.values.size < 2:
        return None
    base = {"a": pair.a.label, "b": pair.b.label, "mode": design.mode}
    if design.mode == "anytime":
        path = evalue_path(design.e_value, paired_differences(pair.a, pair.b))
        blocks = list(range(1, path.size + 1))
        return base | {"n": blocks, "e": [number(float(e)) for e in path], "threshold": 1 / design.level}
    if design.mode != "planned":
        return None
    z = [_z_at(pair, design, n) for n in at]
    return base | {"n": list(at), "z": z, "boundary": [number(-float(ndtri(a / 2))) for a in clock.levels]}


def _z_at(pair: PairResult, design: Design, n: int) -> float | None:
    """Return z = Phi^-1(1 - p/2) of the first n complete blocks, None when they are not there yet."""
    if pair.a.values.size < n:
        return None
    p = registered_test(_first(pair.a, n), _first(pair.b, n), design).p
    return number(-float(ndtri(p / 2)))


def _first(arm: FlooredArm, n: int) -> FlooredArm:
    return FlooredArm(arm.label, arm.values[:n], arm.ranked[:n], arm.replicates[:n])
