"""The end of an experiment, and registered looks on the way: report, verdict, ``end`` event.

A look is due when its number of complete blocks is reached and no block before the last of them is open; lost ones
count for nothing. The end is recorded once: the report row and the event
``experiment_end`` commit together, and only then do live readers hear ``end``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from app.services.context import Context
from app.services.results.reports import build, has_analysis, store_report
from app.services.steering import cancel_decided
from app.store import experiments
from app.store.database.engine import utc
from app.store.database.opening import why_away
from app.store.queue import blocks
from app.store.records import reports
from app.store.records.events import NewEvent, add_events
from app.store.rows.experiments import ExperimentRow
from lockstep.status import TERMINAL_BLOCK, BlockStatus, Cause, ended_text


def finish_due(ctx: Context) -> int:
    """Record looks that are due and ends that have come; return how many.

    A report that cannot be built holds up no other one: what it raises is raised after all of them.
    """
    with ctx.store.read() as session:
        waiting = experiments.may_be_due(session)
    done, failed = 0, None
    for experiment_id in waiting:
        try:
            done += _finish_one(ctx, experiment_id)
        except Exception as error:
            if why_away(error) is not None:
                raise
            error.add_note(f"the report of {experiment_id} could not be built")
            failed = failed or error
    if failed is not None:
        raise failed
    return done


def _finish_one(ctx: Context, experiment_id: str) -> int:
    with ctx.store.read() as session:
        experiment = experiments.get(session, experiment_id)
        if experiment is None:
            return 0
        rows = experiments.newest_blocks(experiments.blocks(session, experiment_id))
        look = _due_look(session, experiment, rows)
    ended = all(BlockStatus(row.status) in TERMINAL_BLOCK for row in rows)
    done = _look(ctx, experiment, look) if look is not None else 0
    return done + (_end(ctx, experiment_id) if ended and not done else 0)


def _due_look(session: Session, experiment: ExperimentRow, rows: Any) -> tuple[int, int] | None:
    """Return (number, replicates that it may see) of the next registered look, when it is due."""
    looks = (experiment.analysis or {}).get("looks", {})
    if looks.get("mode") != "planned":
        return None
    taken = reports.looks_taken(session, experiment.id)
    number = next((k for k in range(1, len(looks["at"]) + 1) if k not in taken), None)
    if number is None or any(row.cause == Cause.DECIDED for row in rows):
        return None
    complete = 0
    for row in rows:
        if BlockStatus(row.status) not in TERMINAL_BLOCK:
            return None
        complete += row.status == BlockStatus.SUCCEEDED
        if complete == looks["at"][number - 1]:
            return number, row.replicate + 1
    return None


def _look(ctx: Context, experiment: ExperimentRow, look: tuple[int, int]) -> int:
    number, num_blocks = look
    content, scores = build(ctx, experiment.id, look=number, num_blocks=num_blocks)
    with ctx.store.write() as session:
        blocks.lock_all(session, experiment.id)
        locked = experiments.get(session, experiment.id, lock=True)
        if locked is None or number in reports.looks_taken(session, experiment.id):
            return 0
        now = ctx.store.now(session)
        store_report(session, now, experiment.id, content, scores, f"look {number}")
        code = content["verdict"]["code"]
        complete = content["facts"]["complete_blocks"]
        text = f"look {number} at {complete} blocks: {content['verdict']['sentence']}"
        payload = {"look": number, "verdict": code}
        add_events(session, now, experiment.id, [NewEvent("look", text, actor="analysis", payload=payload)])
        if content["verdict"]["settled"]:
            cancel_decided(session, now, experiment.id, f"decided at look {number}")
    ctx.bell.ring()
    return 1


def _end(ctx: Context, experiment_id: str) -> int:
    with ctx.store.read() as session:
        experiment = experiments.get(session, experiment_id)
    if experiment is None:
        return 0
    built = build(ctx, experiment_id) if has_analysis(experiment) else None
    with ctx.store.write() as session:
        locked = experiments.get(session, experiment_id, lock=True)
        if locked is None or locked.finished_at is not None:
            return 0
        rows = experiments.blocks(session, experiment_id)
        status = experiments.derived_status(locked, rows)
        if not all(BlockStatus(row.status) in TERMINAL_BLOCK for row in experiments.newest_blocks(rows)):
            return 0
        now = ctx.store.now(session)
        version = store_report(session, now, experiment_id, *built, "final") if built is not None else None
        verdict = built[0]["verdict"] if built is not None else None
        experiments.change(session, experiment_id, finished_at=utc(now))
        sentence = verdict["sentence"] if verdict is not None else "no analysis was registered"
        event = NewEvent(
            "experiment_end",
            f"the experiment {ended_text(status)}: {sentence}",
            status=status.value,
            payload={
                "verdict": verdict["code"] if verdict is not None else None,
                "sentence": sentence,
                "report_version": version,
            },
        )
        add_events(session, now, experiment_id, [event])
    ctx.bell.ring()
    return 1
