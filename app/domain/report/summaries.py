"""Training summaries and cross-evaluation: printed for orientation, they never decide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from app.domain.report.inputs import CrossScore, ReportInputs
from app.domain.report.numbers import number


def training_rows(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Return per arm: episodes, final, best and mean training figures, averaged over replicates.

    Training rewards of arms with different reward modes are in different currencies.
    """
    rows = []
    for arm in inputs.arms:
        own = [row for row in inputs.training if row.arm == arm.label]
        if own:
            rows.append(
                {
                    "arm": arm.label,
                    "reward_mode": arm.reward_mode,
                    "replicates": len(own),
                    "episodes": sum(row.episodes for row in own),
                    "final_accuracy": _mean(row.final_accuracy for row in own),
                    "best_accuracy": _mean(row.best_accuracy for row in own),
                    "mean_reward": _mean(row.mean_reward for row in own),
                }
            )
    return rows


def cross_scores(inputs: ReportInputs) -> dict[str, Any] | None:
    """Return the matrix policy arm x reward mode: pooled over replicates, and per replicate."""
    if not inputs.cross_scores:
        return None
    modes = sorted({cell.mode for cell in inputs.cross_scores})
    own = {arm.label: arm.reward_mode for arm in inputs.arms}
    cells = []
    for arm in inputs.arms:
        for mode in modes:
            found = sorted(
                (c for c in inputs.cross_scores if c.arm == arm.label and c.mode == mode),
                key=lambda c: c.replicate,
            )
            if found:
                cells.append(_cell(arm.label, mode, found, own[arm.label] == mode))
    return {"modes": modes, "cells": cells}


def _cell(arm: str, mode: str, found: list[CrossScore], is_own: bool) -> dict[str, Any]:
    means = [c.mean for c in found if number(c.mean) is not None]
    return {
        "arm": arm,
        "mode": mode,
        "own_mode": is_own,
        "mean": _mean(c.mean for c in found),
        "sd_between_replicates": number(float(np.std([m for m in means if m is not None], ddof=1)))
        if len(means) > 1
        else None,
        "episodes": sum(c.episodes for c in found),
        "replicates": [
            {"replicate": c.replicate, "mean": number(c.mean), "sd": number(c.sd), "n": c.episodes} for c in found
        ],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if number(v) is not None]
    return number(float(np.mean([v for v in known if v is not None]))) if known else None
