"""A/A calibration of the analysis pipeline (statistics.md 12): the rate of false winners, and its stamp.

Without an experiment: simulated scores (mode 3). With one: its replicates of one configuration are
re-randomised into pseudo-arms (mode 2). What passed is stamped on later reports.
"""

from __future__ import annotations

import json
from typing import Any

from app.errors import InvalidError
from app.services.audit import record
from app.services.context import Actor, Context
from app.services.results.reports import STAMP_KEY, gather
from app.store.database.engine import utc
from app.store.queue import scheduling
from lockstep.stats.calibrate import Calibration, rerandomised_suite, simulated_suite

MIN_REPLICATES = 24


def calibrate(
    ctx: Context, actor: Actor, *, experiment_id: str | None, repetitions: int, seed: int, code_version: str
) -> dict[str, Any]:
    """Run the suite, store its stamp and return the rates with their 99 % bands.

    Raises:
        InvalidError: the experiment has fewer than 24 scored replicates of its first arm.
    """
    if experiment_id is None:
        rows = simulated_suite(repetitions, seed)
        mode = "simulation"
    else:
        rows = rerandomised_suite(repetitions, seed, _scores(ctx, experiment_id))
        mode = f"re-randomisation of {experiment_id}"
    passed = all(row.passed for row in rows)
    document = {"mode": mode, "repetitions": repetitions, "passed": passed, "rows": [_row(row) for row in rows]}
    with ctx.store.write() as session:
        stamp = json.loads(scheduling.get_meta(session, STAMP_KEY) or '{"modes": []}')
        modes = [name for name in stamp["modes"] if name.split(" ")[0] != mode.split(" ")[0]]
        date = utc(ctx.store.now(session)).date().isoformat()
        stamp = {"date": date, "version": code_version, "modes": [*modes, mode] if passed else modes}
        scheduling.set_meta(session, STAMP_KEY, json.dumps(stamp))
        record(ctx, session, actor, "calibrate", experiment_id or "simulation", None, {"passed": passed})
    return document


def _row(row: Calibration) -> dict[str, Any]:
    return {
        "name": row.name,
        "rate": row.rate,
        "expected": row.expected,
        "band": list(row.band),
        "passed": row.passed,
    }


def _scores(ctx: Context, experiment_id: str) -> list[float]:
    with ctx.store.read() as session:
        inputs = gather(ctx, session, experiment_id)
    metric, arm = inputs.analysis.primary.metric, inputs.arms[0].label
    mine = [row.raw for row in inputs.scores if row.metric == metric and row.arm == arm]
    values = [raw for raw in mine if raw is not None]
    if len(values) < MIN_REPLICATES:
        raise InvalidError(
            f"arm {arm!r} has {len(values)} scored replicates; re-randomisation needs {MIN_REPLICATES} of one "
            "configuration; extend the experiment, or calibrate by simulation",
            code="too_few_replicates",
        )
    return values
