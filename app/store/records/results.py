"""Rounds, episodes and checkpoints as workers hand them in; truncation is by attempt ranges.

A round of attempt a of a run counts while ``from_round <= round < until_round`` of that attempt
(table run_attempt), so a resume supersedes rows without touching them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any

from sqlalchemy import CompoundSelect, Table, and_, bindparam, case, func, insert, or_, select, union_all, update
from sqlalchemy.orm import Session

from app.store.database.engine import Store, utc
from app.store.database.prepared import insert_rows
from app.store.rows.experiments import RunOfArm
from app.store.rows.records import ArtifactRow, EpisodeSummary, EvalEpisodeRow, TrainingEpisode
from app.store.rows.selecting import columns, every, one
from app.store.schema import tables as t
from lockstep.nonfinite import jsonable


def current_rounds(table: Any) -> Any:
    """Return the join condition under which rows of a table with (run_no, attempt, round) count."""
    return and_(
        t.run_attempt.c.run_no == table.c.run_no,
        t.run_attempt.c.attempt == table.c.attempt,
        table.c.round >= t.run_attempt.c.from_round,
        or_(t.run_attempt.c.until_round.is_(None), table.c.round < t.run_attempt.c.until_round),
    )


def round_digests(session: Session, block_id: str, attempt: int, round_index: int) -> dict[str, str]:
    """Return {run id: digest} of the runs of a block that have handed in a round in this attempt."""
    given = {"block_id": block_id, "attempt": attempt, "round": round_index}
    return {row.id: row.digest for row in session.execute(_DIGESTS, given)}


_DIGESTS = (
    select(t.run.c.id, t.round_result.c.digest)
    .join(t.round_result, t.round_result.c.run_no == t.run.c.no)
    .where(
        t.run.c.block_id == bindparam("block_id"),
        t.round_result.c.attempt == bindparam("attempt"),
        t.round_result.c.round == bindparam("round"),
    )
)


def insert_rounds(session: Session, now: float, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the results of one round of some runs."""
    insert_rows(session, t.round_result, [{**row, "received_at": utc(now)} for row in rows])


def resumes(session: Session, experiment_id: str) -> dict[int, tuple[int, ...]]:
    """Return {run number: rounds at which a later attempt took it up from a checkpoint}, where any of it counts."""
    of = t.run_attempt.c
    query = (
        select(of.run_no, of.from_round)
        .join(t.run, t.run.c.no == of.run_no)
        .where(t.run.c.experiment_id == experiment_id, of.attempt > 1, of.from_round > 0)
        .where(or_(of.until_round.is_(None), of.until_round > of.from_round))
        .order_by(of.run_no, of.attempt)
    )
    numbers: dict[int, tuple[int, ...]] = {}
    for row in session.execute(query):
        numbers[row.run_no] = (*numbers.get(row.run_no, ()), row.from_round)
    return numbers


@dataclass(frozen=True)
class EpisodesOf:
    """Episodes of one attempt of a run on a device, as its worker told them."""

    run: RunOfArm
    attempt: int
    device: str
    rows: Sequence[Mapping[str, Any]]


def insert_episodes(session: Session, now: float, told: Iterable[EpisodesOf]) -> None:
    """Insert training episodes of some runs."""
    values = [_episode_row(row, of.run, of.attempt, of.device, utc(now)) for of in told for row in of.rows]
    insert_rows(session, t.episode, values)


def insert_eval_episodes(session: Session, now: float, told: Iterable[EpisodesOf]) -> None:
    """Insert evaluation episodes of some runs."""
    values = []
    for of, row in chain.from_iterable(((of, row) for row in of.rows) for of in told):
        base = _episode_row(row, of.run, of.attempt, of.device, utc(now))
        extra = {
            "mode": str(row.get("mode", "greedy")),
            "split": str(row.get("split", "test")),
            "test_accuracy": _finite(row.get("test_accuracy")),
        }
        values.append({**base, **extra})
    insert_rows(session, t.eval_episode, values)


def _episode_row(row: Mapping[str, Any], run: RunOfArm, attempt: int, device: str, at: datetime) -> dict[str, Any]:
    columns = {name: _finite(row.get(name)) for name in t.EPISODE_FIELDS}
    known = {*t.EPISODE_FIELDS, "mode", "split", "test_accuracy"}
    rest = {key: value for key, value in row.items() if key not in known}
    marked = jsonable(dict(row)).get("nf")
    values = jsonable(rest)
    if marked:
        values["nf"] = marked
    return {
        **columns,
        "experiment_id": run.experiment_id,
        "block_id": run.block_id,
        "replicate": run.replicate,
        "run_no": run.no,
        "run_id": run.id,
        "attempt": attempt,
        "group_id": run.label,
        "reward_mode": run.reward_mode,
        "device": device,
        "started_at": at,
        "values": values,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def evaluation_episodes(session: Session, experiment_id: str) -> list[EvalEpisodeRow]:
    """Return the evaluation episodes that count, by run, round and environment."""
    table: Table = t.eval_episode
    query = (
        select(*columns(EvalEpisodeRow, table))
        .join(t.run_attempt, current_rounds(table))
        .where(table.c.experiment_id == experiment_id)
        .order_by(table.c.run_no, table.c.round, table.c.env_id, table.c.id)
    )
    return every(EvalEpisodeRow, session.execute(query))


def last_evaluation(session: Session, run_no: int, episode_idx: int) -> Mapping[str, Any] | None:
    """Return what a run's last evaluation said of an episode beside its columns, greedy before sampled."""
    table: Table = t.eval_episode
    query = (
        select(table.c["values"])
        .join(t.run_attempt, current_rounds(table))
        .where(table.c.run_no == run_no, table.c.episode_idx == episode_idx)
        .order_by(table.c.round.desc(), case((table.c.mode == "greedy", 0), else_=1), table.c.id.desc())
    )
    found: Mapping[str, Any] | None = session.execute(query.limit(1)).scalar_one_or_none()
    return found


def insert_artifact(store: Store, session: Session, now: float, values: Mapping[str, Any]) -> str:
    """Insert an artifact row; return its id."""
    artifact_id = store.new_id("art")
    session.execute(insert(t.artifact).values(**values, id=artifact_id, created_at=utc(now)))
    return artifact_id


def artifacts(session: Session, experiment_id: str, *, kind: str | None = None) -> list[ArtifactRow]:
    """Return committed artifacts of an experiment, oldest first."""
    query = select(*_ARTIFACT).where(t.artifact.c.experiment_id == experiment_id, t.artifact.c.committed)
    if kind is not None:
        query = query.where(t.artifact.c.kind == kind)
    return every(ArtifactRow, session.execute(query.order_by(t.artifact.c.created_at, t.artifact.c.id)))


_ARTIFACT = columns(ArtifactRow, t.artifact)


def artifact(session: Session, artifact_id: str) -> ArtifactRow | None:
    """Return an artifact by id."""
    return one(ArtifactRow, session.execute(select(*_ARTIFACT).where(t.artifact.c.id == artifact_id)))


def uploaded(session: Session, run_id: str, attempt: int, next_round: int, sha256: str) -> ArtifactRow | None:
    """Return the uploaded checkpoint of a run that a commit names."""
    query = select(*_ARTIFACT).where(
        t.artifact.c.run_id == run_id,
        t.artifact.c.kind == "checkpoint",
        t.artifact.c.attempt == attempt,
        t.artifact.c.next_round == next_round,
        t.artifact.c.sha256 == sha256,
    )
    return one(ArtifactRow, session.execute(query.limit(1)))


def commit_artifacts(session: Session, artifact_ids: Sequence[str]) -> None:
    """Make uploaded files count."""
    session.execute(update(t.artifact).where(t.artifact.c.id.in_(artifact_ids)).values(committed=True))


def committed_checkpoints(session: Session, run_ids: Sequence[str]) -> dict[str, dict[int, ArtifactRow]]:
    """Return {run: {next_round: newest committed checkpoint}}."""
    query = (
        select(*_ARTIFACT)
        .where(t.artifact.c.run_id.in_(run_ids), t.artifact.c.kind == "checkpoint", t.artifact.c.committed)
        .order_by(t.artifact.c.created_at, t.artifact.c.id)
    )
    found: dict[str, dict[int, ArtifactRow]] = {run_id: {} for run_id in run_ids}
    for row in every(ArtifactRow, session.execute(query)):
        if row.run_id is not None and row.next_round is not None:
            found[row.run_id][row.next_round] = row
    return found


def superseded_checkpoints(session: Session, run_id: str, keep: int, final_round: int) -> list[ArtifactRow]:
    """Delete the rows of checkpoints older than the last ``keep`` and not final; return them."""
    query = select(*_ARTIFACT).where(
        t.artifact.c.run_id == run_id, t.artifact.c.kind == "checkpoint", t.artifact.c.committed
    )
    newest_first = query.order_by(t.artifact.c.next_round.desc(), t.artifact.c.created_at.desc())
    rows = every(ArtifactRow, session.execute(newest_first))
    rounds_kept = sorted({row.next_round for row in rows if row.next_round is not None}, reverse=True)[:keep]
    old = [row for row in rows if row.next_round not in rounds_kept and row.next_round != final_round]
    if old:
        session.execute(t.artifact.delete().where(t.artifact.c.id.in_([row.id for row in old])))
    return old


def sha_in_use(session: Session, sha256: str) -> bool:
    """Return whether any artifact row still names a stored object."""
    query = select(func.count()).select_from(t.artifact).where(t.artifact.c.sha256 == sha256)
    return bool(session.execute(query).scalar_one())


def last_episodes(
    session: Session, run_nos: Sequence[int], up_to_round: int, count: int
) -> dict[int, list[TrainingEpisode]]:
    """Return by run scores and reward of its newest episodes that count, up to a round, newest first."""
    given = {f"run_no_{index}": run_no for index, run_no in enumerate(run_nos)}
    found: dict[int, list[TrainingEpisode]] = {run_no: [] for run_no in run_nos}
    if not run_nos:
        return found
    rows = session.execute(_last_episodes(len(run_nos)), {**given, "up_to": up_to_round, "count": count})
    for row in every(TrainingEpisode, rows):
        found[row.run_no].append(row)
    return found


@cache
def _last_episodes(num_runs: int) -> CompoundSelect[Any]:
    """Return a query that reads each run from the end of the index: in the same time however many came before."""
    each = [_LAST_EPISODES.where(t.episode.c.run_no == bindparam(f"run_no_{i}")).subquery() for i in range(num_runs)]
    return union_all(*(select(one_run) for one_run in each))


_LAST_EPISODES = (
    select(
        t.episode.c.run_no,
        t.episode.c.final_accuracy,
        t.episode.c.committed_accuracy,
        t.episode.c.final_loss,
        t.episode.c.param_ratio,
        t.episode.c.episode_reward,
        t.episode.c["values"].label("further"),
    )
    .join(t.run_attempt, current_rounds(t.episode))
    .where(t.episode.c.round <= bindparam("up_to"))
    .order_by(t.episode.c.round.desc(), t.episode.c.env_id.desc(), t.episode.c.id.desc())
    .limit(bindparam("count"))
)


def file_of_runs(session: Session, run_ids: Sequence[str], sha256: str) -> bool:
    """Return whether a committed file of some runs has this hash."""
    query = select(t.artifact.c.id).where(
        t.artifact.c.run_id.in_(run_ids), t.artifact.c.sha256 == sha256, t.artifact.c.committed
    )
    return session.execute(query.limit(1)).first() is not None


def withdraw_file(session: Session, sha256: str) -> None:
    """A stored object is damaged or gone: no checkpoint counts on it any more."""
    session.execute(
        update(t.artifact)
        .where(t.artifact.c.sha256 == sha256, t.artifact.c.kind == "checkpoint")
        .values(committed=False)
    )


def episode_summaries(session: Session, experiment_id: str) -> list[EpisodeSummary]:
    """Return per run: episodes, mean accuracy of its last round, best accuracy, mean reward."""
    rows = (
        select(t.episode)
        .join(t.run_attempt, current_rounds(t.episode))
        .where(t.episode.c.experiment_id == experiment_id)
        .subquery()
    )
    last = select(rows.c.run_no, func.max(rows.c.round).label("round")).group_by(rows.c.run_no).subquery()
    final = case((rows.c.round == last.c.round, rows.c.final_accuracy), else_=None)
    query = (
        select(
            rows.c.run_no,
            func.count().label("episodes"),
            func.avg(final).label("final_accuracy"),
            func.max(rows.c.best_accuracy).label("best_accuracy"),
            func.avg(rows.c.episode_reward).label("mean_reward"),
        )
        .join(last, last.c.run_no == rows.c.run_no)
        .group_by(rows.c.run_no)
    )
    return every(EpisodeSummary, session.execute(query))
