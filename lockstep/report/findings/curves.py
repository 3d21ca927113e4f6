"""Learning curves: pointwise bands for the plot, the registered joint test, time to threshold.

Bands are pointwise and labelled so; only the joint test supports "above at step t". Failed runs keep
the floor on the remaining grid. A run that never reaches the threshold is censored, never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import isfinite, sqrt
from typing import Any

import numpy as np
from scipy.special import stdtrit

from lockstep.report.findings.clock import Clock
from lockstep.report.inputs import MetricScores, ReportInputs, direction_of
from lockstep.report.numbers import clipped, number
from lockstep.stats.curves import curve_max_t, logrank, logrank_permutation, restricted_mean
from lockstep.stats.registered import Design
from lockstep.stats.results import sd

_PERMUTATION_UP_TO = 10
#: (arm, replicate) -> step -> raw value
Curves = Mapping[tuple[str, int], Mapping[int, float | None]]


def read_curves(inputs: ReportInputs, metric: str) -> dict[tuple[str, int], dict[int, float | None]]:
    """Return the evaluations of one metric by run and step."""
    curves: dict[tuple[str, int], dict[int, float | None]] = {}
    for point in inputs.curves:
        if point.metric == metric:
            value = point.value if point.value is not None and isfinite(point.value) else None
            curves.setdefault((point.arm, point.replicate), {})[point.step] = value
    return curves


def curve_plot(inputs: ReportInputs, scores: MetricScores, clock: Clock) -> dict[str, Any] | None:
    """Return thin lines, means and pointwise 95 % t bands of the primary metric, or None without data.

    Before the analysis is due lines and means may be seen, bands may not.
    """
    curves = read_curves(inputs, scores.metric)
    visible = {key: c for key, c in curves.items() if key[1] in (clock.blocks if clock.reached else clock.seen)}
    if not visible:
        return None
    steps = sorted({step for curve in visible.values() for step in curve})
    arms = [
        _arm_curves(
            label, [(r, c) for (a, r), c in sorted(visible.items()) if a == label], steps, scores.metric, clock.reached
        )
        for label in (arm.label for arm in inputs.arms)
    ]
    return {
        "metric": scores.metric,
        "steps": steps,
        "band": "pointwise 95 % t interval of the mean",
        "arms": arms,
    }


def curve_test(inputs: ReportInputs, scores: MetricScores, clock: Clock, design: Design) -> dict[str, Any] | None:
    """Return the registered joint curve test for every pair, or a reason why there is none."""
    registered = inputs.analysis.curve
    if registered is None:
        return None
    steps = list(registered.at)
    base: dict[str, Any] = {
        "metric": registered.metric,
        "steps": steps,
        "p_adj": None,
        "pairs": [],
        "reason": None,
    }
    if not design.paired:
        return base | {"reason": "CURVE_UNPAIRED"}
    grids = _grids(inputs, scores, clock, registered.metric, steps)
    if grids is None:
        return base | {"reason": "CURVE_INCOMPLETE"}
    for a, b in combinations([arm.label for arm in inputs.arms], 2):
        found = curve_max_t(grids[a] - grids[b], design.rng())
        row = {
            "a": a,
            "b": b,
            "mean_difference": [number(float(v)) for v in (grids[a] - grids[b]).mean(axis=0)],
        }
        row |= {
            "statistic": [number(t) for t in found.statistics],
            "p_adj": [number(p) for p in found.p_adjusted],
        }
        base["pairs"].append(row)
    if len(base["pairs"]) == 1:
        base["p_adj"] = base["pairs"][0]["p_adj"]
    return base


def time_to_threshold(
    inputs: ReportInputs, scores: MetricScores, clock: Clock, design: Design
) -> dict[str, Any] | None:
    """Return steps to the registered threshold per arm (censored kept), log-rank and restricted means.

    None without a registered threshold, or where runs were evaluated only once.
    """
    curves = {k: c for k, c in read_curves(inputs, scores.metric).items() if k[1] in clock.blocks and c}
    labels = [arm.label for arm in inputs.arms]
    if not curves or {a for a, _ in curves} != set(labels):
        return None
    threshold = inputs.threshold if inputs.threshold is not None else inputs.analysis.threshold
    if threshold is None or len({step for c in curves.values() for step in c}) < 2:
        return None
    horizon = max(step for c in curves.values() for step in c)
    upward = direction_of(inputs.analysis, scores.metric) == "max"
    times = {
        label: [_time(c, threshold, horizon, upward) for (a, _), c in sorted(curves.items()) if a == label]
        for label in labels
    }
    return {
        "metric": scores.metric,
        "threshold": number(threshold),
        "registered": True,
        "horizon": horizon,
        "arms": [
            {
                "arm": a,
                "times": [list(t) for t in times[a]],
                "restricted_mean": number(restricted_mean(times[a], horizon)),
            }
            for a in labels
        ],
        "pairs": [_threshold_pair(a, b, times, horizon, design) for a, b in combinations(labels, 2)],
    }


def _arm_curves(
    label: str, runs: Sequence[tuple[int, Mapping[int, float | None]]], steps: Sequence[int], metric: str, banded: bool
) -> dict[str, Any]:
    lines = [{"replicate": r, "values": [number(c.get(step)) for step in steps]} for r, c in runs]
    bands = [_band([number(c.get(step)) for _, c in runs]) for step in steps]
    mean, low, high = (list(part) for part in zip(*bands, strict=True))
    if not banded:
        low = high = [None] * len(steps)
    low, high = ([None if v is None else (clipped([v], metric) or [v])[0] for v in ends] for ends in (low, high))
    return {"arm": label, "n": len(lines), "runs": lines, "mean": mean, "low": low, "high": high}


def _band(values: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """Return mean and pointwise interval; nothing when any run lacks a value at this step."""
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None, None, None
    mean = float(np.mean(known))
    if len(known) < 2:
        return mean, None, None
    half = float(stdtrit(len(known) - 1, 0.975)) * sd(np.array(known)) / sqrt(len(known))
    return mean, mean - half, mean + half


def _grids(
    inputs: ReportInputs, scores: MetricScores, clock: Clock, metric: str, steps: Sequence[int]
) -> dict[str, np.ndarray] | None:
    """Return oriented curves (blocks, steps) per arm on complete blocks, or None with a hole."""
    curves, sign = (
        read_curves(inputs, metric),
        1.0 if direction_of(inputs.analysis, metric) == "max" else -1.0,
    )
    lost = {scores.blocks[a.label][i] for a in scores.arms for i in np.flatnonzero(a.lost)}
    failed = {(a.label, scores.blocks[a.label][i]) for a in scores.arms for i in np.flatnonzero(a.failed)}
    blocks = [r for r in clock.blocks if r not in lost]
    seen = [v for c in curves.values() for v in c.values() if v is not None]
    if not blocks or not seen:
        return None
    floor = inputs.analysis.failure.floor if metric == scores.metric else None
    worst = min(seen) if sign > 0 else max(seen)
    floor = worst if floor is None else (min(floor, worst) if sign > 0 else max(floor, worst))
    grids = {}
    for arm in inputs.arms:
        rows = [[curves.get((arm.label, r), {}).get(s) for s in steps] for r in blocks]
        filled = [
            [floor if v is None and (arm.label, r) in failed else v for v in row]
            for r, row in zip(blocks, rows, strict=True)
        ]
        if any(v is None for row in filled for v in row):
            return None
        grids[arm.label] = sign * np.array(filled, dtype=np.float64)
    return grids


def _time(curve: Mapping[int, float | None], threshold: float, horizon: int, upward: bool) -> tuple[float, int]:
    for step, value in sorted(curve.items()):
        if value is not None and (value >= threshold if upward else value <= threshold):
            return float(step), 1
    return float(horizon), 0


def _threshold_pair(
    a: str, b: str, times: Mapping[str, list[tuple[float, int]]], horizon: float, design: Design
) -> dict[str, Any]:
    test = logrank(times[a], times[b])
    small = max(len(times[a]), len(times[b])) <= _PERMUTATION_UP_TO
    permuted = logrank_permutation(times[a], times[b], design.rng()) if small else None
    return {
        "a": a,
        "b": b,
        "rmst_difference": number(restricted_mean(times[a], horizon) - restricted_mean(times[b], horizon)),
        "logrank_chi2": number(test.chi2),
        "logrank_p": number(test.p),
        "permutation_p": number(permuted),
    }
