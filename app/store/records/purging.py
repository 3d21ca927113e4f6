"""Taking away for good what belongs to deleted experiments: in pieces, so that no transaction is long."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.store.database.engine import utc
from app.store.schema import tables as t


def deleted_before(session: Session, before: float, limit: int) -> list[str]:
    """Return experiments that were deleted before an instant, the oldest first."""
    gone = (t.experiment.c.deleted_at.is_not(None), t.experiment.c.deleted_at < utc(before))
    query = select(t.experiment.c.id).where(*gone).order_by(t.experiment.c.deleted_at).limit(limit)
    return list(session.execute(query).scalars())


def numbers_of_runs(session: Session, experiment_id: str) -> list[int]:
    """Return the numbers of the runs of an experiment."""
    return list(session.execute(select(t.run.c.no).where(t.run.c.experiment_id == experiment_id)).scalars())


def forget_run(session: Session, run_no: int) -> None:
    """Delete what a run has handed in: its points, which no key binds to it, and its episodes, which are many."""
    for table in (t.point, t.episode, t.eval_episode):
        session.execute(delete(table).where(table.c.run_no == run_no))


def forget(session: Session, experiment_id: str) -> None:
    """Delete an experiment with everything that a key binds to it."""
    session.execute(delete(t.experiment).where(t.experiment.c.id == experiment_id))


def named(session: Session, hashes: Collection[str]) -> set[str]:
    """Return those of some hashes of files that a row names."""
    query = select(t.artifact.c.sha256).where(t.artifact.c.sha256.in_(hashes)).distinct()
    return set(session.execute(query).scalars())
