"""What experiments hold of the disk and of the database, of one owner or of all; deleted ones do not count."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app.store.schema import tables as t


def file_bytes(session: Session, owner: str | None) -> int:
    """Return the bytes of the stored files that experiments name, each content once.

    Args:
        session: reads.
        owner: whose experiments; None: of all.
    """
    contents = (
        select(t.artifact.c.sha256, func.max(t.artifact.c.size_bytes).label("size"))
        .join(t.experiment, t.experiment.c.id == t.artifact.c.experiment_id)
        .where(*_counts(owner))
        .group_by(t.artifact.c.sha256)
        .subquery()
    )
    return int(session.execute(select(func.coalesce(func.sum(contents.c.size), 0))).scalar_one())


def num_points(session: Session, owner: str | None) -> int:
    """Return how many points runs have handed in, by the numbers of their last ones, those of lost attempts too.

    Args:
        session: reads.
        owner: whose experiments; None: of all.
    """
    total = (
        select(func.coalesce(func.sum(t.run_attempt.c.last_seq), 0))
        .join(t.run, t.run.c.no == t.run_attempt.c.run_no)
        .join(t.experiment, t.experiment.c.id == t.run.c.experiment_id)
        .where(*_counts(owner))
    )
    return int(session.execute(total).scalar_one())


def _counts(owner: str | None) -> list[ColumnElement[bool]]:
    present = t.experiment.c.deleted_at.is_(None)
    return [present] if owner is None else [present, t.experiment.c.owner == owner]
