"""What grew in the environments of a run, round by round, from the events that its worker handed in with the round."""

from __future__ import annotations

from typing import Any

from app.errors import ConflictError, NotFoundError
from app.services.context import Context
from app.services.steering import existing
from app.store import experiments
from app.store.records import events
from app.store.rows.records import EventRow

_STAGES = {"graft_germinated": "GERMINATED", "graft_fossilized": "FOSSILIZED", "graft_pruned": "PRUNED"}
_ROLLBACK = "governor_rollback"


def timeline(ctx: Context, run_id: str, round_index: int | None = None) -> dict[str, Any]:
    """Return the graft events of one round of a run; without one, of its newest.

    Raises:
        NotFoundError: unknown run, or a round that it has not completed.
        ConflictError: ``no_grafts``: another family of tasks.
    """
    with ctx.store.read() as session:
        run = experiments.run(session, run_id)
        if run is None:
            raise NotFoundError(f"no run {run_id}", code="unknown_run")
        env = existing(session, run.experiment_id).spec["env"]
        if env["kind"] != "morphogenesis":
            raise ConflictError(f"env.kind is {env['kind']}: only morphogenesis grows grafts", code="no_grafts")
        wanted = run.rounds_done - 1 if round_index is None else round_index
        changes = events.of_round(session, run.no, run_id, wanted)
    if changes is None:
        message = f"run {run_id} has completed {run.rounds_done} rounds; there is no round {wanted}"
        raise NotFoundError(message, code="unknown_round")
    return {
        "run_id": run_id,
        "group_id": run.label,
        "replicate": run.replicate,
        "round": wanted,
        "rounds": run.rounds_done,
        "horizon": env["horizon"],
        "envs": list(range(env["n_envs"])),
        "changes": [_item(row) for row in changes if row.type.startswith("graft_") or row.type == _ROLLBACK],
    }


def _item(row: EventRow) -> dict[str, Any]:
    """Return an event as a change of stage; ``contribution`` in percentage points, None where it was not measured."""
    told = row.payload
    return {
        "env_id": row.env_id,
        "step": told.get("step"),
        "type": row.type,
        "slot": told.get("slot"),
        "blueprint": told.get("blueprint"),
        "stage": told.get("to") or _STAGES.get(row.type),
        "from": told.get("from"),
        "alpha": told.get("alpha"),
        "contribution": told.get("c"),
        "params": told.get("params"),
        "reason": told.get("reason"),
    }
