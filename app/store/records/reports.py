"""Reports: immutable and versioned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, select
from sqlalchemy.orm import Session

from app.store.database.engine import utc
from app.store.rows.records import Headline, ReportRow, ReportVersion
from app.store.rows.selecting import columns, every, one
from app.store.schema import tables as t

#: How the trigger of a report made at a registered look begins.
_LOOK = "look "


def insert_report(
    session: Session, now: float, experiment_id: str, content: Mapping[str, Any], scores: str, trigger: str
) -> int:
    """Append a report; return its version, counted from 1."""
    newest = select(func.coalesce(func.max(t.report.c.version), 0)).where(t.report.c.experiment_id == experiment_id)
    version = int(session.execute(newest).scalar_one()) + 1
    session.execute(
        insert(t.report).values(
            experiment_id=experiment_id,
            version=version,
            content=dict(content),
            scores_csv=scores,
            scores_sha256=str(content.get("scores_sha256", "")),
            trigger=trigger,
            created_at=utc(now),
        )
    )
    return version


def get(session: Session, experiment_id: str, version: int | None = None) -> ReportRow | None:
    """Return a report: the version asked for, or the newest."""
    query = select(*columns(ReportRow, t.report)).where(t.report.c.experiment_id == experiment_id)
    if version is not None:
        query = query.where(t.report.c.version == version)
    return one(ReportRow, session.execute(query.order_by(t.report.c.version.desc()).limit(1)))


def headlines(session: Session, experiment_ids: Sequence[str]) -> list[Headline]:
    """Return what the newest report of each experiment concludes; of an experiment without one nothing."""
    content = t.report.c.content
    newest = (
        select(t.report.c.experiment_id, func.max(t.report.c.version).label("version"))
        .where(t.report.c.experiment_id.in_(experiment_ids))
        .group_by(t.report.c.experiment_id)
        .subquery()
    )
    query = select(
        t.report.c.experiment_id,
        content["verdict"].label("verdict"),
        content["comparisons"].label("comparisons"),
        content["registration"].label("registration"),
    ).join(newest, and_(*(t.report.c[name] == newest.c[name] for name in ("experiment_id", "version"))))
    return every(Headline, session.execute(query))


def versions(session: Session, experiment_id: str) -> list[ReportVersion]:
    """Return when and why each report was made, of all reports of an experiment."""
    query = select(*columns(ReportVersion, t.report)).where(t.report.c.experiment_id == experiment_id)
    return every(ReportVersion, session.execute(query.order_by(t.report.c.version)))


def looks_taken(session: Session, experiment_id: str) -> set[int]:
    """Return the numbers of the registered looks that have been taken."""
    query = select(t.report.c.trigger).where(_is_look(experiment_id))
    return {int(trigger.removeprefix(_LOOK)) for trigger in session.execute(query).scalars()}


def looks_seen(session: Session, experiment_id: str) -> list[list[int]]:
    """Return the replicates that entered each registered look, in order: later blocks never change them."""
    query = select(t.report.c.content["scores"].label("scores")).where(_is_look(experiment_id))
    rows = session.execute(query.order_by(t.report.c.version)).all()
    return [sorted({int(score["replicate"]) for score in row.scores}) for row in rows]


def _is_look(experiment_id: str) -> ColumnElement[bool]:
    return and_(t.report.c.experiment_id == experiment_id, t.report.c.trigger.startswith(_LOOK))
