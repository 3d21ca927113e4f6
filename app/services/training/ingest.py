"""Ingest of rounds, points, logs and checkpoints under a lease.

A run's sequence numbers start at 1 in each attempt and have no gaps: round metrics and points
share them, so one cursor follows a run.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.errors import BusyError, InvalidError, LeaseLostError, NotFoundError, TooLargeError
from app.services import disks
from app.services.artifacts import Stored
from app.services.context import Context
from app.services.fencing import fenced
from app.services.training.block_ends import finish_if_complete
from app.store import experiments
from app.store.queue import leases
from app.store.queue.blocks import Why, move_runs
from app.store.records import logs, points, results
from app.store.records.events import NewEvent, add_events
from app.store.records.points import PointRow
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import BlockRow, RunOfArm
from lockstep.nonfinite import decode_map, to_column
from lockstep.protocol import (
    MAX_LOG_LINE_BYTES,
    MAX_METRIC_NAMES,
    MAX_POINTS,
    CommitRequest,
    LogsRequest,
    Points,
    PointsReply,
    PointsRequest,
    RoundRequest,
    RunRound,
)
from lockstep.quoting import shortened
from lockstep.status import TERMINAL_RUN, RunStatus

_EVENT_FIELDS = ("type", "text", "severity", "env_id")


@dataclass(frozen=True)
class RoundOf:
    """One run's result of one round, with what it belongs to."""

    assignment: AssignmentRow
    run: RunOfArm
    index: int
    request: RoundRequest
    result: RunRound


def store_rounds(ctx: Context, session: Session, now: float, items: Sequence[RoundOf]) -> None:
    """Insert round, metrics, episodes and events of runs of one block in the caller's transaction."""
    if not items:
        return
    _store_metrics(ctx, session, now, items)
    results.insert_episodes(session, now, [_episodes(item, item.result.episodes) for item in items])
    results.insert_eval_episodes(session, now, [_episodes(item, item.result.eval_episodes) for item in items])
    results.insert_rounds(session, now, [_round_row(item) for item in items])
    events = [_training_event(item, storable(event)) for item in items for event in item.result.events]
    add_events(session, now, items[0].run.experiment_id, events)


def _episodes(item: RoundOf, rows: Sequence[Mapping[str, Any]]) -> results.EpisodesOf:
    return results.EpisodesOf(item.run, item.assignment.attempt, item.assignment.device_uid, storable(rows))


def _round_row(item: RoundOf) -> dict[str, Any]:
    return {
        "run_no": item.run.no,
        "attempt": item.assignment.attempt,
        "round": item.index,
        "digest": item.result.digest,
        "env_steps": float(item.result.env_steps),
        "seconds": item.request.seconds,
        "update_order": list(item.request.update_order),
    }


def _store_metrics(ctx: Context, session: Session, now: float, items: Sequence[RoundOf]) -> None:
    attempt = items[0].assignment.attempt
    rows = {item.run.no: _metric_rows(ctx, session, now, item) for item in items}
    points.insert_of_runs(session, attempt, rows)
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for run_no, of_run in rows.items():
        if of_run:
            alike[of_run[0].seq, len(of_run)].append(run_no)
    for (first_seq, count), run_nos in alike.items():
        points.follow(session, run_nos, attempt, first_seq, count)


def _metric_rows(ctx: Context, session: Session, now: float, item: RoundOf) -> list[PointRow]:
    result = item.result
    values = decode_map(result.metrics, result.nf)
    names = [name for name in result.metrics if name in values]
    if len(result.metrics) > MAX_METRIC_NAMES:
        raise InvalidError(
            f"{len(result.metrics)} metric names exceed the limit of {MAX_METRIC_NAMES} a run",
            code="too_many_metrics",
        )
    ids = ctx.names.ids(session, names)
    rows = []
    for offset, (name, name_id) in enumerate(zip(names, ids, strict=True)):
        value, kind = to_column(values[name])
        steps = float(result.env_steps)
        rows.append(PointRow(result.first_seq + offset, name_id, steps, item.index, now, value, kind))
    return rows


def _training_event(item: RoundOf, event: dict[str, Any]) -> NewEvent:
    run = item.run
    payload = {key: value for key, value in event.items() if key not in _EVENT_FIELDS}
    kind = str(event.get("type", "training"))[:40]
    return NewEvent(
        type=kind,
        text=str(event.get("text") or kind.replace("_", " ")),
        actor="worker",
        severity=str(event.get("severity", "info"))[:8],
        block_id=run.block_id,
        run_id=run.id,
        replicate=run.replicate,
        group_id=run.label,
        reward_mode=run.reward_mode,
        device=item.assignment.device_uid,
        round=item.index,
        env_id=event.get("env_id"),
        payload=payload,
    )


def post_points(ctx: Context, assignment_id: str, token: str, request: PointsRequest) -> PointsReply:
    """Store points of the open round; those already there are ignored."""
    total = sum(len(series.value) for series in request.series)
    if total > MAX_POINTS:
        raise InvalidError(f"{total} points exceed the limit of {MAX_POINTS} a request", code="too_many_points")
    with ctx.store.write(bulk=True) as session:
        row, _, _ = fenced(ctx, session, assignment_id, token)
        numbers = {run.id: run.no for run in experiments.runs_of_assignment(session, row.id)}
        highest: dict[str, int] = {}
        for series in request.series:
            number = numbers.get(series.run_id)
            if number is None:
                raise InvalidError(f"run {shortened(series.run_id)} is not part of this assignment", code="foreign_run")
            points.insert_points(session, number, row.attempt, _point_rows(ctx, session, series))
            count = len(series.value)
            highest[series.run_id] = points.advance(session, number, row.attempt, series.first_seq, count)
    ctx.bell.ring()
    return PointsReply(acknowledged=highest)


def _point_rows(ctx: Context, session: Session, series: Points) -> list[PointRow]:
    length = len(series.value)
    columns: Sequence[Sequence[Any]] = (series.name_index, series.step, series.round, series.t)
    if any(len(column) != length for column in columns):
        raise InvalidError("the columns of a series must have equal lengths", code="ragged_points")
    if any(index < 0 or index >= len(series.names) for index in series.name_index):
        raise InvalidError("name_index points outside of names", code="unknown_name_index")
    if len(series.names) > MAX_METRIC_NAMES:
        raise InvalidError(f"at most {MAX_METRIC_NAMES} metric names a run", code="too_many_metrics")
    ids = ctx.names.ids(session, series.names)
    marks = {index: decode_map({}, [("", word)])[""] for index, word in series.nf}
    seqs = range(series.first_seq, series.first_seq + length)
    kinds = [0] * length
    if None in series.value:
        for offset, value in enumerate(series.value):
            if value is None:
                kinds[offset] = to_column(marks.get(offset, float("nan")))[1]
    names = [ids[index] for index in series.name_index]
    steps = map(float, series.step)
    rows = zip(seqs, names, steps, series.round, series.t, series.value, kinds, strict=True)
    return list(map(PointRow._make, rows))


def post_logs(ctx: Context, assignment_id: str, token: str, request: LogsRequest) -> None:
    """Store log lines; those already there are ignored, long ones are cut and say so."""
    with ctx.store.write() as session:
        row, _, now = fenced(ctx, session, assignment_id, token)
        lines = [(line.seq, line.level, _cut(storable(line.text))) for line in request.lines]
        logs.insert_lines(session, now, row, lines)


def storable(value: Any) -> Any:
    """Return a value whose texts both databases can hold: without NUL and lone surrogates."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [storable(item) for item in value]
    return value


def _cut(text: str) -> str:
    raw = text.encode()
    if len(raw) <= MAX_LOG_LINE_BYTES:
        return text
    return raw[: MAX_LOG_LINE_BYTES - 20].decode(errors="ignore") + " .. (line cut)"


@dataclass(frozen=True)
class Upload:
    """An uploaded file of a run: checkpoint or policy."""

    run_id: str
    kind: str
    name: str
    next_round: int | None
    sha256: str


def put_piece(
    ctx: Context, assignment_id: str, token: str, upload: Upload, offset: int, size: int, piece: bytes
) -> Stored | None:
    """Keep a piece of a file under the lease; with the last one the file is stored and returned.

    Raises:
        InvalidError: the piece ends behind the file, or the pieces do not make up its hash: send them all again.
        TooLargeError: the file is larger than any may be.
    """
    if size > ctx.settings.max_artifact_bytes:
        raise TooLargeError(f"the file exceeds {ctx.settings.max_artifact_bytes} bytes", code="artifact_too_large")
    if offset + len(piece) > size:
        raise InvalidError(f"the piece ends behind the {size} bytes of its file", code="piece_outside")
    _check_lease(ctx, assignment_id, token)
    key = hashlib.sha256(f"{assignment_id} {upload.sha256}".encode()).hexdigest()
    ctx.files.put_piece(key, offset, piece)
    if offset + len(piece) < size:
        return None
    with ctx.files.pieces(key) as chunks:
        return put_file(ctx, assignment_id, token, upload, chunks)


def _check_lease(ctx: Context, assignment_id: str, token: str) -> None:
    with ctx.store.read() as session:
        row = leases.get(session, assignment_id)
        if row is None or row.token != leases.token_hash(token):
            raise LeaseLostError("the lease does not hold any more")


def put_file(ctx: Context, assignment_id: str, token: str, upload: Upload, chunks: Iterable[bytes]) -> Stored:
    """Store a file under the lease; a checkpoint counts only after ``commit``."""
    _check_lease(ctx, assignment_id, token)
    stored = ctx.files.put(chunks, max_bytes=ctx.settings.max_artifact_bytes)
    if stored.sha256 != upload.sha256:
        raise InvalidError("the content does not match its SHA-256; send it again", code="checksum_mismatch")
    with ctx.store.write() as session:
        row, block, now = fenced(ctx, session, assignment_id, token)
        if upload.run_id not in leases.run_ids(session, row.id):
            raise InvalidError(f"run {shortened(upload.run_id)} is not part of this assignment", code="foreign_run")
        results.insert_artifact(
            ctx.store,
            session,
            now,
            {
                "experiment_id": block.experiment_id,
                "run_id": upload.run_id,
                "kind": upload.kind,
                "name": upload.name[:200],
                "sha256": stored.sha256,
                "size_bytes": float(stored.size_bytes),
                "media_type": "application/octet-stream",
                "next_round": upload.next_round,
                "attempt": row.attempt,
                "committed": upload.kind != "checkpoint",
            },
        )
    return stored


def commit(ctx: Context, assignment_id: str, token: str, request: CommitRequest) -> None:
    """Commit the checkpoints before a round for all runs of the assignment; the last one ends the runs."""
    with ctx.store.write() as session:
        row, block, now = fenced(ctx, session, assignment_id, token)
        mine = set(leases.run_ids(session, row.id))
        records = []
        for item in request.runs:
            stored = results.uploaded(session, item.run_id, row.attempt, request.next_round, item.sha256)
            if item.run_id not in mine or stored is None:
                raise NotFoundError(
                    f"no uploaded checkpoint of run {shortened(item.run_id)}", code="unknown_checkpoint"
                )
            records.append(stored)
        runs = experiments.runs(session, block.experiment_id, block_id=block.id)
        # a run that has diverged hands in no further round, and is saved as it ended
        done = {run.id: run.rounds_done for run in runs if run.status not in TERMINAL_RUN}
        if any(request.next_round > done.get(item.run_id, request.next_round) for item in request.runs):
            raise InvalidError(
                f"round {request.next_round - 1} has not been handed in by this assignment", code="round_not_open"
            )
        results.commit_artifacts(session, [stored.id for stored in records])
        removed = _after_commit(session, now, block, request, [item.run_id for item in request.runs])
    for sha256 in removed:
        ctx.files.remove(sha256)
    ctx.bell.ring()


def _after_commit(
    session: Session, now: float, block: BlockRow, request: CommitRequest, run_ids: Sequence[str]
) -> list[str]:
    experiment = experiments.get(session, block.experiment_id)
    if experiment is None:
        return []
    event = NewEvent(
        type="checkpoint_saved",
        text=f"checkpoint before round {request.next_round}",
        actor="worker",
        block_id=block.id,
        replicate=block.replicate,
        round=request.next_round,
        payload={run.run_id: run.sha256 for run in request.runs},
    )
    add_events(session, now, block.experiment_id, [event])
    old = [
        row
        for run_id in run_ids
        for row in results.superseded_checkpoints(
            session, run_id, experiment.spec["checkpoint"]["keep"], experiment.rounds
        )
    ]
    if request.next_round >= experiment.rounds:
        move_runs(session, now, block, RunStatus.SUCCEEDED, Why("worker"), run_ids=run_ids)
        finish_if_complete(session, now, block.id)
    return [row.sha256 for row in old if not results.sha_in_use(session, row.sha256)]


def read_file(ctx: Context, assignment_id: str, token: str, sha256: str) -> bytes:
    """Return a committed checkpoint of a run of the assignment.

    Raises:
        NotFoundError: no such file of these runs, or none that is whole on any server.
        BusyError: another server may have it.
    """
    with ctx.store.read() as session:
        row = leases.get(session, assignment_id)
        if row is None:
            raise NotFoundError(f"no assignment {assignment_id}", code="unknown_assignment")
        if row.token != leases.token_hash(token):
            raise LeaseLostError("the lease does not hold any more")
        mine = leases.run_ids(session, assignment_id)
        if not results.file_of_runs(session, mine, sha256):
            raise NotFoundError("no such checkpoint of these runs", code="unknown_checkpoint")
    content = ctx.files.read(sha256)
    if content is None:
        with ctx.store.write() as session:
            lost = disks.is_lost(ctx, session, sha256)
            if lost:
                results.withdraw_file(session, sha256)
        if not lost:
            raise BusyError(
                f"checkpoint {sha256[:12]} is not on this server's disk, and the other servers are asked; "
                "give all of them one folder of files (LOCKSTEP_DATA_DIR)"
            )
        raise NotFoundError(
            f"checkpoint {sha256[:12]} is damaged on the server; the next attempt resumes from the one before",
            code="corrupt_checkpoint",
        )
    return content
