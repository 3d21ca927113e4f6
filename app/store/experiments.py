"""Experiments, their arms, blocks and runs: insertion, reading and listing."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    Case,
    Float,
    FromClause,
    Integer,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from app.store.database.engine import Store, utc
from app.store.database.prepared import pairs_in, update_one
from app.store.rows.assignments import AssignmentRow
from app.store.rows.experiments import (
    ArmRow,
    BlockRow,
    BlockState,
    ExperimentRow,
    ListedExperiment,
    RunInRound,
    RunOfArm,
    RunRow,
)
from app.store.rows.selecting import columns, every, one
from app.store.schema import tables as t
from lockstep.status import (
    ACTIVE_BLOCK,
    OPEN_BLOCK,
    BlockStatus,
    Cause,
    Desired,
    ExperimentStatus,
    RunStatus,
    experiment_status,
)


@dataclass(frozen=True)
class NewBlock:
    """A block to insert: one replicate and its runs, by arm."""

    replicate: int
    generation: int
    num_arms: int
    min_memory_bytes: float = 0.0


def insert_experiment(session: Session, values: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> None:
    """Insert an experiment and its arms."""
    session.execute(insert(t.experiment).values(**values))
    session.execute(insert(t.arm), [{**arm, "experiment_id": values["id"]} for arm in arms])


def insert_blocks(
    store: Store, session: Session, now: float, experiment_id: str, blocks: Sequence[NewBlock]
) -> list[str]:
    """Insert queued blocks with their pending runs; return the block ids."""
    ids = [store.new_id("blk") for _ in blocks]
    session.execute(
        insert(t.block),
        [_block_row(block_id, experiment_id, now, block) for block_id, block in zip(ids, blocks, strict=True)],
    )
    session.execute(
        insert(t.run),
        [
            _run_row(store.new_id("run"), block_id, experiment_id, block, index)
            for block_id, block in zip(ids, blocks, strict=True)
            for index in range(block.num_arms)
        ],
    )
    return ids


def _block_row(block_id: str, experiment_id: str, now: float, block: NewBlock) -> dict[str, Any]:
    return {
        "id": block_id,
        "experiment_id": experiment_id,
        "replicate": block.replicate,
        "generation": block.generation,
        "status": BlockStatus.QUEUED,
        "desired": Desired.RUN,
        "counts_against_budget": True,
        "attempt": 0,
        "resume_round": 0,
        "open_round": 0,
        "num_diverged": 0,
        "budget_used": {},
        "not_before_epoch": 0.0,
        "waiting_since_epoch": now,
        "min_memory_bytes": block.min_memory_bytes,
        "created_at": utc(now),
    }


def _run_row(run_id: str, block_id: str, experiment_id: str, block: NewBlock, index: int) -> dict[str, Any]:
    return {
        "id": run_id,
        "block_id": block_id,
        "experiment_id": experiment_id,
        "replicate": block.replicate,
        "generation": block.generation,
        "arm_index": index,
        "status": RunStatus.PENDING,
        "rounds_done": 0,
        "env_steps": 0.0,
        "stalled": False,
        "resumed": 0,
        "device_seconds": 0.0,
        "record": {},
    }


def get(session: Session, experiment_id: str, *, lock: bool = False) -> ExperimentRow | None:
    """Return an experiment that is not deleted; ``lock`` holds its row to the end of the transaction."""
    return one(ExperimentRow, session.execute(_ONE_LOCKED if lock else _ONE, {"experiment_id": experiment_id}))


_ONE = select(*columns(ExperimentRow, t.experiment)).where(
    t.experiment.c.id == bindparam("experiment_id"), t.experiment.c.deleted_at.is_(None)
)
_ONE_LOCKED = _ONE.with_for_update()


def arms(session: Session, experiment_id: str) -> list[ArmRow]:
    """Return the arms in the order of the spec."""
    return every(ArmRow, session.execute(_ARMS, {"experiment_id": experiment_id}))


def listed(session: Session, experiment_ids: Collection[str]) -> dict[str, ListedExperiment]:
    """Return experiments without their specs, by id; deleted ones too, which a worker may still hold."""
    query = select(*columns(ListedExperiment, t.experiment)).where(t.experiment.c.id.in_(experiment_ids))
    return {row.id: row for row in every(ListedExperiment, session.execute(query))}


def arm_labels(session: Session, experiment_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return {experiment: labels of its arms in the order of the spec}."""
    query = select(t.arm.c.experiment_id, t.arm.c.label).where(t.arm.c.experiment_id.in_(experiment_ids))
    labels: dict[str, list[str]] = {experiment_id: [] for experiment_id in experiment_ids}
    for row in session.execute(query.order_by(t.arm.c.arm_index)):
        labels[row.experiment_id].append(row.label)
    return labels


_ARMS = (
    select(*columns(ArmRow, t.arm))
    .where(t.arm.c.experiment_id == bindparam("experiment_id"))
    .order_by(t.arm.c.arm_index)
)


def blocks(session: Session, experiment_id: str) -> list[BlockRow]:
    """Return all blocks, by replicate and generation."""
    return every(BlockRow, session.execute(_BLOCKS, {"experiment_id": experiment_id}))


_BLOCKS = (
    select(*columns(BlockRow, t.block))
    .where(t.block.c.experiment_id == bindparam("experiment_id"))
    .order_by(t.block.c.replicate, t.block.c.generation)
)


State = TypeVar("State", bound=BlockState)


def newest_blocks(rows: Sequence[State]) -> list[State]:
    """Return the newest generation of each replicate."""
    newest: dict[int, State] = {}
    for row in rows:
        if row.replicate not in newest or newest[row.replicate].generation < row.generation:
            newest[row.replicate] = row
    return [newest[replicate] for replicate in sorted(newest)]


def runs(session: Session, experiment_id: str, *, block_id: str | None = None) -> list[RunOfArm]:
    """Return runs by replicate, generation and arm, with the arm's label."""
    if block_id is not None:  # not the experiment too: its index would be taken, with every run in it
        return every(RunOfArm, session.execute(_RUNS_OF_BLOCK, {"block_id": block_id}))
    return every(RunOfArm, session.execute(_RUNS.where(t.run.c.experiment_id == experiment_id)))


_RUN = select(*columns(RunRow, t.run), t.arm.c.label, t.arm.c.reward_mode, t.arm.c.policy).join(
    t.arm, and_(t.arm.c.experiment_id == t.run.c.experiment_id, t.arm.c.arm_index == t.run.c.arm_index)
)
_RUNS = _RUN.order_by(t.run.c.replicate, t.run.c.generation, t.run.c.arm_index)
_RUNS_OF_BLOCK = _RUNS.where(t.run.c.block_id == bindparam("block_id"))


def runs_in_round(session: Session, assignment: AssignmentRow, index: int) -> list[RunInRound]:
    """Return the runs of an assignment's block by arm, each with what is stored of a round of this attempt."""
    given = {"of_assignment": assignment.id, "attempt": assignment.attempt, "index": index}
    return every(RunInRound, session.execute(_RUNS_IN_ROUND, {**given, "block_id": assignment.block_id}))


_IS_MINE = and_(t.assignment_run.c.assignment_id == bindparam("of_assignment"), t.assignment_run.c.run_id == t.run.c.id)
_OF_ROUND = and_(
    t.round_result.c.run_no == t.run.c.no,
    t.round_result.c.attempt == bindparam("attempt"),
    t.round_result.c.round == bindparam("index"),
)
_RUNS_IN_ROUND = (
    _RUNS_OF_BLOCK.outerjoin(t.assignment_run, _IS_MINE)
    .outerjoin(t.round_result, _OF_ROUND)
    .add_columns(t.assignment_run.c.run_id.is_not(None), t.round_result.c.digest)
)


def runs_of_assignment(session: Session, assignment_id: str) -> list[RunOfArm]:
    """Return the runs of an assignment by arm, with the arm's label."""
    return every(RunOfArm, session.execute(_RUNS_OF_SHARE, {"assignment_id": assignment_id}))


_RUNS_OF_SHARE = _RUNS.join(t.assignment_run, t.assignment_run.c.run_id == t.run.c.id).where(
    t.assignment_run.c.assignment_id == bindparam("assignment_id")
)


_RUNS_OF_SHARES = (
    _RUNS.join(t.assignment_run, t.assignment_run.c.run_id == t.run.c.id)
    .where(t.assignment_run.c.assignment_id.in_(bindparam("assignment_ids", expanding=True)))
    .add_columns(t.assignment_run.c.assignment_id)
)


def runs_of_assignments(session: Session, assignment_ids: Collection[str]) -> dict[str, list[RunOfArm]]:
    """Return the runs of each of these assignments by arm, with the arm's label."""
    found: dict[str, list[RunOfArm]] = {name: [] for name in assignment_ids}
    for *row, name in session.execute(_RUNS_OF_SHARES, {"assignment_ids": list(found)}):
        found[name].append(RunOfArm(*row))
    return found


def run(session: Session, run_id: str) -> RunOfArm | None:
    """Return a run with its arm's label."""
    return one(RunOfArm, session.execute(_RUN.where(t.run.c.id == run_id)))


def derived_status(experiment: ListedExperiment, block_rows: Sequence[BlockState]) -> ExperimentStatus:
    """Derive the status from the newest blocks."""
    return experiment_status(
        [(BlockStatus(row.status), Cause(row.cause) if row.cause else None) for row in newest_blocks(block_rows)],
        Desired(experiment.desired),
        ever_started=any(row.attempt > 0 for row in block_rows),
    )


def _derived_in_sql() -> Case[str]:
    """Return what ``derived_status`` says of a row of the experiment table, for a filter."""
    blocks, later = t.block.alias(), t.block.alias()
    mine = blocks.c.experiment_id == t.experiment.c.id
    same = (later.c.experiment_id == blocks.c.experiment_id) & (later.c.replicate == blocks.c.replicate)
    newest = ~exists().where(same, later.c.generation > blocks.c.generation)

    def has(*conditions: Any) -> Any:
        return exists().where(mine, newest, *conditions)

    decided = (blocks.c.status == BlockStatus.CANCELLED) & (func.coalesce(blocks.c.cause, "") == Cause.DECIDED)
    desired = t.experiment.c.desired
    active = case(
        (desired == Desired.CANCEL, ExperimentStatus.CANCELLING),
        (desired == Desired.PAUSE, ExperimentStatus.PAUSING),
        else_=ExperimentStatus.RUNNING,
    )
    started = exists().where(mine, blocks.c.attempt > 0)
    return case(
        (has(blocks.c.status.in_(ACTIVE_BLOCK)), active),
        (
            has(blocks.c.status == BlockStatus.QUEUED),
            case((started, ExperimentStatus.WAITING), else_=ExperimentStatus.QUEUED),
        ),
        (has(blocks.c.status == BlockStatus.PAUSED), ExperimentStatus.PAUSED),
        (~has(blocks.c.status != BlockStatus.SUCCEEDED, ~decided), ExperimentStatus.SUCCEEDED),
        (desired == Desired.CANCEL, ExperimentStatus.CANCELLED),
        (has(blocks.c.status == BlockStatus.SUCCEEDED), ExperimentStatus.PARTIAL),
        else_=ExperimentStatus.FAILED,
    )


@dataclass(frozen=True)
class Listing:
    """What a list of experiments is filtered by."""

    status: str | None = None
    owner: str | None = None
    tag: str | None = None
    text: str | None = None
    before: tuple[datetime, str] | None = None
    limit: int = 50


def list_page(session: Session, listing: Listing) -> list[ListedExperiment]:
    """Return a page of experiments, newest first, without their specs."""
    query = select(*columns(ListedExperiment, t.experiment)).where(t.experiment.c.deleted_at.is_(None))
    query = _filtered(query, listing)
    query = query.order_by(t.experiment.c.created_at.desc(), t.experiment.c.id.desc())
    return every(ListedExperiment, session.execute(query.limit(listing.limit)))


def _filtered(query: Select[Any], listing: Listing) -> Select[Any]:
    if listing.status is not None:
        query = query.where(_derived_in_sql() == listing.status)
    if listing.owner is not None:
        query = query.where(or_(t.experiment.c.owner_name == listing.owner, t.experiment.c.owner == listing.owner))
    if listing.text:
        pattern = f"%{_escaped(listing.text)}%"
        query = query.where(
            or_(
                t.experiment.c.name.ilike(pattern, escape="\\"),
                t.experiment.c.id == listing.text,
            )
        )
    if listing.tag is not None:
        # tags are a JSON array of strings: its text holds the quoted tag
        texts = {json.dumps(listing.tag), json.dumps(listing.tag, ensure_ascii=False)}
        column = cast(t.experiment.c.tags, Text)
        query = query.where(or_(*(column.like(f"%{_escaped(text)}%", escape="\\") for text in texts)))
    if listing.before is not None:
        at, last = listing.before
        query = query.where(
            or_(
                t.experiment.c.created_at < at,
                and_(t.experiment.c.created_at == at, t.experiment.c.id < last),
            )
        )
    return query


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def block_states(session: Session, experiment_ids: Collection[str]) -> dict[str, list[BlockState]]:
    """Return the state columns of the blocks of several experiments."""
    query = select(*columns(BlockState, t.block)).where(t.block.c.experiment_id.in_(experiment_ids))
    states: dict[str, list[BlockState]] = {experiment_id: [] for experiment_id in experiment_ids}
    for row in every(BlockState, session.execute(query)):
        states[row.experiment_id].append(row)
    return states


def change(session: Session, experiment_id: str, **values: Any) -> None:
    """Change fields of an experiment and its version."""
    session.execute(
        update(t.experiment)
        .where(t.experiment.c.id == experiment_id)
        .values(version=t.experiment.c.version + 1, **values)
    )


def next_rank(session: Session) -> float:
    """Return a rank behind every other experiment (submission order)."""
    return float(session.execute(select(func.coalesce(func.max(t.experiment.c.rank), 0.0))).scalar_one()) + 1.0


def seeds_of(session: Session, experiment_ids: Sequence[str]) -> dict[str, int]:
    """Return {id: root seed} of the experiments that exist."""
    query = select(t.experiment.c.id, t.experiment.c.seed).where(t.experiment.c.id.in_(experiment_ids))
    return {row.id: int(row.seed) for row in session.execute(query)}


def equal_to(session: Session, owner: str, spec_hash: str) -> str | None:
    """Return the id of the newest experiment of an owner with the same specification, None without one."""
    of = t.experiment.c
    query = select(of.id).where(of.owner == owner, of.spec_hash == spec_hash, of.deleted_at.is_(None))
    found = session.execute(query.order_by(of.created_at.desc(), of.id.desc()).limit(1)).scalar_one_or_none()
    return None if found is None else str(found)


def freeze_placement(session: Session, experiment_id: str, placement: str, needs: Mapping[str, Any]) -> None:
    """Fix placement and needs at the first assignment; later calls change nothing."""
    session.execute(
        update(t.experiment)
        .where(t.experiment.c.id == experiment_id, t.experiment.c.placement_resolved.is_(None))
        .values(placement_resolved=placement, needs=dict(needs))
    )


def start_runs(session: Session, devices: Mapping[str, str], *, resumed: bool, rounds: int) -> None:
    """Note on runs that a new attempt starts at ``rounds``, each on a device, {run id: device_uid}."""
    given = {"devices": json.dumps(dict(devices)), "more": int(resumed), "rounds": rounds}
    session.execute(_START[session.get_bind().dialect.name], given)


def _start_on(pairs: FromClause) -> Update:
    return (
        update(t.run)
        .where(t.run.c.id == pairs.c.key)
        .values(
            device_uid=pairs.c.value,
            resumed=t.run.c.resumed + bindparam("more", type_=Integer),
            rounds_done=bindparam("rounds"),
            stalled=False,
        )
    )


_START = {name: _start_on(pairs) for name, pairs in pairs_in("devices").items()}


def change_run(session: Session, run_id: str, **values: Any) -> None:
    """Change fields of a run that are not its status."""
    update_one(session, t.run, run_id, values)


def note_round(session: Session, env_steps: Mapping[str, float], rounds_done: int) -> None:
    """Note how many rounds runs have done by now, and their steps, {run id: steps}."""
    steps = {run_id: repr(float(number)) for run_id, number in env_steps.items()}
    given = {"env_steps": json.dumps(steps), "rounds_done": rounds_done}
    session.execute(_NOTE_ROUND[session.get_bind().dialect.name], given)


def _note_round_of(pairs: FromClause) -> Update:
    done = {"rounds_done": bindparam("rounds_done"), "stalled": False}
    return update(t.run).where(t.run.c.id == pairs.c.key).values(env_steps=cast(pairs.c.value, Float), **done)


_NOTE_ROUND = {name: _note_round_of(pairs) for name, pairs in pairs_in("env_steps").items()}


def last_record(session: Session, block: BlockRow) -> dict[str, Any]:
    """Return how a run of the block was computed that started last before this one and may count; {} without one."""
    found = session.execute(_LAST_RECORD, {"experiment_id": block.experiment_id, "block_id": block.id})
    return dict(found.scalar_one_or_none() or {})


_LAST_RECORD = (
    select(t.run.c.record)
    .join(t.block, t.block.c.id == t.run.c.block_id)
    .where(
        t.block.c.experiment_id == bindparam("experiment_id"),
        t.block.c.id != bindparam("block_id"),
        t.block.c.started_at.is_not(None),
        t.block.c.status.in_((BlockStatus.RUNNING, BlockStatus.STOPPING, BlockStatus.PAUSED, BlockStatus.SUCCEEDED)),
    )
    .order_by(t.block.c.started_at.desc(), t.run.c.no)
    .limit(1)
)


def may_be_due(session: Session) -> list[str]:
    """Return the experiments whose end or next look may be due and is not recorded yet, oldest first.

    Those are the unfinished ones without an open block, or with planned looks; each is looked at again.
    """
    # a condition on deleted_at would let SQLite take the index of the listing, which holds every experiment
    return [row.id for row in session.execute(_MAY_BE_DUE) if row.deleted_at is None]


_OPEN_BLOCK = select(t.block.c.id).where(
    t.block.c.experiment_id == t.experiment.c.id, t.is_among(t.block.c.status, sorted(OPEN_BLOCK))
)
_IS_PLANNED = t.experiment.c.analysis["looks"]["mode"].as_string() == "planned"
_MAY_BE_DUE = (
    select(t.experiment.c.id, t.experiment.c.deleted_at)
    .where(t.experiment.c.finished_at.is_(None), or_(~_OPEN_BLOCK.exists(), _IS_PLANNED))
    .order_by(t.experiment.c.created_at, t.experiment.c.id)
)


def add_device_seconds(session: Session, assignment_id: str, seconds: float) -> None:
    """Share the device time of an assignment equally among its runs."""
    session.execute(_ADD_SECONDS, {"assignment_id": assignment_id, "seconds": seconds})


_MINE = t.assignment_run.c.assignment_id == bindparam("assignment_id")
_PART = bindparam("seconds", type_=Float) / select(func.count()).where(_MINE).scalar_subquery()
_ADD_SECONDS = (
    update(t.run)
    .where(t.run.c.id.in_(select(t.assignment_run.c.run_id).where(_MINE)))
    .values(device_seconds=t.run.c.device_seconds + _PART)
)


def mark_stalled(session: Session, run_ids: Sequence[str], stalled: bool) -> int:
    """Set the flag ``stalled`` of runs; return how many changed."""
    changed = session.execute(
        update(t.run)
        .where(t.run.c.id.in_(run_ids), t.run.c.stalled.is_(not stalled))
        .values(stalled=stalled)
        .returning(t.run.c.id)
    )
    return len(changed.all())


def edge_rank(session: Session, rank: float | None, *, below: bool, skip: str = "") -> float:
    """Return the next rank below (or above) ``rank``; without ``rank`` the lowest (or highest) of all."""
    column = t.experiment.c.rank
    query = select(func.max(column) if below and rank is not None else func.min(column))
    if rank is not None:
        query = (
            select(func.max(column)).where(column < rank) if below else select(func.min(column)).where(column > rank)
        )
    found = session.execute(query.where(t.experiment.c.id != skip)).scalar_one_or_none()
    if found is not None:
        return float(found)
    return (rank or 0.0) - 2.0 if below else (rank or 0.0) + 2.0
