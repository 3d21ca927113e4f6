"""The numbers of an experiment in a form that two runs of it can be compared by, bit for bit."""

from __future__ import annotations

from typing import Any

from app.services.context import Context
from app.store.records import points
from lockstep.client import Client
from tests.rounds import counted_rounds

#: Measured on a clock, hence never equal.
CLOCKED = ("sys/", "ppo/update_seconds")


def numbers_of(client: Client, ctx: Context, experiment_id: str) -> dict[tuple[str, int], Any]:
    """Return {(arm, replicate): (digests by round, metrics by name and round)} of the rounds that count."""
    runs = {run["id"]: (run["group_id"], run["replicate"]) for run in client.runs(experiment_id)}
    found: dict[tuple[str, int], Any] = {key: ({}, {}) for key in runs.values()}
    with ctx.store.read() as session:
        for row in counted_rounds(session, experiment_id):
            digests = found[runs[row.run_id]][0]
            assert row.round not in digests, "a round counts twice"
            digests[row.round] = row.digest
        names = sorted({name for run_id in runs for name in client.call("GET", f"runs/{run_id}")["metrics"]})
        wanted = [name for name in names if not name.startswith(CLOCKED)]
        for point in points.last_values(session, experiment_id, wanted):
            metrics = found[runs[point.run_id]][1]
            assert (point.name, point.round) not in metrics, "a metric counts twice"
            metrics[point.name, point.round] = (point.value, point.kind)
    return found


def scores_of(client: Client, experiment_id: str, metric: str = "eval/accuracy") -> dict[tuple[str, int], float]:
    """Return {(arm, replicate): final value of a metric}."""
    series = client.series(experiment_id, [metric], x="round")
    return {(curve.arm, curve.replicate): float(curve.mean[-1]) for curve in series if curve.mean.size}
