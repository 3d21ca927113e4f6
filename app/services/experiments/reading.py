"""Documents the API shows: experiments, blocks, runs, workers, the queue, series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from app.errors import InvalidError, NotFoundError
from app.services.context import Context
from app.services.experiments.cursors import decode_cursor, encode_cursor, encode_numbers
from app.services.queue import forecast
from app.services.queue import waiting as explaining
from app.services.steering import existing
from app.services.training import causes
from app.services.training.evaluating import evaluating
from app.store import experiments
from app.store.experiments import Listing
from app.store.queue import workers
from app.store.records import events, logs, points, reports, results
from app.store.rows.experiments import ArmRow, BlockRow, BlockState, ListedExperiment, RunOfArm
from app.store.rows.records import ArtifactRow, Headline
from app.store.rows.workers import FailureOnWorker, HoldingWorker, WorkerEventRow, WorkerRow
from lockstep.report.facing import faced
from lockstep.report.words.glossary import FLAGS
from lockstep.spec.metrics import find_metric, primary_of, shown_of
from lockstep.status import ACTIVE_BLOCK, REQUEUE_BUDGET, TERMINAL_BLOCK, BlockStatus, Desired, WorkerStatus

#: Events of each worker in the list of workers.
_SHOWN_EVENTS = 3


@dataclass(frozen=True)
class ListRequest:
    """Filters of the experiment list."""

    owner: str | None = None
    tag: str | None = None
    text: str | None = None
    status: str | None = None
    cursor: str | None = None
    limit: int = 50


def list_experiments(ctx: Context, request: ListRequest) -> dict[str, Any]:
    """Return a page of experiments, newest first; ``next`` is null at the end."""
    listing = Listing(
        request.status, request.owner, request.tag, request.text, _before(request.cursor), request.limit + 1
    )
    with ctx.store.read() as session:
        rows = experiments.list_page(session, listing)
        shown = rows[: request.limit]
        ids = [row.id for row in shown]
        states = experiments.block_states(session, ids)
        labels = experiments.arm_labels(session, ids)
        concluded = {row.experiment_id: row for row in reports.headlines(session, ids)}
        now = ctx.store.now(session)
    last = (shown[-1].created_at, shown[-1].id) if len(rows) > len(shown) else None
    items = [
        {**_list_item(row, states[row.id], now), "arms": labels[row.id], "answer": answer_of(concluded.get(row.id))}
        for row in shown
    ]
    return {"items": items, "next": _after(last)}


def answer_of(headline: Headline | None) -> dict[str, Any] | None:
    """Return what a report concludes in one line: verdict, the pair of arms it rests on, its interval.

    ``cautions``: what each flag means. The pair is the closest one of the winner, else the first; ``a`` is the
    treatment, ``b`` the baseline (the control, or what comes first in the specification). The difference is oriented:
    positive, ``a`` is better. ``ci_superiority`` (level 1 - ``alpha_used``) decides whether there is a difference,
    ``ci_equivalence`` (1 - 2 ``alpha_used``) whether it matters.
    """
    if headline is None:
        return None
    verdict, analysis = headline.verdict, headline.registration["analysis"]
    winner = verdict["winner"]
    pairs = [pair for pair in headline.comparisons if pair["inference"] and pair["estimate"] is not None]
    own = [pair for pair in pairs if winner in (pair["a"], pair["b"])]
    pair = min(own, key=lambda item: abs(item["estimate"])) if own else pairs[0] if pairs else None
    return {
        **{name: verdict[name] for name in ("code", "winner", "sentence", "flags", "settled", "promotable")},
        "cautions": [{"flag": flag, "text": FLAGS.get(flag, "")} for flag in verdict["flags"]],
        "pair": pair and _facing(pair, analysis["control"]),
        "sesoi": analysis["sesoi"],
        "estimand": analysis["estimand"],
        "unit": getattr(find_metric(analysis["primary"]["metric"]), "unit", ""),
    }


def _facing(pair: Mapping[str, Any], control: str | None) -> dict[str, Any]:
    """Return a pair of arms with the treatment first."""
    kept = ("a", "b", "estimate", "alpha_used", "ci_superiority", "ci_equivalence", "p_adj")
    return {name: value for name, value in faced(pair, control).items() if name in kept}


def _before(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    parts = decode_cursor(cursor)
    try:
        return datetime.fromisoformat(parts[0]), str(parts[1])
    except (IndexError, TypeError, ValueError) as error:
        raise InvalidError("the cursor is not one that this server gave", code="bad_cursor") from error


def _after(before: tuple[datetime, str] | None) -> str | None:
    return encode_cursor(before[0].isoformat(), before[1]) if before else None


def _list_item(row: ListedExperiment, states: Sequence[BlockState], now: float) -> dict[str, Any]:
    newest = experiments.newest_blocks(states)
    return {
        "id": row.id,
        "name": row.name,
        "status": experiments.derived_status(row, states).value,
        "kind": row.kind,
        "mode": row.mode,
        "owner": row.owner_name,
        "owner_id": row.owner,
        "tags": row.tags,
        "priority": row.priority,
        "created_at": row.created_at.isoformat(),
        "finished_at": row.finished_at and row.finished_at.isoformat(),
        "num_arms": row.num_arms,
        "progress": _progress(row, newest),
        "started_at": min((state.started_at.isoformat() for state in states if state.started_at), default=None),
        "seconds_left": forecast.seconds_left(row.rounds, newest, now) if row.desired == Desired.RUN else None,
    }


def _progress(row: ListedExperiment, newest: Sequence[BlockState]) -> dict[str, Any]:
    rounds = row.rounds * max(1, len(newest))
    done = sum(forecast.done_of(row.rounds, state) for state in newest)
    count = {status.value: sum(state.status == status for state in newest) for status in BlockStatus}
    return {
        "blocks": len(newest),
        "blocks_by_status": {name: number for name, number in count.items() if number},
        "rounds_total": rounds,
        "rounds_done": done,
        "fraction": round(done / rounds, 4),
    }


def show_experiment(ctx: Context, experiment_id: str) -> dict[str, Any]:
    """Return an experiment with its spec, arms, progress, why it waits, and why blocks gave no result."""
    with ctx.store.read() as session:
        row = existing(session, experiment_id)
        states = experiments.blocks(session, experiment_id)
        arms = experiments.arms(session, experiment_id)
        waiting = explaining.why_waiting(ctx, session, row, states)
        is_active = any(state.status in ACTIVE_BLOCK for state in states)
        evaluation = evaluating(session, experiment_id) if is_active else None
        concluded = reports.headlines(session, [experiment_id])
        now = ctx.store.now(session)
        told = causes.told(experiments.newest_blocks(states), ())
        if told:  # else the runs, which may be thousands, need not be read
            told = causes.told(experiments.newest_blocks(states), experiments.runs(session, experiment_id))
        again = any(state.attempt > 1 for state in states)
        stops = events.stops(session, experiment_id, list(REQUEUE_BUDGET)) if again else []
    document = _list_item(row, states, now)
    return {
        **document,
        "notes": row.notes,
        "rounds": row.rounds,
        "desired": row.desired,
        "placement": row.placement_resolved or row.placement,
        "spec": row.spec,
        "spec_hash": row.spec_hash,
        "analysis_hash": row.analysis_hash,
        "warnings": row.warnings,
        "parent_id": row.parent_id,
        "exploratory_from": row.exploratory_from,
        "arms": [arm_document(arm) for arm in arms],
        "shown": asdict(shown_of(primary_of(row.spec))),
        "why_waiting": waiting,
        "evaluating": evaluation,
        "causes": told,
        "repeats": causes.repeated(experiments.newest_blocks(states), stops),
        "answer": answer_of(concluded[0] if concluded else None),
        "version": row.version,
        "cursor": encode_numbers([row.event_seq]),
    }


def arm_document(arm: ArmRow) -> dict[str, Any]:
    """Return an arm as the API shows it."""
    return {
        "label": arm.label,
        "index": arm.arm_index,
        "policy": arm.policy,
        "reward_mode": arm.reward_mode,
        "diff": arm.diff,
    }


def list_blocks(ctx: Context, experiment_id: str) -> list[dict[str, Any]]:
    """Return the blocks of an experiment."""
    with ctx.store.read() as session:
        existing(session, experiment_id)
        return [_block_document(row) for row in experiments.blocks(session, experiment_id)]


def _block_document(row: BlockRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "replicate": row.replicate,
        "generation": row.generation,
        "status": row.status,
        "cause": row.cause,
        "cause_text": row.cause_text,
        "attempt": row.attempt,
        "resume_round": row.resume_round,
        "open_round": row.open_round,
        "num_diverged": row.num_diverged,
        "created_at": row.created_at.isoformat(),
        "started_at": row.started_at and row.started_at.isoformat(),
        "finished_at": row.finished_at and row.finished_at.isoformat(),
        "is_finished": BlockStatus(row.status) in TERMINAL_BLOCK,
    }


def list_runs(ctx: Context, experiment_id: str) -> list[dict[str, Any]]:
    """Return the runs of an experiment: group_id, device, mode, progress (F1 task 1)."""
    with ctx.store.read() as session:
        existing(session, experiment_id)
        return [run_document(row) for row in experiments.runs(session, experiment_id)]


def run_document(row: RunOfArm) -> dict[str, Any]:
    """Return a run as the API shows it."""
    return {
        "id": row.id,
        "block_id": row.block_id,
        "replicate": row.replicate,
        "generation": row.generation,
        "group_id": row.label,
        "reward_mode": row.reward_mode,
        "policy": row.policy,
        "status": row.status,
        "cause": row.cause,
        "cause_text": row.cause_text,
        "rounds_done": row.rounds_done,
        "env_steps": int(row.env_steps),
        "stalled": row.stalled,
        "resumed": row.resumed,
        "device": row.device_uid,
        "device_seconds": round(row.device_seconds, 3),
    }


def show_run(ctx: Context, run_id: str) -> dict[str, Any]:
    """Return one run with its metric names and attempts."""
    with ctx.store.read() as session:
        row = experiments.run(session, run_id)
        if row is None:
            raise NotFoundError(f"no run {run_id}", code="unknown_run")
        names = points.names_of_run(session, row.no)
    return {**run_document(row), "experiment_id": row.experiment_id, "metrics": names}


def read_logs(
    ctx: Context, run_id: str, *, cursor: str | None, level: str, limit: int, before: str | None = None
) -> dict[str, Any]:
    """Return log lines of the block of a run: after a cursor, before one, or the newest ones."""
    with ctx.store.read() as session:
        row = experiments.run(session, run_id)
        if row is None:
            raise NotFoundError(f"no run {run_id}", code="unknown_run")
        after = _log_position(cursor)
        wanted = logs.LEVELS[logs.LEVELS.index(level) :]
        older = _log_position(before)
        lines = logs.read(session, row.block_id, levels=wanted, after=after, before=older, limit=limit)
        first = (lines[0].attempt, lines[0].seq) if lines else None
        more = first and logs.read(session, row.block_id, levels=wanted, after=None, before=first, limit=1)
    last = (lines[-1].attempt, lines[-1].seq) if lines else after
    return {
        "items": [
            {
                "attempt": line.attempt,
                "seq": line.seq,
                "level": line.level,
                "text": line.text,
                "at": line.at.isoformat(),
            }
            for line in lines
        ],
        "next": encode_cursor(*last) if last else None,
        "previous": encode_cursor(*first) if first and more else None,
    }


def _log_position(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    parts = decode_cursor(cursor)
    if len(parts) != 2 or not all(isinstance(part, int) for part in parts):
        raise InvalidError("the cursor is not one that this server gave", code="bad_cursor")
    return parts[0], parts[1]


def list_events(ctx: Context, experiment_id: str, *, after: int, limit: int) -> dict[str, Any]:
    """Return the timeline of an experiment after an event number."""
    with ctx.store.read() as session:
        existing(session, experiment_id)
        rows = events.list_events(session, experiment_id, after=after, limit=limit)
    return {
        "items": [events.event_document(row) for row in rows],
        "next": rows[-1].seq if rows else after,
    }


def list_artifacts(ctx: Context, experiment_id: str) -> list[dict[str, Any]]:
    """Return the committed files of an experiment."""
    with ctx.store.read() as session:
        existing(session, experiment_id)
        return [artifact_document(row) for row in results.artifacts(session, experiment_id)]


def artifact_document(row: ArtifactRow) -> dict[str, Any]:
    """Return an artifact as the API shows it."""
    return {
        "id": row.id,
        "experiment_id": row.experiment_id,
        "run_id": row.run_id,
        "kind": row.kind,
        "name": row.name,
        "sha256": row.sha256,
        "size_bytes": int(row.size_bytes),
        "media_type": row.media_type,
        "next_round": row.next_round,
        "created_at": row.created_at.isoformat(),
    }


def show_artifact(ctx: Context, artifact_id: str) -> ArtifactRow:
    """Return the row of a committed artifact."""
    with ctx.store.read() as session:
        row = results.artifact(session, artifact_id)
    if row is None or not row.committed:
        raise NotFoundError(f"no artifact {artifact_id}", code="unknown_artifact")
    return row


def list_workers(ctx: Context, *, include_retired: bool = False) -> list[dict[str, Any]]:
    """Return workers with device, health and the block each one holds."""
    with ctx.store.read() as session:
        now = ctx.store.now(session)
        rows = [row for row in workers.listing(session) if include_retired or row.status != WorkerStatus.RETIRED]
        held = {name: list(of) for name, of in groupby(rows, key=lambda row: row.id)}
        timeline = workers.newest_events(session, list(held), _SHOWN_EVENTS)
        failures = {row.worker_id: row for row in workers.last_failures(session, list(held))}
    newest: dict[str, list[WorkerEventRow]] = {}
    for event in timeline:
        newest.setdefault(event.worker_id, []).append(event)
    return [worker_document(of, now, newest.get(name, []), failures.get(name)) for name, of in held.items()]


def show_worker(ctx: Context, worker_id: str) -> dict[str, Any]:
    """Return one worker with its newest events."""
    with ctx.store.read() as session:
        now = ctx.store.now(session)
        rows = [row for row in workers.listing(session) if row.id == worker_id]
        if not rows:
            raise NotFoundError(f"no worker {worker_id}", code="unknown_worker")
        timeline = events.worker_events(session, worker_id)
        failures = workers.last_failures(session, [worker_id])
    return worker_document(rows, now, timeline, failures[0] if failures else None)


def defects_of(row: WorkerRow) -> list[dict[str, str]]:
    """Return the plug-ins that a worker cannot use, with the reason; no job that names one is given to it."""
    kinds = (
        ("reward", workers.usable_rewards(row.rewards)),
        ("environment", workers.usable_environments(row.environments)),
    )
    return [
        {"kind": kind, "name": name, "reason": str(facts["defect"])}
        for kind, announced in kinds
        for name, facts in sorted(announced.items())
        if "defect" in facts
    ]


def worker_document(
    rows: Sequence[HoldingWorker], now: float, timeline: Sequence[WorkerEventRow], failure: FailureOnWorker | None
) -> dict[str, Any]:
    """Return a worker as the API shows it, with its newest events first; ages are computed by the server.

    Args:
        rows: of the worker, one for each block that it holds, or one.
        now: by the database clock.
        timeline: its newest events.
        failure: the last one on it.
    """
    row, last_error = rows[0], None
    if failure is not None:
        last_error = {
            "at": failure.ended_at.isoformat(),
            "cause": failure.cause,
            "text": failure.detail,
            "experiment_id": failure.experiment_id,
            "replicate": failure.replicate,
        }
    return {
        "id": row.id,
        "name": row.name,
        "host": row.host,
        "status": row.status,
        "status_text": row.status_text,
        "since": (timeline[0].at if timeline else row.registered_at).isoformat(),
        "drain": row.drain,
        "device_uid": row.device_uid,
        "device_class": row.device_class,
        "device_model": row.device_model,
        "memory_bytes": int(row.memory_bytes),
        "max_blocks": row.max_blocks,
        "health": row.health,
        "versions": row.versions,
        "datasets": row.datasets,
        "defects": defects_of(row),
        "seen_seconds_ago": round(max(0.0, now - row.seen_epoch), 1),
        "registered_at": row.registered_at.isoformat(),
        "holds": _held(rows),
        "last_error": last_error,
        "events": [
            {"at": event.at.isoformat(), "status": event.status, "actor": event.actor, "text": event.text}
            for event in timeline
        ],
    }


def _held(rows: Sequence[HoldingWorker]) -> dict[str, Any] | None:
    row = rows[0]
    if row.block_id is None:
        return None
    return {
        "experiment_id": row.experiment_id,
        "experiment_name": row.experiment_name,
        "block_id": row.block_id,
        "replicate": row.replicate,
        "progress": row.progress,
        "blocks": [{"block_id": r.block_id, "replicate": r.replicate, "progress": r.progress} for r in rows],
        "rounds": row.rounds,
        "since": row.offered_at.isoformat() if row.offered_at is not None else None,
    }
